/* Many clients with few records each: so many connections that each send one prepared Produce request per period. Built
 * and started by crowd.py; both brokers of a comparison get the same bytes.
 *
 *     crowd HOST PORT CONNECTIONS PERIOD_MS SECONDS FRAMES
 *
 * FRAMES is a file of requests of Produce version 9 with their lengths; connection i sends number i modulo their count. The
 * connections take turns at an even pace. A request counts from when it is due to the last byte of its response, also if
 * it had to wait for the one before. The first second is not counted.
 *
 * Prints one JSON object. Ends with 1 and a sentence on standard error if anything at all went wrong.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WAITING_MAX = 1024, EVENTS = 256, RESPONSE_MAX = 512, FRAMES_MAX = 64, ARGUMENTS = 7 };

static const double WARM_UP_S = 1.0, STALL_S = 30.0;

struct connection {
    int fd;
    /* When the unanswered requests were due, oldest first. */
    double due[WAITING_MAX];
    unsigned sent, answered;
    unsigned char response[RESPONSE_MAX];
    size_t received;
};

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t number_at(const unsigned char *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static unsigned char *frames[FRAMES_MAX];
static size_t sizes[FRAMES_MAX];

static int read_frames(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file)
        fail("%s: %s", path, strerror(errno));
    unsigned char head[4];
    int count = 0;
    while (count < FRAMES_MAX && fread(head, 1, 4, file) == 4) {
        sizes[count] = 4 + number_at(head);
        frames[count] = malloc(sizes[count]);
        memcpy(frames[count], head, 4);
        if (fread(frames[count] + 4, 1, sizes[count] - 4, file) != sizes[count] - 4)
            fail("%s ends within a request.", path);
        count++;
    }
    fclose(file);
    if (!count)
        fail("%s has no requests.", path);
    return count;
}

static int connect_to(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (fd < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1)
        fail("%s is no IPv4 address, or there are no more sockets.", host);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        fail("Connect to %s:%d: %s", host, port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* The requests are small, so the socket's buffer takes one whole unless the broker has stopped reading. */
static void send_request(struct connection *one, const unsigned char *frame, size_t size, double due) {
    if (one->sent - one->answered == WAITING_MAX)
        fail("%d requests of one connection are unanswered.", WAITING_MAX);
    if (send(one->fd, frame, size, MSG_NOSIGNAL) != (ssize_t)size)
        fail("A connection takes no more requests: %s", strerror(errno));
    one->due[one->sent++ % WAITING_MAX] = due;
}

/* length, correlation id, tags, topics, length of the name, name, partitions, index, error code. */
static void check(const unsigned char *response, size_t size) {
    size_t at = 10 + response[10] + 1 + 4;
    if (at + 2 > size || response[at] || response[at + 1])
        fail("A request was refused with error %d.", at + 2 > size ? -1 : response[at] << 8 | response[at + 1]);
}

static double *times;
static long counted, room;

static void receive(struct connection *one, double counts_from) {
    ssize_t got;
    while ((got = recv(one->fd, one->response + one->received, RESPONSE_MAX - one->received, 0)) > 0) {
        one->received += (size_t)got;
        size_t size;
        while (one->received >= 4 && one->received >= (size = 4 + number_at(one->response))) {
            check(one->response, size);
            double due = one->due[one->answered++ % WAITING_MAX];
            if (due >= counts_from && counted < room)
                times[counted++] = now_s() - due;
            one->received -= size;
            memmove(one->response, one->response + size, one->received);
        }
    }
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
        fail("The broker closed a connection.");
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **given) {
    if (count != ARGUMENTS)
        fail("crowd HOST PORT CONNECTIONS PERIOD_MS SECONDS FRAMES");
    int connections = atoi(given[3]), kinds = read_frames(given[6]);
    double step = atof(given[4]) / 1000 / connections, seconds = WARM_UP_S + atof(given[5]);
    struct connection *all = calloc((size_t)connections, sizeof *all);
    struct epoll_event events[EVENTS];
    int poller = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        all[i].fd = connect_to(given[1], atoi(given[2]));
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, all[i].fd, &wanted);
    }
    room = (long)(seconds / step) + 1;
    times = malloc((size_t)room * sizeof *times);
    double began = now_s(), cpu = cpu_s();
    long sent = 0, answered = 0, total = (long)(seconds / step);
    for (double now = began; answered < total; now = now_s()) {
        if (now > began + seconds + STALL_S)
            fail("%ld of %ld requests are unanswered after %g s.", total - answered, total, STALL_S);
        for (; sent < total && began + (double)sent * step <= now; sent++) {
            int i = (int)(sent % connections);
            send_request(&all[i], frames[i % kinds], sizes[i % kinds], began + (double)sent * step);
        }
        int ready = epoll_wait(poller, events, EVENTS, sent < total ? 1 : 100);
        for (int i = 0; i < ready; i++) {
            struct connection *one = events[i].data.ptr;
            unsigned before = one->answered;
            receive(one, began + WARM_UP_S);
            answered += one->answered - before;
        }
    }
    qsort(times, (size_t)counted, sizeof *times, ascending);
    printf("{\"requests\": %ld, \"seconds\": %.6f, \"cpu_s\": %.6f, \"p50_ms\": %.6f, \"p99_ms\": %.6f}\n", total,
           now_s() - began, cpu_s() - cpu, times[counted / 2] * 1000, times[counted * 99 / 100] * 1000);
    return 0;
}
