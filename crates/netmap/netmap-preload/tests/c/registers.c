/* NETMAP_REQ_REGISTER: what it grants, and what it refuses. The server has a native port `nic` with two rings each way. */
#include "port.h"

static struct nmreq_register all_nic(void) { return (struct nmreq_register){.nr_mode = NR_REG_ALL_NIC}; }

/* A descriptor without a port. */
static void unbound(void) {
    int fd = device();
    GIVES(tx_sync(fd), ENXIO, "NIOCTXSYNC without a port");
    GIVES(rx_sync(fd), ENXIO, "NIOCRXSYNC without a port");
    errno = 0;
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL, "mmap without a port: EINVAL");
    EQUAL(poll_port(fd, POLLIN, 0), POLLERR, "poll without a port: POLLERR, asked for POLLIN");
    EQUAL(poll_port(fd, POLLOUT, 0), POLLERR, "POLLERR, asked for POLLOUT");
    EQUAL(poll_port(fd, 0, 0), POLLERR, "POLLERR, asked for nothing");
    EQUAL(poll_port(fd, POLLIN, -1), POLLERR, "POLLERR at once, without a limit");
}

static int with_header(struct nmreq_header request) {
    int fd = device(), error = nm_ioctl(fd, NIOCCTRL, &request);
    close(fd);
    return error;
}

static void headers(void) {
    struct nmreq_register reg = all_nic();
    struct nmreq_header good = header(NETMAP_REQ_REGISTER, "h{1", &reg), bad;
    for (uint16_t version = NETMAP_MIN_API; version <= NETMAP_MAX_API; version++) {
        bad = good, bad.nr_version = version, reg = all_nic();
        SUCCEEDS(with_header(bad), "an API version in the range");
    }
    reg = all_nic();
    const uint16_t versions[] = {0, 11, 12, 13, 16, 0xffff};
    for (size_t n = 0; n < sizeof versions / sizeof *versions; n++) {
        bad = good, bad.nr_version = versions[n];
        GIVES(with_header(bad), EINVAL, "another API version: EINVAL");
    }
    const uint16_t types[] = {0, 16, 99, 0xffff};
    for (size_t n = 0; n < sizeof types / sizeof *types; n++) {
        bad = good, bad.nr_reqtype = types[n];
        GIVES(with_header(bad), EINVAL, "a request that does not exist: EINVAL");
    }
    bad = good, bad.nr_reserved = 1;
    GIVES(with_header(bad), EINVAL, "nr_reserved that is not 0: EINVAL");
    for (uint16_t type = NETMAP_REQ_REGISTER; type <= NETMAP_REQ_SYNC_KLOOP_START; type++) {
        if (type != NETMAP_REQ_VALE_DELIF)
            GIVES(ask(type, "h{1", NULL), EINVAL, "no body where one belongs: EINVAL");
    }
    uint64_t body[8] = {0};
    const uint16_t bodiless[] = {NETMAP_REQ_VALE_DELIF, NETMAP_REQ_SYNC_KLOOP_STOP, NETMAP_REQ_CSB_ENABLE};
    for (size_t n = 0; n < sizeof bodiless / sizeof *bodiless; n++)
        CHECK(ask(bodiless[n], "nothing", body) == EINVAL, "a body where none belongs: EINVAL");
    int fd = device(), error = nm_ioctl(fd, NIOCCTRL, NULL);
    CHECK(error == EINVAL || error == EFAULT, "no header: EINVAL or EFAULT");
    CHECK(nm_ioctl(fd, NIOCCONFIG, body) != 0, "NIOCCONFIG, which is for switches of other kernel modules");
    reg = all_nic();
    memset((char *)&reg + PADDING, 0xff, sizeof(uint32_t));
    CHECK(with_header(good) == 0, "the padding of struct nmreq_register may have any value");
}

/* What the reply and the memory say of a port. */
static void granted(void) {
    struct port port = need("g{1");
    const struct nmreq_register *reg = &port.reg;
    CHECK(reg->nr_memsize > 0 && reg->nr_offset < reg->nr_memsize, "the netmap_if lies in the memory");
    CHECK(reg->nr_tx_rings == 1 && reg->nr_rx_rings == 1, "a pipe has one ring each way");
    CHECK(reg->nr_tx_slots >= 2 && reg->nr_rx_slots >= 2, "rings have slots");
    EQUAL(reg->nr_mode, NR_REG_ALL_NIC, "the mode is returned");
    EQUAL(reg->nr_flags, 0, "the flags are returned");
    CHECK(reg->nr_mem_id != 0, "the memory has a number");
    EQUAL(reg->nr_extra_bufs, 0, "no extra buffers unless asked for");
    const struct netmap_if *nifp = port.nifp;
    CHECK(strcmp(nifp->ni_name, "g{1") == 0, "ni_name");
    EQUAL(nifp->ni_version, NETMAP_API, "ni_version");
    CHECK(nifp->ni_tx_rings == 1 && nifp->ni_rx_rings == 1, "ni_tx_rings and ni_rx_rings");
    CHECK(nifp->ni_host_tx_rings >= 1 && nifp->ni_host_rx_rings >= 1, "there is a place for a host ring each way");
    EQUAL(nifp->ni_bufs_head, 0, "ni_bufs_head without extra buffers");
    CHECK(ring_ofs(&port, 0) && ring_ofs(&port, rx_number(&port, 0)), "both rings are there");
    for (int dir = 0; dir < 2; dir++) {
        struct netmap_ring *ring = dir ? rx_ring(&port, 0) : tx_ring(&port, 0);
        EQUAL(ring->dir, dir, "a ring's direction");
        EQUAL(ring->ringid, 0, "a ring's number");
        EQUAL(ring->num_slots, dir ? reg->nr_rx_slots : reg->nr_tx_slots, "a ring's slots");
        EQUAL(ring->nr_buf_size, 2048, "the size of a buffer");
        CHECK(ring->head == 0 && ring->cur == 0, "head and cur are 0");
        EQUAL(ring->tail, dir ? 0 : ring->num_slots - 1, "a Tx ring is all the program's but a slot, an Rx ring is empty");
        EQUAL(ring->flags, 0, "no flags are set");
        EQUAL(ring->offset_mask, 0, "no offsets unless asked for");
    }
    uint8_t *seen = calloc(1, 1 << 20);
    bool unique = true;
    for (uint32_t slot = 0; slot < reg->nr_tx_slots; slot++) {
        uint32_t index = tx_ring(&port, 0)->slot[slot].buf_idx;
        unique &= index >= 2 && index < 1 << 20 && !seen[index]++;
    }
    CHECK(unique, "each Tx slot has a buffer of its own, and none of the first two");
    REQUIRE(rx_sync(port.fd) == 0);
    GIVES(request(port.fd, NETMAP_REQ_REGISTER, "g{1", &port.reg), EBUSY, "a second registration on a descriptor: EBUSY");
    GIVES(request(port.fd, NETMAP_REQ_REGISTER, "other{1", &port.reg), EBUSY, "also of another port");
    SUCCEEDS(tx_sync(port.fd), "the first one is unchanged");
}

static void refused(void) {
    int fd = device();
    struct nmreq_register reg = all_nic();
    GIVES(request(fd, NETMAP_REQ_REGISTER, "nothing", &reg), ENXIO, "a port that does not exist: ENXIO");
    GIVES(request(fd, NETMAP_REQ_REGISTER, "", &reg), ENXIO, "no name: ENXIO");
    GIVES(tx_sync(fd), ENXIO, "nothing is registered after that");
    const uint32_t modes[] = {NR_REG_DEFAULT, NR_REG_ONE_SW + 1, 255, UINT32_MAX};
    for (size_t n = 0; n < sizeof modes / sizeof *modes; n++) {
        reg = (struct nmreq_register){.nr_mode = modes[n]};
        GIVES(request(fd, NETMAP_REQ_REGISTER, "r{1", &reg), EINVAL, "a mode that does not exist: EINVAL");
    }
    CHECK(try_register("r", (struct nmreq_register){.nr_mode = NR_REG_PIPE_MASTER, .nr_ringid = 1}) == EINVAL,
            "NR_REG_PIPE_MASTER is for legacy requests only: EINVAL");
    CHECK(try_register("r", (struct nmreq_register){.nr_mode = NR_REG_PIPE_SLAVE, .nr_ringid = 1}) == EINVAL,
            "NR_REG_PIPE_SLAVE is for legacy requests only: EINVAL");
    reg = (struct nmreq_register){.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 7};
    GIVES(request(fd, NETMAP_REQ_REGISTER, "r{1", &reg), EINVAL, "a ring that does not exist: EINVAL");
    reg = all_nic(), reg.nr_mem_id = 999;
    GIVES(request(fd, NETMAP_REQ_REGISTER, "r{1", &reg), EINVAL, "a memory that does not exist: EINVAL");
    GIVES(request(fd, NETMAP_REQ_REGISTER, "vale1:r", &reg), EINVAL, "also for a VALE port");
    reg = all_nic();
    SUCCEEDS(request(fd, NETMAP_REQ_REGISTER, "r{1", &reg), "after all that, the descriptor takes a port");
}

/* Which rings are bound. */
static void modes(void) {
    struct port port;
    struct nmreq_register two = {.nr_mode = NR_REG_ALL_NIC, .nr_tx_rings = 2, .nr_rx_rings = 2};
    SUCCEEDS(port_register(&port, "vale1:m", two), "a VALE port with two rings each way");
    CHECK(port.reg.nr_tx_rings == 2 && port.reg.nr_rx_rings == 2, "both are granted");
    CHECK(tx_ring(&port, 0) && tx_ring(&port, 1) && rx_ring(&port, 0) && rx_ring(&port, 1), "all are bound");
    EQUAL(tx_ring(&port, 1)->ringid, 1, "the second has number 1");
    struct port one;
    struct nmreq_register second = {.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1};
    SUCCEEDS(port_register(&one, "vale1:m", second), "NR_REG_ONE_NIC of the second ring");
    EQUAL(one.reg.nr_tx_rings, 2, "the port's rings are reported, not those that are bound");
    EQUAL(one.nifp->ni_tx_rings, 2, "also in the netmap_if");
    CHECK(!tx_ring(&one, 0) && tx_ring(&one, 1) && !rx_ring(&one, 0) && rx_ring(&one, 1), "only the second is bound");
    EQUAL(tx_ring(&one, 1)->slot[0].buf_idx, tx_ring(&port, 1)->slot[0].buf_idx, "it is the same ring");
    CHECK(one.reg.nr_offset != port.reg.nr_offset, "each registration has a netmap_if of its own");
    port_close(&one);
    second.nr_ringid = 2;
    GIVES(try_register("vale1:m", second), EINVAL, "a third ring: EINVAL");
    SUCCEEDS(port_open(&one, "vale1:m", NR_REG_ALL_NIC, NR_RX_RINGS_ONLY), "NR_RX_RINGS_ONLY");
    CHECK(!tx_ring(&one, 0) && !tx_ring(&one, 1) && rx_ring(&one, 0) && rx_ring(&one, 1), "only Rx rings are bound");
    EQUAL(poll_port(one.fd, POLLOUT, 0), 0, "it can never send");
    port_close(&one);
    SUCCEEDS(port_open(&one, "vale1:m", NR_REG_ALL_NIC, NR_TX_RINGS_ONLY), "NR_TX_RINGS_ONLY");
    CHECK(tx_ring(&one, 0) && tx_ring(&one, 1) && !rx_ring(&one, 0) && !rx_ring(&one, 1), "only Tx rings are bound");
    EQUAL(poll_port(one.fd, POLLOUT | POLLIN, WAIT), POLLOUT, "it can send, and never receives");
    port_close(&one);
    SUCCEEDS(port_register(&one, "nic", (struct nmreq_register){.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1}),
             "the second ring of a native port");
    CHECK(one.reg.nr_tx_rings == 2 && tx_ring(&one, 1) && !tx_ring(&one, 0), "only that is bound");
    port_close(&one);
    SUCCEEDS(try_open("vale1:m", NR_REG_ALL_NIC, NR_ACCEPT_VNET_HDR), "NR_ACCEPT_VNET_HDR, where there is no such header");
}

static int one_sw(uint16_t ring) {
    return try_register("nic", (struct nmreq_register){.nr_mode = NR_REG_ONE_SW, .nr_ringid = ring});
}

/* How many host rings are granted, if as many are requested. */
static int host_rings(uint16_t asked) {
    struct port port;
    struct nmreq_register reg = {.nr_mode = NR_REG_NIC_SW, .nr_host_tx_rings = asked, .nr_host_rx_rings = asked};
    if (port_register(&port, "nic", reg))
        return -1;
    int count = port.reg.nr_host_tx_rings == port.reg.nr_host_rx_rings ? port.reg.nr_host_rx_rings : -1;
    for (uint32_t ring = 0; ring < port.reg.nr_host_rx_rings; ring++)
        if (!ring_ofs(&port, port.nifp->ni_tx_rings + ring))
            count = -1;
    port_close(&port);
    return count;
}

static int host_ring_bound(uint64_t flags) {
    struct port port;
    if (port_open(&port, "nic", NR_REG_SW, flags))
        return -1;
    bool tx = ring_ofs(&port, port.nifp->ni_tx_rings);
    bool rx = ring_ofs(&port, rx_number(&port, port.nifp->ni_rx_rings));
    bool nic = ring_ofs(&port, 0) || rx_ring(&port, 0);
    port_close(&port);
    return tx | rx << 1 | nic << 2;
}

/* The rings of the host's stack. */
static void host(void) {
    CHECK(host_ring_bound(0) == 3, "NR_REG_SW binds the host rings of a native port, and no others");
    CHECK(host_ring_bound(NR_RX_RINGS_ONLY) == 2, "NR_REG_SW with NR_RX_RINGS_ONLY binds the host's Rx ring (`^` with `/R`)");
    CHECK(host_ring_bound(NR_TX_RINGS_ONLY) == 1, "NR_REG_SW with NR_TX_RINGS_ONLY binds the host's Tx ring");
    CHECK(host_rings(0) == 1, "NR_REG_NIC_SW binds all rings of a native port and its host ring");
    CHECK(host_rings(2) == 2, "nr_host_tx_rings and nr_host_rx_rings set the number of host rings");
    CHECK(one_sw(0) == 0, "NR_REG_ONE_SW binds a host ring of a native port");
    GIVES(one_sw(7), EINVAL, "a host ring that does not exist: EINVAL");
    struct port port = need("nic");
    CHECK(port.reg.nr_host_tx_rings >= 1 && port.reg.nr_host_rx_rings >= 1, "a native port reports its host rings");
    port_close(&port);
    GIVES(try_open("vale1:h", NR_REG_SW, 0), EINVAL, "a VALE port has no host rings, NR_REG_SW: EINVAL");
    GIVES(try_open("vale1:h", NR_REG_ONE_SW, 0), EINVAL, "NR_REG_ONE_SW: EINVAL");
    CHECK(try_open("vale1:h", NR_REG_NIC_SW, 0) == EINVAL, "NR_REG_NIC_SW of a VALE port: EINVAL");
    GIVES(try_open("h{1", NR_REG_SW, 0), EINVAL, "a pipe has no host rings, NR_REG_SW: EINVAL");
    GIVES(try_open("h{1", NR_REG_ONE_SW, 0), EINVAL, "NR_REG_ONE_SW: EINVAL");
    CHECK(try_open("h{1", NR_REG_NIC_SW, 0) == EINVAL, "NR_REG_NIC_SW of a pipe: EINVAL");
}

/* The slots that are granted, of rings with that many, if it is the same each way; or minus an error number. */
static int64_t slots_of(const char *name, uint32_t tx, uint32_t rx) {
    struct port port;
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_tx_slots = tx, .nr_rx_slots = rx};
    int error = port_register(&port, name, reg);
    if (error)
        return -error;
    bool agree = tx_ring(&port, 0)->num_slots == port.reg.nr_tx_slots && rx_ring(&port, 0)->num_slots == port.reg.nr_rx_slots;
    int64_t slots = agree ? (int64_t)port.reg.nr_tx_slots << 32 | port.reg.nr_rx_slots : -1;
    port_close(&port);
    return slots;
}

static int rings_of(const char *name, uint16_t rings) {
    struct port port;
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_tx_rings = rings, .nr_rx_rings = rings};
    if (port_register(&port, name, reg))
        return -1;
    int granted = port.reg.nr_tx_rings;
    port_close(&port);
    return granted;
}

static void sizes(void) {
    const int64_t kibi = (int64_t)1024 << 32 | 1024;
    EQUAL(slots_of("vale1:s", 0, 0), kibi, "a VALE port has 1024 slots each way by default");
    EQUAL(slots_of("vale1:s", 64, 64), (int64_t)64 << 32 | 64, "as many slots as requested");
    EQUAL(slots_of("vale1:s", 128, 512), (int64_t)128 << 32 | 512, "different numbers each way");
    EQUAL(slots_of("vale1:s", 1000, 77), (int64_t)1000 << 32 | 77, "numbers that are no powers of two");
    EQUAL(slots_of("s{1", 64, 64), (int64_t)64 << 32 | 64, "a pipe has as many slots as requested");
    EQUAL(slots_of("s{1", 64, 128), (int64_t)64 << 32 | 128, "a pipe with different numbers of slots each way");
    EQUAL(slots_of("s}1", 64, 128), (int64_t)128 << 32 | 64, "requested at its second end, they are those of the first");
    const int64_t most = (int64_t)4096 << 32 | 4096;
    EQUAL(slots_of("vale1:s", 1 << 20, UINT32_MAX), most, "more slots than possible: as many as netmap has at most");
    EQUAL(slots_of("s{1", 1 << 20, UINT32_MAX), most, "of a pipe, too");
    EQUAL(rings_of("vale1:s", 0), 1, "a VALE port has one ring each way by default");
    EQUAL(rings_of("vale1:s", 8), 8, "a VALE port with 8 rings each way");
    EQUAL(rings_of("vale1:s", 16), 16, "a VALE port with 16 rings each way");
    EQUAL(rings_of("vale1:s", 99), 16, "more rings than possible: as many as possible");
    EQUAL(rings_of("vale1:s", UINT16_MAX), 16, "however many");
    EQUAL(rings_of("s{1", 2), 2, "a pipe with several rings");
    struct port first = need("vale1:s");
    EQUAL(slots_of("vale1:s", 64, 64), kibi, "a port that is open keeps its rings, whatever is requested");
    port_close(&first);
}

/* Ports with as many rings as netmap allows. */
static void many_rings(void) {
    struct port a, b;
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_tx_rings = 16, .nr_rx_rings = 16};
    REQUIRE(port_register(&a, "vale1:ma", reg) == 0 && port_register(&b, "vale1:mb", reg) == 0);
    for (uint32_t ring = 0; ring < 16; ring++)
        put_frame(tx_ring(&a, ring), 255, 1 + (int)ring, ring);
    SUCCEEDS(tx_sync(a.fd), "frames in all of 16 rings");
    uint32_t seen = 0, count = 0;
    while (count < 16 && poll_port(b.fd, POLLIN, WAIT) == POLLIN)
        for (uint32_t ring = 0; ring < 16; ring++)
            for (struct netmap_ring *rx = rx_ring(&b, ring); space(rx) > 0; advance(rx), count++)
                seen |= 1u << (frame_number(rx, rx->head) & 31);
    EQUAL(count, 16, "arrive at a port with 16 rings");
    EQUAL(seen, 0xffff, "each of them");
    port_close(&a), port_close(&b);
}

static void extra_buffers(void) {
    const char *names[] = {"vale1:e", "e{1", "nic"};
    for (size_t n = 0; n < 3; n++) {
        struct port port;
        struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_extra_bufs = 8};
        SUCCEEDS(port_register(&port, names[n], reg), "a port with extra buffers");
        EQUAL(port.reg.nr_extra_bufs, 8, "all are granted");
        struct netmap_ring *ring = tx_ring(&port, 0);
        uint32_t list[9], count = 0;
        bool fresh = true;
        for (uint32_t next = port.nifp->ni_bufs_head; next && count < 9; count++) {
            list[count] = next;
            for (uint32_t other = 0; other < count; other++)
                fresh &= list[other] != next;
            for (uint32_t slot = 0; slot < ring->num_slots; slot++)
                fresh &= ring->slot[slot].buf_idx != next;
            next = *(uint32_t *)buffer_at(ring, next);
        }
        EQUAL(count, 8, "ni_bufs_head begins a list of all of them");
        CHECK(fresh, "each is in the list once, and in no ring");
        port_close(&port);
    }
    struct port port;
    struct nmreq_register much = {.nr_mode = NR_REG_ALL_NIC, .nr_extra_bufs = 1 << 28};
    SUCCEEDS(port_register(&port, "e{1", much), "more extra buffers than there are");
    CHECK(port.reg.nr_extra_bufs > 0 && port.reg.nr_extra_bufs < 1 << 28, "as many as there are");
    uint32_t granted = port.reg.nr_extra_bufs;
    port_close(&port);
    SUCCEEDS(port_register(&port, "e{1", much), "again");
    EQUAL(port.reg.nr_extra_bufs, granted, "closing has freed them");
    port_close(&port);
}

static int exclusive_ring(uint16_t ring) {
    return try_register("vale1:x", (struct nmreq_register){.nr_mode = NR_REG_ONE_NIC, .nr_ringid = ring, .nr_flags = NR_EXCLUSIVE});
}

static void exclusive(void) {
    struct port port;
    SUCCEEDS(port_open(&port, "x{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), "an exclusive registration of a pipe's end");
    GIVES(try_open("x{1", NR_REG_ALL_NIC, 0), EBUSY, "another one of it: EBUSY");
    GIVES(try_open("x{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), EBUSY, "another exclusive one: EBUSY");
    SUCCEEDS(try_open("x}1", NR_REG_ALL_NIC, NR_EXCLUSIVE), "the other end is another port");
    SUCCEEDS(tx_sync(port.fd), "the first one is unchanged");
    port_close(&port);
    SUCCEEDS(port_open(&port, "x{1", NR_REG_ALL_NIC, 0), "closing it frees the port");
    GIVES(try_open("x{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), EBUSY, "an exclusive one of a port in use: EBUSY");
    SUCCEEDS(try_open("x{1", NR_REG_ALL_NIC, 0), "a shared one is granted");
    port_close(&port);
    const char *names[] = {"vale1:x", "nic"};
    for (size_t n = 0; n < 2; n++) {
        SUCCEEDS(port_open(&port, names[n], NR_REG_ALL_NIC, NR_EXCLUSIVE), "the same for a port of a switch, and a native one");
        GIVES(try_open(names[n], NR_REG_ALL_NIC, 0), EBUSY, "another one: EBUSY");
        port_close(&port);
        SUCCEEDS(try_open(names[n], NR_REG_ALL_NIC, NR_EXCLUSIVE), "closing it frees the port");
    }
    struct nmreq_register rings = {.nr_mode = NR_REG_ALL_NIC, .nr_tx_rings = 2, .nr_rx_rings = 2, .nr_flags = NR_TX_RINGS_ONLY};
    SUCCEEDS(port_register(&port, "vale1:x", rings), "the Tx rings of a port");
    CHECK(try_open("vale1:x", NR_REG_ALL_NIC, NR_RX_RINGS_ONLY | NR_EXCLUSIVE) == 0,
            "rings are exclusive, not ports: its Rx rings");
    port_close(&port);
    rings = (struct nmreq_register){.nr_mode = NR_REG_ONE_NIC, .nr_tx_rings = 2, .nr_rx_rings = 2, .nr_flags = NR_EXCLUSIVE};
    SUCCEEDS(port_register(&port, "vale1:x", rings), "the first ring of a port, exclusively");
    GIVES(exclusive_ring(0), EBUSY, "again: EBUSY");
    CHECK(exclusive_ring(1) == 0, "rings are exclusive, not ports: another ring");
    port_close(&port);
}

/* The number of the memory of a port that is requested in a memory, or minus an error number. */
static int memory_of(const char *name, uint16_t memory) {
    struct port port;
    int error = port_register(&port, name, (struct nmreq_register){.nr_mode = NR_REG_ALL_NIC, .nr_mem_id = memory});
    if (error)
        return -error;
    int id = port.reg.nr_mem_id;
    port_close(&port);
    return id;
}

static void memories(void) {
    struct port a = need("vale1:ma"), b = need("vale1:mb");
    CHECK(a.reg.nr_mem_id != b.reg.nr_mem_id, "each VALE port has a memory of its own");
    CHECK(a.nifp->ni_flags & NI_PRIV_MEM, "and says so");
    EQUAL(memory_of("vale1:mc", 1), 1, "a VALE port in memory 1, if asked for");
    EQUAL(memory_of("vale1:ma", a.reg.nr_mem_id), a.reg.nr_mem_id, "a port with its memory named");
    CHECK(memory_of("vale1:mc", a.reg.nr_mem_id) == a.reg.nr_mem_id, "a VALE port in the memory of another one");
    struct port nic = need("nic");
    CHECK(nic.reg.nr_mem_id == 1 && !(nic.nifp->ni_flags & NI_PRIV_MEM), "native ports share memory 1");
    struct port one = need("ma{1"), other = need("mb{1");
    CHECK(one.reg.nr_mem_id != other.reg.nr_mem_id, "pipes of different ports lie in different memories");
    EQUAL(memory_of("ma{1", 0), memory_of("ma{2", 0), "pipes of one port lie in one memory");
    CHECK(memory_of("vale1:ma{1", 0) == a.reg.nr_mem_id, "a pipe lies in the memory of its port");
}

static int null_port(struct nmreq_register reg) {
    struct port port;
    reg.nr_mode = NR_REG_NULL;
    int error = port_register(&port, "anything", reg);
    if (error)
        return error;
    error = tx_sync(port.fd) ? tx_sync(port.fd) : rx_sync(port.fd);
    if (!error && reg.nr_extra_bufs && !port.nifp->ni_bufs_head)
        error = ENOBUFS;
    if (!error && (port.reg.nr_tx_rings != reg.nr_tx_rings || port.reg.nr_rx_rings != reg.nr_rx_rings))
        error = ERANGE;
    port_close(&port);
    return error;
}

/* Ports without a network: memory, and as many rings as requested. */
static void null_ports(void) {
    CHECK(null_port((struct nmreq_register){.nr_mem_id = 1}) == 0, "NR_REG_NULL: a port of no rings, under any name");
    CHECK(null_port((struct nmreq_register){.nr_mem_id = 1, .nr_extra_bufs = 4}) == 0, "NR_REG_NULL with extra buffers");
    CHECK(null_port((struct nmreq_register){
                .nr_mem_id = 1, .nr_tx_rings = 1, .nr_rx_rings = 1, .nr_tx_slots = 64, .nr_rx_slots = 64}) == 0,
            "NR_REG_NULL with rings, which syncs leave as they are");
    CHECK(null_port((struct nmreq_register){0}) == EINVAL, "NR_REG_NULL without a memory: EINVAL");
}

TOPICS("registers", T(unbound), T(headers), T(granted), T(refused), T(modes), T(host), T(sizes), T(many_rings), T(extra_buffers), T(exclusive),
       T(memories), T(null_ports))
