/* Descriptors sent over sockets, asynchronous I/O, dprintf, and directory entries as the kernel gives them. */
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>

static char name[4096];

static const char *in(const char *base, const char *last) {
    snprintf(name, sizeof name, "%s/%s", base, last);
    return name;
}

static ssize_t pass(int socket, int *fds, int count) {
    char room[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(head), fds, count * sizeof(int));
    return sendmsg(socket, &message, 0);
}

static int take(int socket, int *fds, int flags) {
    char room[CMSG_SPACE(8 * sizeof(int))], byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(socket, &message, flags) != 1) return perror("recvmsg"), -1;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    int count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(head), count * sizeof(int));
    return count;
}

static void sent(const char *base) {
    int pair[2], fds[8], mine[3];
    char text[100] = {0};
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    pid_t child = fork();
    if (child == 0) {
        close(pair[0]);
        int count = take(pair[1], fds, MSG_CMSG_CLOEXEC);
        printf("%d came, close on exec %d\n", count, fcntl(fds[0], F_GETFD));
        printf("read %zd %s", read(fds[0], text, 3), text);
        printf(" and kernel %zd\n", read(fds[1], text, 0));
        printf("write %d\n", dprintf(fds[2], "%s %d %.2f %c %ld %d %d %d %s\n", "out", 42, 1.5, 'c', 7L, 8, 9, 10, "end"));
        struct stat status;
        fstat(fds[0], &status);
        printf("size %lld offset %lld\n", (long long)status.st_size, (long long)lseek(fds[0], 0, SEEK_CUR));
        fflush(stdout);
        int back = pass(pair[1], &fds[2], 1);
        close(fds[2]);
        _exit(back != 1);
    }
    close(pair[1]);
    mine[0] = open(in(base, "sent"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(mine[0], "abcdef", 6);
    lseek(mine[0], 1, SEEK_SET);
    mine[1] = open("/dev/null", O_RDONLY);
    mine[2] = open(in(base, "written"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    pass(pair[0], mine, 3);
    close(mine[2]);
    take(pair[0], fds, 0);
    int code;
    waitpid(child, &code, 0);
    printf("child %d, offset here %lld\n", code, (long long)lseek(mine[0], 0, SEEK_CUR));
    memset(text, 0, sizeof text);
    printf("came back %zd %s", pread(fds[0], text, 99, 0), text);
    /* To oneself: one open file, two numbers. */
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    pass(pair[0], mine, 1);
    close(mine[0]);
    int number;
    take(pair[1], &number, 0);
    printf("to oneself %lld", (long long)lseek(number, 0, SEEK_CUR));
    struct mmsghdr none = {0};
    int outcome = sendmmsg(number, &none, 1, 0);
    printf(" %d %d\n", outcome, errno == ENOTSOCK);
    pass(pair[0], &number, 1);
    unlink(in(base, "sent"));
    close(number);
    take(pair[1], &number, 0);
    memset(text, 0, sizeof text);
    printf("the only one was on its way: %zd %s\n", pread(number, text, 99, 0), text);
}

static volatile int signalled;
static void on_signal(int number, siginfo_t *info, void *context) { signalled = info->si_value.sival_int; }
static int told[2];
static void on_thread(union sigval value) { write(told[1], value.sival_ptr, 1); }

static void posix_aio(const char *base) {
    int fd = open(in(base, "aio"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    char bytes[10] = "asynchron", back[10] = {0};
    struct aiocb one = {.aio_fildes = fd, .aio_buf = bytes, .aio_nbytes = 9, .aio_offset = 100};
    one.aio_sigevent.sigev_notify = SIGEV_SIGNAL, one.aio_sigevent.sigev_signo = SIGUSR1, one.aio_sigevent.sigev_value.sival_int = 5;
    const struct aiocb *list[] = {&one};
    printf("write %d", aio_write(&one));
    while (aio_suspend(list, 1, 0) < 0 && errno == EINTR) {}
    printf(" %d %zd", aio_error(&one), aio_return(&one));
    while (!signalled) usleep(1000);
    printf(" signal %d\n", signalled);
    pipe(told);
    struct aiocb two = {.aio_fildes = fd, .aio_buf = back, .aio_nbytes = 9, .aio_offset = 100};
    two.aio_sigevent.sigev_notify = SIGEV_THREAD, two.aio_sigevent.sigev_notify_function = on_thread, two.aio_sigevent.sigev_value.sival_ptr = "t";
    printf("read %d", aio_read(&two));
    char byte;
    read(told[0], &byte, 1);
    printf(" %d %zd %s thread %c\n", aio_error(&two), aio_return(&two), back, byte);
    struct aiocb three = {.aio_fildes = fd, .aio_buf = bytes, .aio_nbytes = 3, .aio_lio_opcode = LIO_WRITE, .aio_sigevent.sigev_notify = SIGEV_NONE};
    struct aiocb four = {.aio_fildes = told[1], .aio_buf = bytes, .aio_nbytes = 3, .aio_lio_opcode = LIO_WRITE, .aio_sigevent.sigev_notify = SIGEV_NONE};
    struct aiocb *both[] = {&three, 0, &four};
    printf("list %d", lio_listio(LIO_WAIT, both, 3, 0));
    printf(" %zd %zd", aio_return(&three), aio_return(&four));
    printf(" sync %d cancel %d\n", aio_fsync(O_SYNC, &three), aio_cancel(fd, 0) == AIO_ALLDONE);
}

struct iocb { uint64_t data; uint32_t key, flags; uint16_t kind; int16_t priority; uint32_t fd; uint64_t buffer, len; int64_t at; uint64_t reserved; uint32_t options, event_fd; };
struct io_event { uint64_t data, request; int64_t outcome, second; };

static void kernel_aio(const char *base) {
    int fd = open(in(base, "kernel_aio"), O_RDWR | O_CREAT | O_TRUNC, 0600), events = eventfd(0, 0);
    unsigned long context = 0;
    printf("setup %ld", syscall(SYS_io_setup, 8, &context));
    struct iovec parts[] = {{"ab", 2}, {"cd", 2}};
    char back[5] = {0};
    struct iocb requests[] = {
        {.data = 1, .kind = 1, .fd = fd, .buffer = (uint64_t) "0123", .len = 4, .at = 0},
        {.data = 2, .kind = 8, .fd = fd, .buffer = (uint64_t)parts, .len = 2, .at = 4},
        {.data = 3, .kind = 0, .fd = fd, .buffer = (uint64_t)back, .len = 4, .at = 3, .options = 1, .event_fd = events},
        {.data = 4, .kind = 2, .fd = fd},
    };
    struct iocb *list[] = {&requests[0], &requests[1], &requests[2], &requests[3]};
    struct io_event done[8];
    long sent = 0;
    for (int i = 0; i < 4; i++) sent += syscall(SYS_io_submit, context, 1, &list[i]);
    printf(" sent %ld", sent);
    long came = 0;
    while (came < sent) came += syscall(SYS_io_getevents, context, 1, 8 - came, done + came, 0);
    long sum = 0;
    for (int i = 0; i < came; i++) sum += done[i].outcome * done[i].data;
    uint64_t count = 0;
    read(events, &count, 8);
    printf(" came %ld sum %ld %s event %lu", came, sum, back, count);
    struct timespec none = {0};
    printf(" none %ld", syscall(SYS_io_getevents, context, 0, 8, done, &none));
    printf(" destroy %ld\n", syscall(SYS_io_destroy, context));
}

static void entries(const char *base) {
    mkdir(in(base, "entries"), 0700);
    for (int i = 0; i < 300; i++) {
        char last[40];
        snprintf(last, sizeof last, "entries/a_file_%d", i);
        close(open(in(base, last), O_CREAT | O_WRONLY, 0600));
    }
    int fd = open(in(base, "entries"), O_RDONLY | O_DIRECTORY);
    for (int round = 0; round < 2; round++) {
        char room[1024];
        int count = 0, sum = 0;
        for (ssize_t len; (len = round ? syscall(SYS_getdents64, fd, room, sizeof room) : getdents64(fd, room, sizeof room)) > 0;) {
            for (ssize_t at = 0; at < len;) {
                struct dirent64 *entry = (struct dirent64 *)(room + at);
                count++, at += entry->d_reclen;
                if (entry->d_name[0] == 'a') sum += atoi(entry->d_name + 7);
            }
        }
        printf("entries %d %d\n", count, sum);
        lseek(fd, 0, SEEK_SET);
    }
    char room[10];
    printf("small %zd %d\n", getdents64(fd, room, sizeof room), errno == EINVAL);
}

static int printed(int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int len = vdprintf(fd, format, arguments);
    va_end(arguments);
    return len;
}

/* Wide formats, limits, and who asks. */
static void rest(const char *base) {
    FILE *stream = fopen(in(base, "wide"), "w+");
    fwide(stream, 1);
    printf("wide %d", fwprintf(stream, L"%d %ls %s %.1f\n", 7, L"w\u00f6rter", "bytes", 2.5));
    rewind(stream);
    wchar_t line[50];
    printf(" %d", fgetws(line, 50, stream) != 0);
    printf(" %d\n", (int)wcslen(line));
    fclose(stream);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {1000, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    int fd = open(in(base, "limited"), O_RDWR | O_CREAT | O_TRUNC, 0640);
    setrlimit(RLIMIT_FSIZE, &limit);
    char bytes[1500] = {0};
    ssize_t first = write(fd, bytes, 900), second = write(fd, bytes, 900), third = write(fd, bytes, 1);
    printf("limit %zd %zd %zd %d", first, second, third, errno == EFBIG);
    printf(" %d\n", ftruncate(fd, 2000));
    setrlimit(RLIMIT_FSIZE, &none);
    printf("no limit %zd", pwrite(fd, bytes, 1, 3000));
    setrlimit(RLIMIT_FSIZE, &limit);
    printf(" cut above it %d", ftruncate(fd, 2000));
    setrlimit(RLIMIT_FSIZE, &none);
    printf(" %d\n", (int)lseek(fd, 0, SEEK_END));
    if (getuid() == 0) {
        chmod(base, 0755);
        setfsuid(12345);
        printf("another user %d", open(name, O_RDWR));
        printf(" %d", errno == EACCES);
        setfsuid(0);
        printf(" %d", open(name, O_RDWR) >= 0);
        syscall(SYS_setresuid, -1, 12345, -1);
        printf(" %d %d", open(name, O_RDWR), access(name, W_OK));
        syscall(SYS_setresuid, -1, 0, -1);
        printf(" %d\n", open(name, O_RDWR) >= 0);
    }
    printf("terminal %d", tcgetpgrp(fd));
    printf(" %d\n", errno == ENOTTY);
}

int main(int count, char **words) {
    const char *base = words[1];
    setlocale(LC_ALL, "");
    rest(base);
    setvbuf(stdout, 0, _IOLBF, 0);
    sent(base);
    posix_aio(base);
    kernel_aio(base);
    entries(base);
    int fd = open(in(base, "printed"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    char text[200] = {0};
    printf("printed %d\n", printed(fd, "%d %s %g %g %g %g %g %g %g %g %g\n", 1, "two", 3., 4., 5., 6., 7., 8., 9., 10., 11.));
    pread(fd, text, 199, 0);
    return printf("%s", text) < 0 || dprintf(1, "to a pipe %d\n", 1) < 0;
}
