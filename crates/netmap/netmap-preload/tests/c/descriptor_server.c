/* A server of descriptors for the soak, until it is killed: it opens an end of a pipe and a port of a switch, gives them to a worker, and
   kills that at a random moment. Every other worker runs this program anew, with the descriptors kept. Exits with 2 if a
   port is not there, or not free again. */
#include "passing.h"

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

enum { PIPE, SWITCH, PORTS };

static void fail(const char *what, int error) {
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    _exit(2);
}

/* Sends frames through the pipe as far as it has room, and synchronises both, until it is killed. */
static void work(const int fds[PORTS]) {
    for (uint32_t number = 0;; number++) {
        for (int port = 0; port < PORTS; port++) {
            int error = tx_sync(fds[port]) ? tx_sync(fds[port]) : rx_sync(fds[port]);
            if (error)
                fail("a worker's sync", error);
        }
        if (number % 64 == 0)
            poll_port(fds[number / 64 % PORTS], POLLIN, 1);
    }
}

static void worker(char *program, pid_t server, int socket, bool again) {
    int fds[PORTS];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* It may have been killed before. */
    if (getppid() != server)
        _exit(0);
    for (int port = 0; port < PORTS; port++)
        if ((fds[port] = received_descriptor(socket)) < 0)
            fail("a descriptor", errno);
    if (!again)
        work(fds);
    char numbers[PORTS][16];
    for (int port = 0; port < PORTS; port++) {
        fcntl(fds[port], F_SETFD, 0);
        snprintf(numbers[port], sizeof numbers[port], "%d", fds[port]);
    }
    char *arguments[] = {program, "work", numbers[PIPE], numbers[SWITCH], NULL};
    execv(program, arguments);
    fail(program, errno);
}

int main(int count, char **arguments) {
    if (count == 4 && strcmp(arguments[1], "work") == 0)
        work((const int[PORTS]){atoi(arguments[2]), atoi(arguments[3])});
    char names[PORTS][32];
    snprintf(names[PIPE], sizeof names[PIPE], "soak%d{1", getpid());
    snprintf(names[SWITCH], sizeof names[SWITCH], "vale9:soak%d", getpid());
    srand((unsigned)time(NULL) ^ (unsigned)getpid());
    for (int round = 0;; round++) {
        int sockets[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
        struct port ports[PORTS];
        for (int port = 0; port < PORTS; port++) {
            int error = port_open(&ports[port], names[port], NR_REG_ALL_NIC, NR_EXCLUSIVE);
            if (error)
                fail(names[port], error);
        }
        pid_t server = getpid(), child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            for (int port = 0; port < PORTS; port++)
                close(ports[port].fd);
            close(sockets[0]);
            worker(arguments[0], server, sockets[1], round % 2);
        }
        for (int port = 0; port < PORTS; port++) {
            REQUIRE(send_descriptor(sockets[0], ports[port].fd));
            port_close(&ports[port]);
        }
        usleep((useconds_t)(rand() % 60000));
        int status;
        REQUIRE(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
            return 2;
        close(sockets[0]), close(sockets[1]);
        settle();
    }
}
