/* Processes that are killed while they hold locks, or wait for them: the others go on, and in the end everything is free. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 4, AT_ONCE = 6 };

static void work(const char *directory, unsigned state)
{
    for (;;) {
        char path[4096];
        snprintf(path, sizeof path, "%s/kill%d", directory, rand_r(&state) % FILES);
        int fd = open(path, O_RDWR | O_CREAT, 0644);
        if (fd < 0) _exit(1);
        struct flock lock = {.l_type = rand_r(&state) % 3 ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET,
            .l_start = rand_r(&state) % 20, .l_len = rand_r(&state) % 20};
        int how = rand_r(&state) % 3, result;
        if (rand_r(&state) % 8 == 0 && fork() == 0) {
            /* Holds the description for a while, and nothing else. */
            usleep(rand_r(&state) % 3000);
            if (rand_r(&state) % 2) kill(getpid(), SIGKILL);
            _exit(0);
        }
        result = how == 0 ? flock(fd, LOCK_EX) : fcntl(fd, how == 1 ? F_SETLKW : F_OFD_SETLKW, &lock);
        if (result < 0 && errno != EDEADLK && errno != EINTR) { perror("lock"); _exit(1); }
        if (rand_r(&state) % 10 == 0) kill(getpid(), SIGKILL);
        if (rand_r(&state) % 2) close(fd);
        else if (fd > 40) closefrom(10);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int count, char **arguments)
{
    int lives = atoi(arguments[2]), running = 0, status, bad = 0;
    pid_t workers[AT_ONCE] = {0};
    unsigned state = 1;
    (void)count;
    while (lives > 0 || running > 0) {
        for (int i = 0; i < AT_ONCE && lives > 0; i++) {
            if (workers[i]) continue;
            lives--, running++;
            workers[i] = fork();
            if (workers[i] == 0) work(arguments[1], lives);
        }
        /* From outside too: whoever it is may be waiting. */
        usleep(2000);
        int victim = rand_r(&state) % AT_ONCE;
        if (workers[victim] > 0) kill(workers[victim], SIGKILL);
        for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;)
            for (int i = 0; i < AT_ONCE; i++)
                if (workers[i] == ended) {
                    workers[i] = 0, running--;
                    if (!WIFSIGNALED(status)) bad = 1;
                }
    }
    double begun = seconds();
    for (int i = 0; i < FILES; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/kill%d", arguments[1], i);
        int fd = open(path, O_RDWR | O_CREAT, 0644);
        struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (flock(fd, LOCK_EX) || fcntl(fd, F_SETLKW, &all)) bad = 1;
    }
    puts(bad ? "wrong" : seconds() - begun < 3 ? "free soon" : "free late");
    return bad;
}
