/* Forks while other threads touch the store for the first time: neither the child nor the parent may be left waiting for
 * a lock that one of those threads held. The parent starts itself anew for each round, as there is only one first time. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir;

static void *touch(void *nothing) {
    (void)nothing;
    if (access(dir, R_OK) != 0) abort();
    return NULL;
}

static int round_of_forks(int delay) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, touch, NULL);
    /* Not asleep: a sleep takes longer than the whole first touch. */
    for (volatile int spins = 0; spins < delay; spins++) continue;
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            _exit(access(dir, R_OK) == 0 ? 0 : 1);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0) failed++;
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return failed;
}

int main(int count, char **arguments) {
    dir = arguments[1];
    if (count > 2) return round_of_forks(atoi(arguments[2]));
    int failed = 0;
    for (int round = 0; round < 60; round++) {
        /* The first touch takes some hundred microseconds: forks come at all moments of it. */
        char delay[16];
        snprintf(delay, sizeof delay, "%d", round % 20 * 2000);
        pid_t child = fork();
        if (child == 0) {
            execl(arguments[0], arguments[0], dir, delay, (char *)NULL);
            _exit(127);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0) failed++;
    }
    printf("failed %d\n", failed);
    return 0;
}
