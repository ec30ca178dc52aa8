/* Legacy requests: NIOCREGIF and NIOCGINFO, which nm_open of the older library makes, and their commands. */
#include "port.h"

static struct nmreq legacy(const char *name) {
    struct nmreq nmr = {.nr_version = NETMAP_API};
    REQUIRE(strlen(name) < sizeof nmr.nr_name);
    memcpy(nmr.nr_name, name, strlen(name));
    return nmr;
}

/* Makes a request on a descriptor of its own. */
static int make(unsigned long number, struct nmreq *nmr) {
    int fd = device(), error = nm_ioctl(fd, number, nmr);
    close(fd);
    return error;
}

static int command(const char *name, uint16_t number) {
    struct nmreq nmr = legacy(name);
    nmr.nr_cmd = number;
    return make(NIOCREGIF, &nmr);
}

/* Registers by the legacy request, and maps. */
static int legacy_open(struct port *port, struct nmreq *nmr) {
    *port = (struct port){.fd = device()};
    int error = nm_ioctl(port->fd, NIOCREGIF, nmr);
    port->reg.nr_offset = nmr->nr_offset, port->reg.nr_memsize = nmr->nr_memsize;
    if (!error)
        error = port_map(port);
    if (error)
        port_close(port);
    return error;
}

static void versions(void) {
    const uint32_t old[] = {0, 3, 4, 11, 12, 13}, fine[] = {14, 15, 16, 20};
    for (size_t n = 0; n < sizeof old / sizeof *old; n++) {
        struct nmreq nmr = legacy("v{1");
        nmr.nr_version = old[n];
        GIVES(make(NIOCREGIF, &nmr), EINVAL, "NIOCREGIF of a version before 14: EINVAL");
        GIVES(make(NIOCGINFO, &nmr), EINVAL, "NIOCGINFO of it: EINVAL");
    }
    for (size_t n = 0; n < sizeof fine / sizeof *fine; n++) {
        struct nmreq nmr = legacy("v{1");
        nmr.nr_version = fine[n];
        SUCCEEDS(make(NIOCREGIF, &nmr), "NIOCREGIF of version 14, or of a later one");
        EQUAL(nmr.nr_version, fine[n], "which is returned");
        nmr.nr_arg2 = 0; /* The pipe's memory went with it. */
        SUCCEEDS(make(NIOCGINFO, &nmr), "NIOCGINFO of it");
    }
}

static void registering(void) {
    struct port port;
    struct nmreq nmr = legacy("vale9:r");
    nmr.nr_tx_rings = nmr.nr_rx_rings = 2, nmr.nr_tx_slots = 128, nmr.nr_rx_slots = 64, nmr.nr_arg3 = 4;
    SUCCEEDS(legacy_open(&port, &nmr), "NIOCREGIF of all rings, as by default");
    CHECK(nmr.nr_tx_rings == 2 && nmr.nr_rx_rings == 2 && nmr.nr_tx_slots == 128 && nmr.nr_rx_slots == 64, "sizes as requested");
    CHECK(nmr.nr_memsize > 0 && nmr.nr_offset < nmr.nr_memsize && nmr.nr_arg2 > 0, "the memory");
    EQUAL(nmr.nr_arg3, 4, "the extra buffers");
    CHECK(port.nifp->ni_bufs_head >= 2, "which are listed");
    CHECK(nmr.nr_flags == 0 && nmr.nr_ringid == 0 && strcmp(nmr.nr_name, "vale9:r") == 0, "the rest as it was");
    CHECK(tx_ring(&port, 0) && tx_ring(&port, 1), "all rings are bound");
    struct port one;
    struct nmreq ring = legacy("vale9:r");
    ring.nr_ringid = NETMAP_HW_RING | 1;
    SUCCEEDS(legacy_open(&one, &ring), "one ring by NETMAP_HW_RING");
    CHECK(!tx_ring(&one, 0) && tx_ring(&one, 1), "just that is bound");
    EQUAL(ring.nr_ringid, NETMAP_HW_RING | 1, "nr_ringid is returned");
    port_close(&one);
    ring = legacy("vale9:r");
    ring.nr_ringid = 1, ring.nr_flags = NR_REG_ONE_NIC;
    SUCCEEDS(legacy_open(&one, &ring), "one ring by NR_REG_ONE_NIC");
    CHECK(!tx_ring(&one, 0) && tx_ring(&one, 1), "just that is bound");
    EQUAL(ring.nr_flags, NR_REG_ONE_NIC, "nr_flags is returned");
    GIVES(nm_ioctl(one.fd, NIOCREGIF, &ring), EBUSY, "a second registration of a descriptor: EBUSY");
    port_close(&one);
    ring.nr_ringid = 2;
    GIVES(make(NIOCREGIF, &ring), EINVAL, "a ring that does not exist: EINVAL");
    ring = legacy("vale9:r");
    ring.nr_flags = NR_REG_ALL_NIC | NR_EXCLUSIVE;
    GIVES(make(NIOCREGIF, &ring), EBUSY, "NR_EXCLUSIVE of a port in use: EBUSY");
    ring.nr_flags = 9;
    GIVES(make(NIOCREGIF, &ring), EINVAL, "a mode that does not exist: EINVAL");
    struct nmreq none = legacy("nothing");
    GIVES(make(NIOCREGIF, &none), ENXIO, "a port that does not exist: ENXIO");
    struct nmreq host = legacy("vale9:r");
    host.nr_ringid = NETMAP_SW_RING;
    GIVES(make(NIOCREGIF, &host), EINVAL, "NETMAP_SW_RING of a VALE port: EINVAL");
    host = legacy("nic"), host.nr_ringid = NETMAP_SW_RING;
    CHECK(make(NIOCREGIF, &host) == 0, "NETMAP_SW_RING of a native port: its host ring");
    host = legacy("nic"), host.nr_flags = NR_REG_NIC_SW;
    CHECK(make(NIOCREGIF, &host) == 0 && host.nr_tx_rings == 2 && host.nr_offset > 0 &&
                try_register("nic", (struct nmreq_register){.nr_mode = NR_REG_ONE_SW}) == 0,
            "NR_REG_NIC_SW of a native port: all rings and the host's");
    struct nmreq null = legacy("anything");
    null.nr_flags = NR_REG_NULL, null.nr_arg2 = 1;
    CHECK(make(NIOCREGIF, &null) == 0, "NR_REG_NULL");
    port_close(&port);
}

/* Pipes by number. */
static void pipes(void) {
    struct port a, b, c;
    struct nmreq first = legacy("p"), second = first, named = legacy("p}3");
    first.nr_flags = NR_REG_PIPE_MASTER, second.nr_flags = NR_REG_PIPE_SLAVE, first.nr_ringid = second.nr_ringid = 3;
    SUCCEEDS(legacy_open(&a, &first), "NR_REG_PIPE_MASTER");
    SUCCEEDS(legacy_open(&b, &second), "NR_REG_PIPE_SLAVE");
    CHECK(first.nr_ringid == 3 && first.nr_flags == NR_REG_PIPE_MASTER, "which are returned");
    CHECK(first.nr_tx_rings == 1 && first.nr_rx_rings == 1, "a pipe has one ring each way");
    send_frame(&a, 2, 1, 1);
    EQUAL(next_frame(&b), 1, "they are the ends of one pipe");
    CHECK(strcmp(a.nifp->ni_name, "p{3") == 0, "with the number in its name");
    SUCCEEDS(legacy_open(&c, &named), "the same end by its name");
    EQUAL(rx_ring(&c, 0)->slot[0].buf_idx, rx_ring(&b, 0)->slot[0].buf_idx, "is the same end");
}

/* Flags of poll in nr_ringid. */
static void polling(void) {
    struct port a, b = need("q}1");
    struct nmreq nmr = legacy("q{1");
    nmr.nr_ringid = NETMAP_NO_TX_POLL;
    REQUIRE(legacy_open(&a, &nmr) == 0);
    put_frame(tx_ring(&a, 0), 2, 1, 1);
    EQUAL(poll_port(a.fd, POLLIN, 0), 0, "with NETMAP_NO_TX_POLL, a poll for POLLIN");
    CHECK(no_frame(&b), "does not send");
    EQUAL(poll_port(a.fd, POLLOUT, 0), POLLOUT, "one for POLLOUT");
    EQUAL(next_frame(&b), 1, "does");
    port_close(&a);
    nmr = legacy("q{1"), nmr.nr_ringid = NETMAP_DO_RX_POLL;
    REQUIRE(legacy_open(&a, &nmr) == 0);
    send_frame(&b, 1, 2, 2);
    EQUAL(poll_port(a.fd, POLLOUT, 0), POLLOUT, "with NETMAP_DO_RX_POLL, a poll for POLLOUT");
    EQUAL(space(rx_ring(&a, 0)), 1, "receives");
    EQUAL(nmr.nr_ringid, NETMAP_DO_RX_POLL, "nr_ringid is returned");
}

static void information(void) {
    struct port port = need("vale9:i");
    struct nmreq nmr = legacy("vale9:i");
    SUCCEEDS(make(NIOCGINFO, &nmr), "NIOCGINFO of a port");
    EQUAL(nmr.nr_memsize, port.reg.nr_memsize, "the size of its memory");
    EQUAL(nmr.nr_arg2, port.reg.nr_mem_id, "its number");
    CHECK(nmr.nr_tx_slots == 1024 && nmr.nr_rx_slots == 1024 && nmr.nr_tx_rings == 1 && nmr.nr_rx_rings == 1, "its rings");
    nmr = legacy("");
    SUCCEEDS(make(NIOCGINFO, &nmr), "without a name: of the memory that ports share");
    CHECK(nmr.nr_memsize > 0 && nmr.nr_arg2 == 1, "its size and number");
    nmr = legacy("nothing");
    int error = make(NIOCGINFO, &nmr);
    /* netmap(4) has EINVAL, and netmap itself ENXIO. */
    CHECK(error == EINVAL || error == ENXIO, "NIOCGINFO of a port that does not exist: EINVAL or ENXIO");
}

static void commands(void) {
    struct port port = need("vale9:c");
    struct nmreq nmr = legacy("vale9:c");
    nmr.nr_cmd = NETMAP_BDG_LIST;
    CHECK(make(NIOCGINFO, &nmr) == 0 && nmr.nr_memsize == 0,
            "NETMAP_BDG_LIST by NIOCGINFO: numbers of a port by its name");
    nmr = legacy("");
    nmr.nr_cmd = NETMAP_BDG_LIST;
    CHECK(make(NIOCGINFO, &nmr) == 0 && strcmp(nmr.nr_name, "vale9:c") == 0, "NETMAP_BDG_LIST by NIOCGINFO: the next port");
    nmr = legacy("vi9");
    nmr.nr_cmd = NETMAP_BDG_NEWIF, nmr.nr_tx_slots = 256;
    SUCCEEDS(make(NIOCREGIF, &nmr), "NETMAP_BDG_NEWIF");
    CHECK(nmr.nr_tx_slots == 256 && nmr.nr_rx_slots == 1024 && nmr.nr_tx_rings == 1 && nmr.nr_rx_rings == 1 && nmr.nr_arg2 > 1,
          "the sizes and the memory are returned");
    nmr.nr_arg2 = 0;
    GIVES(make(NIOCREGIF, &nmr), EEXIST, "again: EEXIST");
    SUCCEEDS(command("vale9:vi9", NETMAP_BDG_ATTACH), "NETMAP_BDG_ATTACH of a persistent port");
    GIVES(command("vi9", NETMAP_BDG_DELIF), EBUSY, "NETMAP_BDG_DELIF of an attached port: EBUSY");
    SUCCEEDS(command("vale9:vi9", NETMAP_BDG_DETACH), "NETMAP_BDG_DETACH of it");
    SUCCEEDS(command("vi9", NETMAP_BDG_DELIF), "NETMAP_BDG_DELIF");
    GIVES(command("vi9", NETMAP_BDG_DELIF), ENXIO, "of a port that does not exist: ENXIO");
    SUCCEEDS(command("vale9:nic", NETMAP_BDG_ATTACH), "NETMAP_BDG_ATTACH of a native port");
    SUCCEEDS(command("vale9:nic", NETMAP_BDG_DETACH), "NETMAP_BDG_DETACH of it");
    nmr = legacy("vale9:nic");
    nmr.nr_cmd = NETMAP_BDG_ATTACH, nmr.nr_arg1 = NETMAP_BDG_HOST;
    SUCCEEDS(make(NIOCREGIF, &nmr), "NETMAP_BDG_ATTACH with NETMAP_BDG_HOST");
    nmr = legacy("vale9:nic^");
    nmr.nr_cmd = NETMAP_BDG_LIST;
    SUCCEEDS(make(NIOCGINFO, &nmr), "the host's stack is a port of the switch");
    nmr = legacy("vale9:nic");
    nmr.nr_cmd = NETMAP_BDG_POLLING_ON, nmr.nr_arg1 = 1;
    SUCCEEDS(make(NIOCREGIF, &nmr), "NETMAP_BDG_POLLING_ON of it");
    SUCCEEDS(command("vale9:nic", NETMAP_BDG_POLLING_OFF), "NETMAP_BDG_POLLING_OFF");
    SUCCEEDS(command("vale9:nic", NETMAP_BDG_DETACH), "NETMAP_BDG_DETACH of both");
    SUCCEEDS(command("vale9:null", NETMAP_BDG_ATTACH), "NETMAP_BDG_ATTACH of a port by its address");
    SUCCEEDS(command("vale9:null", NETMAP_BDG_DETACH), "NETMAP_BDG_DETACH of it");
    GIVES(command("vale9:nothing", NETMAP_BDG_DETACH), ENXIO, "NETMAP_BDG_DETACH of a port that does not exist: ENXIO");
    nmr = legacy("vale9:c");
    nmr.nr_cmd = NETMAP_BDG_VNET_HDR, nmr.nr_arg1 = 12;
    CHECK(make(NIOCREGIF, &nmr) == 0, "NETMAP_BDG_VNET_HDR: the length of the header in front of frames");
    nmr.nr_cmd = NETMAP_BDG_VNET_HDR, nmr.nr_arg1 = 0;
    CHECK(make(NIOCREGIF, &nmr) == 0, "NETMAP_BDG_VNET_HDR to none");
    nmr.nr_cmd = NETMAP_VNET_HDR_GET, nmr.nr_arg1 = 77;
    CHECK(make(NIOCREGIF, &nmr) == 0 && nmr.nr_arg1 == 0, "NETMAP_VNET_HDR_GET");
    GIVES(command("vale9:c", NETMAP_BDG_POLLING_ON), EOPNOTSUPP, "NETMAP_BDG_POLLING_ON of a program's port: EOPNOTSUPP");
    GIVES(command("vale9:c", NETMAP_BDG_POLLING_OFF), EOPNOTSUPP, "NETMAP_BDG_POLLING_OFF of it: EOPNOTSUPP");
    CHECK(command("vale9:c", NETMAP_PT_HOST_CREATE) != 0, "NETMAP_PT_HOST_CREATE, which netmap itself has given up");
    CHECK(command("vale9:c", 99) == EINVAL, "a command that does not exist: EINVAL");
    port_close(&port);
}

TOPICS("legacy", T(versions), T(registering), T(pipes), T(polling), T(information), T(commands))
