/* Calls of libc that shells and scripting languages seldom make, on the directory given as argument. What it prints must be the
   same in a plain directory and in the store. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>
#include <wchar.h>

extern char **environ;
static const char *dir;
static char buffer[1 << 16];

static const char *in(const char *name) {
    static __thread char paths[8][PATH_MAX];
    static __thread int next;
    char *path = paths[next++ % 8];
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
    return path;
}

/* Prints what follows the directory in a path. */
static const char *below(const char *path) {
    size_t len = strlen(dir);
    return path && strncmp(path, dir, len) == 0 ? path + len : path;
}

static void show(const char *what, const char *name) {
    int fd = open(in(name), O_RDONLY);
    ssize_t len = fd < 0 ? -1 : read(fd, buffer, sizeof buffer);
    printf("%s: %.*s|%zd\n", what, len < 0 ? 0 : (int)len, buffer, len);
    if (fd >= 0) close(fd);
}

static void streams(void) {
    FILE *f = fopen(in("s"), "w+");
    fprintf(f, "%d %s\n", 42, "formatted");
    fputs("second\n", f);
    fputc('c', f);
    fwrite("bytes\n", 1, 6, f);
    printf("tell %ld fileno ok %d\n", ftell(f), fileno(f) > 2);
    rewind(f);
    int number;
    char word[64];
    int matched = fscanf(f, "%d %63s", &number, word);
    printf("scanf %d %d %s\n", matched, number, word);
    fseek(f, -6, SEEK_END);
    printf("gets %s", fgets(word, sizeof word, f));
    int character = fgetc(f);
    printf("eof %d %d\n", character, feof(f));
    struct stat st;
    matched = fstat(fileno(f), &st);
    printf("fstat %d %ld\n", matched, (long)st.st_size);
    printf("close %d\n", fclose(f));
    f = fopen(in("s"), "a");
    fputs("appended\n", f);
    fclose(f);
    f = fopen(in("s"), "r+");
    fputs("XX", f);
    fflush(f);
    fclose(f);
    show("stream", "s");
    f = fopen(in("none/x"), "r");
    printf("missing %d %d\n", f != NULL, errno);
    f = fopen(in("s"), "wx");
    printf("exclusive %d %d\n", f != NULL, errno);
    char *line = NULL;
    size_t room = 0;
    f = fopen(in("s"), "r");
    while (getline(&line, &room, f) > 0) printf("line %s", line);
    ungetc('u', f);
    printf("unget %c\n", fgetc(f));
    f = freopen(in("s"), "r", f);
    printf("reopened %s", fgets(word, sizeof word, f));
    fclose(f);
    int fd = open(in("s"), O_RDWR);
    f = fdopen(fd, "r+");
    fgets(word, sizeof word, f);
    printf("fdopen %d %s", fileno(f) == fd, word);
    fclose(f);
    printf("closed %d\n", fcntl(fd, F_GETFD));
    f = fopen(in("unbuffered"), "w");
    setvbuf(f, NULL, _IONBF, 0);
    fputs("now", f);
    show("unbuffered", "unbuffered");
    fclose(f);
    f = fopen(in("large"), "w");
    for (int i = 0; i < 100000; i++) fprintf(f, "%d\n", i);
    fclose(f);
    f = fopen(in("large"), "r");
    long sum = 0;
    while (fscanf(f, "%d", &number) == 1) sum += number;
    printf("sum %ld\n", sum);
    fclose(f);
}

static void wide(void) {
    FILE *f = fopen(in("w"), "w");
    printf("fputws %d\n", fputws(L"w\u00efde\n", f) >= 0);
    fputwc(L'\u20ac', f);
    fclose(f);
    f = fopen(in("w"), "r");
    wchar_t line[32];
    printf("fgetws %d\n", fgetws(line, 32, f) ? (int)wcslen(line) : -1);
    wint_t c = fgetwc(f);
    ungetwc(c, f);
    wint_t again = fgetwc(f);
    printf("fgetwc %x %x %x\n", c, again, fgetwc(f));
    fclose(f);
}

/* The standard streams of this process, sent to a file and back, as a shell does for its builtins. */
static void standard_streams(void) {
    fflush(stdout);
    int saved = dup(1);
    int fd = open(in("out"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(fd, 1);
    close(fd);
    printf("to the file\n");
    puts("puts");
    putchar('x');
    fflush(stdout);
    if (write(1, "write\n", 6) != 6) abort();
    printf("pending");
    dup2(saved, 1);
    close(saved);
    printf(" goes where descriptor 1 goes\n");
    show("redirected", "out");
    fflush(stdout);
    saved = dup(2);
    fd = open(in("err"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(fd, 2);
    close(fd);
    errno = ENOENT;
    perror("perror");
    fprintf(stderr, "to stderr %d\n", 7);
    dup2(saved, 2);
    close(saved);
    show("stderr", "err");
    saved = dup(0);
    fd = open(in("s"), O_RDONLY);
    dup2(fd, 0);
    close(fd);
    char word[64];
    printf("stdin %s\n", scanf("%63s", word) == 1 ? word : "none");
    dup2(saved, 0);
    close(saved);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int no_dots(const struct dirent *entry) { return entry->d_name[0] != '.'; }
static int walked;
static int visit(const char *path, const struct stat *st, int flag) {
    (void)path, (void)st, (void)flag;
    walked++;
    return 0;
}

static int weight;
static int weigh(const char *path, const struct stat *st, int flag, struct FTW *where) {
    weight += 1 + flag * 1000 + where->level * 7 + (int)strlen(path + where->base) + S_ISDIR(st->st_mode) * 13;
    return strcmp(path + where->base, "stop") == 0;
}

static void directories(void) {
    mkdir(in("d"), 0755);
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "d/%03d", i);
        close(open(in(name), O_CREAT | O_WRONLY, 0600));
    }
    DIR *d = opendir(in("d"));
    int count = 0, dots = 0;
    struct dirent *entry;
    long middle = 0;
    char after[256] = "";
    while ((entry = readdir(d))) {
        dots += entry->d_name[0] == '.';
        if (count == 100) middle = telldir(d);
        if (count == 101) strcpy(after, entry->d_name);
        count++;
    }
    seekdir(d, middle);
    entry = readdir(d);
    printf("entries %d dots %d seek %d\n", count, dots, entry && strcmp(entry->d_name, after) == 0);
    rewinddir(d);
    printf("again %d type %d fd %d\n", readdir(d) != NULL, entry->d_type == DT_REG, dirfd(d) > 2);
    struct stat st;
    printf("relative %d\n", fstatat(dirfd(d), "007", &st, 0));
    closedir(d);
    int fd = open(in("d"), O_RDONLY | O_DIRECTORY);
    d = fdopendir(fd);
    struct dirent storage, *out;
    int read_one = readdir_r(d, &storage, &out);
    printf("readdir_r %d %d\n", read_one, out != NULL);
    closedir(d);
    struct dirent **list;
    int found = scandir(in("d"), &list, no_dots, by_name);
    printf("scandir %d %s %s\n", found, list[0]->d_name, list[found - 1]->d_name);
    for (int i = 0; i < found; i++) free(list[i]);
    free(list);
    glob_t globbed;
    printf("glob %d", glob(in("d/01*"), 0, NULL, &globbed));
    printf(" %zu %s\n", globbed.gl_pathc, below(globbed.gl_pathv[9]));
    globfree(&globbed);
    d = opendir(in("nothere"));
    printf("no such %d %d\n", d != NULL, errno);
    symlink("007", in("d/link"));
    mkdir(in("d/sub"), 0700);
    close(open(in("d/sub/file"), O_CREAT, 0600));
    int walk = ftw(in("d"), visit, 8);
    printf("ftw %d %d\n", walk, walked);
    walk = nftw(in("d"), weigh, 8, FTW_PHYS);
    printf("nftw %d %d\n", walk, weight);
    walk = nftw(in("d"), weigh, 8, FTW_DEPTH | FTW_PHYS);
    printf("nftw depth %d %d\n", walk, weight);
    walk = nftw(in("d/sub/file"), weigh, 8, 0);
    printf("nftw file %d %d\n", walk, weight);
    walk = nftw(in("nothere"), weigh, 8, 0);
    printf("nftw nothing %d %d\n", walk, errno);
    char *resolved = realpath(in("d/../d/./007"), NULL);
    printf("realpath %s\n", below(resolved));
    free(resolved);
    if (chdir(in("d")) == 0) printf("cwd %s %s\n", below(getcwd(buffer, sizeof buffer)), below(get_current_dir_name()));
    printf("relative open %d\n", access("299", R_OK));
    if (chdir("/") != 0) abort();
}

static void descriptors(void) {
    int fd = open(in("f"), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    printf("flags %o %d\n", fcntl(fd, F_GETFL) & ~0100000, fcntl(fd, F_GETFD));
    int low = dup(fd), high = fcntl(fd, F_DUPFD, 50), exact = dup3(fd, 60, O_CLOEXEC);
    printf("dup %d %d %d %d\n", low - fd, high, exact, fcntl(60, F_GETFD));
    struct iovec parts[3] = {{"one ", 4}, {"two ", 4}, {"three", 5}};
    printf("writev %zd pwritev %zd\n", writev(low, parts, 3), pwritev(high, parts, 1, 0));
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_APPEND);
    printf("pwrite %zd lseek %ld\n", pwrite(fd, "ONE", 3, 0), (long)lseek(exact, 0, SEEK_CUR));
    show("vectors", "f");
    printf("preadv %zd %s\n", preadv(fd, &(struct iovec){buffer, 3}, 1, 4), (buffer[3] = 0, buffer));
    close(low), close(high), close(exact);
    ssize_t done = write(high, "x", 1);
    printf("closed %zd %d\n", done, errno);
    struct pollfd poller = {fd, POLLIN | POLLOUT, 0};
    int ready = poll(&poller, 1, -1);
    printf("poll %d %x\n", ready, poller.revents);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    ready = select(fd + 1, &set, NULL, NULL, NULL);
    printf("select %d %d\n", ready, FD_ISSET(fd, &set) != 0);
    ready = isatty(fd);
    printf("tty %d %d\n", ready, errno);
    int cut = ftruncate(fd, 4);
    printf("truncate %d %ld", cut, (long)lseek(fd, 0, SEEK_END));
    cut = truncate(in("f"), 6);
    printf(" %d %ld\n", cut, (long)lseek(fd, 0, SEEK_END));
    printf("fallocate %d\n", posix_fallocate(fd, 0, 20));
    int write_only = open(in("f"), O_WRONLY);
    done = read(write_only, buffer, 1);
    printf("bad %zd %d\n", done, errno);
    close(write_only);
    struct timeval times[2] = {{10, 5}, {20, 6}};
    struct stat st;
    int set_times = utimes(in("f"), times);
    printf("utimes %d %d", set_times, stat(in("f"), &st));
    printf(" %ld.%09ld\n", (long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memcpy(memory, "mapped", 6);
    printf("msync %d\n", msync(memory, 8192, MS_SYNC));
    show("mapped", "f");
    memcpy(memory, "MAPPED", 6);
    munmap(memory, 8192);
    show("unmapped", "f");
    char name[PATH_MAX];
    strcpy(name, in("tmpXXXXXX"));
    int temporary = mkstemp(name);
    printf("mkstemp %d %zu %d\n", temporary > 2, strlen(below(name)), fstat(temporary, &st) == 0 && (st.st_mode & 0777) == 0600);
    close(temporary);
    int lowest = open(in("f"), O_RDONLY);
    printf("lowest %d\n", lowest == temporary);
    int closed = close_range(lowest, lowest + 5, 0);
    printf("close_range %d %d\n", closed, fcntl(lowest, F_GETFD));
    close(fd);
}

static int status_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void processes(void) {
    fflush(stdout);
    int fd = open(in("shared"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    pid_t child = fork();
    if (child == 0) {
        if (write(fd, "child ", 6) != 6) _exit(1);
        _exit(0);
    }
    printf("child %d\n", status_of(child));
    fflush(stdout);
    child = vfork();
    if (child == 0) {
        dup2(fd, 1);
        execlp("echo", "echo", "from", "execlp", "with", "many", "more", "arguments", "than", "registers", (char *)NULL);
        _exit(127);
    }
    printf("vfork %d\n", status_of(child));
    fflush(stdout);
    child = fork();
    if (child == 0) {
        dup2(fd, 1);
        char *environment[] = {"NAME=value", NULL};
        execle("/bin/sh", "sh", "-c", "echo $NAME; echo more", (char *)NULL, environment);
        _exit(127);
    }
    printf("execle %d\n", status_of(child));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    char *arguments[] = {"sh", "-c", "echo spawned", NULL};
    int error = posix_spawnp(&child, "sh", &actions, NULL, arguments, environ);
    printf("spawn %d %d\n", error, error ? -1 : status_of(child));
    printf("no program %d\n", posix_spawn(&child, in("nothere"), NULL, NULL, arguments, environ));
    posix_spawn_file_actions_destroy(&actions);
    lseek(fd, 0, SEEK_SET);
    printf("shared %.*s|\n", (int)read(fd, buffer, sizeof buffer), buffer);
    fflush(stdout);
    int saved = dup(1);
    dup2(fd, 1);
    int code = system("echo from system");
    FILE *pipe = popen("echo from popen >&2; cat", "w");
    fputs("through the pipe\n", pipe);
    int closed = pclose(pipe);
    dup2(saved, 1);
    close(saved);
    printf("system %d popen %d\n", code, closed);
    show("all", "shared");
    pipe = popen("cat", "r");
    pclose(pipe);
    snprintf(buffer, sizeof buffer, "cat %s", in("s"));
    pipe = popen(buffer, "r");
    char word[64];
    printf("popen %s\n", fscanf(pipe, "%63s", word) == 1 ? word : "none");
    pclose(pipe);
    close(fd);
}

static int signal_fd;
static void on_signal(int number) {
    (void)number;
    /* Must neither hang nor crash; it may fail when it interrupts a call on the store. */
    if (write(signal_fd, ".", 1) < 0 && errno != EDEADLK) abort();
}

static void *work(void *name) {
    for (int i = 0; i < 200; i++) {
        int fd = open(in((char *)name), O_WRONLY | O_CREAT | O_APPEND, 0644);
        if (fd < 0 || write(fd, "x", 1) != 1 || close(fd) != 0) abort();
    }
    return NULL;
}

static void threads_and_signals(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, "threads");
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0) _exit(access(in("s"), R_OK) == 0 ? 0 : 1);
        if (status_of(child) != 0) printf("child of threads failed\n");
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    struct stat st;
    stat(in("threads"), &st);
    printf("threads %ld\n", (long)st.st_size);
    signal_fd = open(in("signals"), O_WRONLY | O_CREAT | O_APPEND, 0644);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int i = 0; i < 2000; i++)
        if (stat(in("s"), &st) != 0) printf("stat failed under signals: %d\n", errno);
    timer = (struct itimerval){{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &timer, NULL);
    printf("signals done\n");
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    dir = arguments[1];
    setlocale(LC_ALL, "");
    umask(022);
    streams();
    wide();
    standard_streams();
    directories();
    descriptors();
    processes();
    threads_and_signals();
    FILE *left_open = fopen(in("at_exit"), "w");
    fprintf(left_open, "flushed at exit\n");
    return 0;
}
