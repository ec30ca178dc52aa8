/* Requests and registered ports, as a program makes and uses them. */
#ifndef PORT_H
#define PORT_H

#include "check.h"
#include "netmap_abi.h"

#include <fcntl.h>
#include <poll.h>

/* Milliseconds that a wait may take. */
#define WAIT 5000

static inline int device(void) {
    int fd = open("/dev/netmap", O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0);
    return fd;
}

/* Waits until the server knows of all descriptors that were closed by processes that have ended. Where close is called, it has ended
   the registration itself, as in netmap. */
static inline void settle(void) { close(device()); }

/* Makes an ioctl. Returns 0 or the error number. */
static inline int nm_ioctl(int fd, unsigned long number, void *argument) {
    return ioctl(fd, number, argument) < 0 ? errno : 0;
}

static inline int tx_sync(int fd) { return nm_ioctl(fd, NIOCTXSYNC, NULL); }
static inline int rx_sync(int fd) { return nm_ioctl(fd, NIOCRXSYNC, NULL); }

static inline struct nmreq_header header(uint16_t type, const char *name, void *body) {
    struct nmreq_header header = {.nr_version = NETMAP_API, .nr_reqtype = type, .nr_body = (uintptr_t)body};
    REQUIRE(strlen(name) < sizeof header.nr_name);
    memcpy(header.nr_name, name, strlen(name));
    return header;
}

/* Offset of the padding in struct nmreq_register. */
#define PADDING (offsetof(struct nmreq_register, nr_extra_bufs) + sizeof(uint32_t))

/* The compiler leaves anything in the padding of a registration; registers.c checks that it may be anything. */
__attribute__((noinline, unused)) static void clear_padding(void *reg) { memset((char *)reg + PADDING, 0, sizeof(uint32_t)); }

/* Makes a request with options. Returns 0 or the error number. */
static inline int request_with(int fd, uint16_t type, const char *name, void *body, void *options) {
    struct nmreq_header request = header(type, name, body);
    request.nr_options = (uintptr_t)options;
    if (body && (type == NETMAP_REQ_REGISTER || type == NETMAP_REQ_VALE_ATTACH))
        clear_padding(body);
    return nm_ioctl(fd, NIOCCTRL, &request);
}

static inline int request(int fd, uint16_t type, const char *name, void *body) {
    return request_with(fd, type, name, body, NULL);
}

/* Makes a request on a descriptor of its own. */
static inline int ask(uint16_t type, const char *name, void *body) {
    int fd = device(), error = request(fd, type, name, body);
    close(fd);
    return error;
}

struct port {
    int fd;
    struct nmreq_register reg; /* as granted */
    char *memory;
    struct netmap_if *nifp;
};

static inline int port_map(struct port *port) {
    int protection = PROT_READ | PROT_WRITE;
    void *memory = mmap(NULL, port->reg.nr_memsize, protection, MAP_SHARED, port->fd, 0);
    if (memory == MAP_FAILED)
        return errno;
    port->memory = memory;
    port->nifp = (struct netmap_if *)(port->memory + port->reg.nr_offset);
    return 0;
}

static inline void port_close(struct port *port) {
    if (port->memory)
        munmap(port->memory, port->reg.nr_memsize);
    if (port->fd >= 0)
        close(port->fd), settle();
    *port = (struct port){.fd = -1};
}

/* Registers a port with options and maps it. Returns 0 or the error number; then nothing is left open. */
static inline int port_register_with(struct port *port, const char *name, struct nmreq_register reg, void *options) {
    *port = (struct port){.fd = device(), .reg = reg};
    int error = request_with(port->fd, NETMAP_REQ_REGISTER, name, &port->reg, options);
    if (!error)
        error = port_map(port);
    if (error)
        port_close(port);
    return error;
}

static inline int port_register(struct port *port, const char *name, struct nmreq_register reg) {
    return port_register_with(port, name, reg, NULL);
}

/* Registers a port in a mode, with flags. */
static inline int port_open(struct port *port, const char *name, uint32_t mode, uint64_t flags) {
    return port_register(port, name, (struct nmreq_register){.nr_mode = mode, .nr_flags = flags});
}

/* Whether a registration succeeds, or the error number. The port is closed again. */
static inline int try_register(const char *name, struct nmreq_register reg) {
    struct port port;
    int error = port_register(&port, name, reg);
    if (!error)
        port_close(&port);
    return error;
}

static inline int try_open(const char *name, uint32_t mode, uint64_t flags) {
    return try_register(name, (struct nmreq_register){.nr_mode = mode, .nr_flags = flags});
}

/* Opens a port that the test needs: all rings, shared with others. */
static inline struct port need(const char *name) {
    struct port port;
    int error = port_open(&port, name, NR_REG_ALL_NIC, 0);
    if (error)
        check_failed(__FILE__, __LINE__, name, ": %s", strerror(error));
    return port;
}

static inline int64_t ring_ofs(const struct port *port, uint32_t number) { return port->nifp->ring_ofs[number]; }

static inline struct netmap_ring *ring_at(const struct port *port, uint32_t number) {
    int64_t offset = ring_ofs(port, number);
    return offset ? (struct netmap_ring *)((char *)port->nifp + offset) : NULL;
}

/* Number of a ring among all of a descriptor: Tx, host Tx, Rx, host Rx. */
static inline uint32_t rx_number(const struct port *port, uint32_t ring) {
    return port->nifp->ni_tx_rings + port->nifp->ni_host_tx_rings + ring;
}

static inline struct netmap_ring *tx_ring(const struct port *port, uint32_t ring) { return ring_at(port, ring); }
static inline struct netmap_ring *rx_ring(const struct port *port, uint32_t ring) {
    return ring_at(port, rx_number(port, ring));
}

static inline char *buffer_at(struct netmap_ring *ring, uint32_t index) {
    return (char *)ring + ring->buf_ofs + (size_t)index * ring->nr_buf_size;
}

static inline char *slot_bytes(struct netmap_ring *ring, uint32_t slot) { return buffer_at(ring, ring->slot[slot].buf_idx); }

static inline uint32_t next_slot(const struct netmap_ring *ring, uint32_t slot) {
    return slot + 1 == ring->num_slots ? 0 : slot + 1;
}

/* Number of slots from one position to another. */
static inline uint32_t slots_between(const struct netmap_ring *ring, uint32_t from, uint32_t to) {
    return to >= from ? to - from : to + ring->num_slots - from;
}

static inline uint32_t space(const struct netmap_ring *ring) { return slots_between(ring, ring->head, ring->tail); }

static inline void advance(struct netmap_ring *ring) { ring->head = ring->cur = next_slot(ring, ring->head); }

/* Polls one port. Returns the events. */
static inline short poll_port(int fd, short events, int limit) {
    struct pollfd one = {.fd = fd, .events = events};
    int count = poll(&one, 1, limit);
    REQUIRE(count >= 0 && count == (one.revents != 0));
    return one.revents;
}

/* Bytes of the frames of these tests. */
#define FRAME 60

/* Writes the Ethernet header of a frame between two stations, 255 for all, of an experimental type. */
static inline void frame_header(char *bytes, int to, int from) {
    memset(bytes, to == 255 ? 255 : 0, 6);
    if (to != 255)
        bytes[0] = 2, bytes[5] = (char)to;
    memset(bytes + 6, 0, 6);
    bytes[6] = 2, bytes[11] = (char)from;
    bytes[12] = (char)0x88, bytes[13] = (char)0xb5;
}

/* Fills the next Tx slot with a numbered frame. */
static inline void put_frame(struct netmap_ring *ring, int to, int from, uint32_t number) {
    struct netmap_slot *slot = &ring->slot[ring->head];
    REQUIRE(space(ring) > 0);
    char *bytes = slot_bytes(ring, ring->head);
    memset(bytes, 0, FRAME);
    frame_header(bytes, to, from);
    memcpy(bytes + 14, &number, sizeof number);
    slot->len = FRAME;
    slot->flags = 0;
    slot->ptr = 0;
    advance(ring);
}

/* Sends a numbered frame. */
static inline void send_frame(const struct port *port, int to, int from, uint32_t number) {
    struct netmap_ring *ring = tx_ring(port, 0);
    for (int waits = 0; space(ring) == 0 && waits < 100; waits++)
        poll_port(port->fd, POLLOUT, 100);
    put_frame(ring, to, from, number);
    REQUIRE(tx_sync(port->fd) == 0);
}

static inline uint32_t frame_number(struct netmap_ring *ring, uint32_t slot) {
    uint32_t number;
    memcpy(&number, slot_bytes(ring, slot) + 14, sizeof number);
    return number;
}

/* Waits for a frame in the first Rx ring, and returns its number, or -1 if none arrives. */
static inline int64_t next_frame_within(const struct port *port, int limit) {
    struct netmap_ring *ring = rx_ring(port, 0);
    if (space(ring) == 0 && !(poll_port(port->fd, POLLIN, limit) & POLLIN))
        return -1;
    if (space(ring) == 0)
        return -1;
    int64_t number = ring->slot[ring->head].len == FRAME ? (int64_t)frame_number(ring, ring->head) : -2;
    advance(ring);
    return number;
}

static inline int64_t next_frame(const struct port *port) { return next_frame_within(port, WAIT); }

/* Whether no frame arrives for a moment. */
static inline bool no_frame(const struct port *port) { return next_frame_within(port, 200) == -1; }

#endif
