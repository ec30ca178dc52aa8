/* Processes that are killed inside of requests, of each kind. The server goes on, and nothing of theirs is left. */
#include "passing.h"

#include <signal.h>
#include <sys/eventfd.h>

enum { KILLS = 25 };

static char arrays[2][4096] __attribute__((aligned(4096)));

static struct nmreq_option option(uint32_t type, const void *next) {
    return (struct nmreq_option){.nro_reqtype = type, .nro_next = (uintptr_t)next};
}

static int registered_with(struct port *port, const char *name, uint64_t flags, void *options) {
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_flags = flags, .nr_tx_slots = 64, .nr_rx_slots = 64};
    *port = (struct port){.fd = device(), .reg = reg};
    return request_with(port->fd, NETMAP_REQ_REGISTER, name, &port->reg, options);
}

static struct nmreq_opt_csb csb_option(void) {
    return (struct nmreq_opt_csb){.nro_opt = option(NETMAP_REQ_OPT_CSB, NULL),
                                  .csb_atok = (uintptr_t)arrays[0],
                                  .csb_ktoa = (uintptr_t)arrays[1]};
}

/* What the processes do again and again. Each returns 0 or an error number. */

static int register_pipe(void) {
    struct port port;
    int error = port_open(&port, "k{1", NR_REG_ALL_NIC, 0);
    return error ? error : (send_frame(&port, 255, 1, 1), port_close(&port), 0);
}

static int register_vale(void) {
    struct port port;
    int error = port_open(&port, "vale30:k", NR_REG_ALL_NIC, 0);
    return error ? error : (send_frame(&port, 255, 1, 1), port_close(&port), 0);
}

static int register_native(void) { return try_open("nic", NR_REG_NIC_SW, 0); }
static int register_null(void) { return try_register("any", (struct nmreq_register){.nr_mode = NR_REG_NULL, .nr_mem_id = 1}); }

static int register_monitor(void) {
    struct port port;
    int error = port_open(&port, "k{2", NR_REG_ALL_NIC, 0);
    return error ? error : (error = try_open("k{2", NR_REG_ALL_NIC, NR_MONITOR_TX), port_close(&port), error);
}

static int use_offsets(void) {
    struct nmreq_opt_offsets offsets = {
        .nro_opt = option(NETMAP_REQ_OPT_OFFSETS, NULL), .nro_max_offset = 128, .nro_initial_offset = 64};
    struct port port;
    int error = registered_with(&port, "vale30:o", 0, &offsets);
    close(port.fd);
    return error;
}

static int use_external_memory(void) {
    size_t size = 8 << 20;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct nmreq_opt_extmem external = {.nro_opt = option(NETMAP_REQ_OPT_EXTMEM, NULL),
                                        .nro_usrptr = (uintptr_t)memory,
                                        .nro_info = {.nr_memsize = size, .nr_buf_pool_objsize = 2048}};
    struct port port;
    int error = registered_with(&port, "k{3", 0, &external);
    close(port.fd);
    munmap(memory, size);
    return error;
}

static int enable_csb(void) {
    struct port port;
    struct nmreq_opt_csb csb = csb_option();
    int error = registered_with(&port, "k{4", NR_EXCLUSIVE, NULL);
    if (!error)
        error = request_with(port.fd, NETMAP_REQ_CSB_ENABLE, "", NULL, &csb);
    close(port.fd);
    return error;
}

static int run_loop(void) {
    struct port port;
    struct nmreq_opt_csb csb = csb_option();
    int error = registered_with(&port, "k{5", NR_EXCLUSIVE, &csb);
    struct nmreq_sync_kloop_start body = {.sleep_us = 20};
    /* Runs until this process is killed. */
    return error ? error : request(port.fd, NETMAP_REQ_SYNC_KLOOP_START, "", &body);
}

static int ask_for_information(void) {
    struct nmreq_port_info_get port = {0};
    struct nmreq_pools_info pools = {0};
    int error = ask(NETMAP_REQ_PORT_INFO_GET, "vale30:i", &port);
    return error ? error : ask(NETMAP_REQ_POOLS_INFO_GET, "k{6", &pools);
}

static int list_ports(void) {
    struct nmreq_vale_list at = {0};
    int error = ask(NETMAP_REQ_VALE_LIST, "", &at);
    return error == ENOENT ? 0 : error;
}

static int change_headers(void) {
    struct port port;
    struct nmreq_port_hdr header = {.nr_hdr_len = 12};
    int error = port_open(&port, "vale30:h", NR_REG_ALL_NIC, NR_ACCEPT_VNET_HDR);
    if (!error)
        error = request(port.fd, NETMAP_REQ_PORT_HDR_SET, "vale30:h", &header);
    close(port.fd);
    return error;
}

/* A port that stays: those killed before leave it, attached or not. */
static int make_persistent(void) {
    struct nmreq_vale_newif sizes = {.nr_tx_slots = 64, .nr_rx_slots = 64, .nr_tx_rings = 1, .nr_rx_rings = 1};
    struct nmreq_vale_attach attach = {.reg = {.nr_mode = NR_REG_ALL_NIC}};
    struct nmreq_vale_detach detach = {0};
    ask(NETMAP_REQ_VALE_NEWIF, "kvi", &sizes);
    ask(NETMAP_REQ_VALE_ATTACH, "vale30:kvi", &attach);
    ask(NETMAP_REQ_VALE_DETACH, "vale30:kvi", &detach);
    return ask(NETMAP_REQ_VALE_DELIF, "kvi", NULL);
}

/* A descriptor that is in no process's table but in a message when its sender is killed. */
static int pass_descriptors(void) {
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    struct port port;
    int error = registered_with(&port, "k{7", 0, NULL);
    if (!error && !send_descriptor(sockets[0], port.fd))
        error = errno;
    close(port.fd);
    if (!error) {
        int fd = received_descriptor(sockets[1]);
        error = fd < 0 ? EBADF : tx_sync(fd);
        close(fd);
    }
    close(sockets[0]), close(sockets[1]);
    return error;
}

static const struct {
    const char *what;
    int (*run)(void);
} requests[] = {
    {"NETMAP_REQ_REGISTER of a pipe", register_pipe},
    {"NETMAP_REQ_REGISTER of a VALE port", register_vale},
    {"NETMAP_REQ_REGISTER of a native port", register_native},
    {"NETMAP_REQ_REGISTER of a null port", register_null},
    {"NETMAP_REQ_REGISTER of a monitor", register_monitor},
    {"NETMAP_REQ_OPT_OFFSETS", use_offsets},
    {"NETMAP_REQ_OPT_EXTMEM", use_external_memory},
    {"NETMAP_REQ_CSB_ENABLE", enable_csb},
    {"NETMAP_REQ_SYNC_KLOOP_START", run_loop},
    {"NETMAP_REQ_PORT_INFO_GET and POOLS_INFO_GET", ask_for_information},
    {"NETMAP_REQ_VALE_LIST", list_ports},
    {"NETMAP_REQ_PORT_HDR_SET", change_headers},
    {"NETMAP_REQ_VALE_NEWIF, ATTACH, DETACH and DELIF", make_persistent},
    {"SCM_RIGHTS", pass_descriptors},
};

/* Ports whose names a killed process may have had. */
static const char *names[] = {"k{1", "k{2", "k{3", "k{4", "k{5", "k{6", "k{7", "vale30:k", "vale30:o", "vale30:h", "nic"};

static void kills(void) {
    struct port a = need("innocent{1"), b = need("innocent}1");
    uint32_t number = 0;
    for (size_t n = 0; n < sizeof requests / sizeof *requests; n++) {
        /* Says that the process has made the request once, or runs the loop; then counts errors. */
        volatile uint32_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(shared != MAP_FAILED);
        for (int round = 0; round < KILLS; round++) {
            pid_t child = fork();
            REQUIRE(child >= 0);
            if (child == 0) {
                for (;;) {
                    shared[0] = 1;
                    /* EBUSY: the server has not seen yet that the last process is gone. */
                    int error = requests[n].run();
                    if (error && error != EBUSY)
                        shared[1]++, shared[2] = (uint32_t)error;
                }
            }
            while (!shared[0])
                usleep(100);
            shared[0] = 0;
            usleep((useconds_t)(317 * round));
            REQUIRE(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
            send_frame(&a, 255, 1, number);
            REQUIRE(next_frame(&b) == number++);
        }
        GIVES((int)shared[2], 0, requests[n].what);
        munmap((void *)shared, 4096);
    }
    settle();
    struct nmreq_vale_detach detach = {0};
    ask(NETMAP_REQ_VALE_DETACH, "vale30:kvi", &detach);
    ask(NETMAP_REQ_VALE_DELIF, "kvi", NULL);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        SUCCEEDS(try_open(names[n], NR_REG_ALL_NIC, NR_EXCLUSIVE), "a port that was a killed process's is free");
    struct nmreq_vale_list at = {0};
    GIVES(ask(NETMAP_REQ_VALE_LIST, "", &at), ENOENT, "no switch is left");
    port_close(&a), port_close(&b);
}

TOPICS("kills", T(kills))
