/* Native ports: `nic` has two rings each way, takes all that is sent and receives nothing. */
#include "port.h"

/* Waits until all slots of a Tx ring are the program's again. */
static bool sent(const struct port *port, uint32_t ring) {
    struct netmap_ring *tx = tx_ring(port, ring);
    for (int waits = 0; waits < 200 && space(tx) < tx->num_slots - 1; waits++) {
        if (tx_sync(port->fd))
            return false;
        usleep(5000);
    }
    return space(tx) == tx->num_slots - 1;
}

static void sending(void) {
    struct port port = need("nic");
    CHECK(port.reg.nr_tx_rings == 2 && port.reg.nr_rx_rings == 2, "as many rings as queues");
    EQUAL(poll_port(port.fd, POLLIN | POLLOUT, WAIT), POLLOUT, "it can send, and receives nothing");
    for (uint32_t ring = 0; ring < 2; ring++) {
        struct netmap_ring *tx = tx_ring(&port, ring);
        uint32_t all = 3 * tx->num_slots, count = 0;
        for (int waits = 0; count < all && waits < 1000; waits++) {
            while (count < all && space(tx) > 0)
                put_frame(tx, 255, 1, count++);
            /* At once, as the other ring has room. */
            REQUIRE(poll_port(port.fd, POLLOUT, WAIT) == POLLOUT);
            usleep(1000);
        }
        EQUAL(count, all, "frames, three times around a ring");
        CHECK(sent(&port, ring), "are sent, and their slots are the program's again");
    }
    EQUAL(poll_port(port.fd, POLLIN, 50), 0, "it receives nothing");
    struct netmap_ring *tx = tx_ring(&port, 0);
    for (int n = 0; n < 3; n++) {
        put_frame(tx, 255, 1, 1);
        tx->slot[(tx->head + tx->num_slots - 1) % tx->num_slots].flags = n < 2 ? NS_MOREFRAG : 0;
    }
    SUCCEEDS(tx_sync(port.fd), "a frame in three slots");
    CHECK(sent(&port, 0), "is sent");
}

/* Programs that share a port, with a ring each. */
static void sharing(void) {
    struct nmreq_register ring = {.nr_mode = NR_REG_ONE_NIC};
    struct port ports[2];
    for (uint16_t n = 0; n < 2; n++) {
        ring.nr_ringid = n;
        SUCCEEDS(port_register(&ports[n], "nic", ring), "a registration for each ring");
    }
    EQUAL(ports[0].reg.nr_mem_id, ports[1].reg.nr_mem_id, "of one memory");
    for (uint16_t n = 0; n < 2; n++) {
        put_frame(tx_ring(&ports[n], n), 255, 1, n);
        REQUIRE(tx_sync(ports[n].fd) == 0);
        CHECK(sent(&ports[n], n), "each sends through its ring");
    }
    port_close(&ports[0]);
    put_frame(tx_ring(&ports[1], 1), 255, 1, 2);
    REQUIRE(tx_sync(ports[1].fd) == 0);
    CHECK(sent(&ports[1], 1), "also after the other was closed");
}

static void monitors(void) {
    struct port port = need("nic"), out, in;
    SUCCEEDS(port_open(&out, "nic", NR_REG_ALL_NIC, NR_MONITOR_TX), "a monitor of what is sent");
    SUCCEEDS(port_open(&in, "nic", NR_REG_ALL_NIC, NR_MONITOR_RX), "a monitor of what is received");
    send_frame(&port, 255, 1, 1);
    EQUAL(next_frame(&out), 1, "gets a copy of a frame");
    put_frame(tx_ring(&port, 1), 255, 1, 2);
    REQUIRE(tx_sync(port.fd) == 0);
    EQUAL(poll_port(out.fd, POLLIN, WAIT), POLLIN, "of any ring");
    struct netmap_ring *second = rx_ring(&out, 1);
    CHECK(out.reg.nr_rx_rings == 2 && space(second) == 1 && frame_number(second, 0) == 2, "in its ring with the same number");
    CHECK(second->slot[0].flags & NS_TXMON, "NS_TXMON marks it as sent");
    CHECK(no_frame(&in), "that of what is received gets none");
    struct port shared;
    SUCCEEDS(port_open(&shared, "nic", NR_REG_ALL_NIC, NR_ZCOPY_MON), "a monitor without a copy");
    EQUAL(shared.reg.nr_mem_id, port.reg.nr_mem_id, "lies in the memory of the port");
    send_frame(&port, 255, 1, 4);
    EQUAL(next_frame(&shared), 4, "and gets what is sent");
    port_close(&shared), port_close(&out);
    send_frame(&port, 255, 1, 3);
    CHECK(sent(&port, 0), "the port goes on without its monitor");
}

/* Number of frames in all rings of a monitor, a moment after the first has come. */
static uint32_t frames_in(const struct port *monitor) {
    uint32_t frames = 0;
    if (poll_port(monitor->fd, POLLIN, WAIT) != POLLIN)
        return 0;
    usleep(100000);
    REQUIRE(rx_sync(monitor->fd) == 0);
    for (uint32_t ring = 0; ring < monitor->nifp->ni_rx_rings + monitor->nifp->ni_host_rx_rings; ring++)
        frames += rx_ring(monitor, ring) ? space(rx_ring(monitor, ring)) : 0;
    return frames;
}

static void one_ring(void) {
    struct port port = need("nic"), monitor;
    struct nmreq_register reg = {.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1, .nr_flags = NR_MONITOR_TX};
    SUCCEEDS(port_register(&monitor, "nic", reg), "a monitor of one ring");
    CHECK(!rx_ring(&monitor, 0) && rx_ring(&monitor, 1), "has the ring with its number");
    put_frame(tx_ring(&port, 0), 255, 1, 1), put_frame(tx_ring(&port, 1), 255, 1, 2);
    REQUIRE(tx_sync(port.fd) == 0);
    EQUAL(frames_in(&monitor), 1, "and gets no frames of others");
    EQUAL(frame_number(rx_ring(&monitor, 1), 0), 2, "but those of its own");
    reg.nr_ringid = 2;
    GIVES(try_register("nic", reg), EINVAL, "a ring that does not exist: EINVAL");
    reg.nr_mode = NR_REG_ONE_SW, reg.nr_ringid = 99;
    GIVES(try_register("nic", reg), EINVAL, "a host ring that does not exist: EINVAL");
}

static void host_monitors(void) {
    struct port port, of_host, of_all, of_nic;
    REQUIRE(port_open(&port, "nic", NR_REG_NIC_SW, 0) == 0 && port_open(&of_nic, "nic", NR_REG_ALL_NIC, NR_MONITOR_TX) == 0);
    SUCCEEDS(port_open(&of_host, "nic", NR_REG_SW, NR_MONITOR_TX), "a monitor of the host rings");
    SUCCEEDS(port_open(&of_all, "nic", NR_REG_NIC_SW, NR_MONITOR_TX), "of all rings");
    uint32_t host = port.nifp->ni_rx_rings;
    CHECK(!rx_ring(&of_host, 0) && rx_ring(&of_host, host), "it has the host ring only");
    put_frame(tx_ring(&port, 0), 255, 1, 1), put_frame(tx_ring(&port, port.nifp->ni_tx_rings), 255, 1, 2);
    REQUIRE(tx_sync(port.fd) == 0);
    CHECK(frames_in(&of_host) == 1 && frame_number(rx_ring(&of_host, host), 0) == 2, "and gets what is sent to the host");
    EQUAL(frames_in(&of_all), 2, "one of all rings gets all frames");
    CHECK(frames_in(&of_nic) == 1 && frame_number(rx_ring(&of_nic, 0), 0) == 1, "one of the card's rings those of the card");
}

TOPICS("native", T(sending), T(sharing), T(monitors), T(one_ring), T(host_monitors))
