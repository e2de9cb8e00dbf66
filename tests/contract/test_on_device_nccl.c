/* Reshards of arrays in an emulated device's memory by messages (wire nccl, over the fake NCCL): against the oracle,
 * bitwise, with the bytes that the plan says. */
#include "device_lines.h"
#include "device_sim.h"
#include "nccl_sim.h"

static void all_lines(const char *transport, rc_mode mode)
{
    heddle_comm_options options = by_nccl(60);
    device_job job = DEVICE_JOB(mode, device_lines);
    for (int n = 1; n <= 4; n++) {
        HD_OK(heddle_run_ranks_with(n, transport, &options, device_check_lines, &job));
    }
}

HD_CASE(between_threads)
{
    all_lines("threads", (rc_mode){.tuning = HEDDLE_TUNING_RULES});
    all_lines("threads", (rc_mode){.tuning = HEDDLE_TUNING_RULES, .padded = 1});
    all_lines("threads", (rc_mode){.tuning = HEDDLE_TUNING_RULES, .split_phase = 1});
}

HD_CASE(between_processes)
{
    all_lines("shm", (rc_mode){.tuning = HEDDLE_TUNING_RULES});
    all_lines("shm", (rc_mode){.tuning = HEDDLE_TUNING_RULES, .padded = 1, .split_phase = 1});
}

HD_CASE(random_problems)
{
    heddle_comm_options options = by_nccl(60);
    uint64_t seed = 31;
    for (int n = 1; n <= 4; n++) {
        HD_OK(heddle_run_ranks_with(n, "threads", &options, device_check_random, &seed));
    }
}

/* Ranks 0 and 2, and 1 and 3: numbers of a group are not those of the communicator of NCCL. Where CUDA waits until
 * devices are idle to allocate, groups of one process take turns: a plan is made when nobody executes. */
static heddle_status in_group(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    heddle_mesh mesh;
    heddle_comm *group = NULL;
    const int turns = getenv("HEDDLE_CUDASIM_ALLOC_WAITS") != NULL ? 2 : 1;
    HD_TRY(heddle_mesh_parse(&mesh, "[a=2 b=2]"));
    HD_TRY(heddle_comm_axis_group(&group, comm, &mesh, 0));
    for (int turn = 0; turn < turns; turn++) {
        HD_TRY(heddle_comm_rank(comm) % turns == turn ? device_check_lines(group, arg) : HEDDLE_OK);
        HD_TRY(heddle_comm_barrier(comm));
    }
out:
    heddle_comm_destroy(group);
    return st;
}

HD_CASE(in_axis_groups)
{
    device_job job = DEVICE_JOB((rc_mode){.tuning = HEDDLE_TUNING_RULES}, device_lines);
    run_by_nccl(4, in_group, &job);
}
