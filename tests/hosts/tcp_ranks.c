/* Run by tests/hosts/tcp.sh, a case at a time: ranks on two hosts meet by TCP and move data; the cable between them is
 * cut, one of them is killed, and the hosts cannot reach one another. */
#include "on_host.h"
#include "reshard_check.h"
#include "tcp_world.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { BIG_BYTES = 8000000, TURNS_BEFORE = 5 };

/* --- all is well -------------------------------------------------------------------------------------------------- */

static heddle_status moves(heddle_comm *launched, void *arg)
{
    static const char *const lines[] = {"f32[t=24 s=34 c=65] on [node=2 gpu=2]: t@node,s@gpu -> s@node,t@gpu as s,t,c",
                                        "u8[t=9 s=7 c=5] on [sp=4]: t@sp -> s@sp as s,t,c",
                                        "bf16[t=61 s=53 c=64] on [sp=4]: t@sp -> s@sp",
                                        "f32[t=6 s=6] on [sp=4]: sum@sp -> t@sp", "f64[t=3] on [sp=4]: t@sp -> *"};
    heddle_status st = HEDDLE_OK;
    world w = {.listener = -1};
    const heddle_comm_options options = plain(long_ms());
    const uint8_t *silent = arg;
    HD_TRY(move_to_host(launched));
    HD_TRY(listen_all(&w, launched, long_ms()));
    CHECK(silent == NULL || memcmp(w.place[0].address[0].bytes, silent, 4) == 0); /* else nothing is tested */
    HD_TRY(open_comm(&w, &options));
    CHECK(strstr(heddle_comm_describe(w.comm), "4 ranks, 2 on this host") != NULL);
    HD_TRY(passes_around(w.comm, 0));
    HD_TRY(passes_around(w.comm, 900));
    HD_TRY(passes_around(w.comm, BIG_BYTES));
    for (int i = 0; i < 5; i++) {
        const rc_mode mode = {.memory = i % 2 == 0 ? HEDDLE_MEMORY_PEER : HEDDLE_MEMORY_ANY, .split_phase = i % 3 == 0};
        HD_TRY(rc_check(w.comm, lines[i], &mode));
    }
out:
    close_world(&w);
    return st;
}

HD_CASE(ranks_move_data)
{
    HD_OK(heddle_run_ranks(RANKS, "shm", moves, NULL));
}

/* The first address of the first host does not answer on the other one. */
HD_CASE(an_address_is_silent)
{
    HD_OK(heddle_run_ranks(RANKS, "shm", moves, (uint8_t[]){10, 99, 0, 1}));
}

/* Rank 2, of the second host, listens where rank 0 is on the first one. Its host's ranks do not call there: the cable
 * is theirs. */
static heddle_status meets_a_namesake(heddle_comm *launched, void *arg)
{
    static const uint8_t shared_address[4] = {10, 17, 0, 1};
    heddle_status st = HEDDLE_OK;
    world w = {.listener = -1};
    struct sockaddr_in at = {.sin_family = AF_INET};
    const heddle_comm_options options = plain(long_ms());
    int namesake = -1;
    (void)arg;
    HD_TRY(move_to_host(launched));
    namesake = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    HD_TRY(listen_all(&w, launched, long_ms()));
    CHECK(memcmp(w.place[0].address[0].bytes, shared_address, sizeof shared_address) == 0); /* else nothing is tested */
    if (w.meeting.rank == 2) {
        memcpy(&at.sin_addr, shared_address, sizeof shared_address);
        memcpy(&at.sin_port, w.place[0].port, sizeof at.sin_port);
        CHECK(bind(namesake, (struct sockaddr *)&at, sizeof at) == 0 && listen(namesake, 9) == 0);
    }
    HD_TRY(heddle_comm_barrier(launched));
    HD_TRY(open_comm(&w, &options));
    CHECK(w.meeting.rank != 2 || accept(namesake, NULL, NULL) < 0);
    HD_TRY(passes_around(w.comm, 900));
out:
    if (namesake >= 0) {
        close(namesake);
    }
    close_world(&w);
    return st;
}

HD_CASE(both_hosts_have_the_address)
{
    HD_OK(heddle_run_ranks(RANKS, "shm", meets_a_namesake, NULL));
}

/* --- the end of it ------------------------------------------------------------------------------------------------ */

typedef struct board {
    _Atomic int turns, victim; /* -1: the cable */
    _Atomic int64_t ended_ns, noticed_ns[RANKS];
    heddle_status status[RANKS];
    char sentence[RANKS][512];
} board;

static board *shared;

/* Until it fails, large messages from every rank to every other one. */
static heddle_status works(heddle_comm *launched, void *arg)
{
    const int64_t deadline_ms = *(const int64_t *)arg;
    heddle_status st = HEDDLE_OK;
    world w = {.listener = -1};
    const heddle_comm_options options = plain(deadline_ms);
    heddle_reshard_line line;
    heddle_reshard_options any;
    heddle_reshard *reshard = NULL;
    float *src = NULL, *dst = NULL;
    const int rank = heddle_comm_rank(launched);
    shared->status[rank] = HEDDLE_ERR_INTERNAL;
    HD_TRY(move_to_host(launched));
    HD_TRY(listen_all(&w, launched, long_ms()));
    HD_TRY(open_comm(&w, &options));
    HD_TRY(heddle_reshard_parse(&line, "f32[t=128 s=128 c=64] on [sp=4]: t@sp -> s@sp"));
    heddle_reshard_options_init(&any);
    any.memory = HEDDLE_MEMORY_ANY;
    HD_TRY(heddle_reshard_create_line(&reshard, w.comm, &line, &any));
    src = calloc(32 * 128 * 64, sizeof *src);
    dst = calloc(32 * 128 * 64, sizeof *dst);
    CHECK(src != NULL && dst != NULL);
    HD_TRY(heddle_comm_barrier(launched));
    for (int turn = 0; st == HEDDLE_OK; turn++) {
        if (rank == shared->victim && turn == TURNS_BEFORE) {
            shared->ended_ns = hd_now_ns();
            raise(SIGKILL);
        }
        if (rank == 0) {
            shared->turns = turn;
        }
        st = heddle_reshard_execute(reshard, src, dst, HEDDLE_NO_STREAM);
    }
    shared->noticed_ns[rank] = hd_now_ns();
    shared->status[rank] = st;
out:
    snprintf(shared->sentence[rank], sizeof shared->sentence[rank], "%s", heddle_last_error());
    heddle_reshard_destroy(reshard);
    close_world(&w);
    free(src);
    free(dst);
    return st;
}

static void set_cables(const char *state)
{
    char command[256];
    snprintf(command, sizeof command, "ip -n $HEDDLE_HOST_B link set data %s; ip -n $HEDDLE_HOST_B link set manage %s",
             state, state);
    assert_int_equal(system(command), 0);
}

/* A process beside the ranks. */
static pid_t start_cutting(void)
{
    const pid_t pid = fork();
    if (pid == 0) {
        while (shared->turns < TURNS_BEFORE) {
            usleep(1000);
        }
        set_cables("down");
        shared->ended_ns = hd_now_ns();
        _exit(0);
    }
    return pid;
}

/* Of each rank but the victim: by that time, with one of these sentences. */
static void check_survivors(double limit_s, const char *wanted)
{
    for (int r = 0; r < RANKS; r++) {
        const heddle_status got = shared->status[r];
        if (r == shared->victim) {
            continue;
        }
        print_message("rank %d after %.2f s: %s\n", r, (double)(shared->noticed_ns[r] - shared->ended_ns) * 1e-9,
                      shared->sentence[r]);
        assert_true(got == HEDDLE_ERR_PEER || got == HEDDLE_ERR_TIMEOUT);
        assert_true(strstr(shared->sentence[r], wanted) != NULL || strstr(shared->sentence[r], "gave up") != NULL);
        assert_true(shared->noticed_ns[r] - shared->ended_ns < hd_test_limit_ns(limit_s));
    }
}

static void make_board(int victim)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    shared->victim = victim;
}

HD_CASE(the_cable_is_cut)
{
    int64_t deadline_ms = hd_test_limit_ns(1.5) / 1000000;
    int how = 0;
    make_board(-1);
    const pid_t cutter = start_cutting();
    const heddle_status st = heddle_run_ranks(RANKS, "shm", works, &deadline_ms);
    kill(cutter, SIGKILL);
    waitpid(cutter, &how, 0);
    set_cables("up");
    assert_true(st != HEDDLE_OK && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    check_survivors(4.5, "deadline");
}

HD_CASE(a_rank_is_killed)
{
    int64_t deadline_ms = long_ms();
    make_board(3);
    assert_true(heddle_run_ranks(RANKS, "shm", works, &deadline_ms) != HEDDLE_OK);
    check_survivors(2, "rank 3");
}

/* --- no way ------------------------------------------------------------------------------------------------------- */

static heddle_status is_alone(heddle_comm *launched, void *arg)
{
    static const char *const wanted[] = {"rank 0 of 2: 1 ranks did not call before the deadline, rank 1 is the first",
                                         "rank 1 of 2 did not get through to rank 0 before the deadline, at last at "};
    heddle_status st = HEDDLE_OK;
    world w = {.listener = -1};
    hd_tcp *tcp = NULL;
    (void)arg;
    HD_TRY(move_to_host(launched));
    HD_TRY(listen_all(&w, launched, 1000));
    for (int i = 0; i < HD_TCP_ADDRESSES; i++) { /* fe80:... is of a cable, not of a host */
        CHECK(w.place[0].address[i].version != 6 || w.place[0].address[i].bytes[0] != 0xfe);
    }
    const int64_t began_ns = hd_now_ns();
    CHECK(hd_tcp_open(&tcp, &w.meeting, w.listener) == HEDDLE_ERR_TIMEOUT && tcp == NULL);
    CHECK(says(wanted[w.meeting.rank]));
    CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(3));
    HD_TRY(heddle_comm_barrier(launched));
out:
    close_world(&w);
    return st;
}

HD_CASE(hosts_have_no_route)
{
    HD_OK(heddle_run_ranks(2, "shm", is_alone, NULL));
}
