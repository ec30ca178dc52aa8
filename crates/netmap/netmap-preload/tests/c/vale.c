/* VALE switches: what they forward, and the requests that make, list and attach their ports. The server lets programs attach
   the port `null`. */
#include "port.h"

static void forwarding(void) {
    struct port a = need("vale5:a"), b = need("vale5:b"), c = need("vale5:c");
    send_frame(&a, 255, 1, 1);
    EQUAL(next_frame(&b), 1, "a broadcast reaches every other port");
    EQUAL(next_frame(&c), 1, "all of them");
    CHECK(no_frame(&a), "but not the port that it comes from");
    send_frame(&a, 9, 1, 2);
    CHECK(next_frame(&b) == 2 && next_frame(&c) == 2, "a frame to a station that is not known reaches every other port");
    send_frame(&b, 1, 2, 3);
    EQUAL(next_frame(&a), 3, "a frame to a station that has sent reaches its port");
    CHECK(no_frame(&c), "and no other");
    struct netmap_ring *tx = tx_ring(&c, 0);
    put_frame(tx, 255, 3, 4);
    tx->slot[0].flags = NS_NO_LEARN;
    REQUIRE(tx_sync(c.fd) == 0);
    CHECK(next_frame(&a) == 4 && next_frame(&b) == 4, "a broadcast with NS_NO_LEARN");
    send_frame(&a, 3, 1, 5);
    CHECK(next_frame(&b) == 5 && next_frame(&c) == 5, "its station was not learned");
    send_frame(&c, 255, 3, 6);
    CHECK(next_frame(&a) == 6 && next_frame(&b) == 6, "the same without NS_NO_LEARN");
    send_frame(&a, 3, 1, 7);
    EQUAL(next_frame(&c), 7, "now it was learned");
    CHECK(no_frame(&b), "and no other port gets the frame");
    struct port other = need("vale6:a");
    send_frame(&a, 255, 1, 8);
    CHECK(next_frame(&b) == 8 && no_frame(&other), "another switch is apart");
}

/* Waits until the first Rx ring has that many frames. */
static bool arrived(const struct port *port, uint32_t count) {
    for (int waits = 0; waits < 100 && space(rx_ring(port, 0)) < count; waits++)
        poll_port(port->fd, POLLIN, 50), usleep(1000);
    return space(rx_ring(port, 0)) == count;
}

/* Frames in several slots. */
static void fragments(void) {
    struct port a = need("vale5:fa"), b = need("vale5:fb");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    const uint32_t slots = 5, size = tx->nr_buf_size;
    for (uint32_t n = 0; n < slots; n++) {
        char *bytes = slot_bytes(tx, tx->head);
        memset(bytes, (int)n + 1, size);
        if (n == 0)
            frame_header(bytes, 255, 1);
        tx->slot[tx->head].len = n == slots - 1 ? 100 : (uint16_t)size;
        tx->slot[tx->head].flags = n == slots - 1 ? 0 : NS_MOREFRAG;
        advance(tx);
    }
    SUCCEEDS(tx_sync(a.fd), "a frame in five slots");
    EQUAL(poll_port(b.fd, POLLIN, WAIT), POLLIN, "arrives");
    uint32_t total = 0, count = 0;
    bool flags = true, right = true;
    for (uint32_t left = space(rx); left > 0; left--, count++) {
        struct netmap_slot *slot = &rx->slot[rx->head];
        flags &= !(slot->flags & NS_MOREFRAG) == (left == 1);
        if (count == 0)
            EQUAL(NS_RFRAGS(slot), space(rx), "NS_RFRAGS of its first slot counts its slots");
        for (uint32_t at = count == 0 ? 14 : 0; at < slot->len; at++)
            right &= slot_bytes(rx, rx->head)[at] == (char)((total + at) / size + 1);
        total += slot->len;
        advance(rx);
    }
    EQUAL(total, (slots - 1) * size + 100, "with all its bytes");
    CHECK(flags, "NS_MOREFRAG is in all slots but the last");
    CHECK(right, "unchanged");
    for (uint32_t n = 0; n < NETMAP_MAX_FRAGS; n++) {
        char *bytes = slot_bytes(tx, tx->head);
        memset(bytes, 'f', 64);
        if (n == 0)
            frame_header(bytes, 255, 1);
        tx->slot[tx->head].len = 64, tx->slot[tx->head].flags = n == NETMAP_MAX_FRAGS - 1 ? 0 : NS_MOREFRAG;
        advance(tx);
    }
    SUCCEEDS(tx_sync(a.fd), "a frame in 64 slots");
    EQUAL(poll_port(b.fd, POLLIN, WAIT), POLLIN, "arrives");
    for (total = 0; space(rx) > 0; advance(rx))
        total += rx->slot[rx->head].len;
    EQUAL(total, NETMAP_MAX_FRAGS * 64, "with all its bytes");
    send_frame(&a, 255, 1, 9);
    EQUAL(next_frame(&b), 9, "a frame in one slot after it");
    put_frame(tx, 255, 1, 1);
    tx->slot[(tx->head ? tx->head : tx->num_slots) - 1].flags = NS_MOREFRAG;
    SUCCEEDS(tx_sync(a.fd), "a frame whose rest is missing");
    CHECK(no_frame(&b), "does not arrive");
}

/* Whether a frame outside the shared memory arrives. */
static bool indirect(uint16_t len) {
    struct port a = need("vale5:ia"), b = need("vale5:ib");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    char *frame = malloc(len);
    REQUIRE(frame != NULL);
    memset(frame, 'x', len);
    frame_header(frame, 255, 1);
    struct netmap_slot *slot = &tx->slot[tx->head];
    slot->len = len, slot->flags = NS_INDIRECT, slot->ptr = (uintptr_t)frame;
    advance(tx);
    REQUIRE(tx_sync(a.fd) == 0);
    uint32_t total = 0;
    bool right = poll_port(b.fd, POLLIN, 500) == POLLIN;
    for (; space(rx) > 0; advance(rx)) {
        for (uint32_t at = 0; at < rx->slot[rx->head].len; at++, total++)
            right &= total < len && slot_bytes(rx, rx->head)[at] == frame[total];
    }
    port_close(&a), port_close(&b);
    free(frame);
    return right && total == len;
}

/* Makes the next Tx slot one whose frame lies at an address. */
static struct netmap_slot *put_indirect(struct netmap_ring *tx, const void *at, uint16_t len) {
    struct netmap_slot *slot = &tx->slot[tx->head];
    slot->len = len, slot->flags = NS_INDIRECT, slot->ptr = (uintptr_t)at;
    advance(tx);
    return slot;
}

static void indirect_slots(void) {
    CHECK(indirect(100), "NS_INDIRECT: a frame that lies in the program's memory");
    CHECK(indirect(2048), "one that fills the slot's buffer");
    CHECK(!indirect(2049), "one that is longer than the buffer is dropped, as by netmap's switch");
    CHECK(!indirect(65535), "so is one of 65,535 bytes");
    struct port a = need("vale5:ic"), b = need("vale5:id");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    const long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED && mprotect(pages + page, (size_t)page, PROT_NONE) == 0);
    frame_header(pages + page - 100, 255, 1);
    const void *const bad[] = {NULL, (void *)1, pages + page, pages + page - 50, (void *)0xdeadbeefdeadbeef,
                               (void *)-60, (void *)-1};
    for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
        put_frame(tx, 255, 1, 1);
        put_indirect(tx, bad[n], 100);
        put_frame(tx, 255, 1, 2);
        errno = 77;
        SUCCEEDS(tx_sync(a.fd), "a frame at an address that the program cannot read");
        EQUAL(errno, 77, "errno stays as it is");
        CHECK(next_frame(&b) == 1 && next_frame(&b) == 2 && no_frame(&b), "it is dropped, and no other");
    }
    struct netmap_slot *slot = put_indirect(tx, pages + page - 100, 100);
    uint32_t buffer = slot->buf_idx;
    EQUAL(poll_port(a.fd, POLLOUT, WAIT), POLLOUT, "a frame that ends with the memory, sent by poll");
    CHECK(arrived(&b, 1) && rx->slot[rx->head].len == 100, "arrives");
    advance(rx);
    CHECK(slot->buf_idx == buffer && slot->ptr == (uintptr_t)pages + (size_t)page - 100, "its slot keeps buffer and address");
    uint32_t all = 3 * tx->num_slots, sent = 0, received = 0;
    for (int rounds = 0; received < all && rounds < 100000; rounds++) {
        for (; sent < all && sent - received < 256 && space(tx) > 0; sent++)
            put_indirect(tx, pages + page - 100, 100);
        REQUIRE(tx_sync(a.fd) == 0 && rx_sync(b.fd) == 0);
        for (; space(rx) > 0; advance(rx))
            received += rx->slot[rx->head].len == 100 && memcmp(slot_bytes(rx, rx->head), pages + page - 100, 100) == 0;
        usleep(10);
    }
    EQUAL(received, all, "frames of three times a ring");
    put_frame(tx, 255, 1, 3);
    tx->slot[tx->head - 1].flags = NS_MOREFRAG;
    put_indirect(tx, pages, 100);
    REQUIRE(tx_sync(a.fd) == 0);
    CHECK(arrived(&b, 1) && rx->slot[rx->head].len == FRAME + 100, "a frame of which one slot of two has the flag");
    advance(rx);
    put_frame(tx, 255, 1, 3);
    tx->slot[tx->head - 1].flags = NS_MOREFRAG;
    put_indirect(tx, NULL, 100);
    send_frame(&a, 255, 1, 4);
    EQUAL(next_frame(&b), 4, "such a frame with an invalid address is dropped as a whole");
    port_close(&a), port_close(&b);
    struct port one = need("ie{1"), other = need("ie}1");
    put_indirect(tx_ring(&one, 0), pages, 100);
    REQUIRE(tx_sync(one.fd) == 0);
    EQUAL(poll_port(other.fd, POLLIN, WAIT), POLLIN, "a slot with the flag through a pipe");
    slot = &rx_ring(&other, 0)->slot[0];
    CHECK(slot->flags & NS_INDIRECT && slot->ptr == (uintptr_t)pages, "arrives as it is: a pipe copies no frames");
    port_close(&one), port_close(&other);
}

/* Bytes of the longer header of virtio-net. */
#define VNET_HEADER 12

/* Whether a port whose frames have headers sends to one whose frames have headers too, or not. */
static bool headers_pass(bool received) {
    const char *names[] = {"vale5:va", "vale5:vb"};
    struct port ports[2];
    bool right = true;
    for (int n = 0; n < 2; n++) {
        struct nmreq_port_hdr length = {.nr_hdr_len = n == 0 || received ? VNET_HEADER : 0};
        REQUIRE(port_open(&ports[n], names[n], NR_REG_ALL_NIC, NR_ACCEPT_VNET_HDR) == 0);
        right &= ask(NETMAP_REQ_PORT_HDR_SET, names[n], &length) == 0;
    }
    struct netmap_ring *tx = tx_ring(&ports[0], 0), *rx = rx_ring(&ports[1], 0);
    if (right) {
        char *bytes = slot_bytes(tx, tx->head), frame[FRAME] = {0};
        frame_header(frame, 255, 1);
        memset(bytes, 0, VNET_HEADER);
        memcpy(bytes + VNET_HEADER, frame, FRAME);
        tx->slot[tx->head].len = VNET_HEADER + FRAME, tx->slot[tx->head].flags = 0;
        advance(tx);
        right = tx_sync(ports[0].fd) == 0 && poll_port(ports[1].fd, POLLIN, 1000) == POLLIN;
        size_t before = received ? VNET_HEADER : 0;
        right = right && rx->slot[rx->head].len == before + FRAME &&
                memcmp(slot_bytes(rx, rx->head) + before, frame, FRAME) == 0;
    }
    port_close(&ports[0]), port_close(&ports[1]);
    return right;
}

static void headers(void) {
    CHECK(headers_pass(true), "frames with headers between two ports that have them");
    CHECK(headers_pass(false), "frames with headers for a port that has none: they are cut off");
}

/* A receiver that does not receive. */
static void overflow(void) {
    struct port a = need("vale5:oa"), b = need("vale5:ob");
    struct netmap_ring *tx = tx_ring(&a, 0);
    uint32_t all = 3 * tx->num_slots, sent = 0;
    for (int rounds = 0; sent < all && rounds < 1000; rounds++) {
        if (poll_port(a.fd, POLLOUT, WAIT) != POLLOUT)
            break;
        while (sent < all && space(tx) > 0)
            put_frame(tx, 255, 1, sent++);
        REQUIRE(tx_sync(a.fd) == 0);
    }
    EQUAL(sent, all, "a port that does not receive does not hold up one that sends");
    EQUAL(next_frame(&b), 0, "it has the first frames");
}

/* Rings of one port. */
static void several_rings(void) {
    struct port a, b = need("vale5:rb");
    struct nmreq_register two = {.nr_mode = NR_REG_ALL_NIC, .nr_tx_rings = 2, .nr_rx_rings = 2};
    REQUIRE(port_register(&a, "vale5:ra", two) == 0);
    put_frame(tx_ring(&a, 1), 255, 1, 1);
    SUCCEEDS(tx_sync(a.fd), "a frame from the second ring of a port");
    EQUAL(next_frame(&b), 1, "arrives");
    send_frame(&b, 1, 2, 2);
    EQUAL(poll_port(a.fd, POLLIN, WAIT), POLLIN, "a frame for a port with two rings");
    EQUAL(space(rx_ring(&a, 0)) + space(rx_ring(&a, 1)), 1, "is in one of them");
}

static int list(const char *name, struct nmreq_vale_list *at) { return ask(NETMAP_REQ_VALE_LIST, name, at); }

/* Whether a switch has a port. Of one that it does not have, netmap returns a number that no port has, and Ringpass ENOENT. */
static bool listed(const char *name) {
    const uint32_t no_port = 254;
    struct nmreq_vale_list at = {0};
    return list(name, &at) == 0 && at.nr_port_idx != no_port;
}

static void lists(void) {
    struct nmreq_vale_list at = {0};
    int fd = device();
    GIVES(list("", &at), ENOENT, "VALE_LIST without a switch: ENOENT");
    GIVES(list("vale5:none", &at), ENOENT, "of a switch that does not exist: ENOENT");
    GIVES(list("nic", &at), EINVAL, "of a port that is no VALE port: EINVAL");
    struct port ports[] = {need("vale5:la"), need("vale5:lb"), need("vale7:lc")};
    unsigned found = 0, count = 0;
    at = (struct nmreq_vale_list){0};
    for (; count < 100; count++, at.nr_port_idx++) {
        struct nmreq_header request = header(NETMAP_REQ_VALE_LIST, "", &at);
        int error = nm_ioctl(fd, NIOCCTRL, &request);
        if (error) {
            GIVES(error, ENOENT, "the list ends with ENOENT");
            break;
        }
        for (size_t n = 0; n < 3; n++)
            found |= strcmp(request.nr_name, ports[n].nifp->ni_name) == 0 ? 1u << n : 0;
    }
    EQUAL(count, 3, "a list from the beginning has each port once");
    EQUAL(found, 7, "by its name");
    struct nmreq_vale_list first, second, third;
    SUCCEEDS(list("vale5:la", &first), "of a port by its name");
    SUCCEEDS(list("vale5:lb", &second), "of another");
    SUCCEEDS(list("vale7:lc", &third), "of one of another switch");
    CHECK(first.nr_bridge_idx == second.nr_bridge_idx && first.nr_port_idx != second.nr_port_idx, "each has a number");
    CHECK(third.nr_bridge_idx != first.nr_bridge_idx, "and so has each switch");
    for (size_t n = 0; n < 3; n++)
        port_close(&ports[n]);
    GIVES(list("", &at), ENOENT, "a switch ends with its last port");
}

static int newif(const char *name, struct nmreq_vale_newif body) { return ask(NETMAP_REQ_VALE_NEWIF, name, &body); }
static int delif(const char *name) { return ask(NETMAP_REQ_VALE_DELIF, name, NULL); }

static int attach(const char *name, struct nmreq_vale_attach *body) { return ask(NETMAP_REQ_VALE_ATTACH, name, body); }
static int detach(const char *name) {
    struct nmreq_vale_detach body = {0};
    return ask(NETMAP_REQ_VALE_DETACH, name, &body);
}

/* Whether frames go nowhere: all slots of a Tx ring become the program's again. */
static bool dropped(const struct port *port) {
    struct netmap_ring *tx = tx_ring(port, 0);
    for (uint32_t sent = 0, waits = 0; sent < 3 * tx->num_slots && waits < 1000; waits++) {
        for (; space(tx) > 0; sent++)
            put_frame(tx, 255, 1, sent);
        if (poll_port(port->fd, POLLOUT, WAIT) != POLLOUT)
            return false;
    }
    for (int waits = 0; waits < 100 && space(tx) < tx->num_slots - 1; waits++)
        tx_sync(port->fd), usleep(1000);
    return space(tx) == tx->num_slots - 1;
}

/* Ports that stay without a program. */
static void persistent(void) {
    struct nmreq_vale_newif body = {.nr_tx_slots = 256, .nr_rx_slots = 128, .nr_tx_rings = 2, .nr_rx_rings = 2};
    SUCCEEDS(newif("vi0", body), "VALE_NEWIF by a port's own name, without a switch");
    GIVES(newif("vi0", body), EEXIST, "of a port that exists: EEXIST");
    GIVES(newif("nic", body), EEXIST, "of a native port: EEXIST");
    GIVES(newif("vale5:n0", body), EINVAL, "with the name of a switch: EINVAL, as VALE_ATTACH names that");
    GIVES(newif("valen", body), EINVAL, "with a name that begins as one: EINVAL");
    GIVES(newif("sixteen_letters_", body), EINVAL, "with a name longer than 15 bytes: EINVAL");
    CHECK(newif("", body) && newif("a:b", body) && newif("a b", body) && newif("a{b", body), "with an invalid name");
    CHECK(!listed("vale5:vi0"), "a port without a switch is not listed");
    struct nmreq_port_info_get info = {0};
    SUCCEEDS(ask(NETMAP_REQ_PORT_INFO_GET, "vi0", &info), "PORT_INFO_GET of it");
    CHECK(info.nr_tx_slots == 256 && info.nr_rx_slots == 128 && info.nr_tx_rings == 2 && info.nr_mem_id > 1, "its sizes");
    struct port port = need("vi0"), other;
    CHECK(port.reg.nr_tx_rings == 2 && port.reg.nr_rx_rings == 2, "opened by its name, it has the rings that were requested");
    CHECK(port.reg.nr_tx_slots == 256 && port.reg.nr_rx_slots == 128, "and the slots");
    EQUAL(port.reg.nr_mem_id, info.nr_mem_id, "and the memory");
    CHECK(dropped(&port), "what is sent goes nowhere");
    CHECK(no_frame(&port), "and nothing is received");
    SUCCEEDS(port_open(&other, "vi0", NR_REG_ALL_NIC, NR_MONITOR_TX), "a monitor of it");
    send_frame(&port, 255, 1, 1);
    EQUAL(next_frame(&other), 1, "gets what is sent");
    port_close(&other);
    GIVES(delif("vi0"), EBUSY, "VALE_DELIF of a port in use: EBUSY");
    port_close(&port);
    struct port pipe = need("vi0{1");
    EQUAL(pipe.reg.nr_mem_id, info.nr_mem_id, "its pipes lie in its memory");
    GIVES(delif("vi0"), EBUSY, "VALE_DELIF of a port with a pipe: EBUSY");
    port_close(&pipe);
    GIVES(delif("nic"), ENXIO, "VALE_DELIF of a native port");
    SUCCEEDS(delif("vi0"), "VALE_DELIF");
    GIVES(delif("vi0"), ENXIO, "of a port that does not exist: ENXIO");
    GIVES(try_open("vi0", NR_REG_ALL_NIC, 0), ENXIO, "it is gone");
    struct nmreq_vale_newif usual = {0};
    int fd = device();
    SUCCEEDS(request(fd, NETMAP_REQ_VALE_NEWIF, "vi1", &usual), "VALE_NEWIF with the default sizes");
    CHECK(usual.nr_tx_slots == 1024 && usual.nr_rx_slots == 1024 && usual.nr_tx_rings == 1 && usual.nr_rx_rings == 1,
          "returns the sizes in use");
    CHECK(usual.nr_mem_id > 1, "and the number of the memory");
    SUCCEEDS(delif("vi1"), "VALE_DELIF");
    usual = (struct nmreq_vale_newif){.nr_mem_id = 1};
    SUCCEEDS(request(fd, NETMAP_REQ_VALE_NEWIF, "vi1", &usual), "VALE_NEWIF in the memory that ports share");
    EQUAL(usual.nr_mem_id, 1, "which is returned");
    port = need("vi1");
    EQUAL(port.reg.nr_mem_id, 1, "and in which it lies");
    port_close(&port);
    SUCCEEDS(delif("vi1"), "VALE_DELIF");
    usual = (struct nmreq_vale_newif){.nr_mem_id = 999};
    GIVES(request(fd, NETMAP_REQ_VALE_NEWIF, "vi1", &usual), EINVAL, "VALE_NEWIF in a memory that does not exist: EINVAL");
}

/* Persistent ports on a switch. */
static void persistent_attached(void) {
    struct nmreq_vale_newif made = {.nr_tx_rings = 2, .nr_rx_rings = 2};
    struct nmreq_vale_attach body = {.reg = {.nr_mode = NR_REG_ALL_NIC}, .port_index = 999};
    struct nmreq_vale_list at;
    int fd = device();
    REQUIRE(request(fd, NETMAP_REQ_VALE_NEWIF, "vi2", &made) == 0);
    struct port port = need("vi2");
    GIVES(attach("vale5:vi2", &body), EBUSY, "VALE_ATTACH of a persistent port that a program has: EBUSY");
    port_close(&port);
    GIVES(detach("vale5:vi2"), ENXIO, "VALE_DETACH of one that is not attached: ENXIO");
    SUCCEEDS(attach("vale5:vi2", &body), "VALE_ATTACH of one");
    EQUAL(body.reg.nr_mem_id, made.nr_mem_id, "returns its memory");
    SUCCEEDS(list("vale5:vi2", &at), "it is listed");
    EQUAL(at.nr_port_idx, body.port_index, "with the index that VALE_ATTACH has returned");
    GIVES(attach("vale5:vi2", &body), EBUSY, "VALE_ATTACH of an attached port: EBUSY");
    GIVES(attach("vale6:vi2", &body), EBUSY, "also to another switch");
    GIVES(delif("vi2"), EBUSY, "VALE_DELIF of an attached port: EBUSY");
    GIVES(detach("vale6:vi2"), ENXIO, "VALE_DETACH from another switch: ENXIO");
    struct port peer = need("vale5:peer"), same;
    port = need("vale5:vi2"), same = need("vi2");
    CHECK(port.reg.nr_tx_rings == 2 && port.reg.nr_mem_id == made.nr_mem_id, "opened as a port of the switch, it is that port");
    EQUAL(rx_ring(&same, 0)->slot[0].buf_idx, rx_ring(&port, 0)->slot[0].buf_idx, "opened by its own name, too");
    send_frame(&peer, 255, 1, 1);
    EQUAL(poll_port(port.fd, POLLIN, WAIT), POLLIN, "the switch sends to it");
    send_frame(&port, 255, 2, 2);
    EQUAL(next_frame(&peer), 2, "and receives from it");
    GIVES(detach("vale5:vi2"), EBUSY, "VALE_DETACH while a program has it: EBUSY");
    port_close(&port), port_close(&same);
    CHECK(listed("vale5:vi2"), "it stays after its programs");
    struct nmreq_vale_detach left = {.port_index = 999};
    struct port before = need("vale5:before");
    SUCCEEDS(ask(NETMAP_REQ_VALE_DETACH, "vale5:vi2", &left), "VALE_DETACH");
    EQUAL(left.port_index, body.port_index, "returns the index, which other ports do not change");
    port_close(&before);
    CHECK(!listed("vale5:vi2"), "it is not listed any more");
    port = need("vi2");
    EQUAL(port.reg.nr_mem_id, made.nr_mem_id, "and exists, in its memory");
    CHECK(dropped(&port) && no_frame(&peer), "what is sent goes nowhere again");
    port_close(&port);
    port = need("vale5:vi2");
    CHECK(port.reg.nr_mem_id != made.nr_mem_id, "a program's port of this name on a switch is another one");
    GIVES(attach("vale5:vi2", &body), EBUSY, "and VALE_ATTACH to this switch: EBUSY");
    GIVES(detach("vale5:vi2"), EINVAL, "VALE_DETACH of a program's port: EINVAL");
    SUCCEEDS(attach("vale6:vi2", &body), "VALE_ATTACH to another switch");
    SUCCEEDS(detach("vale6:vi2"), "VALE_DETACH from it");
    port_close(&port), port_close(&peer);
    body.reg.nr_mode = 99;
    GIVES(attach("vale5:vi2", &body), EINVAL, "VALE_ATTACH in a mode that does not exist: EINVAL");
    body.reg.nr_mode = NR_REG_ONE_NIC;
    GIVES(attach("vale5:vi2", &body), EINVAL, "VALE_ATTACH of one ring: EINVAL");
    GIVES(attach("vale5:", &body), EINVAL, "VALE_ATTACH without a port: EINVAL");
    SUCCEEDS(delif("vi2"), "VALE_DELIF");
    struct nmreq_vale_list first = {0};
    GIVES(list("", &first), ENOENT, "nothing is left");
}

/* Ports that a program attaches. */
static void attaching(void) {
    struct nmreq_vale_attach body = {.reg = {.nr_mode = NR_REG_ALL_NIC}, .port_index = 999};
    struct nmreq_vale_list at;
    struct port nic = need("nic");
    GIVES(attach("vale5:nic", &body), EBUSY, "VALE_ATTACH of a native port that a program has: EBUSY");
    port_close(&nic);
    SUCCEEDS(attach("vale5:nic", &body), "VALE_ATTACH of a native port");
    CHECK(list("vale5:nic", &at) == 0 && at.nr_port_idx == body.port_index, "it is listed, with the index that VALE_ATTACH returns");
    CHECK(body.reg.nr_mem_id > 0, "its memory is returned");
    GIVES(attach("vale5:nic", &body), EBUSY, "VALE_ATTACH of a port that is attached: EBUSY");
    GIVES(attach("vale6:nic", &body), EBUSY, "also to another switch");
    GIVES(try_open("nic", NR_REG_ALL_NIC, 0), EBUSY, "NETMAP_REQ_REGISTER of an attached port: EBUSY");
    GIVES(try_open("nic", NR_REG_SW, 0), EBUSY, "also of its host rings");
    GIVES(try_open("nic", NR_REG_ALL_NIC, NR_MONITOR_RX), EBUSY, "also as a monitor");
    GIVES(try_open("vale5:nic", NR_REG_ALL_NIC, 0), EBUSY, "also by its name on the switch");
    struct nmreq_port_info_get info = {0};
    CHECK(ask(NETMAP_REQ_PORT_INFO_GET, "nic", &info) == 0 && info.nr_tx_rings == 2, "PORT_INFO_GET of it");
    struct port sender = need("vale5:sender");
    CHECK(dropped(&sender) && no_frame(&sender), "the switch sends to it");
    port_close(&sender);
    GIVES(detach("vale6:nic"), ENXIO, "VALE_DETACH from another switch: ENXIO");
    struct nmreq_vale_detach gone = {.port_index = 999};
    SUCCEEDS(ask(NETMAP_REQ_VALE_DETACH, "vale5:nic", &gone), "VALE_DETACH");
    EQUAL(gone.port_index, body.port_index, "returns the index");
    SUCCEEDS(try_open("nic", NR_REG_ALL_NIC, 0), "then programs can register it again");
    body.reg.nr_mode = NR_REG_NIC_SW;
    SUCCEEDS(attach("vale5:nic", &body), "VALE_ATTACH with NR_REG_NIC_SW: the host's stack, too");
    CHECK(listed("vale5:nic") && listed("vale5:nic^"), "which is another port of the switch");
    GIVES(detach("vale5:nic^"), EINVAL, "VALE_DETACH of just that: EINVAL");
    SUCCEEDS(detach("vale5:nic"), "VALE_DETACH of both");
    CHECK(!listed("vale5:nic") && !listed("vale5:nic^"), "both are gone");
    struct port host = need("vale5:nic^");
    GIVES(attach("vale5:nic", &body), EBUSY, "VALE_ATTACH with NR_REG_NIC_SW where a program has the name of the host's port: EBUSY");
    CHECK(!listed("vale5:nic"), "then neither is attached");
    port_close(&host);
    /* Ringpass's own way: a port by its address, which the server was started with. */
    body.reg.nr_mode = NR_REG_ALL_NIC, body.port_index = 999;
    SUCCEEDS(attach("vale5:null", &body), "VALE_ATTACH of a port by its address");
    CHECK(list("vale5:null", &at) == 0 && at.nr_port_idx == body.port_index, "it is listed, with the index that VALE_ATTACH returns");
    GIVES(attach("vale5:null", &body), EBUSY, "VALE_ATTACH of a port that is attached, by its address: EBUSY");
    GIVES(try_open("vale5:null", NR_REG_ALL_NIC, 0), EBUSY, "NETMAP_REQ_REGISTER of its name: EBUSY");
    GIVES(newif("null", (struct nmreq_vale_newif){0}), EINVAL, "VALE_NEWIF with an address: EINVAL");
    struct port other = need("vale5:other");
    send_frame(&other, 255, 1, 1);
    CHECK(no_frame(&other), "a program sends beside it, and gets nothing back");
    port_close(&other);
    struct nmreq_vale_detach left = {.port_index = 999};
    SUCCEEDS(ask(NETMAP_REQ_VALE_DETACH, "vale5:null", &left), "VALE_DETACH of it");
    EQUAL(left.port_index, body.port_index, "returns the port's index");
    GIVES(detach("vale5:null"), ENXIO, "again: ENXIO");
    GIVES(attach("vale5:pcap:x", &body), EPERM, "a port that the server was not started with: EPERM");
    struct port port = need("vale5:taken");
    GIVES(attach("vale5:taken", &body), EBUSY, "VALE_ATTACH of a program's port: EBUSY");
    port_close(&port);
    GIVES(attach("vale5:nobody", &body), EINVAL, "VALE_ATTACH of a port that does not exist: EINVAL");
    GIVES(attach("nic", &body), EINVAL, "VALE_ATTACH without a switch: EINVAL");
    GIVES(detach("vale5:nobody"), ENXIO, "VALE_DETACH of a port that does not exist: ENXIO");
    GIVES(detach("nic"), EINVAL, "VALE_DETACH without a switch: EINVAL");
}

static int polling(uint16_t type, const char *name, uint32_t mode) {
    struct nmreq_vale_polling body = {.nr_mode = mode, .nr_num_polling_cpus = 1};
    return ask(type, name, &body);
}

/* Threads that poll an attached port. */
static void polled(void) {
    struct nmreq_vale_attach body = {.reg = {.nr_mode = NR_REG_ALL_NIC}};
    SUCCEEDS(attach("vale5:nic", &body), "a native port that is attached");
    const uint16_t on = NETMAP_REQ_VALE_POLLING_ENABLE, off = NETMAP_REQ_VALE_POLLING_DISABLE;
    SUCCEEDS(polling(on, "vale5:nic", NETMAP_POLLING_MODE_SINGLE_CPU), "VALE_POLLING_ENABLE of an attached port");
    GIVES(polling(on, "vale5:nic", NETMAP_POLLING_MODE_SINGLE_CPU), EBUSY, "again: EBUSY");
    struct port sender = need("vale5:sender");
    CHECK(dropped(&sender), "the switch sends to it");
    port_close(&sender);
    GIVES(detach("vale5:nic"), EBUSY, "VALE_DETACH meanwhile: EBUSY");
    SUCCEEDS(polling(off, "vale5:nic", NETMAP_POLLING_MODE_SINGLE_CPU), "VALE_POLLING_DISABLE of it");
    CHECK(polling(off, "vale5:nic", NETMAP_POLLING_MODE_SINGLE_CPU) != 0, "again");
    GIVES(polling(on, "vale5:nic", 99), EINVAL, "VALE_POLLING_ENABLE in a mode that does not exist: EINVAL");
    struct nmreq_vale_polling far = {.nr_mode = NETMAP_POLLING_MODE_SINGLE_CPU, .nr_num_polling_cpus = 1};
    const uint32_t no_cpu[] = {1023, 1024, 1 << 20, UINT32_MAX};
    for (size_t n = 0; n < sizeof no_cpu / sizeof *no_cpu; n++) {
        far.nr_first_cpu_id = no_cpu[n];
        GIVES(ask(on, "vale5:nic", &far), EINVAL, "VALE_POLLING_ENABLE on a CPU that does not exist: EINVAL");
    }
    far.nr_first_cpu_id = 0, far.nr_num_polling_cpus = 2;
    GIVES(ask(on, "vale5:nic", &far), EINVAL, "VALE_POLLING_ENABLE on one CPU of two: EINVAL");
    far.nr_mode = NETMAP_POLLING_MODE_MULTI_CPU, far.nr_num_polling_cpus = 1000;
    GIVES(ask(on, "vale5:nic", &far), EINVAL, "VALE_POLLING_ENABLE of more rings than there are: EINVAL");
    far.nr_num_polling_cpus = 0;
    GIVES(ask(on, "vale5:nic", &far), EINVAL, "of no ring: EINVAL");
    far.nr_first_cpu_id = UINT32_MAX, far.nr_num_polling_cpus = 1;
    GIVES(ask(on, "vale5:nic", &far), EINVAL, "of a ring that does not exist: EINVAL");
    SUCCEEDS(polling(on, "vale5:nic", NETMAP_POLLING_MODE_MULTI_CPU), "VALE_POLLING_ENABLE of one ring");
    GIVES(polling(on, "vale5:nic", NETMAP_POLLING_MODE_SINGLE_CPU), EBUSY, "polled twice: EBUSY");
    SUCCEEDS(polling(off, "vale5:nic", NETMAP_POLLING_MODE_MULTI_CPU), "VALE_POLLING_DISABLE of it");
    SUCCEEDS(detach("vale5:nic"), "VALE_DETACH");
    struct port port = need("vale5:p");
    GIVES(polling(on, "vale5:p", NETMAP_POLLING_MODE_SINGLE_CPU), EOPNOTSUPP, "of a program's port: EOPNOTSUPP");
    GIVES(polling(off, "vale5:p", NETMAP_POLLING_MODE_SINGLE_CPU), EOPNOTSUPP, "VALE_POLLING_DISABLE: EOPNOTSUPP");
    GIVES(polling(on, "vale5:nobody", NETMAP_POLLING_MODE_SINGLE_CPU), ENXIO, "of a port that does not exist: ENXIO");
    GIVES(polling(on, "nic", NETMAP_POLLING_MODE_SINGLE_CPU), EINVAL, "of a port that is no VALE port: EINVAL");
    port_close(&port);
}

/* Copies of what a port sends and receives. */
static void monitors(void) {
    struct port a = need("vale5:ma"), b = need("vale5:mb"), sent, received, both;
    SUCCEEDS(port_open(&sent, "vale5:ma", NR_REG_ALL_NIC, NR_MONITOR_TX), "NR_MONITOR_TX");
    SUCCEEDS(port_open(&received, "vale5:ma", NR_REG_ALL_NIC, NR_MONITOR_RX), "NR_MONITOR_RX");
    SUCCEEDS(port_open(&both, "vale5:ma", NR_REG_ALL_NIC, NR_MONITOR_TX | NR_MONITOR_RX), "both");
    CHECK(sent.reg.nr_mem_id != a.reg.nr_mem_id, "a monitor that copies has a memory of its own");
    send_frame(&a, 255, 1, 1);
    EQUAL(next_frame(&b), 1, "a frame goes its way");
    EQUAL(next_frame(&sent), 1, "and to the monitor of what is sent");
    CHECK(no_frame(&received), "not to that of what is received");
    send_frame(&b, 1, 2, 2);
    EQUAL(next_frame(&a), 2, "a frame the other way");
    EQUAL(next_frame(&received), 2, "goes to the monitor of what is received");
    CHECK(no_frame(&sent), "not to that of what is sent");
    struct netmap_ring *rx = rx_ring(&both, 0);
    REQUIRE(arrived(&both, 2));
    CHECK(rx->slot[rx->head].flags & NS_TXMON, "NS_TXMON marks what was sent");
    EQUAL(rx->slot[next_slot(rx, rx->head)].flags & NS_TXMON, 0, "and not what was received");
    CHECK(next_frame(&both) == 1 && next_frame(&both) == 2, "one for both gets both");
    struct port ring;
    struct nmreq_register one = {.nr_mode = NR_REG_ONE_NIC, .nr_flags = NR_MONITOR_RX};
    SUCCEEDS(port_register(&ring, "vale5:ma", one), "a monitor of one ring");
    send_frame(&b, 1, 2, 3);
    EQUAL(next_frame(&ring), 3, "gets its frames");
    one.nr_ringid = 1;
    GIVES(try_register("vale5:ma", one), EINVAL, "a ring that does not exist: EINVAL");
    struct port shared;
    SUCCEEDS(port_open(&shared, "vale5:ma", NR_REG_ALL_NIC, NR_ZCOPY_MON), "NR_ZCOPY_MON");
    EQUAL(shared.reg.nr_mem_id, a.reg.nr_mem_id, "lies in the memory of the port");
    CHECK((shared.reg.nr_flags & (NR_MONITOR_TX | NR_MONITOR_RX)) == (NR_MONITOR_TX | NR_MONITOR_RX), "and monitors both ways");
    send_frame(&a, 255, 1, 4);
    EQUAL(next_frame(&shared), 4, "what is sent");
    send_frame(&b, 1, 2, 5);
    EQUAL(next_frame(&shared), 5, "and what is received");
    rx = rx_ring(&shared, 0);
    CHECK((rx->slot[0].flags & NS_TXMON) && !(rx->slot[1].flags & NS_TXMON), "NS_TXMON tells one from the other");
    port_close(&shared);
    send_frame(&a, 255, 1, 6);
    CHECK(next_frame(&b) == 4 && next_frame(&b) == 6, "the port goes on without its monitor");
    CHECK(try_open("vale5:nobody", NR_REG_ALL_NIC, NR_MONITOR_RX) == EINVAL, "a monitor of a port that is not open: EINVAL");
}

TOPICS("vale", T(lists), T(forwarding), T(fragments), T(indirect_slots), T(headers), T(overflow), T(several_rings), T(persistent),
       T(persistent_attached), T(attaching), T(polled), T(monitors))
