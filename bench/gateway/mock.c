/* An OpenAI upstream that costs nothing: one thread, epoll, keep-alive, TCP_NODELAY, prepared answers.
 *
 *   mock PORT [PACE_MS]
 *
 * POST …/chat/completions   JSON, or 34 SSE events (role, 30 content, stop, usage, [DONE]) for "stream":true.
 *                           Zero delay: all in one send. Paced: an event every PACE_MS, its content "@<monotonic
 *                           ns of the send>", so that a client on this machine knows how long it was under way.
 * GET …/models, /health     what a gateway asks before it trusts us
 * GET /pace?ms=N&first_ms=M change the pace while running (M: delay before the first byte of any answer)
 * GET /stats                connections, requests, and how many callers left before their answer was whole
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { CONTENT_EVENTS = 30, EVENTS = CONTENT_EVENTS + 4, READ_BYTES = 65536, MAX_REQUEST_BYTES = 64 << 20 };
typedef enum { IDLE, STREAM, ANSWER } Pending;

typedef struct Conn {
    int fd;
    bool close_after, dead, told_to_continue;
    char *in, *out;
    size_t in_len, in_cap, out_len, out_cap;
    Pending pending;              /* an answer with a delay is under way */
    int next_event;
    int64_t due_ns;               /* when the next part of it leaves */
    struct Conn *previous, *next; /* all open connections */
} Conn;

typedef struct {
    const char *path, *body;
    size_t body_len, total; /* total: bytes of the input that this request used */
    bool post;
} Request;

static struct { uint64_t connections, requests, streams, closed_early, closed_before_first; } stats;
static int64_t pace_ns, first_ns;
static int epoll_fd, listen_fd, timer_fd, timed; /* timed: connections whose answer waits for the clock */
static Conn *conns;
static char completion[2048], burst[16384];
static size_t completion_len, burst_len;

static const char *STREAM_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                                 "Transfer-Encoding: chunked\r\n\r\n";
static const char *CHUNK = "data: {\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
                           "\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]}\n\n";
static const char *USAGE = "\"usage\":{\"prompt_tokens\":42,\"completion_tokens\":30,\"total_tokens\":72}";

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- what we answer ---- */

static size_t event_text(int index, bool stamped, char *to, size_t room) {
    char delta[96];
    if (index == 0) return (size_t)snprintf(to, room, CHUNK, "{\"role\":\"assistant\",\"content\":\"\"}", "null");
    if (index <= CONTENT_EVENTS) {
        if (stamped) snprintf(delta, sizeof delta, "{\"content\":\"@%lld\"}", (long long)now_ns());
        else snprintf(delta, sizeof delta, "{\"content\":\" token-%02d\"}", index);
        return (size_t)snprintf(to, room, CHUNK, delta, "null");
    }
    if (index == CONTENT_EVENTS + 1) return (size_t)snprintf(to, room, CHUNK, "{}", "\"stop\"");
    if (index == CONTENT_EVENTS + 2)
        return (size_t)snprintf(to, room, "data: {\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\","
                                          "\"created\":1700000000,\"model\":\"mock\",\"choices\":[],%s}\n\n", USAGE);
    return (size_t)snprintf(to, room, "data: [DONE]\n\n");
}

/* One event as one HTTP chunk; the last one also ends the body. */
static size_t event_frame(int index, bool stamped, char *to, size_t room) {
    char text[512];
    size_t len = event_text(index, stamped, text, sizeof text);
    return (size_t)snprintf(to, room, "%zx\r\n%s\r\n%s", len, text, index == EVENTS - 1 ? "0\r\n\r\n" : "");
}

static void prepare_answers(void) {
    char body[1024], words[400] = "";
    for (int i = 1; i <= CONTENT_EVENTS; i++) snprintf(words + strlen(words), 12, " token-%02d", i);
    snprintf(body, sizeof body, "{\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion\",\"created\":1700000000,"
             "\"model\":\"mock\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"%s\"},"
             "\"finish_reason\":\"stop\"}],%s}", words, USAGE);
    completion_len = (size_t)snprintf(completion, sizeof completion, "HTTP/1.1 200 OK\r\nContent-Type: application/json"
                                      "\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    burst_len = (size_t)snprintf(burst, sizeof burst, "%s", STREAM_HEAD);
    for (int i = 0; i < EVENTS; i++) burst_len += event_frame(i, false, burst + burst_len, sizeof burst - burst_len);
}

/* ---- connections ---- */

static void watch(Conn *c, uint32_t events, int operation) {
    struct epoll_event e = {.events = events | EPOLLRDHUP, .data.ptr = c};
    epoll_ctl(epoll_fd, operation, c->fd, &e);
}

static void settle(Conn *c) {
    timed -= c->pending != IDLE;
    c->pending = IDLE;
}

static void close_conn(Conn *c) {
    if (c->dead) return;
    if (c->pending != IDLE || (c->out_len && !c->close_after)) stats.closed_early++;
    if (c->pending != IDLE && c->next_event == 0) stats.closed_before_first++;
    c->dead = true;
    settle(c);
    close(c->fd);
}

static void reap_dead(void) {
    for (Conn *c = conns, *next; c; c = next) {
        next = c->next;
        if (!c->dead) continue;
        if (c->previous) c->previous->next = next;
        else conns = next;
        if (next) next->previous = c->previous;
        free(c->in);
        free(c->out);
        free(c);
    }
}

static void reserve(char **buffer, size_t *cap, size_t need) {
    if (need <= *cap) return;
    while (*cap < need) *cap = *cap ? *cap * 2 : READ_BYTES;
    *buffer = realloc(*buffer, *cap);
    if (!*buffer) abort();
}

static void flush_out(Conn *c) {
    while (c->out_len) {
        ssize_t n = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            if (errno == EAGAIN) return;
            close_conn(c);
            return;
        }
        memmove(c->out, c->out + n, c->out_len - (size_t)n);
        c->out_len -= (size_t)n;
    }
    watch(c, EPOLLIN, EPOLL_CTL_MOD);
    if (c->close_after && c->pending == IDLE) close_conn(c);
}

static void send_bytes(Conn *c, const char *data, size_t len) {
    ssize_t n = c->out_len ? 0 : send(c->fd, data, len, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        close_conn(c);
        return;
    }
    if (n < 0) n = 0;
    if ((size_t)n == len) return;
    reserve(&c->out, &c->out_cap, c->out_len + len - (size_t)n);
    memcpy(c->out + c->out_len, data + n, len - (size_t)n);
    c->out_len += len - (size_t)n;
    watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
}

static void send_json(Conn *c, const char *status, const char *body) {
    char answer[1024];
    int n = snprintf(answer, sizeof answer, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     status, strlen(body), body);
    send_bytes(c, answer, (size_t)n);
}

/* ---- requests ---- */

static const char *header(const char *head, size_t len, const char *name) {
    size_t name_len = strlen(name);
    for (const char *at = head, *end = head + len; at && at + name_len + 1 < end;) {
        if (!strncasecmp(at, name, name_len) && at[name_len] == ':') {
            for (at += name_len + 1; *at == ' ';) at++;
            return at;
        }
        at = memchr(at, '\n', (size_t)(end - at));
        if (at) at++;
    }
    return NULL;
}

/* Length of a whole chunked body at `at`, 0 if more must come; `decoded` counts its payload, moved to the front if asked. */
static size_t chunked_body(char *at, size_t len, size_t *decoded, bool compact) {
    char *start = at, *end = at + len, *to = at;
    *decoded = 0;
    for (;;) {
        char *line = memchr(at, '\n', (size_t)(end - at));
        if (!line) return 0;
        size_t size = strtoul(at, NULL, 16);
        at = line + 1;
        if ((size_t)(end - at) < size + 2) return 0;
        if (size == 0) return (size_t)(at + 2 - start);
        if (compact) memmove(to, at, size);
        to += size;
        *decoded += size;
        at += size + 2;
    }
}

/* True when a whole request lies in the input. */
static bool parse(Conn *c, Request *r) {
    char *end = c->in_len ? memmem(c->in, c->in_len, "\r\n\r\n", 4) : NULL;
    if (!end) return false;
    size_t head = (size_t)(end - c->in) + 4, decoded = 0, used;
    const char *length = header(c->in, head, "content-length"), *coding = header(c->in, head, "transfer-encoding");
    const char *connection = header(c->in, head, "connection"), *expect = header(c->in, head, "expect");
    if (coding && !strncasecmp(coding, "chunked", 7)) {
        used = chunked_body(end + 4, c->in_len - head, &decoded, false);
        if (used) chunked_body(end + 4, c->in_len - head, &decoded, true);
    } else {
        decoded = used = length ? strtoul(length, NULL, 10) : 0;
        if (used > c->in_len - head) used = SIZE_MAX;
    }
    if (used == SIZE_MAX || (!used && coding)) {
        if (expect && !c->told_to_continue) send_bytes(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        c->told_to_continue = expect != NULL;
        return false;
    }
    c->told_to_continue = false;
    c->close_after = connection && !strncasecmp(connection, "close", 5);
    *r = (Request){.body = c->in + head, .body_len = decoded, .total = head + used, .post = c->in[0] == 'P'};
    char *space = memchr(c->in, ' ', head);
    r->path = space ? space + 1 : c->in;
    return true;
}

static bool asks_for_stream(const Request *r) {
    const char *at = r->body, *end = r->body + r->body_len;
    while ((at = memmem(at, (size_t)(end - at), "\"stream\"", 8))) {
        for (at += 8; at < end && strchr(" \t\r\n:", *at) && *at; at++) {}
        if (end - at >= 4 && !memcmp(at, "true", 4)) return true;
    }
    return false;
}

static void complete(Conn *c, const Request *r) {
    bool stream = asks_for_stream(r);
    stats.requests++;
    stats.streams += stream;
    if (first_ns || (stream && pace_ns)) {
        c->pending = stream ? STREAM : ANSWER;
        timed++;
        c->next_event = 0;
        c->due_ns = now_ns() + first_ns;
    } else if (stream) {
        send_bytes(c, burst, burst_len);
    } else {
        send_bytes(c, completion, completion_len);
    }
}

static void answer(Conn *c, const Request *r) {
    char body[512];
    size_t len = strcspn(r->path, " ?\r\n");
    long ms = 0, first_ms = 0;
    if (r->post && len >= 17 && !memcmp(r->path + len - 17, "/chat/completions", 17)) {
        complete(c, r);
    } else if (len >= 7 && !memcmp(r->path + len - 7, "/models", 7)) {
        send_json(c, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\","
                               "\"created\":1700000000,\"owned_by\":\"mock\"}]}");
    } else if (!strncmp(r->path, "/health ", 8)) {
        send_json(c, "200 OK", "{\"status\":\"ok\"}");
    } else if (sscanf(r->path, "/pace?ms=%ld&first_ms=%ld", &ms, &first_ms) >= 1) {
        pace_ns = ms * 1000000;
        first_ns = first_ms * 1000000;
        send_json(c, "200 OK", "{}");
    } else if (!strncmp(r->path, "/stats ", 7)) {
        snprintf(body, sizeof body, "{\"connections\":%llu,\"requests\":%llu,\"streams\":%llu,\"closed_early\":%llu,"
                 "\"closed_before_first\":%llu}", (unsigned long long)stats.connections,
                 (unsigned long long)stats.requests, (unsigned long long)stats.streams,
                 (unsigned long long)stats.closed_early, (unsigned long long)stats.closed_before_first);
        send_json(c, "200 OK", body);
    } else {
        send_json(c, "404 Not Found", "{\"error\":{\"message\":\"no such path\",\"type\":\"not_found\"}}");
    }
}

static void serve_input(Conn *c) {
    Request r;
    while (!c->dead && c->pending == IDLE && parse(c, &r)) {
        answer(c, &r);
        memmove(c->in, c->in + r.total, c->in_len - r.total);
        c->in_len -= r.total;
        if (c->close_after && c->pending == IDLE && !c->out_len) close_conn(c);
    }
}

static void read_input(Conn *c) {
    reserve(&c->in, &c->in_cap, c->in_len + READ_BYTES + 1);
    ssize_t n = recv(c->fd, c->in + c->in_len, READ_BYTES, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0 || c->in_len > MAX_REQUEST_BYTES) {
        close_conn(c);
        return;
    }
    c->in_len += (size_t)n;
    c->in[c->in_len] = 0; /* so that string functions on a header stop */
    serve_input(c);
}

/* ---- the clock ---- */

static void send_due(Conn *c) {
    char frame[1024];
    size_t len = 0;
    if (c->pending == ANSWER) {
        settle(c);
        send_bytes(c, completion, completion_len);
    } else {
        if (c->next_event == 0) len = (size_t)snprintf(frame, sizeof frame, "%s", STREAM_HEAD);
        len += event_frame(c->next_event, true, frame + len, sizeof frame - len);
        c->due_ns += pace_ns; /* a fixed schedule: lateness does not add up */
        if (++c->next_event == EVENTS) settle(c);
        send_bytes(c, frame, len);
    }
    if (c->pending == IDLE && c->close_after && !c->out_len) close_conn(c);
    if (c->pending == IDLE) serve_input(c);
}

static void run_due(void) {
    int64_t earliest = 0, now = now_ns();
    for (Conn *c = conns; c; c = c->next) {
        while (!c->dead && c->pending != IDLE && c->due_ns <= now) send_due(c);
        if (!c->dead && c->pending != IDLE && (!earliest || c->due_ns < earliest)) earliest = c->due_ns;
    }
    struct itimerspec at = {.it_value = {.tv_sec = earliest / 1000000000, .tv_nsec = earliest % 1000000000}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static void accept_all(void) {
    for (int fd; (fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        Conn *c = calloc(1, sizeof *c);
        if (!c) abort();
        *c = (Conn){.fd = fd, .next = conns};
        if (conns) conns->previous = c;
        conns = c;
        stats.connections++;
        watch(c, EPOLLIN, EPOLL_CTL_ADD);
    }
}

static void open_sockets(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listen_fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(listen_fd, (struct sockaddr *)&at, sizeof at) || listen(listen_fd, 1024)) {
        perror("mock: cannot listen");
        exit(1);
    }
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    int *own[] = {&listen_fd, &timer_fd};
    for (int i = 0; i < 2; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = own[i]};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, *own[i], &e);
    }
}

static void handle(struct epoll_event *e) {
    uint64_t ticks;
    Conn *c = e->data.ptr;
    if (e->data.ptr == &listen_fd) accept_all();
    else if (e->data.ptr == &timer_fd) (void)!read(timer_fd, &ticks, sizeof ticks);
    else if (c->dead) return;
    else if (e->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) close_conn(c);
    else {
        if (e->events & EPOLLOUT) flush_out(c);
        if (!c->dead && (e->events & EPOLLIN)) read_input(c);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: mock PORT [PACE_MS]\n"), 2;
    signal(SIGPIPE, SIG_IGN);
    pace_ns = argc > 2 ? atol(argv[2]) * 1000000 : 0;
    prepare_answers();
    open_sockets(atoi(argv[1]));
    for (struct epoll_event events[256];;) {
        int n = epoll_wait(epoll_fd, events, 256, -1);
        for (int i = 0; i < n; i++) handle(&events[i]);
        if (timed) run_due();
        reap_dead();
    }
}
