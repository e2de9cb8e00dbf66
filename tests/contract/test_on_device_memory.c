/* An executor on devices of which one rank has no memory left: all ranks hear why, go on, and make another one. */
#include "device_sim.h"
#include "executor_fixture.h"

enum { NO_MEMORY = 2 /* of CUDA */, TRIES = 6 };

static heddle_executor_options on_devices(const heddle_comm *comm)
{
    heddle_executor_options options = options_on(comm);
    options.blocks = HEDDLE_SPACE_DEVICE;
    options.backward = 1;
    return options;
}

/* Rank 1's `call`-th call of CUDA from now on fails, while an executor is made. *failed: it did, on all ranks. */
static heddle_status fail_once(int *failed, bench *b, const device_sim *sim, int64_t call)
{
    heddle_status st = HEDDLE_OK;
    const heddle_executor_options options = on_devices(b->comm);
    const int rank = heddle_comm_rank(b->comm);
    sim->fail_at(rank == 1 ? call : 0, NO_MEMORY);
    const heddle_status made = heddle_executor_create(&b->executor, b->comm, b->schedule, b->stage, &options);
    sim->fail_at(0, 0);
    *failed = made != HEDDLE_OK;
    if (*failed) {
        CHECK(b->executor == NULL);
        CHECK(strstr(heddle_last_error(), "error 2") != NULL || strstr(heddle_last_error(), "no memory") != NULL ||
              strstr(heddle_last_error(), " bytes") != NULL);
        CHECK(rank == 1 ? made == HEDDLE_ERR_NOMEM || made == HEDDLE_ERR_DEVICE : made == HEDDLE_ERR_PEER);
        HD_TRY(heddle_comm_reset(b->comm));
    }
    heddle_executor_destroy(b->executor);
    b->executor = NULL;
    st = heddle_comm_barrier(b->comm);
out:
    return st;
}

/* Processes: calls of the one are not counted with those of the other. */
HD_RANK_CASE(a_rank_without_memory_says_so_to_all, "2 shm cuda host")
{
    heddle_status st = HEDDLE_OK;
    bench b;
    device_sim sim;
    int64_t failures = 0, calls = 0;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(make_bench(&b, comm));
    calls = sim.calls();
    const heddle_executor_options options = on_devices(comm);
    HD_TRY(heddle_executor_create(&b.executor, comm, b.schedule, b.stage, &options));
    heddle_executor_destroy(b.executor);
    b.executor = NULL;
    calls = sim.calls() - calls;
    for (int i = 0; i < TRIES; i++) {
        int failed = 0;
        HD_TRY(fail_once(&failed, &b, &sim, 1 + calls * i / TRIES));
        failures += failed;
    }
    CHECK(failures > 1);
    HD_TRY(heddle_executor_create(&b.executor, comm, b.schedule, b.stage, &options));
    st = heddle_comm_barrier(comm);
out:
    free_bench(&b);
    return st;
}
