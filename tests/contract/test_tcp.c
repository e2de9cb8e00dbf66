/* Messages over TCP (runtime/comm/transport/tcp.h): what a transport owes to heddle; ranks that give up, go, vanish or
 * do not come. */
#include "reshard_check.h"
#include "tcp_world.h"

#include <sys/socket.h>

/* --- what a transport owes ---------------------------------------------------------------------------------------- */

static heddle_status moves_all(heddle_comm *launched, void *arg)
{
    static const char *const lines[] = {"u8[t=9 s=7 c=5] on [sp=4]: t@sp -> s@sp as s,t,c",
                                        "i32[t=24 s=37 c=33] on [sp=4]: t@sp -> s@sp",
                                        "bf16[t=5 s=3] on [node=2 gpu=2]: t@node,s@gpu -> s@node",
                                        "f32[t=6 s=6] on [sp=4]: sum@sp -> t@sp",
                                        "f64[t=3] on [sp=4]: t@sp -> *",
                                        "f32[t=6 s=8] on [node=2 sp=2]: t@node -> s@node,sum@sp"};
    heddle_status st = HEDDLE_OK;
    world w;
    heddle_comm_options options = plain(long_ms());
    options.force_messages = *(const int *)arg == 0;
    options.pretend_hosts = *(const int *)arg;
    HD_TRY(listen_all(&w, launched, long_ms()));
    HD_TRY(open_comm(&w, &options));
    CHECK(strstr(heddle_comm_describe(w.comm), "tcp") != NULL);
    HD_TRY(passes_around(w.comm, 0));
    HD_TRY(passes_around(w.comm, 900));
    HD_TRY(passes_around(w.comm, 5000000)); /* more than a connection takes at once, both ways */
    for (int i = 0; i < 6; i++) {
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

HD_CASE(moves_what_a_transport_moves)
{
    for (int hosts = 0; hosts <= 2; hosts += 2) {
        HD_OK(heddle_run_ranks(RANKS, "shm", moves_all, &hosts));
    }
    int forced = 0;
    HD_OK(heddle_run_ranks(RANKS, "threads", moves_all, &forced));
}

static heddle_status settle(const heddle_transport *table, hd_tcp *tcp, void *exchange)
{
    heddle_status st = HEDDLE_OK;
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(10);
    for (int done = 0; !done;) {
        HD_TRY(table->exchange_test(tcp, exchange, &done));
        CHECK(hd_now_ns() < until_ns);
    }
out:
    return st;
}

/* How many lie here that nobody has asked for. */
static int letters_from(const hd_tcp *tcp, int rank)
{
    int n = 0;
    for (const hd_letter *l = tcp->peer[rank].in; l != NULL; l = l->next) {
        n++;
    }
    return n;
}

/* Exchanges that are begun in another order than the peer's: each gets its own, also (lies) where rank 0 begins when
 * both letters lie there. */
static heddle_status crosses(heddle_comm *launched, void *arg)
{
    heddle_status st;
    world w;
    void *exchange[2] = {NULL, NULL};
    int64_t sent[2], got[2] = {0, 0};
    heddle_transport table;
    const int lies = *(const int *)arg;
    HD_TRY(listen_all(&w, launched, long_ms()));
    HD_TRY(hd_tcp_open(&w.tcp, &w.meeting, w.listener));
    table = hd_tcp_table(w.tcp);
    const int rank = w.meeting.rank;
    for (int i = 0; i < 2; i++) {
        const heddle_message message[2] = {{.peer = 1 - rank, .is_send = 1, .run_bytes = 8},
                                           {.peer = 1 - rank, .run_bytes = 8}};
        sent[i] = 10 * i + rank;
        HD_TRY(table.exchange_create(w.tcp, &exchange[i], message, 2, 5 + i));
    }
    for (int i = 0; lies && rank == 0 && letters_from(w.tcp, 1) < 2 && i < 10000; i++) {
        hd_tcp_turn(w.tcp);
        usleep(1000);
    }
    for (int turn = 0; turn < 2; turn++) {
        const int i = turn ^ rank;
        HD_TRY(table.exchange_start(w.tcp, exchange[i], &sent[i], &got[i]));
    }
    for (int i = 0; !hd_tcp_all_out(w.tcp) && i < 10000; i++) {
        hd_tcp_turn(w.tcp);
    }
    HD_TRY(heddle_comm_barrier(launched)); /* both letters are there, or on their way */
    for (int i = 0; i < 2; i++) {
        HD_TRY(settle(&table, w.tcp, exchange[i]));
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

HD_CASE(exchanges_are_kept_apart)
{
    for (int lies = 0; lies < 2; lies++) {
        HD_OK(heddle_run_ranks(2, "shm", crosses, &lies));
    }
}

/* Two ranks that are connected, and 8 bytes from rank 1 to rank 0. */
static heddle_status open_pair(world *w, heddle_transport *table, void **exchange, heddle_comm *launched)
{
    heddle_status st;
    HD_TRY(listen_all(w, launched, long_ms()));
    HD_TRY(hd_tcp_open(&w->tcp, &w->meeting, w->listener));
    *table = hd_tcp_table(w->tcp);
    const heddle_message message = {.peer = 1 - w->meeting.rank, .is_send = w->meeting.rank == 1, .run_bytes = 8};
    st = table->exchange_create(w->tcp, exchange, &message, 1, 5);
out:
    return st;
}

/* Rank 1 sends twice: once before rank 0 waits for anything, and again when that letter lies there already. */
static heddle_status sends_early(heddle_comm *launched, void *arg)
{
    heddle_status st;
    world w;
    void *exchange = NULL;
    int64_t sent = 1, got[2] = {0, 0};
    heddle_transport table;
    (void)arg;
    HD_TRY(open_pair(&w, &table, &exchange, launched));
    const int is_sender = w.meeting.rank == 1;
    for (int turn = 0; turn < 2; turn++) {
        if (is_sender) {
            HD_TRY(table.exchange_start(w.tcp, exchange, &sent, NULL));
            HD_TRY(settle(&table, w.tcp, exchange));
            sent = 2;
        }
        for (int i = 0; !is_sender && turn == 0 && w.tcp->peer[1].in == NULL && i < 10000; i++) {
            hd_tcp_turn(w.tcp);
            usleep(1000);
        }
        HD_TRY(heddle_comm_barrier(launched));
    }
    usleep(is_sender ? 0 : 20000);
    for (int turn = 0; !is_sender && turn < 2; turn++) {
        HD_TRY(table.exchange_start(w.tcp, exchange, NULL, &got[turn]));
        HD_TRY(settle(&table, w.tcp, exchange));
    }
    CHECK(is_sender || (got[0] == 1 && got[1] == 2));
    HD_TRY(heddle_comm_barrier(launched));
out:
    if (exchange != NULL) {
        table.exchange_destroy(w.tcp, exchange);
    }
    hd_tcp_close(w.tcp);
    close_world(&w);
    return st;
}

HD_CASE(letters_that_come_early_keep_their_order)
{
    HD_OK(heddle_run_ranks(2, "shm", sends_early, NULL));
}

/* Rank 1 sends more than is there at once; when a part of it has come rank 0 gives the exchange up: nothing more is
 * written to its array, and what comes behind is read. */
static heddle_status gives_up_half_way(heddle_comm *launched, void *arg)
{
    enum { MUCH = 20000000 };
    heddle_status st;
    world w;
    void *exchange = NULL;
    unsigned char *array = calloc(1, MUCH), own = 3, all[2] = {0, 0};
    heddle_transport table;
    (void)arg;
    HD_TRY(listen_all(&w, launched, long_ms()));
    HD_TRY(hd_tcp_open(&w.tcp, &w.meeting, w.listener));
    table = hd_tcp_table(w.tcp);
    CHECK(array != NULL);
    const int is_sender = w.meeting.rank == 1;
    const heddle_message message = {.peer = 1 - w.meeting.rank, .is_send = is_sender, .run_bytes = MUCH};
    memset(array, is_sender ? 7 : 0, MUCH);
    HD_TRY(table.exchange_create(w.tcp, &exchange, &message, 1, 5));
    if (is_sender) {
        HD_TRY(table.exchange_start(w.tcp, exchange, array, NULL));
        HD_TRY(heddle_comm_barrier(launched));
        HD_TRY(settle(&table, w.tcp, exchange));
    } else {
        HD_TRY(table.exchange_start(w.tcp, exchange, NULL, array));
        for (int i = 0; array[0] == 0 && i < 10000; i++) {
            hd_tcp_turn(w.tcp);
            usleep(100);
        }
        CHECK(array[0] == 7 && array[MUCH - 1] == 0);
        table.exchange_destroy(w.tcp, exchange);
        exchange = NULL;
        memset(array, 0, MUCH);
        HD_TRY(heddle_comm_barrier(launched)); /* until then rank 1 does not look, and so writes no more */
    }
    HD_TRY(table.allgather(w.tcp, &own, all, 1, hd_now_ns() + hd_test_limit_ns(10)));
    CHECK(all[0] == 3 && all[1] == 3);
    for (int i = 0; !is_sender && i < MUCH; i++) {
        CHECK(array[i] == 0);
    }
    HD_TRY(heddle_comm_barrier(launched));
out:
    if (exchange != NULL) {
        table.exchange_destroy(w.tcp, exchange);
    }
    hd_tcp_close(w.tcp);
    close_world(&w);
    free(array);
    return st;
}

HD_CASE(bytes_for_one_that_gave_up_go_nowhere)
{
    HD_OK(heddle_run_ranks(2, "shm", gives_up_half_way, NULL));
}

/* Rank 1 sends once and closes; rank 0 receives twice. */
static heddle_status receives_twice(heddle_comm *launched, void *arg)
{
    heddle_status st;
    world w;
    void *exchange = NULL;
    int64_t sent = 5, got[2] = {0, 0};
    heddle_transport table;
    (void)arg;
    HD_TRY(open_pair(&w, &table, &exchange, launched));
    const int is_sender = w.meeting.rank == 1;
    for (int turn = 0; turn < (is_sender ? 1 : 2); turn++) {
        HD_TRY(table.exchange_start(w.tcp, exchange, &sent, &got[turn]));
        st = settle(&table, w.tcp, exchange);
        CHECK(st == (turn == 0 ? HEDDLE_OK : HEDDLE_ERR_PEER));
    }
    CHECK(is_sender || (got[0] == 5 && says("rank 1 has closed its communicator")));
    st = HEDDLE_OK;
out:
    if (exchange != NULL) {
        table.exchange_destroy(w.tcp, exchange);
    }
    hd_tcp_close(w.tcp);
    heddle_ignore(heddle_comm_barrier(launched));
    close_world(&w);
    return st;
}

HD_CASE(nobody_waits_for_the_message_of_one_that_closed)
{
    HD_OK(heddle_run_ranks(2, "shm", receives_twice, NULL));
}

/* --- what a connection may bring ---------------------------------------------------------------------------------- */

typedef enum trouble { TAKEN_BACK, TOO_LARGE, CLOSED_AT_ONCE, TROUBLES } trouble;
enum { LARGE_BYTES = 12000000 };

/* Rank 0 takes a letter back that is half out, or says that one of a size comes that none has. */
static heddle_status spoils(world *w, const heddle_transport *table, trouble which)
{
    heddle_status st = HEDDLE_OK;
    const heddle_message message = {.peer = 1, .is_send = 1, .run_bytes = LARGE_BYTES};
    const hd_letter_head head = {.bytes = (uint64_t)HD_LETTER_BYTES + 1, .kind = HD_LETTER_GATHER};
    void *exchange = NULL, *src = calloc(1, LARGE_BYTES);
    CHECK(src != NULL);
    if (which == TAKEN_BACK) {
        HD_TRY(table->exchange_create(w->tcp, &exchange, &message, 1, 0));
        HD_TRY(table->exchange_start(w->tcp, exchange, src, NULL));
        CHECK(w->tcp->peer[1].out != NULL && w->tcp->peer[1].out->sent > 0);
        table->exchange_destroy(w->tcp, exchange);
    } else {
        CHECK(send(w->tcp->peer[1].fd, &head, sizeof head, MSG_NOSIGNAL) == (ssize_t)sizeof head);
    }
out:
    free(src);
    return st;
}

static heddle_status has_trouble(heddle_comm *launched, void *arg)
{
    const trouble which = *(const trouble *)arg;
    heddle_status st;
    world w;
    char *large = calloc(1, LARGE_BYTES), own = 1, all[2] = {0};
    HD_TRY(listen_all(&w, launched, long_ms()));
    HD_TRY(hd_tcp_open(&w.tcp, &w.meeting, w.listener));
    const heddle_transport table = hd_tcp_table(w.tcp);
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(8);
    CHECK(large != NULL);
    if (w.meeting.rank == 1 && which == CLOSED_AT_ONCE) {
        hd_letter *l = NULL;
        while (l == NULL && hd_now_ns() < until_ns) {
            hd_tcp_turn(w.tcp);
            l = hd_tcp_take(w.tcp, 0, HD_LETTER_PAIR, 0);
        }
        CHECK(l != NULL && l->data[LARGE_BYTES - 1] == 7);
        hd_free(l);
    } else if (w.meeting.rank == 1) {
        HD_TRY(heddle_comm_barrier(launched)); /* it reads nothing before */
        CHECK(table.allgather(w.tcp, &own, all, 1, until_ns) == HEDDLE_ERR_PEER);
        CHECK(which != TOO_LARGE || says("rank 1 has no memory for 1073741825 bytes of rank 0"));
    } else if (which == CLOSED_AT_ONCE) {
        large[LARGE_BYTES - 1] = 7;
        HD_TRY(hd_tcp_send(w.tcp, 1, HD_LETTER_PAIR, large, LARGE_BYTES));
        hd_tcp_close(w.tcp);
        w.tcp = NULL;
    } else {
        HD_TRY(spoils(&w, &table, which));
        HD_TRY(heddle_comm_barrier(launched));
        (void)table.allgather(w.tcp, &own, all, 1, until_ns); /* rank 1 may have sent before it saw */
    }
    HD_TRY(heddle_comm_barrier(launched));
out:
    free(large);
    hd_tcp_close(w.tcp);
    close_world(&w);
    return st;
}

HD_CASE(letters_are_whole_or_end_the_connection)
{
    for (trouble which = 0; which < TROUBLES; which++) {
        HD_OK(heddle_run_ranks(2, "shm", has_trouble, &which));
    }
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
    heddle_comm_options options = plain(how == IS_LATE ? hd_test_missed_ns(0.4) / 1000000 : long_ms());
    options.force_messages = 1;
    HD_TRY(listen_all(&w, launched, long_ms()));
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
        const int is_told = says(wanted[how]); /* also by others, whose news may be faster */
        CHECK(got == (how == IS_LATE ? HEDDLE_ERR_TIMEOUT : HEDDLE_ERR_PEER) || got == HEDDLE_ERR_PEER);
        CHECK(is_told);
        CHECK(how == IS_LATE || hd_now_ns() - began_ns < hd_test_limit_ns(5));
    }
    HD_TRY(heddle_comm_barrier(launched));
out:
    close_world(&w);
    return st;
}

HD_CASE(nobody_waits_for_one_that_goes)
{
    for (leaving how = 0; how < LEAVES_KINDS; how++) {
        HD_OK(heddle_run_ranks(RANKS, "shm", loses_one, &how));
    }
}
