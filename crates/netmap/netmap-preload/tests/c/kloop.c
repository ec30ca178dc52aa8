/* The loop that syncs a port in CSB mode, with a stand-in for the back-end of a hypervisor: a thread runs the loop, and another
   moves positions in the arrays as a guest's driver does, with its kicks and its double check. */
#include "port.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <time.h>

#define ENTRIES 16
#define FRAMES 30000

static struct nm_csb_atok atok[ENTRIES] __attribute__((aligned(4096)));
static struct nm_csb_ktoa ktoa[ENTRIES] __attribute__((aligned(4096)));

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)

/* A port in CSB mode, its loop and what they wake each other by. */
struct guest {
    struct port port;
    pthread_t thread;
    struct nmreq_sync_kloop_start body;
    struct {
        struct nmreq_opt_sync_kloop_eventfds option;
        struct {
            int32_t ioeventfd, irqfd;
        } fds[ENTRIES];
    } events;
    struct nmreq_opt_sync_kloop_mode mode;
    void *options;
    int result;
};

static struct nmreq_option option(uint32_t type, const void *next) {
    return (struct nmreq_option){.nro_reqtype = type, .nro_next = (uintptr_t)next};
}

static int open_csb(struct port *port, const char *name) {
    struct nmreq_opt_csb csb = {.nro_opt = option(NETMAP_REQ_OPT_CSB, NULL),
                                .csb_atok = (uintptr_t)atok,
                                .csb_ktoa = (uintptr_t)ktoa};
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_EXCLUSIVE};
    return port_register_with(port, name, reg, &csb);
}

static void *run_loop(void *argument) {
    struct guest *guest = argument;
    guest->result = request_with(guest->port.fd, NETMAP_REQ_SYNC_KLOOP_START, "", &guest->body, guest->options);
    return NULL;
}

enum wakes { SLEEPS, EVENTS, DIRECT };

static void guest_start(struct guest *guest, enum wakes wakes) {
    uint32_t rings = guest->port.reg.nr_tx_rings + guest->port.reg.nr_rx_rings;
    guest->body = (struct nmreq_sync_kloop_start){.sleep_us = 20};
    guest->options = NULL, guest->result = -1;
    if (wakes != SLEEPS) {
        guest->mode = (struct nmreq_opt_sync_kloop_mode){.nro_opt = option(NETMAP_REQ_OPT_SYNC_KLOOP_MODE, NULL),
                                                         .mode = NM_OPT_SYNC_KLOOP_DIRECT_TX | NM_OPT_SYNC_KLOOP_DIRECT_RX};
        guest->events.option.nro_opt = option(NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS, wakes == DIRECT ? &guest->mode : NULL);
        guest->events.option.nro_opt.nro_size = sizeof guest->events.option + rings * sizeof guest->events.fds[0];
        for (uint32_t ring = 0; ring < rings; ring++) {
            guest->events.fds[ring].ioeventfd = eventfd(0, EFD_CLOEXEC);
            guest->events.fds[ring].irqfd = eventfd(0, EFD_CLOEXEC);
        }
        guest->options = &guest->events;
    }
    REQUIRE(pthread_create(&guest->thread, NULL, run_loop, guest) == 0);
}

static int guest_stop(struct guest *guest) {
    int error = request(guest->port.fd, NETMAP_REQ_SYNC_KLOOP_STOP, "", NULL);
    pthread_join(guest->thread, NULL);
    if (guest->options)
        for (uint32_t ring = 0; ring < guest->port.reg.nr_tx_rings + guest->port.reg.nr_rx_rings; ring++)
            close(guest->events.fds[ring].ioeventfd), close(guest->events.fds[ring].irqfd);
    return error ? error : guest->result;
}

static void guest_open(struct guest *guest, const char *name, enum wakes wakes) {
    REQUIRE(open_csb(&guest->port, name) == 0);
    guest_start(guest, wakes);
}

/* Publishes positions of a ring, and kicks the loop if it wants that. */
static void publish(struct guest *guest, uint32_t entry, uint32_t head, uint32_t cur) {
    STORE(atok[entry].cur, cur);
    STORE(atok[entry].head, head);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (guest->options && LOAD(ktoa[entry].kern_need_kick))
        REQUIRE(eventfd_write(guest->events.fds[entry].ioeventfd, 1) == 0);
}

/* Waits until a ring has slots beyond `cur`. Returns its tail. */
static uint32_t guest_wait(struct guest *guest, uint32_t entry, uint32_t cur) {
    struct timespec moment = {.tv_nsec = 20000};
    for (int tries = 0; LOAD(ktoa[entry].hwtail) == cur; tries++) {
        REQUIRE(tries < 1000000);
        if (!guest->options) {
            nanosleep(&moment, NULL);
            continue;
        }
        STORE(atok[entry].appl_need_kick, 1);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (LOAD(ktoa[entry].hwtail) == cur) {
            eventfd_t calls;
            REQUIRE(poll_port(guest->events.fds[entry].irqfd, POLLIN, WAIT) == POLLIN);
            REQUIRE(eventfd_read(guest->events.fds[entry].irqfd, &calls) == 0);
        }
        STORE(atok[entry].appl_need_kick, 0);
    }
    return LOAD(ktoa[entry].hwtail);
}

/* Sends numbered frames as a guest does. */
static void guest_send(struct guest *guest, uint32_t count) {
    struct netmap_ring *ring = tx_ring(&guest->port, 0);
    uint32_t head = LOAD(atok[0].head), sent = 0;
    while (sent < count) {
        uint32_t tail = guest_wait(guest, 0, head);
        for (uint32_t batch = 0; batch < 32 && head != tail && sent < count; batch++, sent++) {
            struct netmap_slot *slot = &ring->slot[head];
            char *bytes = slot_bytes(ring, head);
            frame_header(bytes, 255, 1);
            memcpy(bytes + 14, &sent, sizeof sent);
            slot->len = FRAME, slot->flags = 0, slot->ptr = 0;
            head = next_slot(ring, head);
        }
        publish(guest, 0, head, head);
    }
}

/* Receives numbered frames as a guest does. Returns how many came as they should. */
static uint32_t guest_receive(struct guest *guest, uint32_t count) {
    const uint32_t entry = guest->port.reg.nr_tx_rings;
    struct netmap_ring *ring = rx_ring(&guest->port, 0);
    uint32_t head = LOAD(atok[entry].head), received = 0, right = 0;
    while (received < count) {
        uint32_t tail = guest_wait(guest, entry, head);
        for (; head != tail; head = next_slot(ring, head), received++)
            right += ring->slot[head].len == FRAME && frame_number(ring, head) == received;
        publish(guest, entry, head, head);
    }
    return right;
}

/* The other end: an ordinary program. */
static void *receive_all(void *argument) {
    struct port *port = argument;
    uintptr_t right = 0;
    for (uint32_t number = 0; number < FRAMES; number++)
        right += next_frame(port) == (int64_t)number;
    return (void *)right;
}

static void *send_all(void *argument) {
    struct port *port = argument;
    struct netmap_ring *ring = tx_ring(port, 0);
    for (uint32_t number = 0; number < FRAMES;) {
        while (space(ring) == 0)
            REQUIRE(poll_port(port->fd, POLLOUT, WAIT) & POLLOUT);
        while (space(ring) > 0 && number < FRAMES)
            put_frame(ring, 255, 2, number++);
        REQUIRE(tx_sync(port->fd) == 0);
    }
    return NULL;
}

static void both_ways(const char *name, const char *other, enum wakes wakes) {
    struct guest guest;
    struct port b = need(other);
    guest_open(&guest, name, wakes);
    pthread_t thread;
    void *right;
    REQUIRE(pthread_create(&thread, NULL, receive_all, &b) == 0);
    guest_send(&guest, FRAMES);
    pthread_join(thread, &right);
    EQUAL((uintptr_t)right, FRAMES, "each frame of the guest arrives, in order");
    REQUIRE(pthread_create(&thread, NULL, send_all, &b) == 0);
    EQUAL(guest_receive(&guest, FRAMES), FRAMES, "each frame for the guest arrives, in order");
    pthread_join(thread, NULL);
    SUCCEEDS(guest_stop(&guest), "the loop ends without an error");
    port_close(&guest.port), port_close(&b);
}

static void pipe_with_events(void) { both_ways("l{1", "l}1", EVENTS); }
static void pipe_with_sleeps(void) { both_ways("l{2", "l}2", SLEEPS); }
static void pipe_directly(void) { both_ways("l{3", "l}3", DIRECT); }
static void monitored_pipe(void) {
    struct port end = need("l{4"), monitor;
    SUCCEEDS(port_open(&monitor, "l{4", NR_REG_ALL_NIC, NR_MONITOR_TX | NR_MONITOR_RX), "a monitor");
    port_close(&end);
    both_ways("l{4", "l}4", EVENTS);
    port_close(&monitor);
}

/* A switch drops what a receiver has no room for, so a frame at a time. */
static void vale(void) {
    struct guest guest;
    struct port b = need("vale8:b");
    guest_open(&guest, "vale8:a", EVENTS);
    const uint32_t rx = guest.port.reg.nr_tx_rings;
    uint32_t right = 0;
    for (uint32_t number = 0; number < 300; number++) {
        guest_send(&guest, 1);
        right += next_frame(&b) == 0;
        send_frame(&b, 255, 2, number);
        uint32_t head = LOAD(atok[rx].head);
        guest_wait(&guest, rx, head);
        right += frame_number(rx_ring(&guest.port, 0), head) == number;
        head = next_slot(rx_ring(&guest.port, 0), head);
        publish(&guest, rx, head, head);
    }
    EQUAL(right, 600, "each frame through a switch arrives");
    char *frame = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(frame != MAP_FAILED);
    frame_header(frame, 255, 1);
    uint32_t head = LOAD(atok[0].head), number = 4711;
    memcpy(frame + 14, &number, sizeof number);
    tx_ring(&guest.port, 0)->slot[head] =
        (struct netmap_slot){.buf_idx = tx_ring(&guest.port, 0)->slot[head].buf_idx, .len = FRAME, .flags = NS_INDIRECT,
                             .ptr = (uintptr_t)frame};
    head = next_slot(tx_ring(&guest.port, 0), head);
    publish(&guest, 0, head, head);
    EQUAL(next_frame(&b), 4711, "and a frame in the program's own memory");
    SUCCEEDS(guest_stop(&guest), "the loop ends without an error");
    port_close(&guest.port), port_close(&b);
}

/* Starts and stops. */
static void conflicts(void) {
    struct guest guest;
    struct port b = need("c}1");
    REQUIRE(open_csb(&guest.port, "c{1") == 0);
    SUCCEEDS(request(guest.port.fd, NETMAP_REQ_SYNC_KLOOP_STOP, "", NULL), "NETMAP_REQ_SYNC_KLOOP_STOP without a loop");
    guest_start(&guest, EVENTS);
    pthread_join(guest.thread, NULL);
    SUCCEEDS(guest.result, "ends the next one at once");
    for (int round = 0; round < 50; round++) {
        guest_start(&guest, round % 3);
        guest_send(&guest, 1);
        REQUIRE(next_frame(&b) == 0);
        REQUIRE(guest_stop(&guest) == 0);
    }
    CHECK(true, "a loop that is started again goes on where the last one ended");
    guest_start(&guest, EVENTS);
    guest_send(&guest, 1);
    struct nmreq_opt_csb csb = {.nro_opt = option(NETMAP_REQ_OPT_CSB, NULL),
                                .csb_atok = (uintptr_t)atok,
                                .csb_ktoa = (uintptr_t)ktoa};
    REQUIRE(next_frame(&b) == 0);
    GIVES(request_with(guest.port.fd, NETMAP_REQ_CSB_ENABLE, "c{1", NULL, &csb), EBUSY, "another CSB while a loop runs: EBUSY");
    SUCCEEDS(guest_stop(&guest), "the loop ends");
    SUCCEEDS(request_with(guest.port.fd, NETMAP_REQ_CSB_ENABLE, "c{1", NULL, &csb), "another CSB without a loop");
    port_close(&guest.port), port_close(&b);
}

/* The time that a sleeping loop takes. */
static void idle(void) {
    struct guest guest;
    guest_open(&guest, "i{1", EVENTS);
    clockid_t clock;
    REQUIRE(pthread_getcpuclockid(guest.thread, &clock) == 0);
    usleep(300000);
    struct timespec before, after;
    REQUIRE(clock_gettime(clock, &before) == 0);
    usleep(1000000);
    REQUIRE(clock_gettime(clock, &after) == 0);
    long micros = (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000;
    CHECK(micros < 20000, "a loop that has nothing to do takes no CPU time");
    SUCCEEDS(guest_stop(&guest), "it ends");
    port_close(&guest.port);
}

/* Arrays that are rewritten while the loop runs. */
static void rewritten(void) {
    struct guest guest;
    struct port b = need("r}1");
    guest_open(&guest, "r{1", SLEEPS);
    unsigned seed = 1;
    for (int round = 0; round < 20000; round++) {
        uint32_t *words = (uint32_t *)(round % 2 ? (void *)atok : (void *)ktoa);
        STORE(words[rand_r(&seed) % (ENTRIES * 16)], (uint32_t)rand_r(&seed) << (rand_r(&seed) % 32));
        if (round % 100 == 0)
            usleep(20);
    }
    SUCCEEDS(guest_stop(&guest), "a loop whose arrays have any values ends without an error");
    while (next_frame_within(&b, 0) != -1)
        ;
    struct nmreq_opt_csb csb = {.nro_opt = option(NETMAP_REQ_OPT_CSB, NULL),
                                .csb_atok = (uintptr_t)atok,
                                .csb_ktoa = (uintptr_t)ktoa};
    SUCCEEDS(request_with(guest.port.fd, NETMAP_REQ_CSB_ENABLE, "r{1", NULL, &csb), "the arrays are filled in again");
    guest_start(&guest, EVENTS);
    guest_send(&guest, 100);
    uint32_t right = 0;
    for (uint32_t number = 0; number < 100; number++)
        right += next_frame(&b) == (int64_t)number;
    EQUAL(right, 100, "and the port works");
    SUCCEEDS(guest_stop(&guest), "it ends");
    port_close(&guest.port), port_close(&b);
}

/* A program that takes its arrays away under its own loop: it unmaps them, or truncates their file. */
static void taken_away(bool truncated) {
    struct port b = need("u}1");
    pid_t child = fork();
    if (child == 0) {
        struct guest guest;
        int file = memfd_create("arrays", MFD_CLOEXEC);
        if (ftruncate(file, 8192))
            _exit(1);
        char *arrays = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        struct nmreq_opt_csb csb = {.nro_opt = option(NETMAP_REQ_OPT_CSB, NULL),
                                    .csb_atok = (uintptr_t)arrays,
                                    .csb_ktoa = (uintptr_t)arrays + 4096};
        struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_EXCLUSIVE};
        if (port_register_with(&guest.port, "u{1", reg, &csb))
            _exit(1);
        guest_start(&guest, SLEEPS);
        usleep(50000);
        if (truncated ? ftruncate(file, 0) : munmap(arrays, 8192))
            _exit(1);
        usleep(2000000);
        _exit(2);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status), "it ends");
    settle();
    struct port a = need("u{1");
    send_frame(&a, 255, 1, 5);
    EQUAL(next_frame(&b), 5, "and nobody else: its end of the pipe is free, and the other end works");
    port_close(&a), port_close(&b);
}

static void unmapped(void) { taken_away(false); }
static void truncated(void) { taken_away(true); }

/* Eventfds that are full, so that a write would block. */
static void full_eventfds(void) {
    struct guest guest;
    struct port b = need("e}1");
    guest_open(&guest, "e{1", EVENTS);
    for (uint32_t ring = 0; ring < 2; ring++)
        REQUIRE(eventfd_write(guest.events.fds[ring].irqfd, UINT64_MAX - 1) == 0);
    STORE(atok[1].appl_need_kick, 1);
    uint32_t right = 0;
    for (uint32_t number = 0; number < 100; number++) {
        send_frame(&b, 255, 1, number);
        guest_send(&guest, 1);
        right += next_frame(&b) == 0;
        STORE(atok[1].appl_need_kick, 1);
    }
    EQUAL(right, 100, "a loop whose eventfds are full goes on");
    SUCCEEDS(guest_stop(&guest), "and ends");
    port_close(&guest.port), port_close(&b);
}

TOPICS("kloop", T(pipe_with_events), T(pipe_with_sleeps), T(pipe_directly), T(monitored_pipe), T(vale), T(conflicts), T(idle),
       T(rewritten), T(unmapped), T(truncated), T(full_eventfds))
