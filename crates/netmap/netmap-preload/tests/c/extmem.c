/* NETMAP_REQ_OPT_EXTMEM: ports in memory of the program, which others may have in common, and which may change under them. */
#include "port.h"

#include <sys/socket.h>

#define SIZE ((size_t)16 << 20)
#define SLOTS 512

/* A registration in memory of the program. The port is not mapped again, but found there. */
struct external {
    struct nmreq_opt_extmem option;
    char *memory;
    struct port port;
};

static int open_external(struct external *external, const char *name, void *memory, size_t size, uint32_t mode) {
    external->option = (struct nmreq_opt_extmem){
        .nro_opt = {.nro_reqtype = NETMAP_REQ_OPT_EXTMEM, .nro_status = 0xdead},
        .nro_usrptr = (uintptr_t)memory,
        .nro_info = {.nr_memsize = size, .nr_buf_pool_objsize = 2048},
    };
    struct port *port = &external->port;
    *port = (struct port){.fd = device(), .reg = {.nr_mode = mode, .nr_tx_slots = SLOTS, .nr_rx_slots = SLOTS}};
    int error = request_with(port->fd, NETMAP_REQ_REGISTER, name, &port->reg, &external->option);
    if (error) {
        /* Something else may be wrong with the registration. */
        uint32_t status = external->option.nro_opt.nro_status;
        REQUIRE(status == (uint32_t)error || status == 0);
        close(port->fd);
        return error;
    }
    REQUIRE(external->option.nro_opt.nro_status == 0 && external->option.nro_info.nr_mem_id == port->reg.nr_mem_id);
    external->memory = memory;
    port->nifp = (struct netmap_if *)((char *)memory + port->reg.nr_offset);
    return 0;
}

static void close_external(struct external *external) {
    close(external->port.fd);
    settle();
}

/* A file in memory, of huge pages if there are enough. */
static int memory_file(void) {
    int file = memfd_create("extmem", MFD_CLOEXEC | MFD_HUGETLB);
    if (file >= 0 && ftruncate(file, SIZE) == 0) {
        void *try = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
        if (try != MAP_FAILED && munmap(try, SIZE) == 0)
            return file;
    }
    close(file);
    file = memfd_create("extmem", MFD_CLOEXEC);
    REQUIRE(file >= 0 && ftruncate(file, SIZE) == 0);
    return file;
}

static char *map_file(int file) {
    char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(memory != MAP_FAILED);
    return memory;
}

static char *anonymous(int flags) {
    char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    return memory;
}

/* Puts a frame of any length, whose bytes tell its number. */
static void put_bytes(struct netmap_ring *ring, uint32_t number, uint16_t len) {
    struct netmap_slot *slot = &ring->slot[ring->head];
    REQUIRE(space(ring) > 0);
    char *bytes = slot_bytes(ring, ring->head);
    frame_header(bytes, 255, 1);
    for (uint16_t at = 14; at < len; at++)
        bytes[at] = (char)(number * 31 + at);
    slot->len = len, slot->flags = 0, slot->ptr = 0;
    advance(ring);
}

static bool has_bytes(struct netmap_ring *ring, uint32_t slot, uint32_t number, uint16_t len) {
    char *bytes = slot_bytes(ring, slot);
    bool right = ring->slot[slot].len == len;
    for (uint16_t at = 14; right && at < len; at++)
        right = bytes[at] == (char)(number * 31 + at);
    return right;
}

/* A sender and a forwarder, both with the same file, and a native port in it; frames go from one to the next without a copy. */
static void two_programs_and_a_native_port(void) {
    enum { COUNT = 2000 };
    int file = memory_file();
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        struct external sender;
        if (open_external(&sender, "e{1", map_file(file), SIZE, NR_REG_ALL_NIC))
            _exit(1);
        struct netmap_ring *ring = tx_ring(&sender.port, 0);
        for (uint32_t number = 0; number < COUNT;) {
            while (space(ring) == 0)
                if (!(poll_port(sender.port.fd, POLLOUT, WAIT) & POLLOUT))
                    _exit(2);
            put_bytes(ring, number, 60 + number % 1400);
            number++;
            if (tx_sync(sender.port.fd))
                _exit(3);
        }
        /* Until all slots are back. */
        while (space(ring) < ring->num_slots - 1)
            if (!(usleep(1000), tx_sync(sender.port.fd) == 0))
                _exit(4);
        _exit(0);
    }
    struct external receiver, nic;
    struct port monitor;
    char *memory = map_file(file);
    SUCCEEDS(open_external(&receiver, "e}1", memory, SIZE, NR_REG_ALL_NIC), "an end of a pipe in memory of the program");
    SUCCEEDS(open_external(&nic, "nic", memory, SIZE, NR_REG_ALL_NIC), "a native port in the same memory");
    EQUAL(nic.port.reg.nr_mem_id, receiver.port.reg.nr_mem_id, "which has one number");
    SUCCEEDS(port_open(&monitor, "nic", NR_REG_ALL_NIC, NR_MONITOR_TX), "a monitor, elsewhere");
    CHECK(monitor.reg.nr_mem_id != nic.port.reg.nr_mem_id, "in another memory");
    struct netmap_ring *in = rx_ring(&receiver.port, 0), *out = tx_ring(&nic.port, 0), *seen = rx_ring(&monitor, 0);
    uint32_t right = 0, forwarded = 0, checked = 0;
    while (checked < COUNT) {
        if (space(in) == 0)
            REQUIRE(rx_sync(receiver.port.fd) == 0);
        while (space(in) > 0 && space(out) > 0 && forwarded - checked < 500) {
            struct netmap_slot *from = &in->slot[in->head], *to = &out->slot[out->head];
            right += has_bytes(in, in->head, forwarded, 60 + forwarded % 1400);
            uint32_t buffer = to->buf_idx;
            to->buf_idx = from->buf_idx, from->buf_idx = buffer;
            to->len = from->len, to->ptr = 0;
            to->flags = from->flags = NS_BUF_CHANGED;
            advance(in), advance(out);
            forwarded++;
        }
        REQUIRE(tx_sync(nic.port.fd) == 0 && rx_sync(receiver.port.fd) == 0);
        if (forwarded > checked)
            REQUIRE(poll_port(monitor.fd, POLLIN, WAIT) == POLLIN);
        for (; space(seen) > 0; advance(seen), checked++)
            right += has_bytes(seen, seen->head, checked, 60 + checked % 1400);
        REQUIRE(rx_sync(monitor.fd) == 0);
    }
    EQUAL(right, 2 * COUNT, "each byte of each frame is right, at the forwarder and behind the native port");
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    EQUAL(status, 0, "the sender ends without an error");
    port_close(&monitor), close_external(&nic), close_external(&receiver);
    SUCCEEDS(open_external(&receiver, "e}1", memory, SIZE, NR_REG_ALL_NIC), "and once more");
    close_external(&receiver);
}

/* Memory without a file gets one, at its place and with its contents. */
static void without_a_file(void) {
    const int kinds[] = {MAP_PRIVATE, MAP_SHARED};
    for (size_t kind = 0; kind < 2; kind++) {
        char *memory = anonymous(kinds[kind]);
        strcpy(memory + SIZE - 100, "the last bytes");
        struct external a;
        struct port b = need("vale8:b");
        SUCCEEDS(open_external(&a, "vale8:a", memory, SIZE, NR_REG_ALL_NIC), "a port in memory without a file");
        CHECK(strcmp(memory + SIZE - 100, "the last bytes") == 0, "whose contents stay");
        put_frame(tx_ring(&a.port, 0), 255, 1, 5);
        REQUIRE(tx_sync(a.port.fd) == 0);
        EQUAL(next_frame(&b), 5, "sends");
        send_frame(&b, 255, 2, 6);
        EQUAL(next_frame(&a.port), 6, "and receives");
        char *again = mmap(NULL, a.port.reg.nr_memsize, PROT_READ, MAP_SHARED, a.port.fd, 0);
        CHECK(again != MAP_FAILED && memcmp(again, memory, a.port.reg.nr_memsize) == 0, "it is mapped by the descriptor, too");
        munmap(again, a.port.reg.nr_memsize);
        close_external(&a), port_close(&b);
        munmap(memory, SIZE);
    }
}

/* A part of a file, at an offset. */
static void a_part_of_a_file(void) {
    int file = memfd_create("part", MFD_CLOEXEC);
    REQUIRE(file >= 0 && ftruncate(file, 3 * SIZE) == 0);
    char *all = mmap(NULL, 3 * SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(all != MAP_FAILED);
    memset(all, 7, SIZE), memset(all + 2 * SIZE, 7, SIZE);
    struct external a;
    struct port b = need("vale8:pb");
    SUCCEEDS(open_external(&a, "vale8:pa", all + SIZE, SIZE, NR_REG_ALL_NIC), "a part of a file");
    for (uint32_t number = 0; number < 3000; number++) {
        send_frame(&b, 255, 2, number);
        REQUIRE(next_frame(&a.port) == number);
    }
    bool right = true;
    for (size_t at = 0; at < SIZE; at++)
        right &= all[at] == 7 && all[2 * SIZE + at] == 7;
    CHECK(right, "nothing beside it is written");
    close_external(&a), port_close(&b);
}

static void refused(void) {
    struct external a;
    char *memory = anonymous(MAP_SHARED);
    REQUIRE(munmap(memory + SIZE - 4096, 4096) == 0);
    const size_t size = SIZE - 4096;
    GIVES(open_external(&a, "vale8:x", memory + 64, size - 4096, NR_REG_ALL_NIC), EINVAL, "an address inside of a page: EINVAL");
    GIVES(open_external(&a, "vale8:x", memory, SIZE, NR_REG_ALL_NIC), EFAULT, "more than is mapped: EFAULT");
    REQUIRE(mprotect(memory, 4096, PROT_READ) == 0);
    GIVES(open_external(&a, "vale8:x", memory, size, NR_REG_ALL_NIC), EFAULT, "memory that cannot be written: EFAULT");
    REQUIRE(mprotect(memory, 4096, PROT_READ | PROT_WRITE) == 0);
    GIVES(open_external(&a, "vale8:x", memory, 65536, NR_REG_ALL_NIC), ENOMEM, "too little for a ring: ENOMEM");
    CHECK(open_external(&a, "vale8:x", memory, 3 << 20, NR_REG_ALL_NIC) != 0 || a.port.reg.nr_mem_id > 2,
          "little memory: refused, or enough for a port");
    SUCCEEDS(open_external(&a, "vale8:y", memory, size, NR_REG_ALL_NIC), "after all that");
    close_external(&a);
}

/* Memory that changes under the server. The program that does so may end by it, and nobody else. */
static void taken_away(void) {
    enum { TRUNCATED, PUNCHED, UNMAPPED, SCRIBBLED, KINDS };
    struct port b = need("vale8:tb"), c = need("vale8:tc");
    for (int kind = 0; kind < KINDS; kind++) {
        int ready[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ready) == 0);
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            int file = memfd_create("taken", MFD_CLOEXEC);
            struct external a;
            if (file < 0 || ftruncate(file, SIZE) || open_external(&a, "vale8:ta", map_file(file), SIZE, NR_REG_ALL_NIC))
                _exit(1);
            struct netmap_ring *ring = tx_ring(&a.port, 0);
            for (int frame = 0; frame < 500; frame++)
                put_frame(ring, 255, 1, 1);
            if (tx_sync(a.port.fd))
                _exit(1);
            switch (kind) {
            case TRUNCATED:
                if (ftruncate(file, 0))
                    _exit(1);
                break;
            case PUNCHED:
                if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE))
                    _exit(1);
                break;
            case UNMAPPED:
                munmap(a.memory, SIZE);
                break;
            default: {
                unsigned seed = 1;
                for (size_t at = 0; at < SIZE; at += sizeof seed)
                    memcpy(a.memory + at, &(unsigned){(unsigned)rand_r(&seed)}, sizeof seed);
            }
            }
            if (write(ready[1], "x", 1) != 1 || read(ready[1], &(char){0}, 1) != 1)
                _exit(1);
            _exit(0);
        }
        char byte;
        REQUIRE(read(ready[0], &byte, 1) == 1);
        while (next_frame_within(&b, 100) != -1)
            ;
        while (next_frame_within(&c, 0) != -1)
            ;
        uint32_t right = 0;
        for (uint32_t number = 0; number < 2000; number++) {
            send_frame(&b, 255, 2, number);
            int64_t seen;
            do
                seen = next_frame(&c);
            while (seen != number && seen >= 0);
            right += seen == number;
        }
        const char *what[] = {"a port whose memory was truncated hurts nobody", "one of holes does not", "one that is unmapped does not",
                              "one with random bytes does not"};
        EQUAL(right, 2000, what[kind]);
        REQUIRE(write(ready[0], "x", 1) == 1);
        int status;
        REQUIRE(waitpid(child, &status, 0) == child && status == 0);
        close(ready[0]), close(ready[1]);
        settle();
        while (next_frame_within(&b, 0) != -1)
            ;
        while (next_frame_within(&c, 0) != -1)
            ;
    }
    port_close(&b), port_close(&c);
}

TOPICS("extmem", T(two_programs_and_a_native_port), T(without_a_file), T(a_part_of_a_file), T(refused), T(taken_away))
