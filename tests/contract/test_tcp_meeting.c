/* Ranks meet by TCP (runtime/comm/transport/tcp_meet.c), whoever else calls; who is not reached is named. */
#include "case.h"
#include "tcp_world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { MOST_SILENT = 250 };

/* Strangers that every rank sends to every rank. */
typedef struct silence {
    int count;
    double limit_s;
} silence;

static int call(const hd_tcp_place *place, const void *bytes, size_t n)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    memcpy(&to.sin_port, place->port, sizeof place->port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
                   send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n
               ? fd
               : -1;
}

/* First come those who talk of something else, who do not know the key, who are gone again. */
static heddle_status meets_strangers(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    world w;
    char noise[4096];
    int fd[3] = {-1, -1, -1};
    const heddle_comm_options options = plain(long_ms());
    (void)arg;
    memset(noise, 0x41, sizeof noise);
    HD_TRY(listen_all(&w, launched, long_ms()));
    const hd_tcp_place *first = &w.place[0];
    fd[0] = call(first, noise, sizeof noise);
    fd[1] = call(first, noise, 5);
    CHECK(fd[0] >= 0 && fd[1] >= 0);
    close(fd[1]);
    fd[1] = -1;
    hd_handshake liar;
    CHECK(hd_handshake_begin(&liar, 1, 0) == 0);
    fd[2] = call(first, &liar.knock, sizeof liar.knock); /* as a rank does, and then no proof */
    CHECK(fd[2] >= 0 && send(fd[2], noise, HD_PROOF_BYTES, MSG_NOSIGNAL) == HD_PROOF_BYTES);
    HD_TRY(heddle_comm_barrier(launched));
    HD_TRY(open_comm(&w, &options));
    HD_TRY(heddle_comm_barrier(w.comm));
out:
    for (int i = 0; i < 3; i++) {
        if (fd[i] >= 0) {
            close(fd[i]);
        }
    }
    close_world(&w);
    return st;
}

HD_CASE(strangers_are_sent_away)
{
    HD_OK(heddle_run_ranks(3, "shm", meets_strangers, NULL));
}

/* Every rank is called by many that say nothing, a part of what the last rank says, or all of it but the proof, and
 * hang on. */
static heddle_status meets_the_silent(heddle_comm *launched, void *arg)
{
    static const size_t said[] = {0, 5, sizeof(hd_knock)};
    heddle_status st = HEDDLE_OK;
    world w;
    int fd[RANKS * MOST_SILENT], n = 0, size = heddle_comm_size(launched);
    const heddle_comm_options options = plain(long_ms());
    const silence *silent = arg;
    HD_TRY(listen_all(&w, launched, long_ms()));
    for (int r = 0; r < size; r++) {
        hd_handshake like_the_last;
        CHECK(hd_handshake_begin(&like_the_last, size - 1, r) == 0);
        for (int i = 0; i < silent->count; i++) {
            fd[n] = call(&w.place[r], &like_the_last.knock, said[i % 3]);
            CHECK(fd[n++] >= 0);
        }
    }
    HD_TRY(heddle_comm_barrier(launched));
    const int64_t began_ns = hd_now_ns();
    HD_TRY(open_comm(&w, &options));
    CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(silent->limit_s));
    HD_TRY(heddle_comm_barrier(w.comm));
    HD_TRY(heddle_comm_barrier(launched));
out:
    while (n > 0) {
        if (fd[--n] >= 0) {
            close(fd[n]);
        }
    }
    close_world(&w);
    return st;
}

HD_CASE(strangers_that_say_nothing_cost_little)
{
    silence some = {.count = 9, .limit_s = 2}, many = {.count = MOST_SILENT, .limit_s = 2};
    HD_OK(heddle_run_ranks(RANKS, "shm", meets_the_silent, &some));
    HD_OK(heddle_run_ranks(2, "shm", meets_the_silent, &many)); /* more than are heard at once: the oldest go */
}

/* Rank 0 has as many files open as it may, and says so at once. */
static heddle_status has_no_file_left(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    world w;
    hd_tcp *tcp = NULL;
    struct rlimit before, few;
    int fd[128], n = 0;
    (void)arg;
    HD_TRY(listen_all(&w, launched, long_ms()));
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    if (heddle_comm_rank(launched) == 0) {
        few = (struct rlimit){sizeof fd / sizeof fd[0], before.rlim_max};
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        while ((fd[n] = dup(w.listener)) >= 0) {
            n++;
        }
        const heddle_status got = hd_tcp_open(&tcp, &w.meeting, w.listener);
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
        CHECK(got == HEDDLE_ERR_TRANSPORT && tcp == NULL);
        CHECK(says("rank 0 of 2 cannot take the calls of other ranks: Too many open files"));
    } else {
        fd[n++] = call(&w.place[0], "", 0);
    }
    HD_TRY(heddle_comm_barrier(launched));
out:
    while (n > 0) {
        close(fd[--n]);
    }
    close_world(&w);
    return st;
}

HD_CASE(a_call_that_cannot_be_taken_is_said)
{
    HD_OK(heddle_run_ranks(2, "shm", has_no_file_left, NULL));
}

static int yes(void *arg)
{
    (void)arg;
    return 1;
}

/* Rank 1 calls rank 0, who is not there, is itself, has no address or another key, or the
 * addresses of rank 1's machine on another one. */
static heddle_status calls_in_vain(heddle_comm *launched, void *arg)
{
    static const char *const wanted[] = {"did not get through to rank 0 before the deadline, at last at ",
                                         "Connection timed out",
                                         "no address",
                                         "did not get through to rank 0",
                                         "interrupted while ranks met",
                                         "it has none that is not this machine's own as well"};
    const int how = *(const int *)arg;
    heddle_status st = HEDDLE_OK;
    world w;
    hd_tcp *tcp = NULL;
    HD_TRY(listen_all(&w, launched, how == 4 ? long_ms() : 700));
    if (how == 1) {
        w.place[0] = w.place[1];
    } else if (how == 2) {
        memset(w.place[0].address, 0, sizeof w.place[0].address);
    } else if (how == 3 && w.meeting.rank == 1) {
        w.meeting.key[1]++;
    } else if (how == 4) {
        w.meeting.interrupt = (hd_interrupt){.ask = yes};
    } else if (how == 5) {
        w.place[0].host[0]++;
    }
    const int takes_part = w.meeting.rank == 1 || (how == 3 && w.meeting.rank == 0);
    if (takes_part) {
        const heddle_status got = hd_tcp_open(&tcp, &w.meeting, w.listener);
        CHECK(tcp == NULL && got == (how == 4 ? HEDDLE_ERR_INTERRUPTED : HEDDLE_ERR_TIMEOUT));
        CHECK(says(w.meeting.rank == 1
                       ? wanted[how]
                       : "rank 0 of 3: 2 ranks did not call before the deadline, rank 1 is the first of them"));
    }
    HD_TRY(heddle_comm_barrier(launched));
    CHECK(how != 5 || w.meeting.rank != 0 || accept(w.listener, NULL, NULL) < 0); /* nobody has tried */
out:
    close_world(&w);
    return st;
}

HD_CASE(who_is_not_reached_is_named)
{
    for (int how = 0; how < 6; how++) {
        HD_OK(heddle_run_ranks(3, "shm", calls_in_vain, &how));
    }
}

/* Rank 2 takes rank 1 for rank 0, by a wrong address, and knows the key: rank 1 does not let itself be taken. */
static heddle_status calls_another(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    world w;
    hd_tcp *tcp = NULL;
    (void)arg;
    HD_TRY(listen_all(&w, launched, 1500));
    if (w.meeting.rank == 2) {
        w.place[0] = w.place[1];
    }
    CHECK(hd_tcp_open(&tcp, &w.meeting, w.listener) == HEDDLE_ERR_TIMEOUT && tcp == NULL);
    CHECK(says(w.meeting.rank == 2 ? "rank 2 of 3 did not get through to rank 0"
                                   : "1 ranks did not call before the deadline, rank 2 is the first of them"));
    HD_TRY(heddle_comm_barrier(launched));
out:
    close_world(&w);
    return st;
}

HD_CASE(a_rank_is_nobody_else)
{
    HD_OK(heddle_run_ranks(3, "shm", calls_another, NULL));
}

/* --- somebody in between ------------------------------------------------------------------------------------------ */

/* What comes at one goes out at the other, until one of them ends. */
static void relay(int a, int b, int64_t until_ns)
{
    struct pollfd ready[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
    char some[4096];
    while (hd_now_ns() < until_ns && poll(ready, 2, 20) >= 0) {
        for (int i = 0; i < 2; i++) {
            const ssize_t got = ready[i].revents != 0 ? recv(ready[i].fd, some, sizeof some, 0) : -1;
            if (got == 0 || (got > 0 && send(ready[!i].fd, some, (size_t)got, MSG_NOSIGNAL) != got)) {
                return;
            }
        }
    }
}

/* Sends back what it hears: a rank's words are no proof for the rank itself. */
static void reflect(int fd, int64_t until_ns)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    char some[4096];
    while (hd_now_ns() < until_ns && poll(&ready, 1, 20) >= 0) {
        const ssize_t got = ready.revents != 0 ? recv(fd, some, sizeof some, 0) : -1;
        if (got == 0 || (got > 0 && send(fd, some, (size_t)got, MSG_NOSIGNAL) != got)) {
            return;
        }
    }
}

/* All that a rank says when it is called, but for the proof. */
static void answer(int fd)
{
    const hd_answer any = {.nonce = {1}};
    unsigned char proof[HD_PROOF_BYTES];
    hd_knock knock;
    const struct timeval limit = {.tv_usec = 300000};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (recv(fd, &knock, sizeof knock, MSG_WAITALL) == sizeof knock &&
        send(fd, &any, sizeof any, MSG_NOSIGNAL) == sizeof any &&
        recv(fd, proof, sizeof proof, MSG_WAITALL) == sizeof proof) {
        (void)!send(fd, "", 1, MSG_NOSIGNAL);
    }
}

/* All that rank 1 says to rank 0, but for the proof. 1: it was let in. */
static int is_let_in(const hd_tcp_place *first)
{
    const struct timeval limit = {.tv_sec = 1};
    const unsigned char proof[HD_PROOF_BYTES] = {0};
    hd_handshake shake;
    hd_answer a;
    char word;
    const int fd = hd_handshake_begin(&shake, 1, 0) == 0 ? call(first, &shake.knock, sizeof shake.knock) : -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const int is_in = fd >= 0 && recv(fd, &a, sizeof a, MSG_WAITALL) == sizeof a &&
                      send(fd, proof, sizeof proof, MSG_NOSIGNAL) == sizeof proof && recv(fd, &word, 1, 0) == 1;
    close(fd);
    return is_in;
}

enum { RELAYS, REFLECTS, ANSWERS, CALLS, WAYS };

/* Rank 2 listens where rank 1 takes rank 0 to be, or calls rank 0 in the place of rank 1, and knows no key. */
static heddle_status stands_between(heddle_comm *launched, void *arg)
{
    const int how = *(const int *)arg;
    heddle_status st = HEDDLE_OK;
    world w;
    hd_tcp *tcp = NULL;
    HD_TRY(listen_all(&w, launched, 1500));
    w.meeting.size = 2;
    if (w.meeting.rank == 2 && how == CALLS) {
        CHECK(!is_let_in(&w.place[0]));
    }
    while (w.meeting.rank == 2 && hd_now_ns() < w.meeting.deadline_ns) {
        struct pollfd ready = {.fd = w.listener, .events = POLLIN};
        (void)poll(&ready, 1, 20);
        const int fd = accept(w.listener, NULL, NULL), other = fd >= 0 ? call(&w.place[0], "", 0) : -1;
        if (fd >= 0 && how == REFLECTS) {
            reflect(fd, w.meeting.deadline_ns);
        } else if (fd >= 0 && how == ANSWERS) {
            answer(fd);
        } else if (fd >= 0 && other >= 0) {
            relay(fd, other, w.meeting.deadline_ns);
        }
        close(fd);
        close(other);
    }
    if (w.meeting.rank == 0 || (w.meeting.rank == 1 && how != CALLS)) {
        w.place[0] = w.meeting.rank == 1 ? w.place[2] : w.place[0];
        CHECK(hd_tcp_open(&tcp, &w.meeting, w.listener) == HEDDLE_ERR_TIMEOUT && tcp == NULL);
    }
    HD_TRY(heddle_comm_barrier(launched));
out:
    close_world(&w);
    return st;
}

HD_CASE(nobody_gets_in_between)
{
    for (int how = 0; how < WAYS; how++) {
        HD_OK(heddle_run_ranks(3, "shm", stands_between, &how));
    }
}
