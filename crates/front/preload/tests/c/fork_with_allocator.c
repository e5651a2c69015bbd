/* Forks with an allocator that keeps its lock over a fork, as jemalloc does: it asks libc for handlers at its first
 * allocation, takes its lock before a fork and frees it on both sides. Nothing may be allocated meanwhile, and neither
 * `fork` nor `close` may allocate in the child. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROOM = 1 << 30, FRONT = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *next;
static int is_forking, in_child, allocated_there;

static void say(const char *text) {
    ssize_t written = write(2, text, strlen(text));
    (void)written;
}

static void before_fork(void) {
    pthread_mutex_lock(&lock);
    is_forking = 1;
}

static void after_fork(void) {
    is_forking = 0;
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void) {
    in_child = 1;
    after_fork();
}

void *memalign(size_t alignment, size_t size) {
    if (is_forking) {
        say("allocates while the allocator is locked by a fork\n");
        _exit(1);
    }
    allocated_there += in_child;
    pthread_mutex_lock(&lock);
    int is_first = !next;
    if (is_first) next = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uintptr_t at = (uintptr_t)next + FRONT;
    if (alignment < FRONT) alignment = FRONT;
    at = (at + alignment - 1) & ~(alignment - 1);
    ((size_t *)at)[-1] = size;
    next = (char *)at + size;
    pthread_mutex_unlock(&lock);
    if (is_first) pthread_atfork(before_fork, after_fork, after_fork_in_child);
    return (void *)at;
}

void *malloc(size_t size) { return memalign(FRONT, size); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
/* Fresh memory of the kernel is zero, and none is used twice. */
void *calloc(size_t count, size_t size) { return malloc(count * size); }
void free(void *memory) { (void)memory; }

int posix_memalign(void **memory, size_t alignment, size_t size) {
    *memory = memalign(alignment, size);
    return 0;
}

void *realloc(void *memory, size_t size) {
    void *moved = malloc(size);
    if (memory) {
        size_t before = ((size_t *)memory)[-1];
        memcpy(moved, memory, before < size ? before : size);
    }
    return moved;
}

static int open_in(const char *dir, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
    if (fd < 0) exit(1);
    return fd;
}

int main(int count, char **arguments) {
    (void)count;
    int fd = open_in(arguments[1], "shared");
    if (write(fd, "parent ", 7) != 7) return 1;
    /* Locks have connections of their own. */
    int locked[] = {open_in(arguments[1], "a"), open_in(arguments[1], "b"), open_in(arguments[1], "c")};
    struct flock whole = {.l_type = F_WRLCK};
    if (flock(locked[0], LOCK_EX) || flock(locked[1], LOCK_EX) || fcntl(locked[2], F_SETLK, &whole)) return 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        /* What shells and process pools do before they start a program, perhaps while another thread had the lock of an
         * allocator that does not care for forks. */
        for (int other = 900; other < 1024; other++) close(other);
        in_child = 0;
        printf("allocated: %d\n", allocated_there);
        for (int other = 3; other < 1024; other++)
            if (other != fd) close(other);
        printf("wrote: %zd\n", write(fd, "child", 5));
        printf("closed: %d\n", close(fd));
        fflush(stdout);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) return 1;
    printf("child: %d\n", status);
    char text[16] = "";
    printf("read: %zd %s\n", pread(fd, text, sizeof text - 1, 0), text);
    return 0;
}
