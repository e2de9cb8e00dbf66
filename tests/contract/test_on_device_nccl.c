/* Reshards of arrays in an emulated device's memory by messages (wire nccl, over the fake NCCL): against the oracle,
 * bitwise, with the bytes that the plan says. */
#include "device_lines.h"
#include "device_sim.h"

static heddle_comm_options by_nccl(void)
{
    heddle_comm_options options;
    setenv("HEDDLE_MODULE_PATH", HEDDLE_NCCL_SIM, 1);
    setenv("HEDDLE_CUDASIM_DEVICES", "4", 1); /* ranks of one device would share its default stream */
    heddle_comm_options_init(&options);
    options.device = "cuda";
    options.wire = HEDDLE_WIRE_NCCL;
    return options;
}

static void all_lines(const char *transport, rc_mode mode)
{
    heddle_comm_options options = by_nccl();
    device_job job = DEVICE_JOB(mode, device_lines);
    for (int n = 1; n <= 4; n++) {
        HD_OK(heddle_run_ranks_with(n, transport, &options, device_check_lines, &job));
    }
}

static void between_threads(void **state)
{
    (void)state;
    all_lines("threads", (rc_mode){.tuning = HEDDLE_TUNING_RULES});
    all_lines("threads", (rc_mode){.tuning = HEDDLE_TUNING_RULES, .padded = 1});
    all_lines("threads", (rc_mode){.tuning = HEDDLE_TUNING_RULES, .split_phase = 1});
}

static void between_processes(void **state)
{
    (void)state;
    all_lines("shm", (rc_mode){.tuning = HEDDLE_TUNING_RULES});
    all_lines("shm", (rc_mode){.tuning = HEDDLE_TUNING_RULES, .padded = 1, .split_phase = 1});
}

static void random_problems(void **state)
{
    (void)state;
    heddle_comm_options options = by_nccl();
    uint64_t seed = 31;
    for (int n = 1; n <= 4; n++) {
        HD_OK(heddle_run_ranks_with(n, "threads", &options, device_check_random, &seed));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(between_threads),
        cmocka_unit_test(between_processes),
        cmocka_unit_test(random_problems),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
