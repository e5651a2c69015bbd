/* Forks in a signal handler that interrupts calls on the store: parent and child both go on with it afterwards, at once, and
 * what the child closes stays open in the parent. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FORKS = 200, SIZE = 3000 };

static volatile sig_atomic_t forks, is_child;
static pid_t children[FORKS];

static void say(const char *text) {
    ssize_t written = write(2, text, strlen(text));
    (void)written;
}

static void fork_now(int signal) {
    (void)signal;
    int before = errno;
    if (!is_child && forks < FORKS) {
        pid_t child = fork();
        if (child == 0) {
            is_child = 1;
            alarm(20);
        } else if (child > 0) {
            children[forks++] = child;
        }
    }
    errno = before;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int failed(const char *what) {
    char text[200];
    snprintf(text, sizeof text, "%s in the %s: %s\n", what, is_child ? "child" : "parent", strerror(errno));
    say(text);
    return 1;
}

/* What the program does over and over; a child that begins within it may find one call failed. */
static int work(const char *dir, int shared) {
    static char bytes[SIZE];
    char path[4096], back[SIZE];
    snprintf(path, sizeof path, "%s/of-%d", dir, (int)getpid());
    int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
    if (fd < 0) return failed("open");
    memset(bytes, (int)getpid(), sizeof bytes);
    if (pwrite(fd, bytes, SIZE, 0) != SIZE) return failed("write");
    if (pread(fd, back, SIZE, 0) != SIZE || memcmp(bytes, back, SIZE)) return failed("read");
    struct stat about;
    if (stat(path, &about) || about.st_size != SIZE) return failed("stat");
    if (pread(shared, back, 6, 0) != 6 || memcmp(back, "shared", 6)) return failed("read what is shared");
    if (close(fd)) return failed("close");
    return unlink(path) ? failed("unlink") : 0;
}

/* The child: the interrupted round is over. */
static int child_of(const char *dir, int shared) {
    double begun = now();
    int wrong = access(dir, R_OK) ? failed("access") : 0;
    double first = now() - begun;
    if (first > 1) {
        char text[100];
        snprintf(text, sizeof text, "the first call took %.1f s\n", first);
        say(text);
        wrong++;
    }
    for (int round = 0; round < 3; round++) wrong += work(dir, shared);
    /* One more fork, which waits for nobody. */
    begun = now();
    pid_t child = fork();
    if (child == 0) _exit(work(dir, shared));
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) wrong++;
    if (now() - begun > 2) wrong += failed("slow fork");
    if (close(shared)) wrong += failed("close what is shared");
    return wrong;
}

int main(int count, char **arguments) {
    (void)count;
    const char *dir = arguments[1];
    char path[4096];
    snprintf(path, sizeof path, "%s/shared", dir);
    int shared = open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
    if (shared < 0 || write(shared, "shared", 6) != 6) return failed("begin");
    /* It has no name any more: it is there for as long as the parent holds it. */
    if (fsync(shared) || unlink(path)) return failed("unlink what is shared");
    signal(SIGALRM, SIG_DFL);
    struct sigaction action = {.sa_handler = fork_now, .sa_flags = SA_RESTART};
    sigaction(SIGVTALRM, &action, NULL);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGVTALRM};
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    /* Not in step with the rounds. */
    struct itimerspec times = {{0, 3371000}, {0, 1000000}};
    timer_settime(timer, 0, &times, NULL);
    int wrong = 0;
    for (long round = 0; forks < FORKS && !is_child; round++) {
        static char own[4096], text[SIZE], back[SIZE];
        snprintf(own, sizeof own, "%s/round-%ld", dir, round % 7);
        int fd = open(own, O_CREAT | O_RDWR, 0644);
        ssize_t written = pwrite(fd, text, SIZE, 0), read = pread(fd, back, SIZE, 0);
        int closed = close(fd);
        /* In the child the call that was interrupted may have failed, and none before it. */
        if (!is_child && (fd < 0 || written != SIZE || read != SIZE || closed)) wrong += failed("round");
    }
    if (is_child) _exit(child_of(dir, shared) ? 1 : 0);
    int bad = 0;
    for (int at = 0; at < forks; at++) {
        int status;
        if (waitpid(children[at], &status, 0) != children[at] || status != 0) bad++;
    }
    struct itimerspec none = {0};
    timer_settime(timer, 0, &none, NULL);
    for (int round = 0; round < 20; round++) wrong += work(dir, shared);
    printf("forks %d, children that failed %d, failures of the parent %d\n", (int)forks, bad, wrong);
    return 0;
}
