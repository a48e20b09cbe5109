/* When does each chunk of a stream arrive?
 *
 *   ttft PORT PATH BODY CONNECTIONS REQUESTS [HEADER…]
 *
 * Sends BODY over keep-alive connections, REQUESTS times in all, and prints one JSON object: the delay to the first
 * event with content, the gaps between such events, and, when the mock stamps its chunks ("@<ns>" as content), how
 * long each was under way. Microseconds, p50 and p99.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 256, HEAD_BYTES = 16384, EVENT_BYTES = 8192, SILENCE_MS = 10000 };
typedef enum { HEAD, SIZE, DATA, DATA_END, TRAILER, PLAIN, DONE, FAILED } State;

typedef struct { double *us; size_t len, cap; } Samples;

typedef struct {
    int fd;
    State state;
    bool any_content, close_after;
    char head[HEAD_BYTES], event[EVENT_BYTES];
    size_t head_len, event_len, line_len, left; /* left: bytes of this chunk, or of a plain body */
    int64_t sent_ns, last_ns;
} Conn;

static Samples first_token, gap, transit;
static long started, finished, failed, events, wanted, connects;
static int port;
static char *request;
static size_t request_len;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void add(Samples *s, int64_t ns) {
    if (s->len == s->cap) s->us = realloc(s->us, (s->cap = s->cap ? s->cap * 2 : 1024) * sizeof *s->us);
    if (!s->us) abort();
    s->us[s->len++] = (double)ns / 1000;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, Samples *s) {
    if (!s->len) {
        printf(",\"%s\":null", name);
        return;
    }
    qsort(s->us, s->len, sizeof *s->us, ascending);
    printf(",\"%s\":{\"p50\":%.1f,\"p99\":%.1f,\"samples\":%zu}", name, s->us[s->len / 2],
           s->us[(size_t)((double)(s->len - 1) * 0.99)], s->len);
}

/* ---- events ---- */

static void whole_event(Conn *c, int64_t at_ns) {
    c->event[c->event_len] = 0;
    c->event_len = 0;
    if (strncmp(c->event, "data:", 5)) return;
    events++;
    char *content = strstr(c->event, "\"content\":");
    if (!content) return;
    content += 10 + (content[10] == ' ');
    if (content[0] != '"' || content[1] == '"') return;
    if (c->any_content) add(&gap, at_ns - c->last_ns);
    else add(&first_token, at_ns - c->sent_ns);
    if (content[1] == '@') add(&transit, at_ns - strtoll(content + 2, NULL, 10));
    c->any_content = true;
    c->last_ns = at_ns;
}

static void body_byte(Conn *c, char byte, int64_t at_ns) {
    if (byte == '\r') return;
    if (byte == '\n' && c->event_len && c->event[c->event_len - 1] == '\n') {
        whole_event(c, at_ns);
    } else if (c->event_len < EVENT_BYTES - 1 && (c->event_len || byte != '\n')) {
        c->event[c->event_len++] = byte;
    }
}

/* ---- HTTP ---- */

static State after_head(Conn *c) {
    c->head[c->head_len] = 0;
    if (strncmp(c->head, "HTTP/1.1 200", 12)) {
        fprintf(stderr, "ttft: %.*s\n", (int)strcspn(c->head, "\r\n"), c->head);
        return FAILED;
    }
    char *length = strcasestr(c->head, "\ncontent-length:");
    c->close_after = strcasestr(c->head, "\nconnection: close") != NULL;
    if (strcasestr(c->head, "\ntransfer-encoding: chunked")) return SIZE;
    c->left = length ? strtoul(length + 16, NULL, 10) : SIZE_MAX;
    return PLAIN;
}

static State head_byte(Conn *c, char byte) {
    if (c->head_len >= HEAD_BYTES - 1) return FAILED;
    c->head[c->head_len++] = byte;
    return c->head_len >= 4 && !memcmp(c->head + c->head_len - 4, "\r\n\r\n", 4) ? after_head(c) : HEAD;
}

static State size_byte(Conn *c, char byte) {
    if (byte != '\n') {
        if (c->line_len < 20) c->head[c->line_len++] = byte; /* the head is read: its room serves for size lines */
        return SIZE;
    }
    c->head[c->line_len] = 0;
    c->line_len = 0;
    c->left = strtoul(c->head, NULL, 16);
    return c->left ? DATA : TRAILER;
}

static State trailer_byte(Conn *c, char byte) {
    if (byte == '\r') return TRAILER;
    if (byte != '\n') return c->line_len++, TRAILER;
    bool empty = c->line_len == 0;
    c->line_len = 0;
    return empty ? DONE : TRAILER;
}

static State take(Conn *c, char byte, int64_t at_ns) {
    switch (c->state) {
    case HEAD: return head_byte(c, byte);
    case SIZE: return size_byte(c, byte);
    case DATA: body_byte(c, byte, at_ns); return --c->left ? DATA : DATA_END;
    case DATA_END: return byte == '\n' ? SIZE : DATA_END;
    case TRAILER: return trailer_byte(c, byte);
    case PLAIN: body_byte(c, byte, at_ns); return --c->left ? PLAIN : DONE;
    default: return c->state;
    }
}

/* ---- connections ---- */

static void open_conn(Conn *c) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(c->fd, (struct sockaddr *)&at, sizeof at)) {
        perror("ttft: connect");
        exit(1);
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    connects++;
}

static void start(Conn *c) {
    if (started == wanted) {
        if (c->fd >= 0) close(c->fd);
        c->fd = -1;
        return;
    }
    if (c->fd < 0) open_conn(c);
    started++;
    c->state = HEAD;
    c->any_content = false;
    c->head_len = c->event_len = c->line_len = 0;
    c->sent_ns = now_ns();
    for (size_t done = 0; done < request_len;) {
        ssize_t n = send(c->fd, request + done, request_len - done, MSG_NOSIGNAL);
        if (n <= 0) return; /* the read that follows tells the failure */
        done += (size_t)n;
    }
}

static void finish(Conn *c) {
    if (c->state == DONE && c->any_content) finished++;
    else failed++;
    if (c->state != DONE || c->close_after) {
        close(c->fd);
        c->fd = -1;
    }
    if (failed > 20) exit(1);
    start(c);
}

static void read_some(Conn *c) {
    char bytes[65536];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    int64_t at_ns = now_ns();
    if (n <= 0) {
        bool until_close = n == 0 && c->state == PLAIN && c->left > SIZE_MAX / 2;
        c->close_after = true;
        c->state = until_close ? DONE : FAILED;
    }
    for (ssize_t i = 0; i < n && c->state != DONE && c->state != FAILED; i++) c->state = take(c, bytes[i], at_ns);
    if (c->state == DONE || c->state == FAILED) finish(c);
}

static void run(int connections) {
    static Conn conns[MAX_CONNECTIONS];
    struct pollfd polls[MAX_CONNECTIONS];
    for (int i = 0; i < connections; i++) {
        conns[i].fd = -1;
        start(&conns[i]);
    }
    while (finished + failed < wanted) {
        for (int i = 0; i < connections; i++) polls[i] = (struct pollfd){.fd = conns[i].fd, .events = POLLIN};
        if (poll(polls, (nfds_t)connections, SILENCE_MS) <= 0) {
            fprintf(stderr, "ttft: silence\n");
            exit(1);
        }
        for (int i = 0; i < connections; i++)
            if (conns[i].fd >= 0 && polls[i].revents) read_some(&conns[i]);
    }
}

static void prepare_request(int argc, char **argv) {
    FILE *to = open_memstream(&request, &request_len);
    fprintf(to, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n",
            argv[2], port, strlen(argv[3]));
    for (int i = 6; i < argc; i++) fprintf(to, "%s\r\n", argv[i]);
    fprintf(to, "\r\n%s", argv[3]);
    fclose(to);
}

int main(int argc, char **argv) {
    if (argc < 6) return fprintf(stderr, "usage: ttft PORT PATH BODY CONNECTIONS REQUESTS [HEADER...]\n"), 2;
    int connections = atoi(argv[4]);
    port = atoi(argv[1]);
    wanted = atol(argv[5]);
    if (connections < 1 || connections > MAX_CONNECTIONS) return fprintf(stderr, "ttft: 1 to 256 connections\n"), 2;
    prepare_request(argc, argv);
    int64_t begin_ns = now_ns();
    run(connections);
    printf("{\"requests\":%ld,\"failed\":%ld,\"events\":%ld,\"connects\":%ld,\"seconds\":%.3f", finished, failed, events,
           connects, (double)(now_ns() - begin_ns) / 1e9);
    print_samples("first_token_us", &first_token);
    print_samples("gap_us", &gap);
    print_samples("transit_us", &transit);
    printf("}\n");
    return failed ? 1 : 0;
}
