/* Names: those in a request's header, and the requests that the names of netmap's libraries stand for, such as
   netmap:nic-1/x@1. The libraries cut what follows the port's name off and make modes, flags and numbers of it. */
#include "port.h"

/* What a library makes of a name. */
struct name {
    const char *text, *port;
    uint32_t mode;
    uint16_t ring, memory;
    uint64_t flags;
};

static struct nmreq_register made_of(const struct name *name) {
    return (struct nmreq_register){
        .nr_mode = name->mode, .nr_ringid = name->ring, .nr_mem_id = name->memory, .nr_flags = name->flags};
}

static void suffixes(void) {
    static const struct name known[] = {
        {.text = "netmap:nic", .port = "nic", .mode = NR_REG_ALL_NIC},
        {.text = "netmap:nic-0", .port = "nic", .mode = NR_REG_ONE_NIC},
        {.text = "netmap:nic-1", .port = "nic", .mode = NR_REG_ONE_NIC, .ring = 1},
        {.text = "netmap:nic/x", .port = "nic", .mode = NR_REG_ALL_NIC, .flags = NR_EXCLUSIVE},
        {.text = "netmap:nic/R", .port = "nic", .mode = NR_REG_ALL_NIC, .flags = NR_RX_RINGS_ONLY},
        {.text = "netmap:nic/T", .port = "nic", .mode = NR_REG_ALL_NIC, .flags = NR_TX_RINGS_ONLY},
        {.text = "netmap:nic-1/Tx", .port = "nic", .mode = NR_REG_ONE_NIC, .ring = 1, .flags = NR_TX_RINGS_ONLY | NR_EXCLUSIVE},
        {.text = "netmap:nic@1", .port = "nic", .mode = NR_REG_ALL_NIC, .memory = 1},
        {.text = "netmap:nic@1/R", .port = "nic", .mode = NR_REG_ALL_NIC, .memory = 1, .flags = NR_RX_RINGS_ONLY},
        {.text = "netmap:pipe{0", .port = "pipe{0", .mode = NR_REG_ALL_NIC},
        {.text = "netmap:pipe}in", .port = "pipe}in", .mode = NR_REG_ALL_NIC},
        {.text = "netmap:pipe{in-0", .port = "pipe{in", .mode = NR_REG_ONE_NIC},
        {.text = "netmap:nic{a_1", .port = "nic{a_1", .mode = NR_REG_ALL_NIC},
        {.text = "netmap:14{1", .port = "14{1", .mode = NR_REG_ALL_NIC},
        {.text = "vale3:0", .port = "vale3:0", .mode = NR_REG_ALL_NIC},
        {.text = "vale:0", .port = "vale:0", .mode = NR_REG_ALL_NIC},
        {.text = "valeXX_x:YY_9", .port = "valeXX_x:YY_9", .mode = NR_REG_ALL_NIC},
        {.text = "vale3:0/Tx", .port = "vale3:0", .mode = NR_REG_ALL_NIC, .flags = NR_TX_RINGS_ONLY | NR_EXCLUSIVE},
        {.text = "vale3:0@1", .port = "vale3:0", .mode = NR_REG_ALL_NIC, .memory = 1},
        {.text = "vale3:0{0", .port = "vale3:0{0", .mode = NR_REG_ALL_NIC},
    };
    for (size_t n = 0; n < sizeof known / sizeof *known; n++)
        SUCCEEDS(try_register(known[n].port, made_of(&known[n])), known[n].text);
    static const struct name host[] = {
        {.text = "netmap:nic^: the host rings", .port = "nic", .mode = NR_REG_SW},
        {.text = "netmap:nic^0: one of them", .port = "nic", .mode = NR_REG_ONE_SW},
        {.text = "netmap:nic^/R: their Rx side", .port = "nic", .mode = NR_REG_SW, .flags = NR_RX_RINGS_ONLY},
        {.text = "netmap:nic^/T: their Tx side", .port = "nic", .mode = NR_REG_SW, .flags = NR_TX_RINGS_ONLY},
    };
    for (size_t n = 0; n < sizeof host / sizeof *host; n++)
        SUCCEEDS(try_register(host[n].port, made_of(&host[n])), host[n].text);
}

static int monitor(const char *name, uint64_t flags, uint32_t mode, uint16_t ring) {
    return try_register(name, (struct nmreq_register){.nr_mode = mode, .nr_ringid = ring, .nr_flags = flags});
}

/* Monitors, each of a port that is open. */
static void monitors(void) {
    const char *names[] = {"nic", "vale3:m"};
    for (size_t n = 0; n < 2; n++) {
        struct port port = need(names[n]);
        SUCCEEDS(monitor(names[n], NR_MONITOR_RX, NR_REG_ALL_NIC, 0), "/r, of a native port and a VALE port");
        SUCCEEDS(monitor(names[n], NR_MONITOR_TX, NR_REG_ALL_NIC, 0), "/t");
        SUCCEEDS(monitor(names[n], NR_MONITOR_TX | NR_MONITOR_RX, NR_REG_ALL_NIC, 0), "/rt");
        SUCCEEDS(monitor(names[n], NR_ZCOPY_MON, NR_REG_ALL_NIC, 0), "/z: a monitor without a copy");
        SUCCEEDS(monitor(names[n], NR_ZCOPY_MON, NR_REG_ONE_NIC, 0), "-0/z: of one ring");
        SUCCEEDS(monitor(names[n], NR_MONITOR_RX, NR_REG_ONE_NIC, 0), "-0/r: a monitor of one ring");
        GIVES(monitor(names[n], NR_MONITOR_RX, NR_REG_ONE_NIC, 99), EINVAL, "of a ring that does not exist: EINVAL");
        port_close(&port);
    }
    struct port pipe = need("m{1");
    SUCCEEDS(monitor("m{1", NR_MONITOR_RX, NR_REG_ALL_NIC, 0), "/r of a pipe");
    SUCCEEDS(monitor("m{1", NR_MONITOR_TX, NR_REG_ALL_NIC, 0), "/t of a pipe");
    SUCCEEDS(monitor("m{1", NR_ZCOPY_MON, NR_REG_ALL_NIC, 0), "/z of a pipe");
    port_close(&pipe);
}

static void not_names(void) {
    static const char *const suffixed[] = {"nic-0", "nic^", "nic*", "nic/R", "nic@1"};
    for (size_t n = 0; n < sizeof suffixed / sizeof *suffixed; n++)
        CHECK(try_open(suffixed[n], NR_REG_ALL_NIC, 0) == ENXIO, "a suffix in a header's name is part of the name: ENXIO");
    CHECK(try_open("x{", NR_REG_ALL_NIC, 0) == EINVAL, "a pipe without a name of its own: EINVAL");
    CHECK(try_open("{1", NR_REG_ALL_NIC, 0) == EINVAL, "a pipe without a port: EINVAL");
    CHECK(try_open("vale3", NR_REG_ALL_NIC, 0) != 0, "a switch without a port");
    CHECK(try_open("nowhere", NR_REG_ALL_NIC, 0) == ENXIO, "a port that does not exist: ENXIO");
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC};
    struct nmreq_header endless = header(NETMAP_REQ_REGISTER, "", &reg);
    memset(endless.nr_name, 'x', sizeof endless.nr_name);
    int fd = device();
    CHECK(nm_ioctl(fd, NIOCCTRL, &endless) != 0, "a name without an end");
}

TOPICS("names", T(suffixes), T(monitors), T(not_names))
