/* Reshards of arrays in an emulated device's memory against the oracle, bitwise: the wire "peer", and the wire "host"
 * over every way that the bytes can take between the ranks. */
#include "check.h"
#include "device_lines.h"
#include "device_sim.h"

/* Large enough to be timed on creation, with a twin and without. */
static const char *const timed_lines[] = {
    "bf16[t=17 s=101 c=72] on [sp=2]: t@sp -> s@sp",
    "f32[t=31 s=70 c=5] on [sp=3]: sum@sp -> *",
};

static heddle_comm_options on_device(void)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.device = "cuda";
    return options;
}

static void run(const char *transport, const heddle_comm_options *options, rc_mode mode)
{
    int is_timed = mode.tuning == HEDDLE_TUNING_TRIALS;
    device_job job = is_timed ? DEVICE_JOB(mode, timed_lines) : DEVICE_JOB(mode, device_lines);
    for (int n = is_timed ? 2 : 1; n <= (is_timed ? 3 : 4); n++) {
        HD_OK(heddle_run_ranks_with(n, transport, options, device_check_lines, &job));
    }
}

HD_CASE(between_threads)
{
    heddle_comm_options options = on_device();
    static const heddle_wire wires[] = {HEDDLE_WIRE_PEER, HEDDLE_WIRE_HOST};
    for (int i = 0; i < 2; i++) {
        const char *path = wires[i] == HEDDLE_WIRE_PEER ? "device push" : NULL;
        options.wire = wires[i];
        run("threads", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES, .path = path});
        run("threads", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES, .path = path, .padded = 1});
        run("threads", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES, .path = path, .split_phase = 1});
    }
    options.force_messages = 1;
    run("threads", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES});
}

/* No kernel waits for another rank's. */
HD_CASE(by_events)
{
    heddle_comm_options options = on_device();
    options.wire = HEDDLE_WIRE_PEER;
    setenv("HEDDLE_DEVICE_SYNC", "events", 1);
    run("threads", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES, .path = "device push", .padded = 1});
    run("threads", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES, .split_phase = 1});
    unsetenv("HEDDLE_DEVICE_SYNC");
}

HD_CASE(between_processes)
{
    heddle_comm_options options = on_device();
    run("shm", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES});
    run("shm", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES, .memory = HEDDLE_MEMORY_ANY});
    run("shm", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES, .padded = 1, .split_phase = 1});
    options.pretend_hosts = 2;
    run("shm", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES});
}

HD_CASE(after_trials)
{
    heddle_comm_options options = on_device();
    run("shm", &options, (rc_mode){.tuning = HEDDLE_TUNING_TRIALS, .memory = HEDDLE_MEMORY_ANY});
}

HD_CASE(random_problems)
{
    static const int ranks[] = {2, 3, 4, 6};
    uint64_t seed = 11;
    heddle_comm_options options = on_device();
    for (int i = 0; i < 8; i++) {
        options.wire = i % 2 == 0 ? HEDDLE_WIRE_PEER : HEDDLE_WIRE_HOST;
        HD_OK(heddle_run_ranks_with(ranks[i / 2], "threads", &options, device_check_random, &seed));
    }
}

/* Arrays of a pool lie in host memory. */
static heddle_status pools(heddle_comm *comm, void *arg)
{
    heddle_status st;
    heddle_reshard *plan = NULL;
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_pool *pool = NULL;
    heddle_dl_managed *y = NULL;
    (void)arg;
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    HD_TRY(heddle_reshard_parse(&line, timed_lines[0]));
    HD_TRY(heddle_reshard_create_line(&plan, comm, &line, &options));
    HD_TRY(heddle_pool_create(&pool, comm));
    CHECK(heddle_reshard_execute_pooled(&y, plan, NULL, pool, HEDDLE_NO_STREAM) == HEDDLE_ERR_UNSUPPORTED);
    CHECK(y == NULL && heddle_pool_held_bytes(pool) == 0);
    CHECK(strstr(heddle_last_error(), "arrays of a pool lie in host memory, those of the plan on a device") != NULL);
out:
    heddle_pool_destroy(pool);
    heddle_reshard_destroy(plan);
    return st;
}

HD_CASE(not_into_a_pool)
{
    heddle_comm_options options = on_device();
    for (heddle_wire wire = HEDDLE_WIRE_PEER; wire <= HEDDLE_WIRE_HOST; wire++) {
        options.wire = wire;
        if (wire != HEDDLE_WIRE_NCCL) {
            HD_OK(heddle_run_ranks_with(2, "threads", &options, pools, NULL));
        }
    }
}
