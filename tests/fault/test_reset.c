/* After a failure of any kind all ranks reset the communicator and go on with the plans that they have, to the same
 * bits; a hundred times in one process, and nothing is left. A rank that died or left cannot come back. */
#include "../contract/crossed_calls.h"
#include "case.h"
#include "draw.h"
#include "time_limit.h"

#include <dirent.h>
#include <stdatomic.h>
#include <unistd.h>

enum { FAILURES = 100, SHORT_MS = 400, LONG_MS = 100000, SOME_MS = 20, ROOM_BYTES = 1 << 20 };

typedef enum failure {
    A_MISMATCH,   /* ranks in different calls */
    AN_ABORT,     /* by one, the others wait */
    AN_EXCEPTION, /* one never calls, and resets */
    A_LATE_RANK,  /* a plan's own short deadline */
    A_REFUSAL,    /* of a creation, on one rank */
    AN_INTERRUPT, /* of one */
    IN_FLIGHT,    /* started, never waited for */
    NO_FAILURE,
    FAILURES_KINDS
} failure;

static _Thread_local int is_interrupted;

static int ask(void *arg)
{
    (void)arg;
    return is_interrupted;
}

/* --- what goes on afterwards -------------------------------------------------------------------------------------- */

/* Every plan moves what it should: t of plan p has t's number at every place. */
static heddle_status check_moves(crossed *c)
{
    heddle_status st = HEDDLE_OK;
    const int me = heddle_comm_rank(c->comm), n = heddle_comm_size(c->comm);
    for (int p = 0; p < 2; p++) {
        const int frames = p == 0 ? 32 : 16, places = p == 0 ? 16 : 32;
        const int each = frames / n, more = frames % n, first = me * each + (me < more ? me : more);
        const int own = each + (me < more), wide = places / n + (me < places % n);
        for (int t = 0; t < own; t++) {
            for (int s = 0; s < places; s++) {
                c->src[t * places + s] = (float)(1000 * p + first + t);
            }
        }
        memset(c->dst, 0, CROSSED_ELEMS * sizeof(float));
        HD_TRY(heddle_reshard_execute(c->plan[p], c->src, c->dst, HEDDLE_NO_STREAM));
        for (int t = 0; t < frames; t++) {
            for (int s = 0; s < wide; s++) {
                CHECK(c->dst[t * wide + s] == (float)(1000 * p + t));
            }
        }
    }
out:
    return st;
}

static heddle_status check_all(crossed *c, float *forward, int is_first)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(check_moves(c));
    for (int call = 0; call < CALLS; call++) {
        HD_TRY(crossed_do(c, (crossed_call)call));
    }
    for (int i = 0; i < 3 * 512; i++) {
        c->src[i] = (float)(i % 37) / 37;
    }
    HD_TRY(crossed_forward(c));
    if (is_first) {
        memcpy(forward, c->dst + 3 * 512, 128 * sizeof(float));
    }
    CHECK(memcmp(forward, c->dst + 3 * 512, 128 * sizeof(float)) == 0);
out:
    return st;
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

static heddle_status fail_once(crossed *c, failure kind, int who, crossed_call call)
{
    const int is_who = heddle_comm_rank(c->comm) == who;
    heddle_reshard *plan = NULL;
    heddle_status st = HEDDLE_OK;
    switch (kind) {
    case A_MISMATCH:
        return crossed_do(c, is_who ? (call + 1) % CALLS : call);
    case AN_ABORT:
        return is_who ? heddle_comm_abort(c->comm, "the soup is cold") : crossed_do(c, call);
    case A_REFUSAL:
        st = crossed_plan(&plan, c->comm,
                          is_who ? "f32[t=6 s=9] on [other=%d]: t@other -> s@other"
                                 : "f32[t=6 s=9] on [sp=%d]: t@sp -> s@sp");
        heddle_reshard_destroy(plan);
        return st;
    case A_LATE_RANK:
        usleep(is_who ? 3 * SHORT_MS * 1000 : 0);
        return heddle_reshard_execute(c->short_plan, c->src, c->dst, HEDDLE_NO_STREAM);
    case AN_INTERRUPT:
        is_interrupted = is_who;
        usleep(is_who ? 0 : SOME_MS * 1000);
        st = crossed_do(c, call);
        is_interrupted = 0;
        return st;
    case IN_FLIGHT:
        return is_who ? HEDDLE_OK : heddle_reshard_start(c->plan[2], c->src, c->more, HEDDLE_NO_STREAM);
    case NO_FAILURE:
        return crossed_do(c, call);
    default:
        return is_who ? HEDDLE_OK : crossed_do(c, call);
    }
}

static int count_files(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL) {
        n++;
    }
    closedir(folder);
    return n;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MORE_PAGES = 1 << 18 }; /* they keep what is freed */
#else
enum { MORE_PAGES = 2000 };
#endif

/* Pages of this process, without those of files. */
static long resident(void)
{
    long all = 0, held = 0, shared = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld %ld", &all, &held, &shared) != 3) {
        held = -1;
    }
    fclose(file);
    return held;
}

/* One rank after the other: looking opens files, and ranks may be threads of one process. */
static heddle_status look(heddle_comm *comm, int *files, long *pages)
{
    heddle_status st = HEDDLE_OK;
    for (int rank = 0; rank < heddle_comm_size(comm); rank++) {
        HD_TRY(heddle_comm_barrier(comm));
        if (rank == heddle_comm_rank(comm)) {
            *files = count_files();
            *pages = resident();
        }
    }
    HD_TRY(heddle_comm_barrier(comm));
out:
    return st;
}

static heddle_status fails_often(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    crossed c;
    float forward[128];
    random_source all = {11};
    const int n = heddle_comm_size(comm), failures = hd_rounds(n > 2 ? FAILURES / 3 : FAILURES);
    int files = 0, files_now = 0, failed = 0;
    long pages = 0, pages_now = 0;
    (void)arg;
    HD_TRY(crossed_open(&c, comm));
    HD_TRY(check_all(&c, forward, 1));
    for (int i = 0; i < failures; i++) {
        const failure kind = (failure)(i < FAILURES_KINDS ? i : random_between(&all, 0, FAILURES_KINDS - 1));
        const int who = (int)random_between(&all, 0, n - 1);
        const crossed_call call = (crossed_call)random_between(&all, 0, CALLS - 1);
        void *room = NULL;
        HD_TRY(heddle_buffer_alloc(&room, comm, ROOM_BYTES, HEDDLE_SPACE_HOST));
        failed += fail_once(&c, kind, who, call) != HEDDLE_OK;
        heddle_buffer_free(comm, room); /* peers may still be copying, as far as that is known */
        HD_TRY(heddle_comm_reset(comm));
        if (kind == IN_FLIGHT && heddle_comm_rank(comm) != who) {
            CHECK(heddle_reshard_wait(c.plan[2]) == HEDDLE_ERR_PEER);
        }
        HD_TRY(check_all(&c, forward, 0));
        if (i == failures / 4) {
            HD_TRY(look(comm, &files, &pages));
        }
    }
    CHECK(failed > failures / 5);
    HD_TRY(look(comm, &files_now, &pages_now));
    CHECK(files_now <= files && pages_now < pages + MORE_PAGES);
out:
    crossed_close(&c);
    return st;
}

static void fail_on(const char *transport, int n)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = LONG_MS;
    options.interrupt = ask;
    HD_OK(heddle_run_ranks_with(n, transport, &options, fails_often, NULL));
}

HD_CASE(two_threads_go_on)
{
    fail_on("threads", 2);
}

HD_CASE(four_threads_go_on)
{
    fail_on("threads", 4);
}

HD_CASE(three_processes_go_on)
{
    fail_on("shm", 3);
}

/* --- who does not come -------------------------------------------------------------------------------------------- */

static heddle_status late_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    _Atomic int *has_failed = arg;
    if (heddle_comm_rank(comm) == 0) {
        CHECK(heddle_comm_reset(comm) == HEDDLE_ERR_TIMEOUT);
        CHECK(strstr(heddle_last_error(), "rank 1 did not come in time (reset of the communicator)") != NULL);
        atomic_store(has_failed, 1);
    }
    while (!atomic_load(has_failed)) {
        usleep(1000);
    }
    HD_TRY(heddle_comm_reset(comm)); /* it may be called again */
    HD_TRY(heddle_comm_barrier(comm));
out:
    return st;
}

HD_CASE(a_late_rank)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = hd_test_limit_ns(1e-3 * SHORT_MS) / 1000000; /* of what goes on afterwards, too */
    HD_OK(heddle_run_ranks_with(2, "threads", &options, late_rank, hd_shared(sizeof(_Atomic int))));
    HD_OK(heddle_run_ranks_with(2, "shm", &options, late_rank, hd_shared(sizeof(_Atomic int))));
}

static heddle_status gone_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    _Atomic int *told = arg; /* [0]; [1]: rank 1 dies */
    if (heddle_comm_rank(comm) == 1) {
        if (told[1]) {
            _exit(0);
        }
        return HEDDLE_OK;
    }
    CHECK(heddle_comm_reset(comm) == HEDDLE_ERR_PEER);
    CHECK(strstr(heddle_last_error(), told[1] ? "rank 1 died" : "rank 1 has closed its communicator") != NULL);
    CHECK(strstr(heddle_last_error(), "cannot come to the reset") != NULL);
    CHECK(heddle_comm_barrier(comm) == HEDDLE_ERR_PEER);
    atomic_fetch_add(told, 1);
out:
    return st;
}

HD_CASE(a_rank_that_is_gone)
{
    _Atomic int *told = hd_shared(2 * sizeof *told);
    HD_OK(heddle_run_ranks(2, "threads", gone_rank, told));
    HD_OK(heddle_run_ranks(2, "shm", gone_rank, told));
    assert_int_equal(told[0], 2);
    told[1] = 1;
    HD_FAILS(HEDDLE_ERR_PEER, heddle_run_ranks(3, "shm", gone_rank, told));
    assert_int_equal(told[0], 4);
}

HD_RANK_CASE(an_axis_group, "2 threads")
{
    heddle_status st = HEDDLE_OK;
    crossed c;
    HD_TRY(crossed_open(&c, comm));
    CHECK(heddle_comm_reset(c.group) == HEDDLE_ERR_ARG && heddle_comm_reset(NULL) == HEDDLE_ERR_ARG);
    HD_TRY(crossed_do(&c, CALL_ON_AXIS));
out:
    crossed_close(&c);
    return st;
}
