/* Counts received frames by EtherType until Ctrl-C or the end of a capture file, and prints the counts as JSON:
     cc -o count count.c $(pkg-config --cflags --libs ringpass) && ./count pcap:trace.pcap */
#include <err.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#include <ringpass.h>

static volatile sig_atomic_t interrupted;

static void interrupt(int signal) {
    (void)signal;
    interrupted = 1;
}

static struct {
    uint64_t packets, bytes;
} counts[65536];

/* Copies the EtherType, as a peer that shares the frame's memory may write to it at any time. */
static void count(struct ringpass_packet *packet) {
    uint8_t type[2];
    if (ringpass_copy(packet, 12, type, 2) != 2)
        return;
    counts[type[0] << 8 | type[1]].packets++;
    counts[type[0] << 8 | type[1]].bytes += packet->total;
}

int main(int argc, char **argv) {
    struct ringpass_ports *ports;
    struct ringpass_queue *queue;
    struct ringpass_packet packets[32];
    if (argc != 2)
        errx(2, "usage: count PORT");
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    if (ringpass_open((const char *const *)argv + 1, 1, NULL, &ports) < 0 || ringpass_port_queue(ports, 0, 0, &queue) < 0)
        errx(1, "%s", ringpass_error());

    int state = 0;
    for (unsigned round = 0; !interrupted && state == 0; round++) {
        int received = ringpass_receive(queue, packets, 32);
        if (received < 0)
            errx(1, "%s", ringpass_error());
        for (int i = 0; i < received; i++)
            count(&packets[i]);
        ringpass_free(packets, received);
        ringpass_wait(&queue, 1, received, 100000);
        if (received == 0 || round % 4096 == 0)
            state = ringpass_check(ports);
    }
    if (state < 0)
        warnx("%s", ringpass_error());
    ringpass_close(ports);

    const char *comma = "";
    printf("{");
    for (int type = 0; type < 65536; type++)
        if (counts[type].packets > 0) {
            printf("%s\"0x%04x\": {\"packets\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", comma, type, counts[type].packets,
                   counts[type].bytes);
            comma = ", ";
        }
    printf("}\n");
    return state < 0;
}
