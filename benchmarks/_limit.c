/* The least that a client can cost: it sends the same request again and again, and looks for the end of each response only.
   int run(port, in_flight, calls, request, size): return how many responses had the status 200. Linux. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define MOST 1024
#define ROOM 65536
static int sockets[MOST], open_sockets, poller;
static char buffers[MOST][ROOM];
static size_t filled[MOST];

static int connect_one(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return connect(fd, (struct sockaddr *)&to, sizeof to) ? -1 : fd;
}

static int is_whole(char *text, size_t size) {
    text[size] = 0;
    char *body = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "\r\ncontent-length:");
    return body && length && length < body && size >= (size_t)(body + 4 - text) + strtoul(length + 17, NULL, 10);
}

int run(int port, int in_flight, int calls, const char *request, int size) {
    struct epoll_event events[MOST];
    int begun = 0, ended = 0, good = 0;
    if (!poller) poller = epoll_create1(0);
    for (; open_sockets < in_flight; open_sockets++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = open_sockets};
        if ((sockets[open_sockets] = connect_one(port)) < 0) return -1;
        epoll_ctl(poller, EPOLL_CTL_ADD, sockets[open_sockets], &event);
    }
    for (; begun < in_flight && begun < calls; begun++)
        if (write(sockets[begun], request, size) != size) return -1;
    while (ended < calls) {
        int ready = epoll_wait(poller, events, MOST, 10000);
        if (ready <= 0) return -1;
        for (int i = 0; i < ready; i++) {
            int at = events[i].data.u32;
            ssize_t got = read(sockets[at], buffers[at] + filled[at], ROOM - 1 - filled[at]);
            if (got <= 0) return -1;
            filled[at] += got;
            if (!is_whole(buffers[at], filled[at])) continue;
            good += !strncmp(buffers[at], "HTTP/1.1 200", 12);
            filled[at] = 0, ended++;
            if (begun < calls && begun++ >= 0 && write(sockets[at], request, size) != size) return -1;
        }
    }
    return good;
}
