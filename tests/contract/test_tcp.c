/* Messages over TCP (runtime/comm/transport/tcp.h): ranks meet, whoever else calls; what a transport owes to heddle;
 * ranks that give up, go, vanish or do not come. */
#include "check.h"
#include "reshard_check.h"
#include "runtime/comm/transport/tcp_post.h"
#include "time_limit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 4, DEADLINE_MS = 20000 };

typedef struct world {
    heddle_comm *launched;
    hd_tcp_place place[RANKS];
    hd_tcp_meeting meeting;
    int listener;
    hd_tcp *tcp; /* where a test looks into it; the communicator's once there is one */
    heddle_comm *comm;
} world;

static heddle_status listen_all(world *w, heddle_comm *launched, int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    hd_tcp_place mine;
    memset(w, 0, sizeof *w);
    w->launched = launched;
    w->listener = -1;
    HD_TRY(hd_tcp_listen(&w->listener, &mine));
    HD_TRY(heddle_comm_allgather(launched, &mine, w->place, sizeof mine));
    w->meeting = (hd_tcp_meeting){.rank = heddle_comm_rank(launched),
                                  .size = heddle_comm_size(launched),
                                  .place = w->place,
                                  .key = {11, 12},
                                  .deadline_ns = hd_now_ns() + deadline_ms * 1000000};
out:
    return st;
}

static heddle_status open_comm(world *w, const heddle_comm_options *options)
{
    heddle_status st;
    HD_TRY(hd_tcp_open(&w->tcp, &w->meeting, w->listener));
    const heddle_transport table = hd_tcp_table(w->tcp);
    st = heddle_comm_from_callbacks(&w->comm, &table, w->tcp, options);
    if (st != HEDDLE_OK) {
        hd_tcp_close(w->tcp);
    }
out:
    return st;
}

static void close_world(world *w)
{
    heddle_comm_destroy(w->comm);
    if (w->listener >= 0) {
        close(w->listener);
    }
}

static heddle_comm_options plain(int64_t deadline_ms)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.bind = HEDDLE_BIND_NONE;
    options.deadline_ms = deadline_ms;
    return options;
}

static int says(const char *wanted)
{
    return strstr(heddle_last_error(), wanted) != NULL;
}

/* --- what a transport owes ---------------------------------------------------------------------------------------- */

static heddle_status passes_around(heddle_comm *comm, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    const int rank = heddle_comm_rank(comm), size = heddle_comm_size(comm), from = (rank + size - 1) % size;
    unsigned char *out = malloc(bytes + 1), *in = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        out[i] = (unsigned char)(i * 7 + (size_t)rank);
    }
    HD_TRY(heddle_comm_sendrecv(comm, out, bytes, (rank + 1) % size, in, bytes, from, HEDDLE_NO_STREAM));
    for (size_t i = 0; i < bytes; i++) {
        CHECK(in[i] == (unsigned char)(i * 7 + (size_t)from));
    }
    HD_TRY(heddle_comm_sendrecv(comm, out, bytes, rank, in, bytes, rank, HEDDLE_NO_STREAM));
    CHECK(bytes == 0 || memcmp(in, out, bytes) == 0);
out:
    free(out);
    free(in);
    return st;
}

static heddle_status moves_all(heddle_comm *launched, void *arg)
{
    static const char *const lines[] = {"u8[t=9 s=7 c=5] on [sp=4]: t@sp -> s@sp as s,t,c",
                                        "i32[t=64 s=129 c=33] on [sp=4]: t@sp -> s@sp",
                                        "bf16[t=5 s=3] on [node=2 gpu=2]: t@node,s@gpu -> s@node",
                                        "f32[t=6 s=6] on [sp=4]: sum@sp -> t@sp", "f64[t=3] on [sp=4]: t@sp -> *"};
    heddle_status st = HEDDLE_OK;
    world w;
    heddle_comm_options options = plain(DEADLINE_MS);
    options.force_messages = *(const int *)arg == 0;
    options.pretend_hosts = *(const int *)arg;
    HD_TRY(listen_all(&w, launched, DEADLINE_MS));
    HD_TRY(open_comm(&w, &options));
    CHECK(strstr(heddle_comm_describe(w.comm), "tcp") != NULL);
    HD_TRY(passes_around(w.comm, 0));
    HD_TRY(passes_around(w.comm, 900));
    HD_TRY(passes_around(w.comm, 5000000)); /* more than a connection takes at once, both ways */
    for (int i = 0; i < 5; i++) {
        const rc_mode mode = {.memory = i % 2 == 0 ? HEDDLE_MEMORY_PEER : HEDDLE_MEMORY_ANY,
                              .private_src = i % 2,
                              .split_phase = i % 3 == 0,
                              .padded = i == 1};
        HD_TRY(rc_check(w.comm, lines[i], &mode));
    }
out:
    close_world(&w);
    return st;
}

static void moves_what_a_transport_moves(void **state)
{
    (void)state;
    for (int hosts = 0; hosts <= 2; hosts += 2) {
        HD_OK(heddle_run_ranks(RANKS, "shm", moves_all, &hosts));
    }
    int forced = 0;
    HD_OK(heddle_run_ranks(RANKS, "threads", moves_all, &forced));
}

/* Exchanges that are begun in another order than the peer's: each gets its own. */
static heddle_status crosses(heddle_comm *launched, void *arg)
{
    heddle_status st;
    world w;
    void *exchange[2] = {NULL, NULL};
    int64_t sent[2], got[2] = {0, 0};
    int done = 0;
    heddle_transport table;
    (void)arg;
    HD_TRY(listen_all(&w, launched, DEADLINE_MS));
    HD_TRY(hd_tcp_open(&w.tcp, &w.meeting, w.listener));
    table = hd_tcp_table(w.tcp);
    const int rank = w.meeting.rank;
    for (int i = 0; i < 2; i++) {
        const heddle_message message[2] = {{.peer = 1 - rank, .is_send = 1, .run_bytes = 8},
                                           {.peer = 1 - rank, .run_bytes = 8}};
        sent[i] = 10 * i + rank;
        HD_TRY(table.exchange_create(w.tcp, &exchange[i], message, 2, 5 + i));
    }
    for (int turn = 0; turn < 2; turn++) {
        const int i = turn ^ rank;
        HD_TRY(table.exchange_start(w.tcp, exchange[i], &sent[i], &got[i]));
    }
    HD_TRY(heddle_comm_barrier(launched)); /* both letters are there, or on their way */
    for (int i = 0; i < 2; i++) {
        const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(10);
        for (done = 0; !done;) {
            HD_TRY(table.exchange_test(w.tcp, exchange[i], &done));
            CHECK(hd_now_ns() < until_ns);
        }
    }
    CHECK(got[0] == 1 - rank && got[1] == 11 - rank);
    HD_TRY(heddle_comm_barrier(launched));
out:
    for (int i = 0; i < 2; i++) {
        if (exchange[i] != NULL) {
            table.exchange_destroy(w.tcp, exchange[i]);
        }
    }
    hd_tcp_close(w.tcp);
    close_world(&w);
    return st;
}

static void exchanges_are_kept_apart(void **state)
{
    (void)state;
    HD_OK(heddle_run_ranks(2, "shm", crosses, NULL));
}

/* --- who goes ----------------------------------------------------------------------------------------------------- */

typedef enum leaving { GIVES_UP, GOES, VANISHES, IS_LATE, LEAVES_KINDS } leaving;

/* Rank 1 does not come to the barrier. */
static heddle_status loses_one(heddle_comm *launched, void *arg)
{
    static const char *const wanted[] = {"rank 1 gave up: enough", "rank 1 has closed its communicator",
                                         "rank 1 gave up: its connection ended", "rank 1 did not come"};
    const leaving how = *(const leaving *)arg;
    heddle_status st = HEDDLE_OK;
    world w;
    heddle_comm_options options = plain(how == IS_LATE ? hd_test_limit_ns(0.4) / 1000000 : DEADLINE_MS);
    options.force_messages = 1;
    HD_TRY(listen_all(&w, launched, DEADLINE_MS));
    HD_TRY(open_comm(&w, &options));
    HD_TRY(heddle_comm_barrier(launched)); /* nobody is still opening when rank 1 goes */
    const int64_t began_ns = hd_now_ns();
    if (w.meeting.rank == 1) {
        if (how == GIVES_UP) {
            HD_TRY(heddle_comm_abort(w.comm, "enough"));
        } else if (how == GOES) {
            heddle_comm_destroy(w.comm);
            w.comm = NULL;
        }
        for (int r = 0; how == VANISHES && r < RANKS; r++) { /* as the kernel does when a process is killed */
            (void)shutdown(w.tcp->peer[r].fd, SHUT_RDWR);
        }
    } else {
        const heddle_status got = heddle_comm_barrier(w.comm);
        const int is_first = says(wanted[how]) || says("gave up"); /* the news of others may be faster */
        CHECK(got == (how == IS_LATE ? HEDDLE_ERR_TIMEOUT : HEDDLE_ERR_PEER) || got == HEDDLE_ERR_PEER);
        CHECK(is_first);
        CHECK(how == IS_LATE || hd_now_ns() - began_ns < hd_test_limit_ns(5));
    }
    HD_TRY(heddle_comm_barrier(launched));
out:
    close_world(&w);
    return st;
}

static void nobody_waits_for_one_that_goes(void **state)
{
    (void)state;
    for (leaving how = 0; how < LEAVES_KINDS; how++) {
        HD_OK(heddle_run_ranks(RANKS, "shm", loses_one, &how));
    }
}

/* --- meeting ------------------------------------------------------------------------------------------------------ */

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
    const heddle_comm_options options = plain(DEADLINE_MS);
    (void)arg;
    memset(noise, 0x41, sizeof noise);
    HD_TRY(listen_all(&w, launched, DEADLINE_MS));
    const hd_tcp_place *first = &w.place[0];
    fd[0] = call(first, noise, sizeof noise);
    fd[1] = call(first, noise, 5);
    CHECK(fd[0] >= 0 && fd[1] >= 0);
    close(fd[1]);
    fd[1] = -1;
    const struct {
        uint64_t key[2];
        int32_t from, to;
        char word;
    } liar = {{1, 2}, w.meeting.rank, 0, 1};
    fd[2] = call(first, &liar, 25); /* all that a rank says, but for the key */
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

static void strangers_are_sent_away(void **state)
{
    (void)state;
    HD_OK(heddle_run_ranks(3, "shm", meets_strangers, NULL));
}

static int yes(void *arg)
{
    (void)arg;
    return 1;
}

/* Rank 1 calls rank 0, who is not there, is itself, has no address or another key. */
static heddle_status calls_in_vain(heddle_comm *launched, void *arg)
{
    static const char *const wanted[] = {"did not get through to rank 0 before the deadline, at last at ",
                                         "Connection timed out", "no address", "did not get through to rank 0",
                                         "interrupted while ranks met"};
    const int how = *(const int *)arg;
    heddle_status st = HEDDLE_OK;
    world w;
    hd_tcp *tcp = NULL;
    HD_TRY(listen_all(&w, launched, how == 4 ? DEADLINE_MS : 700));
    if (how == 1) {
        w.place[0] = w.place[1];
    } else if (how == 2) {
        memset(w.place[0].address, 0, sizeof w.place[0].address);
    } else if (how == 3 && w.meeting.rank == 1) {
        w.meeting.key[1]++;
    } else if (how == 4) {
        w.meeting.interrupt = (hd_interrupt){.ask = yes};
    }
    const int takes_part = w.meeting.rank == 1 || (how == 3 && w.meeting.rank == 0);
    if (takes_part) {
        const heddle_status got = hd_tcp_open(&tcp, &w.meeting, w.listener);
        CHECK(tcp == NULL && got == (how == 4 ? HEDDLE_ERR_INTERRUPTED : HEDDLE_ERR_TIMEOUT));
        CHECK(says(w.meeting.rank == 1 ? wanted[how] : "rank 0 of 3: 2 ranks did not call before the deadline"));
    }
    HD_TRY(heddle_comm_barrier(launched));
out:
    close_world(&w);
    return st;
}

static void who_is_not_reached_is_named(void **state)
{
    (void)state;
    for (int how = 0; how < 5; how++) {
        HD_OK(heddle_run_ranks(3, "shm", calls_in_vain, &how));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(moves_what_a_transport_moves),   cmocka_unit_test(exchanges_are_kept_apart),
        cmocka_unit_test(nobody_waits_for_one_that_goes), cmocka_unit_test(strangers_are_sent_away),
        cmocka_unit_test(who_is_not_reached_is_named),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
