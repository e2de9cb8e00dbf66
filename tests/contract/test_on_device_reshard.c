/* Reshards of arrays in an emulated device's memory against the oracle, bitwise: the wire "peer", and the wire "host"
 * over every way that the bytes can take between the ranks. */
#include "reshard_check.h"

#include "device_sim.h"
#include "runtime/verify/random_line.h"

static const char *const lines[] = {
    "f32[t=5 s=7] on [sp=1]: t@sp -> s@sp",
    "bf16[b=2 t=5 s=7] on [sp=1]: sum@sp -> * as s,t,b",
    "bf16[t=6 s=8 c=32] on [sp=2]: t@sp -> s@sp",
    "bf16[t=7 s=9 c=33] on [sp=2]: s@sp as s,t,c -> t@sp",
    "i32[t=0 s=4] on [sp=2]: t@sp -> s@sp",
    "f64[t=5 s=6] on [sp=2]: t@sp(0 5) -> s@sp(6 0)",
    "i8[a=2 b=2 c=2 d=2 e=2 f=2 g=2 h=3] on [sp=2]: a@sp -> h@sp as h,g,f,e,d,c,b,a",
    "f16[t=5 s=6] on [sp=2]: sum@sp -> *",
    "f32[t=5 s=6] on [sp=2]: t@sp -> sum@sp",
    "f32[b=2 t=7 s=11 c=3] on [sp=3]: s@sp -> t@sp",
    "bool[t=9 s=5] on [sp=3]: t@sp(2 0 7) -> s@sp(1 4 0)",
    "f8e5m2[t=5 s=6 c=3] on [sp=3]: sum@sp -> s@sp as s,t,c",
    "bf16[t=7 s=6 c=3] on [sp=3]: sum@sp -> * as c,t,s",
    "bf16[b=2 t=9 s=10 c=4] on [sp=4]: t@sp -> s@sp as s,b,t,c",
    "f32[t=9 s=10 c=4] on [a=2 b=2]: t@a,s@b -> s@a,t@b",
    "f32[t=9 s=10 c=4] on [a=2 b=2]: * -> t@a,s@b",
    "bf16[t=5 s=6 c=3] on [a=2 b=2]: t@a,sum@b -> s@a,t@b",
    "f32[t=5 s=6 c=3] on [a=2 b=2]: sum@a,sum@b -> *",
    "f64[t=5 s=6 c=3] on [a=2 b=2]: t@a -> s@a,sum@b",
};

/* Large enough to be timed on creation, with a twin and without. */
static const char *const timed_lines[] = {
    "bf16[t=17 s=101 c=72] on [sp=2]: t@sp -> s@sp",
    "f32[t=31 s=70 c=5] on [sp=3]: sum@sp -> *",
};

typedef struct job {
    rc_mode mode;
    const char *const *line;
    int nlines;
} job;

static heddle_status check_all(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    for (int i = 0; i < j->nlines; i++) {
        heddle_reshard_line line;
        heddle_status st = heddle_reshard_parse(&line, j->line[i]);
        int goes = hd_goes("%s %d %d %d", j->line[i], j->mode.padded, j->mode.split_phase, (int)j->mode.memory);
        if (st == HEDDLE_OK && goes && heddle_mesh_size(&line.mesh) == heddle_comm_size(comm)) {
            st = rc_check(comm, j->line[i], &j->mode);
        }
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}

static heddle_comm_options on_device(void)
{
    heddle_comm_options options;
    device_sim_here();
    heddle_comm_options_init(&options);
    options.device = "cuda";
    return options;
}

static void run(const char *transport, const heddle_comm_options *options, rc_mode mode)
{
    int is_timed = mode.tuning == HEDDLE_TUNING_TRIALS;
    job j = {mode, is_timed ? timed_lines : lines,
             (int)(is_timed ? sizeof timed_lines / sizeof *timed_lines : sizeof lines / sizeof *lines)};
    for (int n = is_timed ? 2 : 1; n <= (is_timed ? 3 : 4); n++) {
        HD_OK(heddle_run_ranks_with(n, transport, options, check_all, &j));
    }
}

static void between_threads(void **state)
{
    (void)state;
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

static void between_processes(void **state)
{
    (void)state;
    heddle_comm_options options = on_device();
    run("shm", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES});
    run("shm", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES, .memory = HEDDLE_MEMORY_ANY});
    run("shm", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES, .padded = 1, .split_phase = 1});
    options.pretend_hosts = 2;
    run("shm", &options, (rc_mode){.tuning = HEDDLE_TUNING_RULES});
}

static void after_trials(void **state)
{
    (void)state;
    heddle_comm_options options = on_device();
    run("shm", &options, (rc_mode){.tuning = HEDDLE_TUNING_TRIALS, .memory = HEDDLE_MEMORY_ANY});
}

/* With HEDDLE_TEST_ROUNDS at 21000 ten thousand of them. */
static heddle_status random_lines(heddle_comm *comm, void *arg)
{
    random_source source = {11 + (uint64_t)heddle_comm_size(comm)};
    (void)arg;
    for (int round = 0; round < hd_rounds(12); round++) {
        heddle_reshard_line line;
        char text[HEDDLE_LINE_BYTES];
        const random_limits limits = {heddle_comm_size(comm), 3, round % 10 == 9 ? HEDDLE_MAX_DIMS : 5, 600, 2};
        random_line(&line, &source, &limits);
        heddle_status st = heddle_reshard_format(text, sizeof text, &line);
        const rc_mode mode = {.tuning = HEDDLE_TUNING_RULES, .padded = round % 3 == 0, .split_phase = round % 4 == 1};
        st = st == HEDDLE_OK ? rc_check(comm, text, &mode) : st;
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}

static void random_problems(void **state)
{
    (void)state;
    static const int ranks[] = {2, 3, 4, 6};
    heddle_comm_options options = on_device();
    for (int i = 0; i < 8; i++) {
        options.wire = i % 2 == 0 ? HEDDLE_WIRE_PEER : HEDDLE_WIRE_HOST;
        HD_OK(heddle_run_ranks_with(ranks[i / 2], "threads", &options, random_lines, NULL));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(between_threads),
        cmocka_unit_test(between_processes),
        cmocka_unit_test(after_trials),
        cmocka_unit_test(random_problems),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
