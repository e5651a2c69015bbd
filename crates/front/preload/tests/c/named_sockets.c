/* Sockets, pipes and devices with names in a directory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words) {
    struct sockaddr_un address = {.sun_family = AF_UNIX}, other = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/s", words[1]);
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    printf("bind %d\n", bind(server, (void *)&address, sizeof address));
    int second = bind(client, (void *)&address, sizeof address);
    printf("taken %d %d\n", second, errno == EADDRINUSE);
    struct stat status;
    stat(address.sun_path, &status);
    printf("socket %d listen %d\n", S_ISSOCK(status.st_mode), listen(server, 5));
    printf("open %d", open(address.sun_path, O_RDONLY));
    printf(" %d\n", errno == ENXIO);
    if (fork() == 0) {
        printf("connect %d\n", connect(client, (void *)&address, sizeof address));
        fflush(stdout);
        write(client, "hello", 5);
        _exit(0);
    }
    char text[20] = {0};
    int peer = accept(server, 0, 0);
    read(peer, text, 5);
    wait(0);
    printf("read %s, gone %d\n", text, unlink(address.sun_path));
    int refused = connect(client, (void *)&address, sizeof address);
    printf("refused %d %d\n", refused, errno == ENOENT);
    snprintf(other.sun_path, sizeof other.sun_path, "%s/d", words[1]);
    int datagram = socket(AF_UNIX, SOCK_DGRAM, 0), sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    bind(datagram, (void *)&other, sizeof other);
    printf("sent %zd\n", sendto(sender, "abc", 3, 0, (void *)&other, sizeof other));
    memset(text, 0, sizeof text);
    printf("got %zd %s\n", recv(datagram, text, 10, 0), text);
    char pipe_name[200], device[200];
    snprintf(pipe_name, sizeof pipe_name, "%s/p", words[1]);
    snprintf(device, sizeof device, "%s/zero", words[1]);
    mkfifo(pipe_name, 0600);
    int blocked = open(pipe_name, O_WRONLY | O_NONBLOCK);
    printf("nobody reads %d %d\n", blocked, errno == ENXIO);
    if (fork() == 0) {
        FILE *stream = fopen(pipe_name, "w");
        fprintf(stream, "through\n");
        fclose(stream);
        _exit(0);
    }
    int reader = open(pipe_name, O_RDONLY);
    struct pollfd wait_for = {.fd = reader, .events = POLLIN};
    poll(&wait_for, 1, -1);
    memset(text, 0, sizeof text);
    printf("pipe %zd", read(reader, text, 20));
    printf(" %s", text);
    wait(0);
    if (mknod(device, S_IFCHR | 0600, makedev(1, 5)) == 0) {
        int zero = open(device, O_RDWR);
        text[3] = 'x';
        printf("device %d %zd", zero >= 0, read(zero, text, 20));
        printf(" %d\n", text[3]);
    }
    return 0;
}
