/* File locks of every kind, between processes: says what happened, the same on any file system that locks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char path[4096];

static int call(int fd, int command, int type, off_t start, off_t len, struct flock *out)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    int result = fcntl(fd, command, &lock);
    if (out) *out = lock;
    return result < 0 ? errno : 0;
}

static const char *name(int error)
{
    return error == 0 ? "ok" : error == EACCES ? "EAGAIN" : strerrorname_np(error);
}

static int set(int fd, int type, off_t start, off_t len) { return call(fd, F_SETLK, type, start, len, NULL); }
static int ofd(int fd, int type, off_t start, off_t len) { return call(fd, F_OFD_SETLK, type, start, len, NULL); }

static int open_file(int flags)
{
    int fd = open(path, flags | O_CREAT, 0644);
    if (fd < 0) { perror("open"); exit(1); }
    return fd;
}

/* Runs f in a child, and waits for it. */
static void in_child(void (*f)(void))
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) { f(); fflush(stdout); _exit(0); }
    int status;
    waitpid(child, &status, 0);
    if (status) printf("child ended with %x\n", status);
}

/* Every byte of the first 24: what another process could lock. */
static void show_map(void)
{
    int fd = open_file(O_RDWR);
    char map[25] = {0};
    for (int i = 0; i < 24; i++) {
        struct flock read, write;
        call(fd, F_GETLK, F_RDLCK, i, 1, &read);
        call(fd, F_GETLK, F_WRLCK, i, 1, &write);
        map[i] = read.l_type != F_UNLCK ? 'W' : write.l_type != F_UNLCK ? 'r' : '.';
    }
    struct flock far;
    call(fd, F_GETLK, F_WRLCK, 1000000, 0, &far);
    printf("%s far %s", map, far.l_type == F_UNLCK ? "free" : "held");
    if (far.l_type != F_UNLCK) printf(" from %ld for %ld", (long)far.l_start, (long)far.l_len);
    puts("");
}

static void ranges(void)
{
    int fd = open_file(O_RDWR);
    printf("write 4..12 %s\n", name(set(fd, F_WRLCK, 4, 8)));
    in_child(show_map);
    printf("read 6..9 %s\n", name(set(fd, F_RDLCK, 6, 3)));
    in_child(show_map);
    printf("unlock 7 %s\n", name(set(fd, F_UNLCK, 7, 1)));
    in_child(show_map);
    printf("read 7, merge %s\n", name(set(fd, F_RDLCK, 7, 1)));
    in_child(show_map);
    printf("write 20.. %s\n", name(set(fd, F_WRLCK, 20, 0)));
    in_child(show_map);
    printf("unlock 22 %s\n", name(set(fd, F_UNLCK, 22, 1)));
    in_child(show_map);
    lseek(fd, 10, SEEK_SET);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = 4, .l_len = -2};
    printf("write 12..14 backwards %d\n", fcntl(fd, F_SETLK, &lock));
    in_child(show_map);
    printf("unlock all %s\n", name(set(fd, F_UNLCK, 0, 0)));
    in_child(show_map);
    close(fd);
}

static void who_holds(void)
{
    int fd = open_file(O_RDWR);
    struct flock found;
    call(fd, F_GETLK, F_WRLCK, 0, 0, &found);
    printf("type %d start %ld len %ld whence %d parent %d\n", found.l_type, (long)found.l_start,
        (long)found.l_len, found.l_whence, found.l_pid == getppid());
    printf("try %s\n", name(set(fd, F_RDLCK, 0, 1)));
    printf("beside %s\n", name(set(fd, F_WRLCK, 100, 1)));
}

static void closing(void)
{
    int fd = open_file(O_RDWR), other = open_file(O_RDONLY);
    printf("write 0..10 %s\n", name(set(fd, F_WRLCK, 0, 10)));
    in_child(who_holds);
    close(other);
    in_child(show_map);
    set(fd, F_WRLCK, 0, 10);
    int copy = dup(fd);
    close(copy);
    in_child(show_map);
    set(fd, F_WRLCK, 0, 10);
    dup2(1, fd);
    in_child(show_map);
    close(fd);
}

static void handler(int signal) { (void)signal; }

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* A child that holds a lock until it is told to end; `how` takes the lock. */
static pid_t holder(void (*how)(int), int *tell)
{
    int ready[2], done[2];
    char byte;
    pipe(ready), pipe(done);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(done[1]), close(ready[0]);
        int fd = open_file(O_RDWR);
        how(fd);
        write(ready[1], "", 1);
        read(done[0], &byte, 1);
        _exit(0);
    }
    close(ready[1]), close(done[0]);
    read(ready[0], &byte, 1);
    close(ready[0]);
    *tell = done[1];
    return child;
}

static void hold_record(int fd) { set(fd, F_WRLCK, 0, 10); }
static void hold_flock(int fd) { flock(fd, LOCK_EX); }
static void hold_ofd(int fd) { ofd(fd, F_WRLCK, 0, 10); }

/* Waits for the lock until it comes, with a timer that rings after 50 ms. */
static void wait_with_timer(int flags, const char *what)
{
    int tell, fd = open_file(O_RDWR);
    pid_t child = holder(hold_record, &tell);
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {.it_value = {.tv_usec = 50000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    if (flags & SA_RESTART) {
        /* Someone must end it: another process does, later. */
        pid_t friend = fork();
        if (friend == 0) { usleep(200000); kill(child, SIGKILL); _exit(0); }
    }
    double begun = seconds();
    int error = call(fd, F_SETLKW, F_WRLCK, 0, 10, NULL);
    double took = seconds() - begun;
    printf("%s: %s %s\n", what, name(error), took < 0.04 ? "too early" : took > 3 ? "too late" : "in time");
    close(tell);
    while (wait(NULL) > 0) {}
    close(fd);
}

static void deadlock(void)
{
    int fd = open_file(O_RDWR), ready[2];
    char byte;
    pipe(ready);
    set(fd, F_WRLCK, 0, 1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int own = open_file(O_RDWR);
        set(own, F_WRLCK, 1, 1);
        write(ready[1], "", 1);
        int error = call(own, F_SETLKW, F_WRLCK, 0, 1, NULL);
        _exit(error == 0 ? 0 : error == EDEADLK ? 1 : 2);
    }
    read(ready[0], &byte, 1);
    usleep(100000);
    printf("circle: %s\n", name(call(fd, F_SETLKW, F_WRLCK, 1, 1, NULL)));
    set(fd, F_UNLCK, 0, 0);
    int status;
    waitpid(child, &status, 0);
    printf("the other got it: %d\n", status == 0);
    close(ready[0]), close(ready[1]), close(fd);
}

static int shared_fd;

static void try_shared(void)
{
    printf("through the inherited one %s %s\n", name(ofd(shared_fd, F_WRLCK, 0, 10)), name(flock(shared_fd, LOCK_EX | LOCK_NB) ? errno : 0));
    int own = open_file(O_RDWR);
    printf("through its own %s %s\n", name(ofd(own, F_WRLCK, 5, 1)), name(flock(own, LOCK_SH | LOCK_NB) ? errno : 0));
}

static void unlock_shared(void) { flock(shared_fd, LOCK_UN); ofd(shared_fd, F_UNLCK, 0, 0); }
static void lock_shared(void) { printf("%s %s\n", name(flock(shared_fd, LOCK_EX | LOCK_NB) ? errno : 0), name(ofd(shared_fd, F_WRLCK, 0, 10))); }
static void close_shared(void) { close(shared_fd); }

static void descriptions(void)
{
    shared_fd = open_file(O_RDWR);
    int other = open_file(O_RDWR);
    printf("ofd %s\n", name(ofd(shared_fd, F_WRLCK, 0, 10)));
    printf("flock %s\n", name(flock(shared_fd, LOCK_EX) ? errno : 0));
    printf("other %s %s\n", name(ofd(other, F_RDLCK, 9, 2)), name(flock(other, LOCK_SH | LOCK_NB) ? errno : 0));
    struct flock found;
    call(other, F_OFD_GETLK, F_WRLCK, 0, 0, &found);
    printf("found %d %ld %ld pid %d\n", found.l_type, (long)found.l_start, (long)found.l_len, found.l_pid);
    printf("of the process %s\n", name(set(other, F_WRLCK, 0, 1)));
    in_child(try_shared);
    in_child(close_shared);
    in_child(try_shared);
    in_child(unlock_shared);
    printf("after the child's unlock %s %s\n", name(ofd(other, F_WRLCK, 9, 2)), name(flock(other, LOCK_EX | LOCK_NB) ? errno : 0));
    close(other);
    in_child(lock_shared);
    in_child(try_shared);
    int copy = dup(shared_fd);
    close(shared_fd);
    shared_fd = copy;
    in_child(try_shared);
    close(copy);
    other = open_file(O_RDWR);
    printf("after the last close %s %s\n", name(ofd(other, F_WRLCK, 0, 0)), name(flock(other, LOCK_EX | LOCK_NB) ? errno : 0));
    close(other);
}

static void conversions(void)
{
    int a = open_file(O_RDONLY), b = open_file(O_RDONLY);
    printf("two shared %d %d\n", flock(a, LOCK_SH), flock(b, LOCK_SH | LOCK_NB));
    printf("upgrade %s\n", name(flock(a, LOCK_EX | LOCK_NB) ? errno : 0));
    printf("unlock the other %d\n", flock(b, LOCK_UN));
    printf("upgrade %s\n", name(flock(a, LOCK_EX | LOCK_NB) ? errno : 0));
    printf("downgrade %s, the other %s\n", name(flock(a, LOCK_SH) ? errno : 0), name(flock(b, LOCK_SH | LOCK_NB) ? errno : 0));
    printf("nonsense %s\n", name(flock(a, 77) ? errno : 0));
    close(a), close(b);
}

static void killed(void (*how)(int), const char *what)
{
    int tell;
    pid_t child = holder(how, &tell);
    int fd = open_file(O_RDWR);
    int before = how == hold_flock ? (flock(fd, LOCK_EX | LOCK_NB) ? errno : 0) : how == hold_ofd ? ofd(fd, F_WRLCK, 0, 1) : set(fd, F_WRLCK, 0, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    double begun = seconds();
    int after = how == hold_flock ? (flock(fd, LOCK_EX) ? errno : 0) : call(fd, how == hold_ofd ? F_OFD_SETLKW : F_SETLKW, F_WRLCK, 0, 1, NULL);
    printf("%s held by another %s, by a killed one %s %s\n", what, name(before), name(after), seconds() - begun < 3 ? "soon" : "late");
    close(tell), close(fd);
}

/* A child that inherits keeps the description's lock when its maker is killed, until it is killed too. */
static void inherited_by_a_survivor(void)
{
    int pids[2], ready[2];
    char byte;
    pipe(pids), pipe(ready);
    fflush(stdout);
    pid_t maker = fork();
    if (maker == 0) {
        int fd = open_file(O_RDWR);
        flock(fd, LOCK_EX);
        pid_t heir = fork();
        if (heir == 0) { close(pids[0]); write(ready[1], "", 1); pause(); _exit(0); }
        write(pids[1], &heir, sizeof heir);
        pause();
        _exit(0);
    }
    pid_t heir;
    read(pids[0], &heir, sizeof heir);
    read(ready[0], &byte, 1);
    kill(maker, SIGKILL);
    waitpid(maker, NULL, 0);
    usleep(100000);
    int fd = open_file(O_RDWR);
    printf("while the heir lives %s\n", name(flock(fd, LOCK_EX | LOCK_NB) ? errno : 0));
    kill(heir, SIGKILL);
    double begun = seconds();
    printf("then %s %s\n", name(flock(fd, LOCK_EX) ? errno : 0), seconds() - begun < 3 ? "soon" : "late");
    close(fd), close(pids[0]), close(pids[1]), close(ready[0]), close(ready[1]);
}

static void sections(void)
{
    int fd = open_file(O_RDWR);
    lseek(fd, 5, SEEK_SET);
    printf("lockf %d\n", lockf(fd, F_TLOCK, 10));
    in_child(show_map);
    lseek(fd, 8, SEEK_SET);
    printf("unlock %d, test %d\n", lockf(fd, F_ULOCK, 2), lockf(fd, F_TEST, 100));
    in_child(show_map);
    fflush(stdout);
    if (fork() == 0) {
        int own = open_file(O_RDWR);
        lseek(own, 6, SEEK_SET);
        int test = lockf(own, F_TEST, 1) ? errno : 0;
        printf("other: test %s", test == EACCES || test == EAGAIN ? "held" : "free");
        printf(" lock %s\n", name(lockf(own, F_TLOCK, 1) ? errno : 0));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    close(fd);
}

static void errors(void)
{
    int reads = open_file(O_RDONLY), writes = open_file(O_WRONLY);
    printf("%s %s %s %s\n", name(set(reads, F_WRLCK, 0, 1)), name(set(writes, F_RDLCK, 0, 1)), name(set(reads, F_RDLCK, 0, 1)), name(set(writes, F_WRLCK, 0, 1)));
    printf("%s %s %s\n", name(set(writes, F_WRLCK, -1, 1)), name(set(writes, 77, 0, 1)), name(set(writes, F_WRLCK, 1, 0x7fffffffffffffff)));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = 9, .l_len = 1};
    printf("%s\n", name(fcntl(writes, F_SETLK, &lock) ? errno : 0));
    lock.l_whence = SEEK_SET, lock.l_pid = 1;
    printf("%s\n", name(fcntl(writes, F_OFD_SETLK, &lock) ? errno : 0));
    close(reads), close(writes);
    printf("%s\n", name(set(writes, F_WRLCK, 0, 1)));
}

static void *wait_in_thread(void *fd)
{
    static int outcome;
    outcome = flock(*(int *)fd, LOCK_EX) ? errno : 0;
    return &outcome;
}

/* While one thread waits for a lock, others open, fork and close. */
static void threads(void)
{
    int tell;
    pid_t child = holder(hold_flock, &tell);
    int fd = open_file(O_RDWR);
    pthread_t thread;
    pthread_create(&thread, NULL, wait_in_thread, &fd);
    usleep(50000);
    double begun = seconds();
    in_child(show_map);
    close(open_file(O_RDONLY));
    printf("nobody is held up: %d\n", seconds() - begun < 2);
    close(tell);
    int *outcome;
    pthread_join(thread, (void **)&outcome);
    printf("the waiter: %s\n", name(*outcome));
    waitpid(child, NULL, 0);
    close(fd);
}

static void over_exec(char *self)
{
    fflush(stdout);
    if (fork() == 0) {
        int fd = open_file(O_RDWR);
        set(fd, F_WRLCK, 0, 5);
        flock(fd, LOCK_EX);
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        execl(self, self, path, "after-exec", number, NULL);
        _exit(9);
    }
    int status;
    wait(&status);
    printf("after exec: %d\n", WEXITSTATUS(status));
}

static void after_exec(int fd)
{
    in_child(show_map);
    int other = open_file(O_RDWR);
    printf("flock of another %s\n", name(flock(other, LOCK_EX | LOCK_NB) ? errno : 0));
    close(other);
    in_child(show_map);
    close(fd);
    other = open_file(O_RDWR);
    printf("after close %s\n", name(flock(other, LOCK_EX | LOCK_NB) ? errno : 0));
}

int main(int count, char **arguments)
{
    if (count > 2) {
        strcpy(path, arguments[1]);
        after_exec(atoi(arguments[3]));
        return 0;
    }
    snprintf(path, sizeof path, "%s/locked", arguments[1]);
    ranges();
    closing();
    wait_with_timer(0, "interrupted");
    wait_with_timer(SA_RESTART, "restarted");
    deadlock();
    descriptions();
    conversions();
    killed(hold_record, "record");
    killed(hold_flock, "flock");
    killed(hold_ofd, "ofd");
    inherited_by_a_survivor();
    sections();
    errors();
    threads();
    over_exec(arguments[0]);
    char renamed[4200];
    snprintf(renamed, sizeof renamed, "%s/renamed", arguments[1]);
    int fd = open_file(O_RDWR), other;
    flock(fd, LOCK_EX);
    rename(path, renamed);
    other = open(renamed, O_RDWR);
    printf("renamed %s\n", name(flock(other, LOCK_EX | LOCK_NB) ? errno : 0));
    return 0;
}
