/* Options of requests, each with a status of its own, and what they turn on: memory of the program's, offsets, CSB mode and
   the loop that syncs. */
#include "port.h"

#include <pthread.h>
#include <sys/eventfd.h>

#define TYPE_UNKNOWN 1234

static struct nmreq_option option(uint32_t type, const void *next) {
    return (struct nmreq_option){.nro_reqtype = type, .nro_next = (uintptr_t)next, .nro_status = 0xdead};
}

static int with(const char *name, uint64_t flags, void *options) {
    struct port port;
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_flags = flags};
    int error = port_register_with(&port, name, reg, options);
    if (!error)
        port_close(&port);
    return error;
}

/* Lists of options. */
static void lists(void) {
    struct nmreq_option one = option(TYPE_UNKNOWN, NULL), before = one;
    GIVES(with("o{1", 0, &one), EOPNOTSUPP, "an option that does not exist: EOPNOTSUPP");
    EQUAL(one.nro_status, EOPNOTSUPP, "its status says so");
    CHECK(one.nro_reqtype == before.nro_reqtype && one.nro_next == 0 && one.nro_size == 0, "and nothing else in it changes");
    struct nmreq_option second = option(NETMAP_REQ_OPT_MAX, NULL);
    one = option(TYPE_UNKNOWN, &second);
    GIVES(with("o{1", 0, &one), EOPNOTSUPP, "two options that do not exist: EOPNOTSUPP");
    CHECK(one.nro_status == EOPNOTSUPP && second.nro_status == EOPNOTSUPP, "each has a status");
    one = option(TYPE_UNKNOWN, NULL);
    one.nro_next = (uintptr_t)&one;
    GIVES(with("o{1", 0, &one), EMSGSIZE, "a list of one unknown option that follows itself: EMSGSIZE");
    struct nmreq_option many[400];
    for (size_t n = 0; n < 400; n++)
        many[n] = option(TYPE_UNKNOWN, n < 399 ? &many[n + 1] : NULL);
    GIVES(with("o{1", 0, many), EMSGSIZE, "a list that is too long: EMSGSIZE");
    SUCCEEDS(with("o{1", 0, NULL), "no options");
    one = option(0, NULL);
    CHECK(with("o{1", 0, &one) == EINVAL && one.nro_status == EINVAL, "option 0: EINVAL, also as its status");
    struct nmreq_opt_offsets loop = {.nro_opt = option(NETMAP_REQ_OPT_OFFSETS, NULL)};
    loop.nro_opt.nro_next = (uintptr_t)&loop;
    CHECK(with("o{1", 0, &loop) == EINVAL, "a list of one known option that follows itself: EINVAL, as it is there twice");
    struct nmreq_opt_offsets b = {.nro_opt = option(NETMAP_REQ_OPT_OFFSETS, NULL)}, a = b;
    a.nro_opt.nro_next = (uintptr_t)&b;
    CHECK(with("o{1", 0, &a) == EINVAL && a.nro_opt.nro_status == EINVAL && b.nro_opt.nro_status == EINVAL,
            "the same option twice: EINVAL, also as the status of both");
    for (size_t n = 0; n < 100; n++)
        many[n] = option(TYPE_UNKNOWN, n < 99 ? &many[n + 1] : NULL);
    many[99].nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS;
    many[99].nro_size = 1000;
    CHECK(with("o{1", 0, many) == EMSGSIZE, "options that together are larger than a request may be: EMSGSIZE");
    struct nmreq_opt_sync_kloop_eventfds large = {.nro_opt = option(NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS, NULL)};
    large.nro_opt.nro_size = NETMAP_REQ_MAXSIZE + 1;
    CHECK(with("o{1", 0, &large) == EMSGSIZE, "an option that is larger than a request may be: EMSGSIZE");
    struct nmreq_opt_offsets known = {.nro_opt = option(NETMAP_REQ_OPT_OFFSETS, NULL)};
    one = option(TYPE_UNKNOWN, &known);
    CHECK(with("o{1", 0, &one) == EOPNOTSUPP && one.nro_status == EOPNOTSUPP && known.nro_opt.nro_status == 0,
            "a known option and an unknown one: EOPNOTSUPP, which is the status of the latter only");
    struct nmreq_opt_sync_kloop_mode misplaced = {.nro_opt = option(NETMAP_REQ_OPT_SYNC_KLOOP_MODE, NULL)};
    GIVES(with("o{1", 0, &misplaced), EOPNOTSUPP, "a known option of another request: EOPNOTSUPP");
    EQUAL(misplaced.nro_opt.nro_status, EOPNOTSUPP, "its status says so");
    SUCCEEDS(with("o{1", NR_EXCLUSIVE, NULL), "nothing is registered after all that");
}

/* ---- NETMAP_REQ_OPT_OFFSETS ---- */

static struct nmreq_opt_offsets offsets(uint64_t max, uint64_t initial, uint32_t bits) {
    return (struct nmreq_opt_offsets){.nro_opt = option(NETMAP_REQ_OPT_OFFSETS, NULL),
                                      .nro_max_offset = max,
                                      .nro_initial_offset = initial,
                                      .nro_offset_bits = bits};
}

static bool offsets_are_set(const char *name) {
    struct nmreq_opt_offsets asked = offsets(128, 64, 16);
    struct port port;
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC};
    if (port_register_with(&port, name, reg, &asked))
        return false;
    bool right = asked.nro_opt.nro_status == 0 && asked.nro_max_offset >= 128;
    struct netmap_ring *rings[] = {tx_ring(&port, 0), rx_ring(&port, 0)};
    for (int n = 0; n < 2; n++) {
        right &= (rings[n]->offset_mask & 0xffff) == 0xffff;
        for (uint32_t slot = 0; slot < rings[n]->num_slots; slot++)
            right &= (rings[n]->slot[slot].ptr & rings[n]->offset_mask) == 64;
    }
    port_close(&port);
    return right;
}

/* Whether a frame that is sent at an offset arrives at an offset. */
static bool offsets_are_used(const char *from, const char *to) {
    struct nmreq_opt_offsets first = offsets(128, 64, 0), second = offsets(128, 32, 0);
    struct port a, b;
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC};
    if (port_register_with(&a, from, reg, &first))
        return false;
    if (port_register_with(&b, to, reg, &second))
        return false;
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    struct netmap_slot *slot = &tx->slot[tx->head];
    char *bytes = slot_bytes(tx, tx->head);
    memset(bytes, 0xee, 64);
    frame_header(bytes + 64, 255, 1);
    memset(bytes + 64 + 14, 'o', FRAME - 14);
    slot->len = FRAME, slot->flags = 0, slot->ptr = 64;
    advance(tx);
    bool right = tx_sync(a.fd) == 0 && poll_port(b.fd, POLLIN, 1000) == POLLIN;
    if (right) {
        uint64_t at = rx->slot[rx->head].ptr & rx->offset_mask;
        right = at <= 128 && memcmp(slot_bytes(rx, rx->head) + at, bytes + 64, FRAME) == 0;
    }
    port_close(&a), port_close(&b);
    return right;
}

static int refuse_offsets(uint64_t max, uint64_t initial, uint32_t bits) {
    struct nmreq_opt_offsets asked = offsets(max, initial, bits);
    int error = with("o{2", 0, &asked);
    return error && asked.nro_opt.nro_status == (uint32_t)error ? error : 0;
}

static void offset_option(void) {
    CHECK(offsets_are_set("o{2"), "NETMAP_REQ_OPT_OFFSETS of a pipe");
    CHECK(offsets_are_set("vale8:o"), "NETMAP_REQ_OPT_OFFSETS of a VALE port");
    CHECK(offsets_are_used("o{3", "o}3"), "frames at offsets through a pipe");
    CHECK(offsets_are_used("vale8:a", "vale8:b"), "frames at offsets through a switch");
    CHECK(refuse_offsets(64, 128, 16) == EINVAL, "an initial offset above the largest: EINVAL, also as the status");
    CHECK(refuse_offsets(1 << 20, 0, 0) == EINVAL, "an offset beyond a buffer: EINVAL, also as the status");
    CHECK(refuse_offsets(1024, 0, 8) == EINVAL, "an offset that the bits cannot hold: EINVAL, also as the status");
    CHECK(refuse_offsets(64, 0, 65) == EINVAL, "more bits than a pointer has: EINVAL, also as the status");
    struct nmreq_opt_offsets first = offsets(128, 64, 16), second = offsets(64, 32, 8), third = offsets(256, 0, 16);
    struct port a, b;
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC};
    SUCCEEDS(port_register_with(&a, "nic", reg, &first), "offsets of a native port");
    SUCCEEDS(port_register_with(&b, "nic", reg, &second), "smaller ones of another program");
    CHECK(second.nro_max_offset == 128 && second.nro_offset_bits == 16, "which gets the larger ones");
    CHECK(tx_ring(&b, 0)->slot[0].ptr == 64, "and leaves the slots as they are");
    port_close(&b);
    GIVES(port_register_with(&b, "nic", reg, &third), EBUSY, "larger ones: EBUSY");
    EQUAL(third.nro_opt.nro_status, EBUSY, "also as the status");
    SUCCEEDS(port_register_with(&b, "nic", reg, NULL), "no offsets");
    port_close(&b), port_close(&a);
    reg.nr_flags = NR_MONITOR_TX;
    a = need("vale8:m"), first = offsets(128, 64, 16);
    SUCCEEDS(port_register_with(&b, "vale8:m", reg, &first), "offsets of a monitor");
    send_frame(&a, 255, 1, 77);
    REQUIRE(poll_port(b.fd, POLLIN, WAIT) == POLLIN);
    struct netmap_ring *ring = rx_ring(&b, 0);
    uint32_t number;
    memcpy(&number, slot_bytes(ring, ring->head) + 64 + 14, sizeof number);
    EQUAL(number, 77, "frames of a monitor are at its offset");
    port_close(&b), port_close(&a);
}

/* ---- NETMAP_REQ_OPT_EXTMEM ---- */

#define EXTERNAL ((size_t)16 << 20)

static struct nmreq_opt_extmem external(const void *memory, uint64_t size) {
    return (struct nmreq_opt_extmem){.nro_opt = option(NETMAP_REQ_OPT_EXTMEM, NULL),
                                     .nro_usrptr = (uintptr_t)memory,
                                     .nro_info = {.nr_memsize = size,
                                                  .nr_if_pool_objtotal = 128,
                                                  .nr_if_pool_objsize = 1024,
                                                  .nr_ring_pool_objtotal = 64,
                                                  .nr_ring_pool_objsize = 36864,
                                                  .nr_buf_pool_objtotal = 5000,
                                                  .nr_buf_pool_objsize = 2048}};
}

static void *anonymous(void) {
    void *memory = mmap(NULL, EXTERNAL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    return memory;
}

/* Whether a port lies in the program's memory, with the sizes that the option returns. */
static bool external_memory(void) {
    char *memory = anonymous();
    struct nmreq_opt_extmem asked = external(memory, EXTERNAL);
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC};
    int fd = device(), error = request_with(fd, NETMAP_REQ_REGISTER, "vale8:e", &reg, &asked);
    bool right = !error && asked.nro_opt.nro_status == 0 && asked.nro_info.nr_memsize <= EXTERNAL;
    if (right) {
        struct netmap_if *nifp = (struct netmap_if *)(memory + reg.nr_offset);
        right = strcmp(nifp->ni_name, "vale8:e") == 0 && reg.nr_mem_id == asked.nro_info.nr_mem_id;
    }
    close(fd);
    munmap(memory, EXTERNAL);
    return right;
}

static int refuse_external(const void *memory, uint64_t size) {
    struct nmreq_opt_extmem asked = external(memory, size);
    int error = with("vale8:e", 0, &asked);
    return error == EOPNOTSUPP ? 0 : error && asked.nro_opt.nro_status == (uint32_t)error;
}

static void external_option(void) {
    CHECK(external_memory(), "NETMAP_REQ_OPT_EXTMEM: a port in the program's memory");
    char *memory = anonymous();
    CHECK(refuse_external(memory, 4096), "a memory that is too small: refused, and the status says why");
    CHECK(refuse_external(NULL, EXTERNAL), "no memory: refused, and the status says why");
    struct nmreq_opt_extmem second = external(memory, EXTERNAL), first = second;
    first.nro_opt.nro_next = (uintptr_t)&second;
    CHECK(with("vale8:e", 0, &first) == EINVAL && first.nro_opt.nro_status == EINVAL && second.nro_opt.nro_status == EINVAL,
            "NETMAP_REQ_OPT_EXTMEM twice: EINVAL, also as the status of both");
}

/* ---- CSB mode ---- */

#define ENTRIES 16

static struct nm_csb_atok atok[ENTRIES] __attribute__((aligned(4096)));
static struct nm_csb_ktoa ktoa[ENTRIES] __attribute__((aligned(4096)));

static struct nmreq_opt_csb csb_option(const void *ours, const void *theirs) {
    return (struct nmreq_opt_csb){
        .nro_opt = option(NETMAP_REQ_OPT_CSB, NULL), .csb_atok = (uintptr_t)ours, .csb_ktoa = (uintptr_t)theirs};
}

/* Registers an end of a pipe in CSB mode. Returns 0 or the error number. */
static int open_csb(struct port *port, const char *name) {
    struct nmreq_opt_csb csb = csb_option(atok, ktoa);
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_EXCLUSIVE};
    return port_register_with(port, name, reg, &csb);
}

static bool csb_is_filled(void) {
    struct port port;
    memset(atok, 0xff, sizeof atok), memset(ktoa, 0xff, sizeof ktoa);
    if (open_csb(&port, "csb{1"))
        return false;
    bool right = atok[0].head == 0 && atok[0].cur == 0 && atok[0].appl_need_kick == 1 && ktoa[0].hwcur == 0 &&
                 ktoa[0].hwtail == port.reg.nr_tx_slots - 1 && ktoa[0].kern_need_kick == 1 && atok[1].head == 0 &&
                 ktoa[1].hwtail == 0;
    port_close(&port);
    return right;
}

/* The error of a sync in CSB mode, or -1 if that mode is not there; `polled` gets the events of a poll. */
static int csb_sync(short *polled) {
    struct port port;
    if (open_csb(&port, "csb{1"))
        return -1;
    *polled = poll_port(port.fd, POLLIN, 0);
    int error = tx_sync(port.fd) == rx_sync(port.fd) ? tx_sync(port.fd) : -1;
    port_close(&port);
    return error;
}

static int refuse_csb(const void *ours, const void *theirs, uint64_t flags) {
    struct nmreq_opt_csb csb = csb_option(ours, theirs);
    int error = with("csb{1", flags, &csb);
    return csb.nro_opt.nro_status == (uint32_t)error ? error : 0;
}

/* NETMAP_REQ_CSB_ENABLE on a bound descriptor. */
static int enable_csb(void *options) {
    struct port port;
    int error = port_open(&port, "csb{1", NR_REG_ALL_NIC, NR_EXCLUSIVE);
    if (!error)
        error = request_with(port.fd, NETMAP_REQ_CSB_ENABLE, "csb{1", NULL, options);
    port_close(&port);
    return error;
}

static void csb_mode(void) {
    short polled = 0;
    CHECK(csb_is_filled(), "NETMAP_REQ_OPT_CSB: positions are exchanged through the program's arrays, which are filled in");
    CHECK(csb_sync(&polled) == EBUSY, "NIOCTXSYNC and NIOCRXSYNC in CSB mode: EBUSY");
    CHECK(csb_sync(&polled) != -1 && polled == POLLERR, "poll in CSB mode: POLLERR");
    CHECK(refuse_csb(atok, ktoa, 0) == EINVAL, "NETMAP_REQ_OPT_CSB without NR_EXCLUSIVE: EINVAL, also as the status");
    CHECK(refuse_csb((char *)atok + 4, ktoa, NR_EXCLUSIVE) == EINVAL, "unaligned arrays: EINVAL, also as the status");
    CHECK(refuse_csb(NULL, NULL, NR_EXCLUSIVE) == EFAULT, "no arrays: EFAULT, also as the status");
    struct nmreq_opt_csb csb = csb_option(atok, ktoa);
    CHECK(enable_csb(&csb) == 0 && csb.nro_opt.nro_status == 0, "NETMAP_REQ_CSB_ENABLE");
    CHECK(enable_csb(NULL) == EINVAL, "NETMAP_REQ_CSB_ENABLE without the option: EINVAL");
}

/* ---- the loop that syncs ---- */

struct loop {
    int fd, result;
    uint32_t sleep_us;
    void *options;
};

static void *run_loop(void *argument) {
    struct loop *loop = argument;
    struct nmreq_sync_kloop_start body = {.sleep_us = loop->sleep_us};
    loop->result = request_with(loop->fd, NETMAP_REQ_SYNC_KLOOP_START, "", &body, loop->options);
    return NULL;
}

/* Whether a loop with these options forwards a frame that is handed to it through the CSB, until it is stopped. */
static bool loop_runs(void *options, int kick) {
    struct port a, b = need("loop}1");
    if (open_csb(&a, "loop{1")) {
        port_close(&b);
        return false;
    }
    struct loop loop = {.fd = a.fd, .result = -1, .sleep_us = 100, .options = options};
    struct nmreq_sync_kloop_start body = {.sleep_us = 100};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, run_loop, &loop) == 0);
    usleep(100000);
    bool right = request(a.fd, NETMAP_REQ_SYNC_KLOOP_START, "", &body) == EBUSY;
    put_frame(tx_ring(&a, 0), 2, 1, 77);
    __atomic_store_n(&atok[0].cur, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&atok[0].head, 1, __ATOMIC_RELEASE);
    if (kick >= 0)
        right &= eventfd_write(kick, 1) == 0;
    right &= next_frame_within(&b, 2000) == 77;
    right &= request(a.fd, NETMAP_REQ_SYNC_KLOOP_STOP, "", NULL) == 0;
    pthread_join(thread, NULL);
    right &= loop.result == 0;
    port_close(&a), port_close(&b);
    return right;
}

static bool loop_runs_with_events(uint32_t mode) {
    size_t size = sizeof(struct nmreq_opt_sync_kloop_eventfds) + 2 * sizeof(int32_t[2]);
    struct nmreq_opt_sync_kloop_eventfds *events = calloc(1, size);
    REQUIRE(events != NULL);
    struct nmreq_opt_sync_kloop_mode direct = {.nro_opt = option(NETMAP_REQ_OPT_SYNC_KLOOP_MODE, NULL), .mode = mode};
    events->nro_opt = option(NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS, mode ? &direct : NULL);
    events->nro_opt.nro_size = size;
    for (int ring = 0; ring < 2; ring++) {
        events->eventfds[ring].ioeventfd = eventfd(0, EFD_CLOEXEC);
        events->eventfds[ring].irqfd = eventfd(0, EFD_CLOEXEC);
    }
    bool right = loop_runs(events, events->eventfds[0].ioeventfd) && events->nro_opt.nro_status == 0;
    for (int ring = 0; ring < 2; ring++)
        close(events->eventfds[ring].ioeventfd), close(events->eventfds[ring].irqfd);
    free(events);
    return right;
}

/* The error of a loop that is refused, on a descriptor in CSB mode or with a port only. */
static int refuse_loop(bool csb, uint32_t sleep_us, void *options) {
    struct port port;
    if (csb ? open_csb(&port, "loop{2") : port_open(&port, "loop{2", NR_REG_ALL_NIC, NR_EXCLUSIVE))
        return -1;
    struct nmreq_sync_kloop_start body = {.sleep_us = sleep_us};
    int error = request_with(port.fd, NETMAP_REQ_SYNC_KLOOP_START, "", &body, options);
    port_close(&port);
    return error;
}

static void kloop(void) {
    CHECK(loop_runs(NULL, -1), "NETMAP_REQ_SYNC_KLOOP_START: a loop that sleeps, until NETMAP_REQ_SYNC_KLOOP_STOP");
    CHECK(loop_runs_with_events(0), "NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS: a loop that is woken");
    CHECK(loop_runs_with_events(NM_OPT_SYNC_KLOOP_DIRECT_TX | NM_OPT_SYNC_KLOOP_DIRECT_RX),
            "NETMAP_REQ_OPT_SYNC_KLOOP_MODE: rings that are synced by who wakes the loop");
    struct nmreq_sync_kloop_start body = {0};
    CHECK(ask(NETMAP_REQ_SYNC_KLOOP_START, "", &body) == ENXIO, "NETMAP_REQ_SYNC_KLOOP_START without a port: ENXIO");
    CHECK(ask(NETMAP_REQ_SYNC_KLOOP_STOP, "", NULL) == ENXIO, "NETMAP_REQ_SYNC_KLOOP_STOP without a port: ENXIO");
    CHECK(refuse_loop(false, 100, NULL) == EINVAL, "NETMAP_REQ_SYNC_KLOOP_START without CSB mode: EINVAL");
    CHECK(refuse_loop(true, 1000001, NULL) == EINVAL, "a sleep of more than a second: EINVAL");
    struct nmreq_opt_sync_kloop_mode mode = {.nro_opt = option(NETMAP_REQ_OPT_SYNC_KLOOP_MODE, NULL), .mode = 8};
    CHECK(refuse_loop(true, 100, &mode) == EINVAL && mode.nro_opt.nro_status == EINVAL,
            "a mode of the loop that does not exist: EINVAL, also as the status");
    struct nmreq_opt_sync_kloop_eventfds none = {.nro_opt = option(NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS, NULL)};
    none.nro_opt.nro_size = sizeof none;
    CHECK(refuse_loop(true, 100, &none) == EINVAL && none.nro_opt.nro_status == EINVAL,
            "eventfds of other rings than the port's: EINVAL, also as the status");
}

TOPICS("options", T(lists), T(offset_option), T(external_option), T(csb_mode), T(kloop))
