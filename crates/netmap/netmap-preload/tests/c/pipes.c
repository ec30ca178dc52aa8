/* Pipes: two ends of which each receives what the other sends, without a copy. */
#include "port.h"

static void ends(void) {
    struct port a = need("p{1"), b = need("p}1");
    EQUAL(a.reg.nr_mem_id, b.reg.nr_mem_id, "both ends lie in one memory");
    CHECK(strcmp(a.nifp->ni_name, "p{1") == 0 && strcmp(b.nifp->ni_name, "p}1") == 0, "each has its name");
    EQUAL(a.reg.nr_tx_slots, b.reg.nr_rx_slots, "one sends into as many slots as the other receives from");
    send_frame(&a, 2, 1, 7);
    EQUAL(next_frame(&b), 7, "a frame from the first end to the second");
    send_frame(&b, 1, 2, 8);
    EQUAL(next_frame(&a), 8, "a frame from the second to the first");
    CHECK(no_frame(&a) && no_frame(&b), "and no other frame");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    REQUIRE(rx_sync(b.fd) == 0 && tx_sync(a.fd) == 0);
    uint32_t slot = tx->head, sent = tx->slot[slot].buf_idx;
    send_frame(&a, 2, 1, 9);
    REQUIRE(poll_port(b.fd, POLLIN, WAIT) == POLLIN);
    EQUAL(rx->slot[rx->head].buf_idx, sent, "the receiver's slot names the sender's buffer: nothing is copied");
    EQUAL(next_frame(&b), 9, "with the frame");
    struct port other = need("p}2");
    send_frame(&a, 2, 1, 10);
    CHECK(no_frame(&other), "a pipe of another name is another pipe");
    EQUAL(next_frame(&b), 10, "the frame is in the right one");
}

static void order(void) {
    struct port a = need("o{1"), b = need("o}1");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    uint32_t sent = 0, received = 0, all = 20 * tx->num_slots + 7;
    bool right = true;
    for (int rounds = 0; received < all && rounds < 1000; rounds++) {
        REQUIRE(poll_port(a.fd, POLLOUT, 0) >= 0);
        while (sent < all && space(tx) > 0)
            put_frame(tx, 2, 1, sent++);
        REQUIRE(tx_sync(a.fd) == 0 && rx_sync(b.fd) == 0);
        for (; space(rx) > 0; advance(rx))
            right &= frame_number(rx, rx->head) == received++ && rx->slot[rx->head].len == FRAME;
    }
    EQUAL(received, all, "as many frames arrive as were sent, twenty times around the ring");
    CHECK(right, "in their order, and unchanged");
}

/* A full pipe. */
static void full(void) {
    struct port a = need("f{1"), b = need("f}1");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    uint32_t capacity = tx->num_slots - 1;
    for (uint32_t number = 0; number < capacity; number++)
        put_frame(tx, 2, 1, number);
    SUCCEEDS(tx_sync(a.fd), "as many frames as fit");
    EQUAL(space(tx), 0, "no slot is left");
    EQUAL(poll_port(a.fd, POLLOUT, 50), 0, "POLLOUT waits");
    REQUIRE(rx_sync(b.fd) == 0);
    EQUAL(space(rx), capacity, "all frames are there");
    advance(rx);
    REQUIRE(rx_sync(b.fd) == 0);
    EQUAL(poll_port(a.fd, POLLOUT, WAIT), POLLOUT, "a slot that the receiver releases is the sender's again");
    EQUAL(space(tx), 1, "just that one");
}

static void buffers(void) {
    struct port a, b;
    struct nmreq_register extra = {.nr_mode = NR_REG_ALL_NIC, .nr_extra_bufs = 1};
    REQUIRE(port_open(&a, "b{1", NR_REG_ALL_NIC, 0) == 0 && port_register(&b, "b}1", extra) == 0);
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    uint32_t slot = tx->head, mine = b.nifp->ni_bufs_head;
    REQUIRE(mine >= 2);
    send_frame(&a, 2, 1, 1);
    REQUIRE(poll_port(b.fd, POLLIN, WAIT) == POLLIN);
    struct netmap_slot *received = &rx->slot[rx->head];
    b.nifp->ni_bufs_head = received->buf_idx;
    *(uint32_t *)buffer_at(rx, received->buf_idx) = 0;
    received->buf_idx = mine;
    received->flags |= NS_BUF_CHANGED;
    advance(rx);
    REQUIRE(rx_sync(b.fd) == 0 && tx_sync(a.fd) == 0);
    EQUAL(tx->slot[slot].buf_idx, mine, "a buffer that the receiver puts into a slot is the sender's afterwards");
    CHECK(tx->slot[slot].flags & NS_BUF_CHANGED, "and the slot says that it was changed");
    /* The other way round: the sender exchanges a buffer. */
    slot = tx->head;
    struct port c, d;
    REQUIRE(port_open(&c, "b{2", NR_REG_ALL_NIC, 0) == 0 && port_open(&d, "b}2", NR_REG_ALL_NIC, 0) == 0);
    send_frame(&c, 2, 1, 55);
    REQUIRE(poll_port(d.fd, POLLIN, WAIT) == POLLIN && c.reg.nr_mem_id == a.reg.nr_mem_id);
    struct netmap_ring *from = rx_ring(&d, 0);
    struct netmap_slot *in = &from->slot[from->head], *out = &tx->slot[tx->head];
    uint32_t spare = out->buf_idx;
    out->buf_idx = in->buf_idx, out->len = in->len, out->flags = NS_BUF_CHANGED;
    in->buf_idx = spare, in->flags = NS_BUF_CHANGED;
    advance(from), advance(tx);
    REQUIRE(rx_sync(d.fd) == 0 && tx_sync(a.fd) == 0);
    EQUAL(next_frame(&b), 55, "a frame goes from one pipe to another by an exchange of buffers");
}

/* A pipe with two rings to the second end and three back. */
static void rings(void) {
    struct port a, b, one;
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_tx_rings = 2, .nr_rx_rings = 3, .nr_tx_slots = 64, .nr_rx_slots = 128};
    REQUIRE(port_register(&a, "r{1", reg) == 0);
    b = need("r}1");
    CHECK(a.reg.nr_tx_rings == 2 && a.reg.nr_rx_rings == 3, "the first end has as many rings as requested");
    CHECK(b.reg.nr_tx_rings == 3 && b.reg.nr_rx_rings == 2, "the second end has them the other way round");
    CHECK(b.reg.nr_tx_slots == 128 && b.reg.nr_rx_slots == 64, "and so it has the slots");
    for (uint32_t ring = 0; ring < 2; ring++)
        put_frame(tx_ring(&a, ring), 2, 1, 10 + ring);
    REQUIRE(tx_sync(a.fd) == 0 && poll_port(b.fd, POLLIN, WAIT) == POLLIN && rx_sync(b.fd) == 0);
    CHECK(space(rx_ring(&b, 0)) == 1 && space(rx_ring(&b, 1)) == 1, "each ring has a frame");
    CHECK(frame_number(rx_ring(&b, 0), 0) == 10 && frame_number(rx_ring(&b, 1), 0) == 11, "of the sender's ring with its number");
    reg = (struct nmreq_register){.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 2};
    REQUIRE(port_register(&one, "r{1", reg) == 0);
    put_frame(tx_ring(&b, 2), 1, 2, 12);
    SUCCEEDS(tx_sync(b.fd), "a frame back in the third ring");
    EQUAL(poll_port(one.fd, POLLIN, WAIT), POLLIN, "wakes a program that has registered that ring");
    EQUAL(frame_number(rx_ring(&one, 2), 0), 12, "and is there");
    put_frame(tx_ring(&b, 1), 1, 2, 13);
    advance(rx_ring(&one, 2));
    REQUIRE(tx_sync(b.fd) == 0);
    EQUAL(poll_port(one.fd, POLLIN, 50), 0, "frames in other rings do not");
    reg.nr_ringid = 3;
    EQUAL(try_register("r{1", reg), EINVAL, "a ring that does not exist: EINVAL");
}

/* Frames in several slots appear as a whole. */
static void fragments(void) {
    struct port a = need("g{1"), b = need("g}1");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    put_frame(tx, 2, 1, 1);
    tx->slot[0].flags = NS_MOREFRAG;
    put_frame(tx, 2, 1, 2);
    tx->slot[1].flags = NS_MOREFRAG;
    SUCCEEDS(tx_sync(a.fd), "two slots of a frame of three");
    EQUAL(poll_port(b.fd, POLLIN, 50), 0, "nothing arrives as long as the last is missing");
    put_frame(tx, 2, 1, 3);
    SUCCEEDS(tx_sync(a.fd), "the last slot");
    EQUAL(poll_port(b.fd, POLLIN, WAIT), POLLIN, "the frame arrives");
    EQUAL(space(rx), 3, "in three slots");
    CHECK(rx->slot[0].flags & NS_MOREFRAG && rx->slot[1].flags & NS_MOREFRAG && !(rx->slot[2].flags & NS_MOREFRAG),
          "NS_MOREFRAG is in all but the last");
    CHECK(frame_number(rx, 0) == 1 && frame_number(rx, 1) == 2 && frame_number(rx, 2) == 3, "in their order");
}

/* Ends that come and go. */
static void closing(void) {
    struct port a = need("c{1"), b = need("c}1");
    send_frame(&a, 2, 1, 1);
    port_close(&a);
    EQUAL(next_frame(&b), 1, "what was sent before an end was closed arrives");
    EQUAL(poll_port(b.fd, POLLIN, 50), 0, "the other end stays, without an error");
    SUCCEEDS(tx_sync(b.fd), "and can sync");
    a = need("c{1");
    send_frame(&a, 2, 1, 2);
    EQUAL(next_frame(&b), 2, "an end that is opened again is connected again");
    send_frame(&b, 1, 2, 3);
    EQUAL(next_frame(&a), 3, "both ways");
    port_close(&b);
    port_close(&a);
    b = need("c}1");
    EQUAL(poll_port(b.fd, POLLIN, 50), 0, "a pipe that both ends have left is a new one");
    a = need("c{1");
    send_frame(&b, 1, 2, 4);
    EQUAL(next_frame(&a), 4, "whichever end comes first");
}

/* Pipes of ports. */
static void parents(void) {
    const char *names[][3] = {{"vale4:p", "vale4:p{1", "vale4:p}1"}, {"nic", "nic{1", "nic}1"}};
    for (size_t n = 0; n < 2; n++) {
        struct port parent = need(names[n][0]), a = need(names[n][1]), b = need(names[n][2]);
        send_frame(&a, 2, 1, 1);
        EQUAL(next_frame(&b), 1, "a pipe of a port that is open");
        CHECK(no_frame(&parent), "is apart from the port itself");
        port_close(&parent);
        send_frame(&a, 2, 1, 2);
        EQUAL(next_frame(&b), 2, "and stays if the port is closed");
        port_close(&a);
        port_close(&b);
    }
}

/* Monitors of what an end sends, of what it receives, and of both. */
static void monitors(void) {
    GIVES(try_open("m{1", NR_REG_ALL_NIC, NR_MONITOR_TX), EINVAL, "a monitor of a pipe that is not open: EINVAL");
    struct port a = need("m{1"), b = need("m}1"), sent, received, both, shared;
    SUCCEEDS(port_open(&sent, "m{1", NR_REG_ALL_NIC, NR_MONITOR_TX), "a monitor of what an end of a pipe sends");
    SUCCEEDS(port_open(&received, "m{1", NR_REG_ALL_NIC, NR_MONITOR_RX), "a monitor of what an end of a pipe receives");
    SUCCEEDS(port_open(&both, "m}1", NR_REG_ALL_NIC, NR_MONITOR_TX | NR_MONITOR_RX), "a monitor of both");
    SUCCEEDS(port_open(&shared, "m{1", NR_REG_ALL_NIC, NR_ZCOPY_MON), "a monitor of a pipe without a copy");
    CHECK(sent.reg.nr_mem_id != a.reg.nr_mem_id, "a monitor that copies has a memory of its own");
    EQUAL(shared.reg.nr_mem_id, a.reg.nr_mem_id, "one that does not lies in that of the pipe");
    send_frame(&a, 2, 1, 5);
    EQUAL(next_frame(&sent), 5, "the first gets what the end sends");
    send_frame(&b, 1, 2, 6);
    EQUAL(next_frame(&received), 6, "the second what it receives");
    CHECK(no_frame(&sent) && no_frame(&received), "and nothing else");
    CHECK(next_frame(&both) == 5 && next_frame(&both) == 6, "one of both gets both, in their order");
    CHECK(next_frame(&shared) == 5 && next_frame(&shared) == 6, "as does the one without a copy");
    struct netmap_ring *rx = rx_ring(&both, 0), *other = rx_ring(&shared, 0);
    CHECK(!(rx->slot[0].flags & NS_TXMON) && (rx->slot[1].flags & NS_TXMON), "NS_TXMON marks what the monitored end has sent");
    CHECK((other->slot[0].flags & NS_TXMON) && !(other->slot[1].flags & NS_TXMON), "which is the other one here");
    CHECK(next_frame(&a) == 6 && next_frame(&b) == 5, "the frames themselves go their way");
    port_close(&sent), port_close(&received), port_close(&both);
    send_frame(&a, 2, 1, 7);
    CHECK(next_frame(&b) == 7 && next_frame(&shared) == 7, "the pipe and other monitors go on when one is closed");
    port_close(&shared);
    send_frame(&a, 2, 1, 8);
    EQUAL(next_frame(&b), 8, "and the pipe when all are");
    SUCCEEDS(port_open(&sent, "m{1", NR_REG_ALL_NIC, NR_MONITOR_TX), "a monitor that comes later");
    CHECK(no_frame(&sent), "gets nothing that was sent before");
    send_frame(&a, 2, 1, 9);
    EQUAL(next_frame(&sent), 9, "but what is sent from then on");
}

/* A monitor that does not read, and one that reads all. */
static void slow_monitors(void) {
    struct port a = need("s{1"), b = need("s}1"), slow, quick;
    REQUIRE(port_open(&slow, "s{1", NR_REG_ALL_NIC, NR_MONITOR_TX) == 0 && port_open(&quick, "s{1", NR_REG_ALL_NIC, NR_MONITOR_TX) == 0);
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0), *seen = rx_ring(&quick, 0);
    uint32_t sent = 0, received = 0, copied = 0, all = 20 * tx->num_slots + 7;
    bool right = true;
    for (int rounds = 0; (received < all || copied < all) && rounds < 10000; rounds++) {
        while (sent < all && sent - copied < 512 && space(tx) > 0)
            put_frame(tx, 2, 1, sent++);
        REQUIRE(tx_sync(a.fd) == 0 && rx_sync(b.fd) == 0 && rx_sync(quick.fd) == 0);
        for (; space(rx) > 0; advance(rx))
            right &= frame_number(rx, rx->head) == received++;
        for (; space(seen) > 0; advance(seen))
            right &= frame_number(seen, seen->head) == copied++ && seen->slot[seen->head].len == FRAME;
    }
    CHECK(received == all && copied == all, "a monitor that reads in time gets all frames");
    CHECK(right, "in their order, and unchanged");
    REQUIRE(rx_sync(slow.fd) == 0);
    uint32_t number = frame_number(rx_ring(&slow, 0), 0);
    CHECK(space(rx_ring(&slow, 0)) > 500 && number > all - 1100, "one that does not has the last ones");
}

/* Monitors of single rings, and of frames in several slots. */
static void ring_monitors(void) {
    struct port a, b, one;
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_tx_rings = 2, .nr_rx_rings = 3};
    REQUIRE(port_register(&a, "w{1", reg) == 0);
    b = need("w}1");
    reg = (struct nmreq_register){.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1, .nr_flags = NR_MONITOR_TX | NR_MONITOR_RX};
    SUCCEEDS(port_register(&one, "w{1", reg), "a monitor of one ring of a pipe");
    put_frame(tx_ring(&a, 0), 2, 1, 1), put_frame(tx_ring(&b, 2), 1, 2, 2), put_frame(tx_ring(&b, 1), 1, 2, 3);
    struct netmap_ring *tx = tx_ring(&a, 1), *rx = rx_ring(&one, 1);
    put_frame(tx, 2, 1, 4), put_frame(tx, 2, 1, 5);
    tx->slot[0].flags = NS_MOREFRAG;
    REQUIRE(tx_sync(b.fd) == 0 && tx_sync(a.fd) == 0 && rx_sync(one.fd) == 0);
    EQUAL(space(rx), 3, "gets its frames only");
    CHECK(frame_number(rx, 0) == 3 && frame_number(rx, 1) == 4 && frame_number(rx, 2) == 5, "both ways");
    CHECK(rx->slot[1].flags == (NS_MOREFRAG | NS_TXMON) && rx->slot[2].flags == NS_TXMON, "also in several slots");
    reg.nr_ringid = 3;
    GIVES(try_register("w{1", reg), EINVAL, "a ring that does not exist: EINVAL");
}

TOPICS("pipes", T(ends), T(order), T(full), T(buffers), T(rings), T(fragments), T(closing), T(parents), T(monitors),
       T(slow_monitors), T(ring_monitors))
