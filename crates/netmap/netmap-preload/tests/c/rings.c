/* Rings: sync and poll, what they do to head, cur and tail, and the flags of rings and slots. */
#include "port.h"

#include <sys/epoll.h>
#include <sys/select.h>

/* Waits until an Rx ring has that many frames. */
static bool arrived(const struct port *port, uint32_t count) {
    for (int waits = 0; waits < 100 && space(rx_ring(port, 0)) < count; waits++) {
        if (rx_sync(port->fd))
            return false;
        usleep(10000);
    }
    return space(rx_ring(port, 0)) == count;
}

static void syncs(void) {
    struct port a = need("s{1"), b = need("s}1");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    uint32_t tail = tx->tail;
    SUCCEEDS(tx_sync(a.fd), "NIOCTXSYNC of nothing");
    CHECK(tx->head == 0 && tx->cur == 0 && tx->tail == tail, "changes nothing");
    SUCCEEDS(rx_sync(b.fd), "NIOCRXSYNC of nothing");
    CHECK(rx->head == 0 && rx->cur == 0 && rx->tail == 0, "changes nothing");
    put_frame(tx, 2, 1, 1), put_frame(tx, 2, 1, 2);
    SUCCEEDS(rx_sync(b.fd), "NIOCRXSYNC");
    EQUAL(space(rx), 0, "does not receive what was not synced yet");
    SUCCEEDS(tx_sync(a.fd), "NIOCTXSYNC");
    CHECK(tx->head == 2 && tx->cur == 2, "leaves head and cur as they are");
    EQUAL(space(rx), 0, "and the other side's ring");
    SUCCEEDS(rx_sync(b.fd), "NIOCRXSYNC");
    EQUAL(rx->tail, 2, "moves tail");
    CHECK(rx->head == 0 && rx->cur == 0, "and leaves head and cur as they are");
    SUCCEEDS(rx_sync(b.fd), "another one");
    EQUAL(space(rx), 2, "leaves the frames that the program holds");
    advance(rx);
    SUCCEEDS(rx_sync(b.fd), "NIOCRXSYNC after head has moved");
    EQUAL(space(rx), 1, "releases the slot before it");
    SUCCEEDS(tx_sync(a.fd), "NIOCTXSYNC");
    EQUAL(tx->tail, 0, "gets it back");
    SUCCEEDS(nm_ioctl(a.fd, 0xffffffff00000000ul | NIOCTXSYNC, NULL), "a request whose number was extended with its sign");
}

/* Requests that do not wait. */
static void polls(void) {
    struct port a = need("p{1"), b = need("p}1");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    EQUAL(poll_port(a.fd, POLLOUT, WAIT), POLLOUT, "POLLOUT with room");
    EQUAL(poll_port(a.fd, POLLWRNORM, WAIT), POLLWRNORM, "POLLWRNORM is the same");
    EQUAL(poll_port(a.fd, POLLOUT | POLLIN, WAIT), POLLOUT, "POLLOUT and POLLIN, with room and without frames");
    EQUAL(poll_port(a.fd, 0, 0), 0, "no events");
    EQUAL(poll_port(b.fd, POLLIN, 50), 0, "POLLIN without frames waits");
    put_frame(tx, 2, 1, 1);
    EQUAL(poll_port(a.fd, POLLIN, 0), 0, "a poll for POLLIN only");
    EQUAL(poll_port(b.fd, POLLIN, WAIT), POLLIN, "sends, unless NR_NO_TX_POLL is set");
    EQUAL(poll_port(b.fd, POLLRDNORM, WAIT), POLLRDNORM, "POLLRDNORM is the same as POLLIN");
    EQUAL(space(rx), 1, "the frame is there");
    put_frame(tx, 2, 1, 2);
    EQUAL(poll_port(a.fd, POLLOUT, 0), POLLOUT, "a poll for POLLOUT");
    rx->cur = rx->tail;
    EQUAL(poll_port(b.fd, POLLIN, WAIT), POLLIN, "sends, and wakes at cur: there is one frame beyond it");
    EQUAL(space(rx), 2, "the first is still held");
    rx->cur = rx->tail;
    EQUAL(poll_port(b.fd, POLLIN, 50), 0, "a program that has seen all frames waits, though it holds them");
    rx->head = rx->cur;
    SUCCEEDS(rx_sync(b.fd), "released");
    tx->cur = tx->tail;
    EQUAL(poll_port(a.fd, POLLOUT, 0), POLLOUT, "a sender that wants more room gets what was released");
    tx->cur = tx->tail;
    EQUAL(poll_port(a.fd, POLLOUT, 50), 0, "and waits if there is no more");
    EQUAL(space(tx), tx->num_slots - 1, "with all other slots its own");
}

static void poll_flags(void) {
    struct port a, b = need("f}1");
    REQUIRE(port_open(&a, "f{1", NR_REG_ALL_NIC, NR_NO_TX_POLL) == 0);
    EQUAL(a.reg.nr_flags, NR_NO_TX_POLL, "NR_NO_TX_POLL is returned");
    put_frame(tx_ring(&a, 0), 2, 1, 1);
    EQUAL(poll_port(a.fd, POLLIN, 0), 0, "with it, a poll for POLLIN");
    CHECK(no_frame(&b), "does not send");
    EQUAL(poll_port(a.fd, POLLOUT, 0), POLLOUT, "one for POLLOUT");
    EQUAL(next_frame(&b), 1, "does");
    port_close(&a);
    a = need("f{1");
    send_frame(&b, 1, 2, 2);
    EQUAL(poll_port(a.fd, POLLOUT, 0), POLLOUT, "without NR_DO_RX_POLL, a poll for POLLOUT");
    EQUAL(space(rx_ring(&a, 0)), 0, "does not receive");
    port_close(&a);
    REQUIRE(port_open(&a, "f{1", NR_REG_ALL_NIC, NR_DO_RX_POLL) == 0);
    EQUAL(poll_port(a.fd, POLLOUT, 0), POLLOUT, "with it");
    CHECK(arrived(&a, 1), "one does");
}

/* Whether a process that sends after a while ends a wait. */
static bool wakes(const struct port *from, bool (*wait)(const struct port *), const struct port *to) {
    pid_t child = fork();
    if (child == 0) {
        usleep(100000);
        send_frame(from, 255, 1, 1);
        _exit(0);
    }
    bool woken = wait(to);
    waitpid(child, NULL, 0);
    return next_frame(to) == 1 && woken;
}

static bool by_poll(const struct port *port) { return poll_port(port->fd, POLLIN, WAIT) == POLLIN; }

static bool by_ppoll(const struct port *port) {
    struct pollfd one = {.fd = port->fd, .events = POLLIN};
    struct timespec limit = {.tv_sec = WAIT / 1000};
    return ppoll(&one, 1, &limit, NULL) == 1 && one.revents == POLLIN;
}

static bool by_select(const struct port *port) {
    struct timeval limit = {.tv_sec = WAIT / 1000};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(port->fd, &set);
    return select(port->fd + 1, &set, NULL, NULL, &limit) == 1 && FD_ISSET(port->fd, &set);
}

static bool by_epoll(const struct port *port) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u32 = 7}, got;
    bool woken = epoll_ctl(epoll, EPOLL_CTL_ADD, port->fd, &wanted) == 0 && epoll_wait(epoll, &got, 1, WAIT) == 1 &&
                 got.events == EPOLLIN && got.data.u32 == 7;
    close(epoll);
    return woken;
}

static bool by_edge(const struct port *port) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLET}, got;
    bool woken = epoll_ctl(epoll, EPOLL_CTL_ADD, port->fd, &wanted) == 0 && epoll_wait(epoll, &got, 1, WAIT) == 1 &&
                 epoll_wait(epoll, &got, 1, 50) == 0;
    close(epoll);
    return woken;
}

static bool by_nested_epoll(const struct port *port) {
    int inner = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN}, got;
    bool woken = epoll_ctl(inner, EPOLL_CTL_ADD, port->fd, &wanted) == 0 &&
                 epoll_ctl(outer, EPOLL_CTL_ADD, inner, &wanted) == 0 && epoll_wait(outer, &got, 1, 1000) == 1;
    close(inner), close(outer);
    return woken;
}

/* The inner instance is there before the port, and a port and a pipe behind it. */
static bool by_late_nested_epoll(const struct port *port) {
    int inner = epoll_create1(EPOLL_CLOEXEC), middle = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(EPOLL_CLOEXEC);
    int pipes[2];
    REQUIRE(pipe(pipes) == 0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u32 = 1}, got[4];
    bool woken = epoll_ctl(middle, EPOLL_CTL_ADD, inner, &wanted) == 0;
    wanted = (struct epoll_event){.events = EPOLLIN | EPOLLET, .data.u32 = 2};
    woken &= epoll_ctl(outer, EPOLL_CTL_ADD, middle, &wanted) == 0;
    wanted = (struct epoll_event){.events = EPOLLIN, .data.u32 = 3};
    woken &= epoll_ctl(inner, EPOLL_CTL_ADD, port->fd, &wanted) == 0 && epoll_ctl(inner, EPOLL_CTL_ADD, pipes[0], &wanted) == 0;
    woken &= epoll_wait(outer, got, 4, WAIT) == 1 && got[0].data.u32 == 2;
    woken &= epoll_wait(outer, got, 4, 50) == 0;
    woken &= epoll_wait(middle, got, 4, 0) == 1 && got[0].data.u32 == 1 && epoll_wait(inner, got, 4, 0) == 1;
    woken &= write(pipes[1], "x", 1) == 1 && epoll_wait(inner, got, 4, 0) == 2;
    woken &= epoll_ctl(outer, EPOLL_CTL_DEL, middle, NULL) == 0 && epoll_wait(outer, got, 4, 0) == 0;
    close(inner), close(middle), close(outer), close(pipes[0]), close(pipes[1]);
    return woken;
}

static bool by_poll_of_epoll(const struct port *port) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN};
    struct pollfd fds[] = {{.fd = epoll, .events = POLLIN}, {.fd = -1}};
    bool woken = poll(fds, 1, 0) == 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, port->fd, &wanted) == 0 && poll(fds, 1, WAIT) == 1 &&
                 fds[0].revents == POLLIN && poll(fds, 2, WAIT) == 1 && fds[0].revents == POLLIN;
    close(epoll);
    return woken;
}

static bool by_select_of_epoll(const struct port *port) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(epoll, &set);
    struct timeval limit = {.tv_sec = 5};
    bool woken = epoll_ctl(epoll, EPOLL_CTL_ADD, port->fd, &wanted) == 0 && select(epoll + 1, &set, NULL, NULL, &limit) == 1 &&
                 FD_ISSET(epoll, &set);
    close(epoll);
    return woken;
}

static void waits(void) {
    const char *names[][2] = {{"w{1", "w}1"}, {"vale10:a", "vale10:b"}};
    for (size_t n = 0; n < 2; n++) {
        struct port a = need(names[n][0]), b = need(names[n][1]);
        CHECK(wakes(&a, by_poll, &b), "a frame ends a poll, through a pipe and a switch");
        CHECK(wakes(&a, by_ppoll, &b), "a ppoll");
        CHECK(wakes(&a, by_select, &b), "a select");
        CHECK(wakes(&a, by_epoll, &b), "an epoll_wait");
        CHECK(wakes(&a, by_edge, &b), "one with EPOLLET, which reports it once");
        CHECK(wakes(&a, by_nested_epoll, &b), "an epoll instance inside of another");
        CHECK(wakes(&a, by_late_nested_epoll, &b), "one that gets the port later");
        CHECK(wakes(&a, by_poll_of_epoll, &b), "a poll of an epoll instance");
        CHECK(wakes(&a, by_select_of_epoll, &b), "a select of one");
        struct pollfd both[] = {{.fd = a.fd, .events = POLLOUT}, {.fd = b.fd, .events = POLLIN}};
        EQUAL(poll(both, 2, 0), 1, "a poll of two ports");
        CHECK(both[0].revents == POLLOUT && both[1].revents == 0, "reports each");
        int pipes[2];
        REQUIRE(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1);
        struct pollfd mixed[] = {{.fd = pipes[0], .events = POLLIN}, {.fd = b.fd, .events = POLLIN}};
        EQUAL(poll(mixed, 2, WAIT), 1, "a poll of a port and another descriptor");
        CHECK(mixed[0].revents == POLLIN && mixed[1].revents == 0, "reports each");
        port_close(&a), port_close(&b);
    }
}

/* Positions that a program must not set. */
static void invalid(void) {
    struct port a = need("i{1"), b = need("i}1");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    uint32_t tail = tx->tail;
    tx->head = tx->cur = tx->num_slots;
    SUCCEEDS(tx_sync(a.fd), "NIOCTXSYNC with head beyond the ring");
    CHECK(tx->head == 0 && tx->cur == 0 && tx->tail == tail, "sets the positions back");
    tx->head = 2, tx->cur = 1;
    SUCCEEDS(tx_sync(a.fd), "with cur before head");
    CHECK(space(rx) == 0 && no_frame(&b), "sends nothing");
    tx->head = tx->cur = tx->num_slots + 7;
    EQUAL(poll_port(a.fd, POLLOUT, 0), POLLERR, "poll reports it: POLLERR");
    EQUAL(poll_port(a.fd, POLLOUT, 0), POLLOUT, "once");
    send_frame(&a, 2, 1, 1);
    EQUAL(next_frame(&b), 1, "the ring works after that");
    rx->head = rx->cur = rx->num_slots + 1;
    SUCCEEDS(rx_sync(b.fd), "NIOCRXSYNC with head beyond the ring");
    CHECK(rx->head < rx->num_slots && rx->cur == rx->head, "sets the positions back");
    send_frame(&a, 2, 1, 2);
    EQUAL(poll_port(b.fd, POLLIN, WAIT), POLLIN, "the ring works after that");
    tx->tail = 5;
    SUCCEEDS(tx_sync(a.fd), "tail that the program has written");
    CHECK(tx->tail != 5, "is set right");
    uint32_t good = tx->slot[9].buf_idx;
    tx->slot[9].buf_idx = 0xfffffff, tx->head = tx->cur = tx->num_slots;
    SUCCEEDS(tx_sync(a.fd), "a slot that names no buffer, in a ring that is set back");
    CHECK(tx->slot[9].buf_idx == 0 && tx->slot[9].len == 0, "is emptied");
    tx->slot[9].buf_idx = 1, tx->slot[9].len = 60, tx->head = tx->cur = tx->num_slots;
    SUCCEEDS(tx_sync(a.fd), "a slot that names a reserved buffer");
    CHECK(tx->slot[9].buf_idx == 0 && tx->slot[9].len == 0, "is emptied");
    tx->slot[9].buf_idx = good, tx->slot[9].len = 65535, tx->head = tx->cur = tx->num_slots;
    uint32_t next = tx->slot[10].buf_idx;
    tx->slot[10].len = 60;
    SUCCEEDS(tx_sync(a.fd), "a slot with more bytes than its buffer has");
    CHECK(tx->slot[9].buf_idx == good && tx->slot[9].len == 0, "keeps the buffer without the bytes");
    CHECK(tx->slot[10].buf_idx == next && tx->slot[10].len == 60, "a slot that is in order stays as it is");
}

/* Slots that name no buffer, or more bytes than it has. */
static void bad_slots(void) {
    struct port a = need("vale10:ba"), b = need("vale10:bb");
    struct netmap_ring *tx = tx_ring(&a, 0);
    put_frame(tx, 255, 1, 1);
    uint32_t good = tx->slot[0].buf_idx;
    tx->slot[0].buf_idx = 0xfffffff;
    put_frame(tx, 255, 1, 2);
    tx->slot[1].len = 65535;
    put_frame(tx, 255, 1, 3);
    SUCCEEDS(tx_sync(a.fd), "frames of which some name no buffer or too many bytes");
    EQUAL(next_frame(&b), 3, "only those that do not arrive");
    CHECK(no_frame(&b), "and no other");
    tx->slot[0].buf_idx = good;
    send_frame(&a, 255, 1, 4);
    EQUAL(next_frame(&b), 4, "the port goes on");
}

static bool recent(const struct timeval *time) {
    struct timeval now;
    gettimeofday(&now, NULL);
    return time->tv_usec >= 0 && time->tv_usec < 1000000 && now.tv_sec - time->tv_sec <= 10 && now.tv_sec >= time->tv_sec;
}

static void flags(void) {
    struct port a = need("g{1"), b = need("g}1");
    struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
    rx->flags |= NR_TIMESTAMP;
    send_frame(&a, 2, 1, 1);
    EQUAL(poll_port(b.fd, POLLIN, WAIT), POLLIN, "a frame, with NR_TIMESTAMP");
    CHECK(recent(&rx->ts), "ts is the time of the sync");
    EQUAL(rx->flags & NR_TIMESTAMP, NR_TIMESTAMP, "the flag stays");
    EQUAL(next_frame(&b), 1, "the frame");
    rx->ts = (struct timeval){0};
    REQUIRE(rx_sync(b.fd) == 0);
    CHECK(recent(&rx->ts), "ts is set by every NIOCRXSYNC, also by one without frames");
    rx->ts = (struct timeval){0};
    EQUAL(poll_port(b.fd, POLLIN, 0), 0, "a poll that finds no frame");
    CHECK(recent(&rx->ts), "sets ts");
    rx->ts = (struct timeval){0}, rx->flags &= ~(uint32_t)NR_TIMESTAMP;
    REQUIRE(rx_sync(b.fd) == 0);
    EQUAL(rx->ts.tv_sec, 0, "without the flag, a sync without frames leaves ts as it is");
    tx->ts = (struct timeval){0}, tx->flags |= NR_TIMESTAMP;
    SUCCEEDS(tx_sync(a.fd), "NIOCTXSYNC with NR_TIMESTAMP");
    CHECK(recent(&tx->ts), "sets ts of a Tx ring");
    put_frame(tx, 2, 1, 2);
    tx->slot[tx->head - 1].flags = NS_REPORT;
    SUCCEEDS(tx_sync(a.fd), "NS_REPORT");
    EQUAL(next_frame(&b), 2, "the frame");
    REQUIRE(rx_sync(b.fd) == 0 && tx_sync(a.fd) == 0);
    EQUAL(space(tx), tx->num_slots - 1, "its slot is reported as sent");
    put_frame(tx, 2, 1, 3);
    tx->slot[tx->head - 1].flags = NS_BUF_CHANGED;
    SUCCEEDS(tx_sync(a.fd), "NS_BUF_CHANGED");
    EQUAL(next_frame(&b), 3, "the frame");
}

/* Frames of up to a whole buffer. */
static void lengths(void) {
    const char *names[][2] = {{"l{1", "l}1"}, {"vale10:la", "vale10:lb"}};
    const uint16_t lengths[] = {60, 61, 64, 1514, 1518, 2000, 2048};
    for (size_t n = 0; n < 2; n++) {
        struct port a = need(names[n][0]), b = need(names[n][1]);
        struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
        for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
            char *bytes = slot_bytes(tx, tx->head), sent[2048];
            for (int byte = 0; byte < lengths[at]; byte++)
                bytes[byte] = (char)(byte * 7 + byte / 256);
            frame_header(bytes, 255, 1);
            memcpy(sent, bytes, lengths[at]);
            tx->slot[tx->head].len = lengths[at], tx->slot[tx->head].flags = 0;
            advance(tx);
            REQUIRE(tx_sync(a.fd) == 0);
            REQUIRE(poll_port(b.fd, POLLIN, WAIT) == POLLIN);
            bool right = rx->slot[rx->head].len == lengths[at] && memcmp(slot_bytes(rx, rx->head), sent, lengths[at]) == 0;
            CHECK(right, "frames of 60 to 2,048 bytes arrive unchanged, through a pipe and a switch");
            advance(rx);
        }
        port_close(&a), port_close(&b);
    }
}

/* Whether a ring of the host takes NR_FORWARD. That frames pass takes a port with a network behind it. */
static bool forwards(void) {
    struct port port;
    if (port_open(&port, "nic", NR_REG_NIC_SW, 0))
        return false;
    struct netmap_ring *host = ring_at(&port, port.nifp->ni_tx_rings);
    bool right = host && port.reg.nr_host_tx_rings >= 1 && host->num_slots > 0;
    if (right) {
        host->flags |= NR_FORWARD;
        right = tx_sync(port.fd) == 0 && rx_sync(port.fd) == 0;
    }
    port_close(&port);
    return right;
}

static void forwarding(void) {
    CHECK(forwards(), "NR_FORWARD in a ring of the host");
}

TOPICS("rings", T(syncs), T(polls), T(poll_flags), T(waits), T(invalid), T(bad_slots), T(flags), T(lengths), T(forwarding))
