/* Mappings of files, shared and private, in one process and several. Prints what it finds; run in a plain directory and in the store. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
static char name[4096];

static int make(const char *base, const char *last, size_t len) {
    snprintf(name, sizeof name, "%s/%s", base, last);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    char *bytes = malloc(len);
    memset(bytes, 'a', len);
    if (write(fd, bytes, len) != (ssize_t)len) perror("write");
    free(bytes);
    return fd;
}

static char at(int fd, off_t offset) {
    char byte = '?';
    if (pread(fd, &byte, 1, offset) != 1) return '-';
    return byte ? byte : '0';
}

static char plain(char byte) { return byte ? byte : '0'; }

static void one_process(const char *base) {
    int fd = make(base, "one", 10 * PAGE + 100);
    char *map = mmap(0, 11 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *private = mmap(0, 11 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    map[5] = 'b';
    private[6] = 'p';
    printf("read sees the mapping: %c %c\n", at(fd, 5), at(fd, 6));
    pwrite(fd, "cd", 2, PAGE - 1);
    printf("the mapping sees write: %c %c %c\n", map[PAGE - 1], map[PAGE], private[PAGE]);
    map[9 * PAGE] = 'e';
    pwrite(fd, "f", 1, 9 * PAGE + 1);
    printf("both in one page: %c %c\n", map[9 * PAGE], map[9 * PAGE + 1]);
    printf("behind the end: %c\n", plain(map[10 * PAGE + 100]));
    map[10 * PAGE + 200] = 'x';
    ftruncate(fd, 10 * PAGE + 50);
    ftruncate(fd, 11 * PAGE);
    printf("cut and grown: %c %c %c\n", map[10 * PAGE + 49], plain(map[10 * PAGE + 60]), plain(map[10 * PAGE + 200]));
    ftruncate(fd, PAGE);
    ftruncate(fd, 11 * PAGE);
    printf("cut to a page: %c %c %c\n", map[5], plain(map[2 * PAGE]), at(fd, 9 * PAGE));
    munmap(map + PAGE, 2 * PAGE);
    map[3 * PAGE] = 'g';
    map[0] = 'h';
    printf("unmapped in part: %d %c %c\n", msync(map, PAGE, MS_SYNC), at(fd, 0), at(fd, 3 * PAGE));
    char *over = mmap(map + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("mapped over: %d %c %c\n", over == map + 3 * PAGE, plain(over[0]), at(fd, 3 * PAGE));
    munmap(map, 11 * PAGE);
    close(fd);
    printf("private stays: %c %c\n", private[6], plain(private[0]));
    madvise(private, PAGE, MADV_DONTNEED);
    printf("private forgotten: %c\n", private[6]);
    munmap(private, 11 * PAGE);
}

static void grows(const char *base) {
    int fd = make(base, "grows", 8 * PAGE);
    pwrite(fd, "z", 1, 7 * PAGE);
    char *map = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    map[0] = 'm';
    map = mremap(map, 2 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
    printf("grown: %c %c %c\n", map[0], map[5 * PAGE], map[7 * PAGE]);
    map[7 * PAGE + 1] = 'n';
    map = mremap(map, 8 * PAGE, PAGE, 0);
    printf("shrunk: %c %c\n", at(fd, 0), at(fd, 7 * PAGE + 1));
    close(fd);
    map[1] = 'o';
    munmap(map, PAGE);
    fd = open(name, O_RDONLY);
    printf("after munmap: %c\n", at(fd, 1));
    char *read_only = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    printf("read only: %d", mprotect(read_only, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    void *refused = mmap(0, PAGE, PROT_WRITE, MAP_SHARED, fd, 0);
    printf(" %d", refused == MAP_FAILED && errno == EACCES);
    refused = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 100);
    printf(" %d", refused == MAP_FAILED && errno == EINVAL);
    refused = mmap(0, 0, PROT_READ, MAP_SHARED, fd, 0);
    printf(" %d\n", refused == MAP_FAILED && errno == EINVAL);
    close(fd);
    fd = open(base, O_RDONLY);
    refused = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    printf("directory: %d\n", refused == MAP_FAILED && errno == ENODEV);
}

/* Processes that have nothing in common but the file. */
static void several(const char *base) {
    int fd = make(base, "several", 4 * PAGE);
    int turn[2], done[2];
    pipe(turn), pipe(done);
    char byte;
    if (fork() == 0) {
        int own = open(name, O_RDWR);
        char *map = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
        for (int i = 0; i < 3; i++) {
            read(turn[0], &byte, 1);
            map[PAGE]++;
            write(done[1], "", 1);
        }
        _exit(0);
    }
    char *map = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < 3; i++) {
        write(turn[1], "", 1);
        read(done[0], &byte, 1);
        printf("the other wrote: %c\n", map[PAGE]);
        map[PAGE]++;
    }
    wait(0);
    if (fork() == 0) {
        map[2 * PAGE] = 'k';
        _exit(0);
    }
    wait(0);
    printf("the child wrote: %c %c\n", map[2 * PAGE], at(fd, 2 * PAGE));
    pid_t child = fork();
    if (child == 0) {
        read(turn[0], &byte, 1);
        printf("the child has: %c\n", map[3 * PAGE]);
        fflush(stdout);
        _exit(0);
    }
    map[3 * PAGE] = 'l';
    munmap(map, 4 * PAGE);
    write(turn[1], "", 1);
    wait(0);
    printf("%c\n", at(fd, 3 * PAGE));
    map = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    map[0] = 'q';
    msync(map, PAGE, MS_SYNC);
    char command[5000];
    fflush(stdout);
    snprintf(command, sizeof command, "head -c 1 %s; echo; printf r | dd of=%s bs=1 seek=1 conv=notrunc status=none", name, name);
    system(command);
    char *again = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    printf("mapped again: %c %c %c\n", again[0], again[1], map[1]);
    snprintf(command, sizeof command, "head -c 8 %s", name);
    map[7] = 's';
    fflush(stdout);
    execl("/bin/sh", "sh", "-c", command, NULL);
}

static void large(const char *base) {
    snprintf(name, sizeof name, "%s/large", base);
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    size_t len = (size_t)1 << 30;
    ftruncate(fd, len);
    char *map = mmap(0, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    map[len / 2] = 'v';
    printf("large: %d", msync(map, len, MS_SYNC));
    munmap(map, len);
    struct stat status;
    fstat(fd, &status);
    printf(" %c %lld\n", at(fd, len / 2), (long long)status.st_size);
    close(fd);
    unlink(name);
}

int main(int count, char **words) {
    one_process(words[1]);
    grows(words[1]);
    large(words[1]);
    fflush(stdout);
    several(words[1]);
    return 0;
}
