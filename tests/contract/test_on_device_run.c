/* A run of a model whose blocks are on a device: passes in one go and by a graph have the bits of those that are timed
 * step by step, and one that fails ends on all ranks. */
#include "device_sim.h"
#include "executor_fixture.h"

#include "runtime/verify/run.h"

#include <pthread.h>
#include <unistd.h>

enum {
    WHOLE_BYTES = ELEMS * sizeof(float),
    FIRST_CALL = 20,
    APART = 30,
    DENSE = 500,
    LAST_CALL = 2000,
    MOST_LOOKS = 200000,
    MOST_TRIES = 30
};

/* What all ranks of a run have in common. */
typedef struct job {
    int in_one_go, backward, fails_at; /* a call of CUDA behind the last timed step; 0: none */
    const char *wire;
    run_how hows;
    int step_of[RANKS];
    float output[ELEMS], dx[ELEMS];
} job;

static job now;

/* Calls that look whether something is done come as often as they like. Behind the failure what is enqueued goes on: a
 * switch of the rank that gave up has told a peer that it may store, which it does, and does not wait for the end of
 * that; so the kernels behind it load what is being stored. The pass is lost, and its memory stays. */
static void fail_a_call(const device_sim *sim, int call)
{
    enum { BEHIND_FAILURE = 2 };
    sim->spare_looks(1);
    sim->set_unseen(BEHIND_FAILURE);
    sim->fail_at(call, 999);
}

static void break_a_call(const run_task *task, run_how how, int pass, int step)
{
    device_sim sim;
    if (now.fails_at > 0 && how == RUN_BY_STEPS && pass + 1 == task->passes && step == STEPS && !task->is_reference) {
        HD_OK(device_sim_get(&sim));
        fail_a_call(&sim, now.fails_at);
    }
}

static heddle_status keep(const run_report *all, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    const run_result *mine = &all->mine;
    for (int i = 0; i < 2 * (int)mine->hows; i++) {
        const run_time *time = &all->time[i / 2][i % 2];
        CHECK(i % 2 > now.backward ? time->median_ms == 0
                                   : time->fastest_ms > 0 && time->fastest_ms <= time->median_ms);
    }
    CHECK(mine->output != NULL && (mine->dx != NULL) == now.backward);
    if (heddle_comm_rank(comm) == 0) {
        now.hows = mine->hows;
        memcpy(now.output, mine->output, WHOLE_BYTES);
        memcpy(now.dx, now.backward ? mine->dx : mine->output, WHOLE_BYTES);
    }
out:
    return st;
}

static heddle_status run(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    bench b;
    feed source = {.seed = 5, .threads = 1};
    run_report all = {.nranks = 0};
    run_task task = {.info = HEDDLE_EMPTY(heddle_model_info), .feed = &source, .passes = 2, .threads = 1};
    (void)arg;
    task.blocks_on_device = 1;
    task.in_one_go = now.in_one_go;
    task.backward = now.backward;
    task.watch = break_a_call;
    task.step_of = now.step_of;
    HD_TRY(make_bench(&b, comm));
    HD_TRY(heddle_model_get_info(&task.info, b.model));
    task.model = b.model;
    task.schedule = b.schedule;
    task.mesh = b.info.mesh;
    source.shape = task.info.shape;
    HD_TRY(
        heddle_comm_attach_device(comm, "cuda", strcmp(now.wire, "host") == 0 ? HEDDLE_WIRE_HOST : HEDDLE_WIRE_PEER));
    HD_TRY(run_task_run(&all, &task, comm, 1));
    st = keep(&all, comm);
out:
    run_report_free(&all);
    free_bench(&b);
    return st;
}

static void same_bits(int ranks, const char *wire, int backward, run_how hows)
{
    now = (job){.wire = wire, .backward = backward};
    HD_OK(heddle_run_ranks(ranks, "threads", run, NULL));
    assert_int_equal(now.hows, RUN_BY_STEPS + 1);
    const job before = now;
    now = (job){.wire = wire, .backward = backward, .in_one_go = 1};
    HD_OK(heddle_run_ranks(ranks, "threads", run, NULL));
    assert_int_equal(now.hows, hows);
    assert_memory_equal(now.output, before.output, WHOLE_BYTES);
    assert_memory_equal(now.dx, before.dx, WHOLE_BYTES);
}

HD_CASE(passes_in_one_go_have_the_bits_of_others)
{
    same_bits(1, "peer", 0, RUN_HOWS);
    same_bits(2, "peer", 1, RUN_HOWS);
    same_bits(3, "host", 0, RUN_IN_ONE_GO + 1);
}

static void fails(int call)
{
    if (strstr(heddle_last_error(), "failed with error 999") == NULL) {
        fail_msg("call %d: %s", call, heddle_last_error());
    }
}

/* A run with a call that fails. */
static heddle_status broken_run(void)
{
    device_sim sim;
    hd_leaves("memory of which the device does not say that it is done with it");
    const heddle_status st = heddle_run_ranks(2, "threads", run, NULL);
    HD_OK(device_sim_get(&sim));
    sim.fail_at(0, 0);
    sim.set_unseen(0);
    sim.spare_looks(0);
    return st;
}

/* Whichever call behind the timed passes fails, of whichever rank: nobody waits for it for ever. How many there are is
 * by how often ranks ask whether the device is well, and some may fail: what they were for is tried again. */
HD_CASE(a_pass_in_one_go_that_fails_ends_on_all_ranks)
{
    int failed = 0;
    for (int n = FIRST_CALL; n <= LAST_CALL; n += (n < DENSE ? APART : n) * hd_call_step()) {
        now = (job){.wire = "peer", .in_one_go = 1, .fails_at = n};
        if (broken_run() != HEDDLE_OK) {
            fails(n);
            failed++;
        }
    }
    assert_true(failed > 0);
}

/* Once a rank is at a replay. What it returns is why not. */
static void *break_a_replay(void *call)
{
    device_sim sim;
    for (int looks = 0; __atomic_load_n(&now.step_of[0], __ATOMIC_SEQ_CST) != RUN_REPLAYS &&
                        __atomic_load_n(&now.step_of[1], __ATOMIC_SEQ_CST) != RUN_REPLAYS;
         looks++) {
        if (looks == MOST_LOOKS) {
            return "nobody has come to a replay";
        }
        usleep(100);
    }
    HD_OK(device_sim_get(&sim));
    fail_a_call(&sim, *(const int *)call);
    return NULL;
}

/* Nor does memory go that replays store to, of this rank or of others. A thread that comes late finds no call to fail,
 * so a few runs are tried for each. */
HD_CASE(a_replay_that_fails_ends_on_all_ranks)
{
    pthread_t beside;
    void *why = NULL;
    int failed = 0;
    for (int tries = 0; tries < MOST_TRIES && failed < 3; tries++) {
        int n = 1 << (2 * failed);
        now = (job){.wire = "peer", .in_one_go = 1};
        assert_int_equal(pthread_create(&beside, NULL, break_a_replay, &n), 0);
        const heddle_status st = broken_run();
        assert_int_equal(pthread_join(beside, &why), 0);
        assert_null(why);
        if (st != HEDDLE_OK) {
            fails(n);
            failed++;
        }
    }
    assert_true(failed > 0);
}
