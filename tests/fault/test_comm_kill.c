/* Processes that are killed: the survivors return within two seconds naming the dead rank, nothing is left behind. */
#include "case.h"
#include "ended.h"
#include "left_over.h"
#include "time_limit.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/verify/random.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4 };

typedef struct board {
    _Atomic int pid[RANKS];
    _Atomic int64_t killed_ns;
    _Atomic int64_t noticed_ns[RANKS];
    heddle_status status[RANKS];
    char sentence[RANKS][256];
} board;

static board *shared;

static void forget(void)
{
    if (shared == NULL) {
        shared = hd_shared(sizeof *shared);
    }
    memset(shared, 0, sizeof *shared);
}

/* Until somebody is killed. Different ranks wait in different ways. */
static heddle_status work_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    int me = heddle_comm_rank(comm);
    int n = heddle_comm_size(comm);
    hd_link *link = NULL;
    char own[3000] = {0};
    char all[3000 * RANKS];
    shared->pid[me] = getpid();
    HD_TRY(hd_link_create(&link, comm));
    for (uint64_t i = 1; i < 100000000; i++) {
        HD_TRY(heddle_comm_allgather(comm, own, all, i % 7 == 0 ? sizeof own : 8));
        HD_TRY(hd_link_post(link, (me + 1) % n, 0, i, NULL, 0));
        HD_TRY(hd_link_wait(link, (me + n - 1) % n, 0, i, NULL, 0, hd_comm_deadline_ns(comm, 0), "work"));
        HD_TRY(heddle_comm_sendrecv(comm, own, sizeof own, (me + 1) % n, all, sizeof own, (me + n - 1) % n,
                                    HEDDLE_NO_STREAM));
        if (i % 16 == 0 && me == (int)(i / 16 % (uint64_t)n)) {
            usleep(100);
        }
    }
out:
    shared->noticed_ns[me] = hd_now_ns();
    shared->status[me] = st;
    snprintf(shared->sentence[me], sizeof shared->sentence[me], "%s", heddle_last_error());
    hd_link_destroy(link);
    return st;
}

/* A process beside the ranks that kills one of them after a while. */
static pid_t start_killer(int victim, int after_us)
{
    pid_t pid = fork();
    if (pid == 0) {
        while (shared->pid[victim] == 0) {
            usleep(100);
        }
        usleep((useconds_t)after_us);
        shared->killed_ns = hd_now_ns();
        kill(shared->pid[victim], SIGKILL);
        _exit(0);
    }
    return pid;
}

HD_CASE(survivors_name_the_dead)
{
    const holdings before = holdings_now();
    random_source source = {7};
    for (int turn = 0; turn < hd_rounds(20); turn++) {
        int victim = turn % RANKS;
        forget();
        pid_t killer = start_killer(victim, (int)random_between(&source, 0, 29999));
        HD_FAILS(HEDDLE_ERR_PEER, run_to_their_end(RANKS, turn / RANKS % 2 ? "tcp" : "shm", work_rank, NULL));
        char name[32];
        snprintf(name, sizeof name, "rank %d was killed by signal 9", victim);
        assert_non_null(strstr(heddle_last_error(), name));
        snprintf(name, sizeof name, "rank %d", victim);
        for (int r = 0; r < RANKS; r++) {
            if (r == victim) {
                continue;
            }
            assert_int_equal(shared->status[r], HEDDLE_ERR_PEER);
            assert_non_null(strstr(shared->sentence[r], name));
            assert_true(shared->noticed_ns[r] - shared->killed_ns < hd_test_limit_ns(1.5));
        }
        assert_int_equal(waitpid(killer, NULL, 0), killer);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    }
    assert_nothing_left(before);
}

static heddle_status short_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    char all[64];
    heddle_status st = heddle_comm_barrier(comm);
    for (int i = 0; i < 5 && st == HEDDLE_OK; i++) {
        st = heddle_comm_sendrecv(comm, "x", 1, (heddle_comm_rank(comm) + 1) % heddle_comm_size(comm), all, 1,
                                  (heddle_comm_rank(comm) + heddle_comm_size(comm) - 1) % heddle_comm_size(comm),
                                  HEDDLE_NO_STREAM);
    }
    return st;
}

HD_CASE(killed_at_every_call)
{
    const holdings before = holdings_now();
    for (int n = 1; n <= 12; n++) {
        for (int victim = 0; victim < 3; victim++) {
            char where[64];
            char name[64];
            snprintf(where, sizeof where, "fault(kill=%d@%d):%s", (n + 1) / 2, victim, n % 2 ? "shm" : "tcp");
            HD_FAILS(HEDDLE_ERR_PEER, run_to_their_end(3, where, short_rank, NULL));
            snprintf(name, sizeof name, "rank %d was killed by signal 9", victim);
            assert_non_null(strstr(heddle_last_error(), name));
        }
    }
    HD_OK(heddle_run_ranks(3, "fault(kill=100@2):shm", short_rank, NULL));
    assert_nothing_left(before);
}

/* A rank may also be killed before the ranks have met: from the first moment on. */
HD_CASE(killed_while_meeting)
{
    for (int turn = 0; turn < hd_rounds(40); turn++) {
        forget();
        int64_t start_ns = hd_now_ns();
        pid_t run = fork();
        if (run == 0) {
            heddle_status st = heddle_run_ranks(RANKS, turn / RANKS % 2 ? "tcp" : "shm", work_rank, NULL);
            _exit(st == HEDDLE_ERR_PEER ? 0 : 1);
        }
        pid_t victim = 0;
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)run, (int)run);
        while (victim == 0 && hd_now_ns() - start_ns < hd_test_limit_ns(5)) {
            FILE *file = fopen(path, "r");
            int pids[RANKS] = {0};
            int n = 0;
            while (file != NULL && n < RANKS && fscanf(file, "%d", &pids[n]) == 1) {
                n++;
            }
            if (file != NULL) {
                fclose(file);
            }
            victim = n > turn % RANKS ? pids[turn % RANKS] : 0;
        }
        assert_true(victim > 0);
        usleep((useconds_t)(turn * 50));
        kill(victim, SIGKILL);
        int wait_status = 0;
        assert_int_equal(waitpid(run, &wait_status, 0), run);
        assert_int_equal(wait_status, 0);
        assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(3));
    }
}

/* A process that goes on after a rank has died: nothing of the communicator is open or mapped any more. */
static int joins_and_goes_on(int rank)
{
    char number[16];
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"a", 2}, {"b", 2}}};
    heddle_comm *comm = NULL, *axis = NULL;
    void *buffer = NULL;
    heddle_status st = HEDDLE_OK;
    const holdings before = holdings_now();
    snprintf(number, sizeof number, "%d", rank);
    setenv("HEDDLE_RANK", number, 1);
    HD_TRY(heddle_comm_open(&comm, "shm", NULL));
    HD_TRY(heddle_buffer_alloc(&buffer, comm, 5000000, HEDDLE_SPACE_HOST));
    HD_TRY(heddle_comm_axis_group(&axis, comm, &mesh, 1));
    HD_TRY(heddle_comm_barrier(comm));
    if (rank == 1) {
        raise(SIGKILL);
    }
    st = heddle_comm_barrier(comm);
out:
    heddle_buffer_free(comm, buffer);
    heddle_comm_destroy(axis);
    heddle_comm_destroy(comm);
    if (st != HEDDLE_ERR_PEER) {
        fprintf(stderr, "rank %d: %d, %s\n", rank, (int)st, heddle_last_error());
    }
    assert_nothing_left(before);
    return st != HEDDLE_ERR_PEER;
}

HD_CASE(survivors_hold_nothing)
{
    char key[32];
    pid_t pid[RANKS];
    snprintf(key, sizeof key, "hold-%d", (int)getpid());
    setenv("HEDDLE_KEY", key, 1);
    setenv("HEDDLE_SIZE", "4", 1);
    for (int r = 0; r < RANKS; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            _exit(joins_and_goes_on(r));
        }
    }
    for (int r = 0; r < RANKS; r++) {
        int ended = 0;
        assert_int_equal(waitpid(pid[r], &ended, 0), pid[r]);
        assert_int_equal(ended, r == 1 ? SIGKILL : 0);
    }
}

/* The process that waits for the ranks is killed: they go as well. */
HD_CASE(ranks_die_with_their_parent)
{
    forget();
    pid_t run = fork();
    if (run == 0) {
        heddle_ignore(heddle_run_ranks(RANKS, "shm", work_rank, NULL));
        _exit(0);
    }
    for (int r = 0; r < RANKS; r++) {
        while (shared->pid[r] == 0) {
            usleep(1000);
        }
    }
    kill(run, SIGKILL);
    assert_int_equal(waitpid(run, NULL, 0), run);
    int64_t start_ns = hd_now_ns();
    for (int r = 0; r < RANKS; r++) {
        char path[64];
        char state_letter = 'R';
        snprintf(path, sizeof path, "/proc/%d/stat", shared->pid[r]);
        for (;;) { /* gone, or a zombie that the system's first process has not taken yet */
            FILE *file = fopen(path, "r");
            if (file == NULL || fscanf(file, "%*d (%*[^)]) %c", &state_letter) != 1 || state_letter == 'Z') {
                if (file != NULL) {
                    fclose(file);
                }
                break;
            }
            fclose(file);
            assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(1));
            usleep(1000);
        }
    }
}

/* exit() inside a rank, and a rank that does not stop when another has failed. */
static heddle_status odd_rank(heddle_comm *comm, void *arg)
{
    int what = *(int *)arg;
    if (heddle_comm_rank(comm) == 1) {
        if (what == 0) {
            exit(3);
        }
        return hd_fail(HEDDLE_ERR_IO, "the real reason");
    }
    while (what == 1 && heddle_comm_rank(comm) == 0) {
        usleep(10000);
    }
    return heddle_comm_barrier(comm);
}

HD_CASE(odd_ends)
{
    for (int what = 0; what < 2; what++) {
        int64_t start_ns = hd_now_ns();
        heddle_status st = heddle_run_ranks(3, "shm", odd_rank, &what);
        assert_int_equal(st, what == 0 ? HEDDLE_ERR_PEER : HEDDLE_ERR_IO);
        assert_string_equal(heddle_last_error(), what == 0
                                                     ? "rank 1 ended with exit code 3 before its function returned"
                                                     : "rank 1: the real reason");
        assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(4));
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    }
}
