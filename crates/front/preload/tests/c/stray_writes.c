// A program whose pointers go astray, and one that keeps what it was told beside it.
//
// stray_writes locked DIR      tries to write to each page of the store that it can only read
// stray_writes wild DIR N      overwrites all that it can write of the store, N times, while it works
// stray_writes keep DIR N      makes, changes and removes N files; says what it was told
// stray_writes check DIR N     whether all that is still so
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, LONG = 200000, RANGES = 4096 };

struct range { unsigned char *from, *to; };

// Shared mappings of the store with these rights and this name.
static int ranges(const char *rights, const char *name, struct range *found) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096], has[8];
    int count = 0;
    while (maps && count < RANGES && fgets(line, sizeof line, maps)) {
        void *from, *to;
        if (sscanf(line, "%p-%p %7s", &from, &to, has) == 3 && !strcmp(has, rights) && strstr(line, name))
            found[count++] = (struct range){from, to};
    }
    if (maps) fclose(maps);
    return count;
}

// A thread that writes where it may not goes on behind that; one that trips over what was overwritten
// ends the program.
static __thread sigjmp_buf back;
static __thread volatile int is_trying;
static void faulted(int signal) {
    (void)signal;
    if (!is_trying) _exit(0);
    siglongjmp(back, 1);
}

static void catch_faults(void) {
    struct sigaction action = {.sa_handler = faulted, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

// The contents of a file: by its number.
static size_t fill(unsigned char *bytes, int number) {
    size_t len = number % 5 ? 100 + number % 60 : LONG;
    for (size_t at = 0; at < len; at++) bytes[at] = (unsigned char)(number * 31 + at / 7);
    return len;
}

static int put(const char *path, int number) {
    static __thread unsigned char bytes[LONG];
    size_t len = fill(bytes, number);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (fd < 0) return -1;
    ssize_t wrote = write(fd, bytes, len);
    return close(fd) || wrote != (ssize_t)len ? -1 : 0;
}

static const char *name_of(char *path, const char *dir, int number) {
    snprintf(path, 4096, "%s/%d", dir, number);
    return path;
}

static int locked(const char *dir) {
    static struct range found[RANGES];
    char path[4096];
    // Blocks are granted, and filled.
    if (put(name_of(path, dir, 5), 5)) return 2;
    catch_faults();
    is_trying = 1;
    volatile long pages = 0, written = 0;
    volatile int at;
    int count = ranges("r--s", "samite-arena", found);
    for (at = 0; at < count; at++)
        for (unsigned char *volatile page = found[at].from; page < found[at].to; page += 64 * PAGE) {
            pages++;
            if (!sigsetjmp(back, 1)) { *(volatile unsigned char *)page = 0; written++; }
        }
    is_trying = 0;
    printf("looked %s, written %ld\n", pages > 0 ? "yes" : "no", written);
    return put(name_of(path, dir, 6), 6) ? 3 : 0;
}

static volatile int over;
static void *work(void *dir) {
    char path[4096];
    // Whether it is told the truth is its own affair now.
    for (int number = 0; !over; number = (number + 1) % 500) {
        put(name_of(path, dir, number), number);
        unlink(path);
    }
    return NULL;
}

static int wild(const char *dir, int rounds) {
    static struct range found[RANGES];
    char path[4096];
    pthread_t worker;
    if (put(name_of(path, dir, 0), 0)) return 2;
    catch_faults();
    pthread_create(&worker, NULL, work, (void *)dir);
    unsigned seed = getpid();
    for (volatile int round = 0; round < rounds; round++) {
        // First its queue and the blocks that it was granted, then its rings as well.
        int count = ranges("rw-s", round * 3 < rounds * 2 ? "samite-arena" : "samite", found);
        if (!count) return 3;
        is_trying = 1;
        for (volatile int at = 0; at < count; at++) {
            if (sigsetjmp(back, 1)) continue; // The library has made it read-only since.
            for (volatile unsigned char *byte = found[at].from; byte < found[at].to; byte++)
                *byte = round % 3 == 0 ? 0 : round % 3 == 1 ? 0xff : (unsigned char)(seed = seed * 1103515245 + 12345, seed >> 16);
        }
        is_trying = 0;
        usleep(1000);
    }
    over = 1;
    // It may wait for ever for what it has destroyed itself.
    _exit(0);
}

// A file of each three is removed again, another one is overwritten.
static int keep(const char *dir, int files) {
    char path[4096];
    mkdir(dir, 0700);
    for (int number = 0; number < files; number++) {
        if (put(name_of(path, dir, number), number)) return 2;
        if (number % 3 == 1 && unlink(path)) return 3;
        if (number % 3 == 2 && put(path, number + 1)) return 4;
    }
    puts("kept");
    return 0;
}

static int check(const char *dir, int files) {
    static unsigned char want[LONG], has[LONG + 1];
    char path[4096];
    int wrong = 0;
    for (int number = 0; number < files; number++) {
        int fd = open(name_of(path, dir, number), O_RDONLY);
        if (number % 3 == 1) {
            if (fd >= 0 || errno != ENOENT) wrong++, printf("%d is there\n", number);
            continue;
        }
        size_t len = fill(want, number + (number % 3 == 2)), got = 0;
        ssize_t now;
        while (fd >= 0 && got < sizeof has && (now = read(fd, has + got, sizeof has - got)) > 0) got += now;
        if (fd < 0 || got != len || memcmp(want, has, len)) wrong++, printf("%d is wrong\n", number);
        close(fd);
    }
    printf("%d wrong\n", wrong);
    return wrong != 0;
}

int main(int count, char **words) {
    int number = count > 3 ? atoi(words[3]) : 0;
    if (count < 3) return 64;
    if (!strcmp(words[1], "locked")) return locked(words[2]);
    if (!strcmp(words[1], "wild")) return wild(words[2], number);
    if (!strcmp(words[1], "keep")) return keep(words[2], number);
    return check(words[2], number);
}
