/* Processes that synchronise the same rings at the same time. As in netmap, they agree which of them moves head, and nothing else. */
#include "port.h"

#include <sched.h>
#include <signal.h>

enum { SYNCS = 1000000, ON_THE_WAY = 200 };

/* What the processes agree by. */
struct agreed {
    char sending, receiving; /* locks */
    uint32_t sent, received, wrong;
};

static struct agreed *agreed_memory(void) {
    struct agreed *agreed = mmap(NULL, sizeof *agreed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(agreed != MAP_FAILED);
    return agreed;
}

static void lock(char *lock) {
    while (__atomic_test_and_set(lock, __ATOMIC_ACQUIRE))
        sched_yield();
}

static void unlock(char *lock) { __atomic_clear(lock, __ATOMIC_RELEASE); }

static void send_one(const struct port *port, struct agreed *agreed) {
    struct netmap_ring *ring = tx_ring(port, 0);
    lock(&agreed->sending);
    uint32_t received = __atomic_load_n(&agreed->received, __ATOMIC_RELAXED);
    if (space(ring) > 0 && agreed->sent - received < ON_THE_WAY)
        put_frame(ring, 255, 1, agreed->sent++);
    unlock(&agreed->sending);
}

static void receive_all(const struct port *port, struct agreed *agreed) {
    struct netmap_ring *ring = rx_ring(port, 0);
    lock(&agreed->receiving);
    while (space(ring) > 0) {
        agreed->wrong += ring->slot[ring->head].len != FRAME || frame_number(ring, ring->head) != agreed->received;
        __atomic_store_n(&agreed->received, agreed->received + 1, __ATOMIC_RELAXED);
        advance(ring);
    }
    unlock(&agreed->receiving);
}

/* Sends and receives, and synchronises both rings a million times. Returns the number of errors. */
static uint32_t exchange(const struct port *from, const struct port *to, struct agreed *agreed) {
    uint32_t errors = 0;
    for (int n = 0; n < SYNCS; n++) {
        send_one(from, agreed);
        errors += tx_sync(from->fd) != 0;
        receive_all(to, agreed);
        errors += rx_sync(to->fd) != 0;
    }
    return errors;
}

/* Two processes use both ports. The second one has the first one's registrations, or its own. */
static void shared_by_two(const char *names[2], bool own) {
    struct agreed *agreed = agreed_memory();
    struct port from = need(names[0]), to = need(names[1]);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        if (own)
            from = need(names[0]), to = need(names[1]);
        _exit(exchange(&from, &to, agreed) != 0);
    }
    EQUAL(exchange(&from, &to, agreed), 0, "a million syncs of each ring beside those of another process succeed");
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    EQUAL(status, 0, "and the other process's");
    for (int waits = 0; agreed->received != agreed->sent && waits < 1000; waits++) {
        REQUIRE(tx_sync(from.fd) == 0 && rx_sync(to.fd) == 0);
        receive_all(&to, agreed);
        usleep(1000);
    }
    EQUAL(agreed->received, agreed->sent, "all frames arrive");
    EQUAL(agreed->wrong, 0, "once, and in order");
    CHECK(agreed->sent > SYNCS / 100, "many frames");
    port_close(&from), port_close(&to);
}

static void pipes(void) { shared_by_two((const char *[]){"p{1", "p}1"}, false); }
static void pipes_registered_twice(void) { shared_by_two((const char *[]){"p{2", "p}2"}, true); }
static void switches(void) { shared_by_two((const char *[]){"vale21:a", "vale21:b"}, false); }
static void switches_registered_twice(void) { shared_by_two((const char *[]){"vale22:a", "vale22:b"}, true); }

/* Each process gets the next frame of a monitor, whichever it is. */
static void monitors(void) {
    struct port a = need("m{1"), b = need("m}1"), monitor;
    REQUIRE(port_open(&monitor, "m{1", NR_REG_ALL_NIC, NR_MONITOR_TX) == 0);
    for (uint32_t number = 0; number < 20; number++) {
        send_frame(&a, 2, 1, number);
        REQUIRE(next_frame(&b) == number);
        pid_t child = number % 2 ? fork() : -1;
        if (child == 0)
            _exit(next_frame(&monitor) != number || rx_sync(monitor.fd));
        if (child > 0) {
            int status;
            REQUIRE(waitpid(child, &status, 0) == child);
            EQUAL(status, 0, "a process gets the next frame of a monitor");
        } else {
            EQUAL(next_frame(&monitor), number, "and its parent the one after that");
            REQUIRE(rx_sync(monitor.fd) == 0);
        }
    }
    CHECK(no_frame(&monitor), "and nobody a second time");
    port_close(&monitor), port_close(&a), port_close(&b);
}

/* Processes that synchronise rings without pause are killed; nothing stays taken. */
static void killed(const char *names[2]) {
    enum { KILLS = 250, FRAMES = 50 };
    struct agreed *agreed = agreed_memory();
    struct port from = need(names[0]), to = need(names[1]);
    /* So that a sync takes longer. */
    tx_ring(&from, 0)->flags |= NR_TIMESTAMP, rx_ring(&to, 0)->flags |= NR_TIMESTAMP;
    for (int round = 0; round < KILLS; round++) {
        pid_t child = fork();
        REQUIRE(child >= 0);
        while (child == 0)
            tx_sync(from.fd), rx_sync(to.fd);
        usleep(2000 + 7 * round);
        /* A zombie until the frames have passed. */
        REQUIRE(kill(child, SIGKILL) == 0);
        uint32_t until = agreed->received + FRAMES;
        for (int waits = 0; agreed->received < until && waits < 2000; waits++) {
            if (agreed->sent < until)
                send_one(&from, agreed);
            REQUIRE(tx_sync(from.fd) == 0 && rx_sync(to.fd) == 0);
            receive_all(&to, agreed);
            if (waits >= FRAMES)
                usleep(1000);
        }
        REQUIRE(agreed->received == until);
        REQUIRE(waitpid(child, NULL, 0) == child);
    }
    EQUAL(agreed->received, KILLS * FRAMES, "frames pass after a process that synchronised the same rings was killed");
    EQUAL(agreed->wrong, 0, "once, and in order");
    port_close(&from), port_close(&to);
}

static void kills(void) {
    killed((const char *[]){"k{1", "k}1"});
    killed((const char *[]){"vale23:a", "vale23:b"});
}

TOPICS("sharing", T(pipes), T(pipes_registered_twice), T(switches), T(switches_registered_twice), T(monitors), T(kills))
