/* Processes add to counters in a file, each time under a lock on just the bytes of a random range of them. None may get lost.
   Arguments: directory, processes, rounds, and perhaps the same directory by another way. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNTERS = 64 };

static void fail(const char *what) { perror(what); _exit(1); }

static void set(int fd, int command, int type, int first, int count)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = first * 8, .l_len = count * 8};
    while (fcntl(fd, command, &lock) < 0)
        if (errno != EINTR) fail("lock");
}

static void work(const char *path, int seed, int rounds, int results)
{
    uint64_t values[COUNTERS], again[COUNTERS], added[COUNTERS] = {0};
    int fd = open(path, O_RDWR), command = seed % 2 ? F_SETLKW : F_OFD_SETLKW;
    unsigned state = seed * 7919 + 1;
    if (fd < 0) fail("open");
    for (int round = 0; round < rounds; round++) {
        int first = rand_r(&state) % COUNTERS, count = 1 + rand_r(&state) % (COUNTERS - first);
        int writes = rand_r(&state) % 4 > 0;
        set(fd, command, writes ? F_WRLCK : F_RDLCK, first, count);
        if (pread(fd, values, count * 8, first * 8) != count * 8) fail("read");
        if (writes) {
            for (int i = 0; i < count; i++) values[i]++, added[first + i]++;
            if (pwrite(fd, values, count * 8, first * 8) != count * 8) fail("write");
            if (rand_r(&state) % 3 == 0) {
                /* Keep reading only: nobody may change it. */
                set(fd, command, F_RDLCK, first, count);
            }
        }
        if (pread(fd, again, count * 8, first * 8) != count * 8) fail("read again");
        for (int i = 0; i < count; i++)
            if (again[i] != values[i]) { fprintf(stderr, "changed under a lock\n"); _exit(1); }
        if (count > 2 && rand_r(&state) % 2) set(fd, command, F_UNLCK, first + 1, count / 2);
        set(fd, command, F_UNLCK, 0, 0);
    }
    if (write(results, added, sizeof added) != sizeof added) fail("pipe");
    _exit(0);
}

int main(int count, char **arguments)
{
    int processes = atoi(arguments[2]), rounds = atoi(arguments[3]), results[2], bad = 0;
    char path[4096], other[4096];
    snprintf(path, sizeof path, "%s/counters", arguments[1]);
    snprintf(other, sizeof other, "%s/counters", arguments[count > 4 ? 4 : 1]);
    uint64_t values[COUNTERS] = {0}, sums[COUNTERS] = {0}, added[COUNTERS];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || pwrite(fd, values, sizeof values, 0) != sizeof values || pipe(results)) fail("prepare");
    for (int i = 0; i < processes; i++)
        if (fork() == 0) work(i % 4 < 2 ? path : other, i, rounds, results[1]);
    close(results[1]);
    while (read(results[0], added, sizeof added) == sizeof added)
        for (int i = 0; i < COUNTERS; i++) sums[i] += added[i];
    for (int status; wait(&status) > 0;) bad |= status;
    if (pread(fd, values, sizeof values, 0) != sizeof values) fail("read");
    for (int i = 0; i < COUNTERS; i++)
        if (values[i] != sums[i]) bad = 1;
    puts(bad ? "wrong" : "right");
    return bad != 0;
}
