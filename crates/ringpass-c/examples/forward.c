/* Forwards frames between two ports, both ways, until Ctrl-C or the end of a capture file:
     cc -o forward forward.c $(pkg-config --cflags --libs ringpass) && ./forward tap:a model:tap:b */
#include <err.h>
#include <signal.h>
#include <stdio.h>

#include <ringpass.h>

static volatile sig_atomic_t interrupted;

static void interrupt(int signal) {
    (void)signal;
    interrupted = 1;
}

static void notice(const char *text, void *user) {
    fprintf((FILE *)user, "forward: %s\n", text);
}

/* Moves what there is from one queue to another, and drops what that has no room for. Returns the number received. */
static int forward(struct ringpass_queue *from, struct ringpass_queue *to) {
    struct ringpass_packet packets[32];
    int received = ringpass_receive(from, packets, 32);
    if (received < 0)
        errx(1, "%s", ringpass_error());
    int sent = ringpass_send(to, packets, received);
    if (sent < 0)
        errx(1, "%s", ringpass_error());
    ringpass_free(packets + sent, received - sent);
    return received;
}

int main(int argc, char **argv) {
    struct ringpass_config *config = ringpass_config_new();
    struct ringpass_ports *ports;
    struct ringpass_queue *queues[2];
    if (argc != 3)
        errx(2, "usage: forward PORT PORT");
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    ringpass_config_set_notice(config, notice, stderr);
    if (ringpass_open((const char *const *)argv + 1, 2, config, &ports) < 0)
        errx(1, "%s", ringpass_error());
    ringpass_config_free(config);
    for (int port = 0; port < 2; port++)
        if (ringpass_port_queue(ports, port, 0, &queues[port]) < 0)
            errx(1, "%s", ringpass_error());

    int state = 0;
    for (unsigned round = 0; !interrupted && state == 0; round++) {
        int moved = forward(queues[0], queues[1]) + forward(queues[1], queues[0]);
        ringpass_wait(queues, 2, moved, 100000);
        if (moved == 0 || round % 4096 == 0)
            state = ringpass_check(ports);
    }
    if (state < 0)
        warnx("%s", ringpass_error());
    if (ringpass_finish(ports) < 0)
        errx(1, "%s", ringpass_error());
    for (int port = 0; port < 2; port++) {
        struct ringpass_stats stats;
        ringpass_port_stats(ports, port, &stats);
        printf("%s: received %llu, sent %llu\n", ringpass_port_name(ports, port), (unsigned long long)stats.rx_packets,
               (unsigned long long)stats.tx_packets);
    }
    ringpass_close(ports);
    return state < 0;
}
