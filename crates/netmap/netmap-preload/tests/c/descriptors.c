/* Descriptors of ports: duplicates, children, other programs and processes, and the order in which things are closed. */
#include "passing.h"

#include <pthread.h>
#include <signal.h>

static void duplicates(void) {
    struct port port = need("d{1");
    int one = dup(port.fd), two = fcntl(port.fd, F_DUPFD_CLOEXEC, 100), three = dup2(port.fd, 200);
    CHECK(one >= 0 && two >= 100 && three == 200, "dup, fcntl and dup2 of a descriptor");
    CHECK(!tx_sync(one) && !tx_sync(two) && !rx_sync(three), "each is the port");
    struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC};
    GIVES(request(one, NETMAP_REQ_REGISTER, "d{1", &reg), EBUSY, "so each has a port already: EBUSY");
    REQUIRE(close(port.fd) == 0);
    port.fd = -1;
    SUCCEEDS(tx_sync(one), "the port stays if one is closed");
    EQUAL(poll_port(two, POLLOUT, 0), POLLOUT, "and can be polled");
    REQUIRE(close(one) == 0 && close(two) == 0);
    SUCCEEDS(tx_sync(three), "as long as one is open");
    GIVES(try_open("d{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), EBUSY, "and is in use");
    REQUIRE(close(three) == 0);
    settle();
    SUCCEEDS(try_open("d{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), "the last one ends the registration");
    int fd = device(), before = dup(fd);
    reg = (struct nmreq_register){.nr_mode = NR_REG_ALL_NIC};
    SUCCEEDS(request(fd, NETMAP_REQ_REGISTER, "d{2", &reg), "a descriptor that was duplicated before it has a port");
    SUCCEEDS(tx_sync(before), "its duplicate has the port, too");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    REQUIRE(null >= 0 && dup2(null, fd) == fd);
    GIVES(tx_sync(fd), ENOTTY, "another file in the place of a port: ENOTTY");
    SUCCEEDS(tx_sync(before), "and the port stays in the other");
}

static void mappings(void) {
    struct port port = need("m{1");
    int protection = PROT_READ | PROT_WRITE;
    void *again = mmap(NULL, port.reg.nr_memsize, protection, MAP_SHARED, port.fd, 0);
    CHECK(again != MAP_FAILED, "a second mmap");
    struct netmap_if *same = (struct netmap_if *)((char *)again + port.reg.nr_offset);
    CHECK(strcmp(same->ni_name, "m{1") == 0, "maps the same memory");
    CHECK(mmap(NULL, 4096, protection, MAP_SHARED, port.fd, 0) != MAP_FAILED, "mmap of a part");
    errno = 0;
    CHECK(mmap(NULL, port.reg.nr_memsize + 4096, protection, MAP_SHARED, port.fd, 0) == MAP_FAILED && errno == EINVAL,
          "mmap of more than the memory: EINVAL");
    errno = 0;
    CHECK(mmap(NULL, 4096, protection, MAP_SHARED, port.fd, (off_t)1 << 40) == MAP_FAILED && errno == EINVAL,
          "mmap beyond the memory: EINVAL");
    struct port other = need("m{2");
    EQUAL(other.reg.nr_mem_id, port.reg.nr_mem_id, "ports in one memory");
    REQUIRE(munmap(other.memory, other.reg.nr_memsize) == 0);
    other.memory = NULL;
    struct netmap_if *through = (struct netmap_if *)(port.memory + other.reg.nr_offset);
    CHECK(strcmp(through->ni_name, "m{2") == 0, "one mapping serves both");
    REQUIRE(close(port.fd) == 0);
    port.fd = -1;
    CHECK(port.nifp->ni_tx_rings == 1, "a mapping outlives its descriptor");
    char byte;
    errno = 0;
    CHECK(read(other.fd, &byte, 1) < 0 && errno == EINVAL, "read: EINVAL");
    errno = 0;
    CHECK(write(other.fd, &byte, 1) < 0 && errno == EINVAL, "write: EINVAL");
}

static void closing(void) {
    struct port port = need("vale11:c");
    struct nmreq_vale_list at;
    int fd = device();
    SUCCEEDS(request(fd, NETMAP_REQ_VALE_LIST, "vale11:c", &at), "a port that is open");
    REQUIRE(close(port.fd) == 0);
    port.fd = -1;
    int error = 0;
    for (int waits = 0; waits < 100 && error != ENOENT; waits++) {
        error = request(fd, NETMAP_REQ_VALE_LIST, "vale11:c", &at);
        usleep(10000);
    }
    GIVES(error, ENOENT, "is gone after close, though it is still mapped");
    memset(slot_bytes(tx_ring(&port, 0), 0), 1, 60);
    CHECK(munmap(port.memory, port.reg.nr_memsize) == 0, "and may be used until it is unmapped");
    struct port again = need("vale11:c");
    REQUIRE(munmap(again.memory, again.reg.nr_memsize) == 0);
    again.memory = NULL;
    SUCCEEDS(tx_sync(again.fd), "munmap first leaves the port");
    EQUAL(poll_port(again.fd, POLLOUT, WAIT), POLLOUT, "which can be polled");
    REQUIRE(close(again.fd) == 0);
    errno = 0;
    CHECK(close(again.fd) < 0 && errno == EBADF, "a second close: EBADF");
    GIVES(tx_sync(again.fd), EBADF, "NIOCTXSYNC of a closed descriptor: EBADF");
    again.fd = -1;
}

/* Waits for a child for a while. Returns its exit status, or -1. */
static int child_status(pid_t child) {
    int status = 0;
    for (int waits = 0; waits < 1000; waits++) {
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        usleep(10000);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
}

static void children(void) {
    struct port a = need("f{1"), b = need("f}1");
    pid_t child = fork();
    if (child == 0) {
        bool received = next_frame(&b) == 1;
        send_frame(&b, 1, 2, 2);
        _exit(!received);
    }
    send_frame(&a, 2, 1, 1);
    EQUAL(next_frame(&a), 2, "a child has its parent's port, receives and sends");
    EQUAL(child_status(child), 0, "and ends");
    SUCCEEDS(tx_sync(b.fd), "its parent has the port still");
    SUCCEEDS(tx_sync(a.fd), "each of them");
    child = fork();
    if (child == 0) {
        usleep(300000);
        send_frame(&b, 1, 2, 3);
        _exit(0);
    }
    close(b.fd);
    b.fd = -1;
    EQUAL(next_frame(&a), 3, "a child has the port also after its parent has closed it");
    EQUAL(child_status(child), 0, "until it ends");
    settle();
    SUCCEEDS(try_open("f}1", NR_REG_ALL_NIC, NR_EXCLUSIVE), "then it is free");
}

/* Whether a process that receives the descriptor of a port has the port. */
static bool passed_to_another(void) {
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = received_descriptor(sockets[1]);
        _exit(!(fd >= 0 && tx_sync(fd) == 0 && poll_port(fd, POLLOUT, 0) == POLLOUT));
    }
    struct port port = need("r{1");
    bool sent = send_descriptor(sockets[0], port.fd);
    bool right = child_status(child) == 0 && sent;
    port_close(&port);
    return right;
}

/* The same within one process. */
static bool passed_to_itself(void) {
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    struct port port = need("r{2");
    bool right = send_descriptor(sockets[0], port.fd);
    port_close(&port);
    int fd = received_descriptor(sockets[1]);
    return right && fd >= 0 && tx_sync(fd) == 0;
}

static void passing(void) {
    CHECK(passed_to_another(), "a descriptor that was sent to another process (SCM_RIGHTS)");
    CHECK(passed_to_itself(), "a descriptor that was sent to this process");
}

/* What this program does if another one has executed it: sync the descriptor in its argument. */
#define INHERITED "RINGPASS_TEST_INHERITED"

__attribute__((constructor)) static void inherited(void) {
    const char *number = getenv(INHERITED);
    if (number)
        _exit(tx_sync(atoi(number)) != 0);
}

/* The exit status of this program as a child executes it, with the descriptor. */
static int executed(int fd) {
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    pid_t child = fork();
    if (child == 0) {
        setenv(INHERITED, number, 1);
        execl("/proc/self/exe", "descriptors", NULL);
        _exit(99);
    }
    return child_status(child);
}

static void executing(void) {
    struct port port = need("e{1");
    EQUAL(executed(port.fd), 1, "a program that is executed does not have a descriptor with O_CLOEXEC");
    REQUIRE(fcntl(port.fd, F_SETFD, 0) == 0);
    CHECK(executed(port.fd) == 0, "a descriptor that is kept over exec");
    SUCCEEDS(tx_sync(port.fd), "the port is unchanged");
}

/* Registrations that have ended when the last close returns. */
static void ends_with_close(void) {
    uint32_t right = 0;
    for (int round = 0; round < 500; round++) {
        struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_EXCLUSIVE};
        int fd = device();
        right += request(fd, NETMAP_REQ_REGISTER, round % 2 ? "x{1" : "vale11:x", &reg) == 0;
        close(fd);
    }
    EQUAL(right, 500, "a port can be had exclusively again and again, as close has ended the registration");
    struct port port;
    SUCCEEDS(port_open(&port, "x{2", NR_REG_ALL_NIC, NR_EXCLUSIVE), "a port");
    int go[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, go) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        _exit(recv(go[1], &byte, 1, 0) != 1);
    }
    port_close(&port);
    GIVES(try_open("x{2", NR_REG_ALL_NIC, NR_EXCLUSIVE), EBUSY, "which stays with a child");
    REQUIRE(send(go[0], "x", 1, 0) == 1 && child_status(child) == 0);
    settle();
    SUCCEEDS(try_open("x{2", NR_REG_ALL_NIC, NR_EXCLUSIVE), "until that ends");
}

/* A server of descriptors: it opens ports and gives them to workers, which it kills under way. */
static void server_of_descriptors(void) {
    enum { WORKERS = 8, FRAMES = 3000 };
    struct port receiver = need("s}1");
    uint32_t worked = 0, killed = 0;
    for (int round = 0; round < WORKERS; round++) {
        int sockets[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
        pid_t worker = fork();
        REQUIRE(worker >= 0);
        if (worker == 0) {
            struct port port = {.fd = received_descriptor(sockets[1])};
            /* Where the rings are, the server of descriptors has said. */
            uint64_t place[2];
            if (port.fd < 0 || recv(sockets[1], place, sizeof place, MSG_WAITALL) != sizeof place)
                _exit(1);
            port.reg.nr_offset = place[0], port.reg.nr_memsize = place[1];
            /* Some workers map the port first. */
            if ((round & 2 && tx_sync(port.fd)) || port_map(&port))
                _exit(2);
            struct netmap_ring *ring = tx_ring(&port, 0);
            for (uint32_t number = 0; round % 2 || number < FRAMES;) {
                while (space(ring) == 0)
                    if (!(poll_port(port.fd, POLLOUT, WAIT) & POLLOUT))
                        _exit(3);
                put_frame(ring, 255, 1, number++ % FRAMES);
                if (tx_sync(port.fd))
                    _exit(4);
            }
            while (space(ring) < ring->num_slots - 1)
                if (usleep(1000), tx_sync(port.fd))
                    _exit(5);
            _exit(recv(sockets[1], place, 1, 0) != 1);
        }
        struct port port;
        SUCCEEDS(port_open(&port, "s{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), "a port for a worker");
        uint64_t place[] = {port.reg.nr_offset, port.reg.nr_memsize};
        REQUIRE(send_descriptor(sockets[0], port.fd) && send(sockets[0], place, sizeof place, 0) == sizeof place);
        port_close(&port);
        uint32_t right = 0;
        for (uint32_t number = 0; number < FRAMES; number++)
            right += next_frame(&receiver) == (int64_t)number;
        REQUIRE(right == FRAMES);
        GIVES(try_open("s{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), EBUSY, "it is the worker's as long as that lives");
        if (round % 2) {
            kill(worker, SIGKILL);
            int status;
            REQUIRE(waitpid(worker, &status, 0) == worker);
            killed++;
        } else {
            while (next_frame_within(&receiver, 0) != -1)
                ;
            REQUIRE(send(sockets[0], "x", 1, 0) == 1);
            worked += child_status(worker) == 0;
        }
        settle();
        while (next_frame_within(&receiver, 0) != -1)
            ;
        close(sockets[0]), close(sockets[1]);
    }
    EQUAL(worked, WORKERS / 2, "workers that end by themselves");
    EQUAL(killed, WORKERS / 2, "workers that are killed");
    SUCCEEDS(try_open("s{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), "after which the port is free");
    port_close(&receiver);
}

/* Descriptors that travel before they have a port, or while the sender has it, too. */
static void travelling(void) {
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    int fd = device();
    pid_t child = fork();
    if (child == 0) {
        close(fd);
        fd = received_descriptor(sockets[1]);
        struct nmreq_register reg = {.nr_mode = NR_REG_ALL_NIC, .nr_flags = NR_EXCLUSIVE};
        int error = request(fd, NETMAP_REQ_REGISTER, "t{1", &reg);
        _exit(error || tx_sync(fd) || send(sockets[1], "x", 1, 0) != 1 || recv(sockets[1], &(char){0}, 1, 0) != 1);
    }
    REQUIRE(send_descriptor(sockets[0], fd));
    char byte;
    REQUIRE(recv(sockets[0], &byte, 1, 0) == 1);
    GIVES(try_open("t{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), EBUSY, "who receives a descriptor without a port can register one");
    REQUIRE(send(sockets[0], "x", 1, 0) == 1);
    EQUAL(child_status(child), 0, "and has it");
    close(fd);
    settle();
    SUCCEEDS(try_open("t{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), "until the last descriptor is closed");
    struct port a = need("t{2"), b = need("t}2");
    REQUIRE(send_descriptor(sockets[0], a.fd));
    int again = received_descriptor(sockets[1]);
    SUCCEEDS(tx_sync(again), "a descriptor that came back");
    send_frame(&a, 2, 1, 5);
    EQUAL(next_frame(&b), 5, "the first one works");
    close(a.fd);
    a.fd = again;
    send_frame(&a, 2, 1, 6);
    EQUAL(next_frame(&b), 6, "and the other one after that is closed");
    port_close(&a), port_close(&b);
    close(sockets[0]), close(sockets[1]);
}

static void *sync_until_closed(void *fd) {
    intptr_t error, count = 0;
    do
        error = count++ % 2 ? tx_sync(*(int *)fd) : rx_sync(*(int *)fd);
    while (!error);
    return (void *)error;
}

/* A descriptor that is closed while another thread syncs it, and another process has a copy. */
static void closed_beside_syncs(void) {
    enum { ROUNDS = 30 };
    struct port b = need("c}1");
    uint32_t ended = 0, passed = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct port a = need("c{1");
        pid_t child = fork();
        if (child == 0) {
            usleep(10000);
            send_frame(&a, 255, 1, round);
            _exit(0);
        }
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, sync_until_closed, &a.fd) == 0);
        usleep(100 * round);
        REQUIRE(close(a.fd) == 0);
        void *error;
        REQUIRE(pthread_join(thread, &error) == 0);
        ended += (intptr_t)error == EBADF;
        passed += next_frame(&b) == round && child_status(child) == 0;
        munmap(a.memory, a.reg.nr_memsize);
    }
    EQUAL(ended, ROUNDS, "syncs of a descriptor that another thread closes: EBADF");
    EQUAL(passed, ROUNDS, "while another process's copy works");
    settle();
    SUCCEEDS(try_open("c{1", NR_REG_ALL_NIC, NR_EXCLUSIVE), "then the port is free");
    port_close(&b);
}

TOPICS("descriptors", T(duplicates), T(mappings), T(closing), T(children), T(passing), T(executing),
       T(ends_with_close), T(server_of_descriptors), T(travelling), T(closed_beside_syncs))
