/* Requests that only ask: PORT_INFO_GET, POOLS_INFO_GET, PORT_HDR_GET and PORT_HDR_SET. */
#include "port.h"

static int info(const char *name, struct nmreq_port_info_get *got) { return ask(NETMAP_REQ_PORT_INFO_GET, name, got); }

static void port_info(void) {
    const char *names[] = {"i{1", "vale2:i", "nic"};
    for (size_t n = 0; n < 3; n++) {
        struct nmreq_port_info_get before = {0}, after = {0};
        SUCCEEDS(info(names[n], &before), "of a port that is not open");
        struct port port = need(names[n]);
        SUCCEEDS(info(names[n], &after), "of a port that is open");
        const struct nmreq_register *reg = &port.reg;
        EQUAL(after.nr_memsize, reg->nr_memsize, "the size of the memory is that of the registration");
        EQUAL(after.nr_mem_id, reg->nr_mem_id, "the number of the memory, too");
        CHECK(after.nr_tx_slots == reg->nr_tx_slots && after.nr_rx_slots == reg->nr_rx_slots, "the slots, too");
        CHECK(after.nr_tx_rings == reg->nr_tx_rings && after.nr_rx_rings == reg->nr_rx_rings, "the rings, too");
        CHECK(after.nr_host_tx_rings == reg->nr_host_tx_rings && after.nr_host_rx_rings == reg->nr_host_rx_rings,
              "the host rings, too");
        CHECK(before.nr_memsize > 0 && before.nr_mem_id > 0, "a port that is not open would have a memory");
        CHECK(before.nr_tx_slots == reg->nr_tx_slots && before.nr_rx_slots == reg->nr_rx_slots, "and the same slots");
        CHECK(before.nr_tx_rings == reg->nr_tx_rings && before.nr_rx_rings == reg->nr_rx_rings, "and the same rings");
        struct nmreq_port_info_get bound = {0};
        SUCCEEDS(request(port.fd, NETMAP_REQ_PORT_INFO_GET, "i{2", &bound), "a bound descriptor can ask, about any port");
        SUCCEEDS(tx_sync(port.fd), "and stays bound");
        port_close(&port);
    }
    struct nmreq_port_info_get got = {0};
    int fd = device();
    SUCCEEDS(request(fd, NETMAP_REQ_PORT_INFO_GET, "vale2:i", &got), "an unbound descriptor can ask");
    GIVES(tx_sync(fd), ENXIO, "and stays unbound");
    struct nmreq_vale_list list = {0};
    GIVES(ask(NETMAP_REQ_VALE_LIST, "vale2:i", &list), ENOENT, "to ask about a VALE port does not make it");
    got = (struct nmreq_port_info_get){0};
    GIVES(info("nothing", &got), ENXIO, "of a port that does not exist: ENXIO");
    CHECK(info("nic", &got) == 0 && got.nr_host_tx_rings >= 1 && got.nr_host_rx_rings >= 1, "host rings of a native port");
}

static void memory_info(void) {
    struct nmreq_port_info_get got = {0};
    SUCCEEDS(info("", &got), "without a name: of the memory that ports share");
    CHECK(got.nr_memsize > 0, "its size");
    EQUAL(got.nr_mem_id, 1, "its number");
    struct port port = need("nic");
    CHECK(port.reg.nr_memsize == got.nr_memsize && port.reg.nr_mem_id == 1, "native ports lie in it");
    port_close(&port);
    port = need("vale2:i");
    got = (struct nmreq_port_info_get){.nr_mem_id = port.reg.nr_mem_id};
    SUCCEEDS(info("", &got), "of another memory, by its number");
    EQUAL(got.nr_memsize, port.reg.nr_memsize, "its size");
    got = (struct nmreq_port_info_get){.nr_mem_id = 999};
    CHECK(info("", &got) == EINVAL, "of a memory that does not exist: EINVAL");
}

static void pools(void) {
    const char *names[] = {"i{1", "vale2:i", "nic"};
    for (size_t n = 0; n < 3; n++) {
        struct nmreq_pools_info got = {0};
        struct port port = need(names[n]);
        SUCCEEDS(ask(NETMAP_REQ_POOLS_INFO_GET, names[n], &got), "the pools of a port's memory");
        EQUAL(got.nr_memsize, port.reg.nr_memsize, "the size of the memory is that of the registration");
        EQUAL(got.nr_mem_id, port.reg.nr_mem_id, "the number of the memory, too");
        EQUAL(got.nr_if_pool_offset, 0, "netmap_ifs come first");
        CHECK(got.nr_if_pool_objtotal > 0 && got.nr_if_pool_objsize >= sizeof(struct netmap_if), "there are some");
        uint64_t end = (uint64_t)got.nr_if_pool_objtotal * got.nr_if_pool_objsize;
        CHECK(got.nr_ring_pool_offset >= end, "rings come after them");
        CHECK(got.nr_ring_pool_objtotal > 0 && got.nr_ring_pool_objsize >= sizeof(struct netmap_ring), "there are some");
        end = got.nr_ring_pool_offset + (uint64_t)got.nr_ring_pool_objtotal * got.nr_ring_pool_objsize;
        CHECK(got.nr_buf_pool_offset >= end, "buffers come after them");
        struct netmap_ring *ring = tx_ring(&port, 0);
        EQUAL(got.nr_buf_pool_objsize, ring->nr_buf_size, "they have the size that rings tell");
        EQUAL((char *)ring + ring->buf_ofs - port.memory, got.nr_buf_pool_offset, "and lie where rings tell");
        end = got.nr_buf_pool_offset + (uint64_t)got.nr_buf_pool_objtotal * got.nr_buf_pool_objsize;
        CHECK(end <= got.nr_memsize, "all of them lie in the memory");
        bool inside = true;
        for (uint32_t slot = 0; slot < ring->num_slots; slot++)
            inside &= ring->slot[slot].buf_idx < got.nr_buf_pool_objtotal;
        CHECK(inside, "those of slots are among them");
        CHECK(port.reg.nr_offset < got.nr_ring_pool_offset, "the netmap_if is among the netmap_ifs");
        port_close(&port);
    }
    struct nmreq_pools_info got = {0};
    SUCCEEDS(ask(NETMAP_REQ_POOLS_INFO_GET, "i{2", &got), "of a pipe that is not open");
    got.nr_mem_id = 0;
    GIVES(ask(NETMAP_REQ_POOLS_INFO_GET, "nothing", &got), ENXIO, "of a port that does not exist: ENXIO");
}

static int set_header(const char *name, uint32_t length) {
    struct nmreq_port_hdr body = {.nr_hdr_len = length};
    return ask(NETMAP_REQ_PORT_HDR_SET, name, &body);
}

static int64_t get_header(const char *name) {
    struct nmreq_port_hdr body = {.nr_hdr_len = 77};
    int error = ask(NETMAP_REQ_PORT_HDR_GET, name, &body);
    return error ? -(int64_t)error : (int64_t)body.nr_hdr_len;
}

static void headers(void) {
    struct port port = need("vale2:h"), pipe = need("h{1");
    EQUAL(get_header("vale2:h"), 0, "PORT_HDR_GET of a VALE port");
    EQUAL(get_header("h{1"), 0, "of a pipe");
    EQUAL(get_header("nic"), 0, "of a native port");
    CHECK(get_header("nothing") == -ENXIO, "PORT_HDR_GET of a port that does not exist: ENXIO");
    SUCCEEDS(set_header("vale2:h", 0), "PORT_HDR_SET to none, which it has anyway");
    CHECK(set_header("vale2:h", 12) == 0 && get_header("vale2:h") == 12, "PORT_HDR_SET to 12, and GET returns it");
    CHECK(try_open("vale2:h", NR_REG_ALL_NIC, 0) == EIO, "a port with headers, without NR_ACCEPT_VNET_HDR: EIO");
    CHECK(set_header("vale2:h", 10) == 0 && get_header("vale2:h") == 10, "PORT_HDR_SET to 10, and GET returns it");
    SUCCEEDS(try_open("vale2:h", NR_REG_ALL_NIC, NR_ACCEPT_VNET_HDR), "with NR_ACCEPT_VNET_HDR it is granted");
    CHECK(set_header("vale2:h", 11) == EINVAL, "PORT_HDR_SET to a length that no header has: EINVAL");
    EQUAL(set_header("vale2:h", 0), 0, "PORT_HDR_SET to none again");
    CHECK(set_header("vale2:nothing", 12) == ENXIO, "PORT_HDR_SET of a port that does not exist: ENXIO");
    CHECK(set_header("h{1", 12) == ENXIO, "PORT_HDR_SET of a pipe: ENXIO");
    port_close(&port);
    port_close(&pipe);
}

TOPICS("information", T(port_info), T(memory_info), T(pools), T(headers))
