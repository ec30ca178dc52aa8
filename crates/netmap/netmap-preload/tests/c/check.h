/* Programs of checks. A program consists of topics, each of which runs in a process of its own and ends at its first check
   that fails; all topics run. There is a line for each check:

     ok registers.unbound: NIOCTXSYNC is refused
     pending registers.host_rings: NR_REG_SW
     FAILED registers.unbound: NIOCTXSYNC is refused: EINVAL instead of ENXIO (registers.c:12) */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct topic {
    const char *name;
    void (*run)(void);
};

/* Seconds that a topic may take. */
#define TOPIC_SECONDS 60

/* Counted in memory that the processes of all topics share. */
struct check_counts {
    unsigned checks, pending;
};

static struct check_counts *check_counts;
static const char *check_program, *check_topic;

static inline void check_line(const char *state, const char *text) {
    printf("%s %s.%s: %s", state, check_program, check_topic, text);
}

__attribute__((noreturn, format(printf, 4, 5))) static inline void check_failed(const char *file, int line, const char *text,
                                                                               const char *format, ...) {
    va_list values;
    check_line("FAILED", text);
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    printf(" (%s:%d)\n", file, line);
    fflush(NULL);
    _exit(1);
}

static inline void check_passed(const char *text) {
    check_counts->checks++;
    check_line("ok", text);
    printf("\n");
}

/* The condition holds. */
#define CHECK(condition, text) \
    do { \
        if (!(condition)) \
            check_failed(__FILE__, __LINE__, text, ": not %s", #condition); \
        check_passed(text); \
    } while (0)

/* Two numbers are equal. */
#define EQUAL(is, wanted, text) \
    do { \
        long long is_ = (long long)(is), wanted_ = (long long)(wanted); \
        if (is_ != wanted_) \
            check_failed(__FILE__, __LINE__, text, ": %lld instead of %lld", is_, wanted_); \
        check_passed(text); \
    } while (0)

/* A call that returns 0 or an error number succeeds, or is refused with this one. */
#define GIVES(is, wanted, text) \
    do { \
        int is_ = (is), wanted_ = (wanted); \
        if (is_ != wanted_) \
            check_failed(__FILE__, __LINE__, text, ": %s instead of %s", strerror(is_), strerror(wanted_)); \
        check_passed(text); \
    } while (0)

#define SUCCEEDS(is, text) GIVES(is, 0, text)

/* What netmap does and Ringpass does not yet: the check is made, and must not pass. If it does, the feature is there, and the
   line becomes a CHECK. So this list can only shrink. */
#define PENDING(condition, missing) \
    do { \
        if (condition) \
            check_failed(__FILE__, __LINE__, missing, ": is there now; make this PENDING a CHECK"); \
        check_counts->pending++; \
        check_line("pending", missing); \
        printf("\n"); \
    } while (0)

/* What has to hold for a test to make sense at all. */
#define REQUIRE(condition) \
    do { \
        if (!(condition)) \
            check_failed(__FILE__, __LINE__, #condition, ": is required here; errno: %s", strerror(errno)); \
    } while (0)

static inline int check_run(const char *program, const struct topic *topics, size_t count) {
    unsigned failed = 0;
    check_program = program;
    setvbuf(stdout, NULL, _IOLBF, 0);
    check_counts = mmap(NULL, sizeof *check_counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (check_counts == MAP_FAILED)
        return 2;
    for (size_t topic = 0; topic < count; topic++) {
        int status;
        check_topic = topics[topic].name;
        pid_t child = fork();
        if (child == 0) {
            alarm(TOPIC_SECONDS);
            topics[topic].run();
            fflush(NULL);
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child)
            return 2;
        if (!WIFEXITED(status)) {
            check_line("FAILED", "");
            printf("ended by signal %d\n", WTERMSIG(status));
        }
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    printf("%s: %zu topics, %u failed; %u checks, %u pending\n", program, count, failed, check_counts->checks,
           check_counts->pending);
    return failed > 0;
}

/* The main function of a program: TOPICS("registers", T(unbound), T(headers)) */
#define T(name) {#name, name}
#define TOPICS(program, ...) \
    int main(void) { \
        static const struct topic topics[] = {__VA_ARGS__}; \
        return check_run(program, topics, sizeof topics / sizeof *topics); \
    }

#endif
