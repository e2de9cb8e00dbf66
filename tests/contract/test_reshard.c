/* Reshards against the oracle, bitwise, over every way the bytes can take. */
#include "check.h"
#include "reshard_check.h"

#include "kernels/copy.h"

static const char *const lines[] = {
    /* 1 rank */
    "f32[t=5 s=7] on [sp=1]: t@sp -> s@sp",
    "bf16[b=2 t=5 s=7] on [sp=1]: sum@sp -> * as s,t,b",
    "f32[t=5 s=7] on [sp=1]: sum@sp -> t@sp",
    "f16[t=5 s=7] on [sp=1]: sum@sp -> *",
    "f8e4m3[t=5 s=7] on [a=1 b=2]: sum@a,t@b -> s@b",
    /* 2 ranks: keep, split, switch, gather, permuted orders, empty */
    "bf16[t=6 s=8 c=32] on [sp=2]: t@sp -> t@sp",
    "bf16[t=6 s=8 c=32] on [sp=2]: * -> t@sp",
    "bf16[t=6 s=8 c=32] on [sp=2]: t@sp -> *",
    "bf16[t=6 s=8 c=32] on [sp=2]: t@sp -> s@sp",
    "bf16[t=6 s=8 c=32] on [sp=2]: s@sp -> t@sp",
    "bf16[t=7 s=9 c=33] on [sp=2]: t@sp -> s@sp as s,t,c",
    "bf16[t=7 s=9 c=33] on [sp=2]: s@sp as s,t,c -> t@sp",
    "f32[t=7 s=9 c=5] on [sp=2]: s@sp -> t@sp as c,s,t",
    "u8[t=1 s=1 c=1] on [sp=2]: t@sp -> s@sp",
    "i32[t=0 s=4] on [sp=2]: t@sp -> s@sp",
    "f64[t=5 s=6] on [sp=2]: t@sp(0 5) -> s@sp(6 0)",
    "f8e4m3[b=2 t=5 s=6 h=3 d=4] on [sp=2]: s@sp -> h@sp",
    "i8[a=2 b=2 c=2 d=2 e=2 f=2 g=2 h=3] on [sp=2]: a@sp -> h@sp as h,g,f,e,d,c,b,a",
    /* 3 ranks, uneven, fewer elements than ranks */
    "f32[b=2 t=7 s=11 c=3] on [sp=3]: t@sp -> s@sp",
    "f32[b=2 t=7 s=11 c=3] on [sp=3]: s@sp -> t@sp",
    "i64[t=2 s=5] on [sp=3]: t@sp -> s@sp",
    "bool[t=9 s=5] on [sp=3]: t@sp(2 0 7) -> s@sp(1 4 0)",
    "f16[t=7 s=10] on [sp=3]: t@sp -> t@sp(1 1 5)",
    /* 4 ranks: 2-D meshes, nested, replicated axes */
    "bf16[b=2 t=9 s=10 c=4] on [sp=4]: t@sp -> s@sp as s,b,t,c",
    "f32[t=9 s=10 c=4] on [a=2 b=2]: t@a,s@b -> s@a,t@b",
    "f32[t=9 s=10 c=4] on [a=2 b=2]: t@a,t@b -> s@a,s@b",
    "f32[t=9 s=10 c=4] on [a=2 b=2]: t@a -> s@b",
    "f32[t=9 s=10 c=4] on [a=2 b=2]: t@a,t@b -> t@b",
    "f32[t=9 s=10 c=4] on [a=2 b=2]: * -> t@a,s@b",
    "f32[t=9 s=10 c=4] on [a=2 b=2]: t@a,c@b -> s@a,c@b",
    "u8[t=3 s=2] on [a=2 b=2]: t@a,t@b -> s@b",
    /* 6 and 8 ranks */
    "f32[t=7 s=13 c=3] on [a=2 b=3]: t@a,t@b -> s@b",
    "bf16[t=11 s=17 c=8] on [sp=8]: t@sp -> s@sp",
    "bf16[t=11 s=17 c=8] on [sp=8]: s@sp -> t@sp",
    "bf16[t=11 s=17 c=8] on [a=2 b=2 c=2]: t@a,s@b,c@c -> c@a,t@b,s@c",
};

static const char *const sum_lines[] = {
    "f64[t=5 s=6] on [sp=2]: sum@sp -> t@sp",
    "f32[t=5 s=6] on [sp=2]: sum@sp -> *",
    "f16[t=5 s=6] on [sp=2]: sum@sp -> *",
    "bf16[t=5 s=6] on [sp=2]: sum@sp -> s@sp",
    "bf16[t=5 s=6] on [sp=2]: * -> sum@sp",
    "f32[t=5 s=6] on [sp=2]: t@sp -> sum@sp",
    "f32[t=5 s=6] on [sp=2]: sum@sp -> sum@sp",
    "i64[t=5 s=6 c=3] on [sp=3]: sum@sp -> t@sp",
    "f8e4m3[t=5 s=6 c=3] on [sp=3]: sum@sp -> *",
    "f8e5m2[t=5 s=6 c=3] on [sp=3]: sum@sp -> s@sp as s,t,c",
    "bf16[t=7 s=6 c=3] on [sp=3]: sum@sp -> * as c,t,s",
    "i8[t=2 s=1] on [sp=3]: sum@sp -> *",
    "i32[t=5 s=6 c=3] on [a=2 b=2]: t@a,sum@b -> s@a",
    "bf16[t=5 s=6 c=3] on [a=2 b=2]: t@a,sum@b -> s@a,t@b",
    "f32[t=5 s=6 c=3] on [a=2 b=2]: sum@a,sum@b -> *",
    "f32[t=5 s=6 c=3] on [a=2 b=2]: sum@a,sum@b -> t@a",
    "u8[t=5 s=6 c=3] on [a=2 b=2]: sum@a,t@b -> t@b",
    "f64[t=5 s=6 c=3] on [a=2 b=2]: t@a -> s@a,sum@b",
    "bool[t=5 s=6 c=3] on [a=2 b=2]: sum@a,t@b -> s@a,t@b",
    "bf16[t=5 s=6 c=7] on [sp=8]: sum@sp -> *",
    "bf16[t=5 s=16 c=7] on [sp=8]: sum@sp -> s@sp",
};

/* Large enough to be timed on creation. */
static const char *const timed_lines[] = {
    "bf16[t=17 s=101 c=72] on [sp=2]: t@sp -> s@sp",           "bf16[t=17 s=101 c=72] on [sp=2]: s@sp -> t@sp as s,t,c",
    "f32[b=2 t=16 s=30 c=36] on [sp=3]: s@sp -> t@sp",         "f32[t=31 s=70 c=5] on [sp=3]: sum@sp -> *",
    "bf16[t=18 s=34 c=72] on [a=2 b=2]: t@a,sum@b -> s@a,t@b",
};

enum {
    LINES = sizeof lines / sizeof *lines,
    SUMS = sizeof sum_lines / sizeof *sum_lines,
    TIMED = sizeof timed_lines / sizeof *timed_lines
};

typedef struct job {
    rc_mode mode;
    const char *transport;
    const char *line[LINES + SUMS + TIMED];
    int nlines;
} job;

static int ranks_of(const char *text)
{
    heddle_reshard_line line;
    HD_OK(heddle_reshard_parse(&line, text));
    return heddle_mesh_size(&line.mesh);
}

/* Every line goes by every mode; where fewer rounds are wanted, by its share of them, always the same, and one at the
 * least by each mode. */
static int goes(const job *j, const char *line)
{
    const rc_mode *m = &j->mode;
    return hd_goes("%s %s %s %d %d %d %d %d", line, j->transport, m->kernel != NULL ? m->kernel : "", m->split_phase,
                   m->padded, m->private_src, m->private_dst, (int)m->tuning);
}

static void add_lines(job *j, const char *const *line, int n)
{
    for (int i = 0; i < n; i++) {
        if (goes(j, line[i])) {
            j->line[j->nlines++] = line[i];
        }
    }
}

static heddle_status check_all(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    for (int i = 0; i < j->nlines; i++) {
        heddle_reshard_line line;
        heddle_status st = heddle_reshard_parse(&line, j->line[i]);
        if (st == HEDDLE_OK && heddle_mesh_size(&line.mesh) == heddle_comm_size(comm)) {
            st = rc_check(comm, j->line[i], &j->mode);
        }
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}

static void run(const char *transport, const heddle_comm_options *options, const rc_mode *mode)
{
    job j = {.mode = *mode, .transport = transport};
    unsigned done = 0;
    if (mode->tuning != HEDDLE_TUNING_TRIALS) {
        add_lines(&j, lines, LINES);
        add_lines(&j, sum_lines, SUMS);
    }
    add_lines(&j, timed_lines, TIMED);
    if (j.nlines == 0) { /* no mode goes without */
        j.line[j.nlines++] = timed_lines[0];
    }
    for (int i = 0; i < j.nlines; i++) {
        const int n = ranks_of(j.line[i]);
        if ((done & 1u << n) == 0) {
            done |= 1u << n;
            HD_OK(heddle_run_ranks_with(n, transport, options, check_all, &j));
        }
    }
}

static void run_default(const char *transport, const rc_mode *mode)
{
    run(transport, NULL, mode);
}

static heddle_comm_options by_messages(int all, int hosts)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.force_messages = all;
    options.pretend_hosts = hosts;
    return options;
}

HD_CASE(threads_move_exactly)
{
    run_default("threads", &(rc_mode){.tuning = HEDDLE_TUNING_RULES});
}

HD_CASE(shm_moves_exactly)
{
    run_default("shm", &(rc_mode){.tuning = HEDDLE_TUNING_RULES});
}

HD_CASE(trials_change_nothing)
{
    const heddle_comm_options options = by_messages(0, 2);
    run_default("threads", &(rc_mode){.tuning = HEDDLE_TUNING_TRIALS});
    run_default("shm", &(rc_mode){.tuning = HEDDLE_TUNING_TRIALS, .memory = HEDDLE_MEMORY_ANY, .private_src = 1});
    run("shm", &options, &(rc_mode){.tuning = HEDDLE_TUNING_TRIALS});
}

HD_CASE(split_phase_moves_exactly)
{
    run_default("threads", &(rc_mode){.split_phase = 1, .tuning = HEDDLE_TUNING_RULES});
    run_default("shm", &(rc_mode){.split_phase = 1, .tuning = HEDDLE_TUNING_RULES});
}

HD_CASE(strided_arrays)
{
    run_default("threads", &(rc_mode){.padded = 1, .tuning = HEDDLE_TUNING_RULES});
    run_default("shm", &(rc_mode){.padded = 1, .tuning = HEDDLE_TUNING_RULES});
}

HD_CASE(messages_between_all)
{
    const heddle_comm_options options = by_messages(1, 0);
    run("threads", &options, &(rc_mode){.tuning = HEDDLE_TUNING_RULES});
    run("shm", &options, &(rc_mode){.tuning = HEDDLE_TUNING_RULES});
    run("threads", &options, &(rc_mode){.tuning = HEDDLE_TUNING_TRIALS});
    run("threads", &options, &(rc_mode){.padded = 1, .split_phase = 1, .tuning = HEDDLE_TUNING_RULES});
    /* Messages want no memory that peers reach. */
    run("shm", &options, &(rc_mode){.private_src = 1, .private_dst = 1, .tuning = HEDDLE_TUNING_RULES});
}

HD_CASE(pretended_hosts_mix)
{
    const heddle_comm_options options = by_messages(0, 2);
    run("threads", &options, &(rc_mode){.tuning = HEDDLE_TUNING_RULES});
    run("shm", &options, &(rc_mode){.tuning = HEDDLE_TUNING_RULES});
    run("shm", &options, &(rc_mode){.padded = 1, .split_phase = 1, .tuning = HEDDLE_TUNING_RULES});
}

HD_CASE(private_memory)
{
    for (int k = 1; k < 4; k++) {
        run_default("shm", &(rc_mode){.memory = HEDDLE_MEMORY_ANY,
                                      .private_src = k & 1,
                                      .private_dst = k >> 1,
                                      .tuning = HEDDLE_TUNING_RULES});
    }
    run_default("shm", &(rc_mode){.memory = HEDDLE_MEMORY_ANY,
                                  .private_src = 1,
                                  .private_dst = 1,
                                  .padded = 1,
                                  .split_phase = 1,
                                  .tuning = HEDDLE_TUNING_RULES});
    run_default("threads", &(rc_mode){.private_src = 1, .private_dst = 1, .tuning = HEDDLE_TUNING_RULES});
}

HD_CASE(every_kernel)
{
    int n;
    const hd_copy_kernel *kernel = hd_copy_kernels(&n);
    for (int i = 0; i < n; i++) {
        run_default("threads", &(rc_mode){.kernel = kernel[i].name, .tuning = HEDDLE_TUNING_RULES});
    }
}

/* Runs are long on both sides: who moves is timed, and may not undo what was asked for. */
HD_RANK_CASE(forced_kernel_stays, "2 threads")
{
    heddle_reshard *plan = NULL;
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_reshard_options_init(&options);
    options.kernel = "memcpy";
    HD_OK(heddle_reshard_parse(&line, "bf16[t=4 s=64 c=2048] on [sp=2]: t@sp -> s@sp"));
    HD_OK(heddle_reshard_create(&plan, comm, &line.shape, &line.mesh, &line.from, &line.to, &options));
    HD_OK(heddle_reshard_get_info(&info, plan));
    assert_string_equal(info.kernel, "memcpy");
    assert_non_null(strstr(info.why, "timed"));
    heddle_reshard_destroy(plan);
    return HEDDLE_OK;
}

/* Both sides are cut: directions and kernels are tried as pairs. */
HD_RANK_CASE(directions_and_kernels_are_tried_as_pairs, "2 threads")
{
    heddle_reshard *plan = NULL;
    heddle_reshard_line line;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    int ways = 0, kernels;
    HD_OK(heddle_reshard_parse(&line, "bf16[t=8 s=64 c=64] on [sp=2]: t@sp -> s@sp as s,t,c"));
    HD_OK(heddle_reshard_create_line(&plan, comm, &line, NULL));
    HD_OK(heddle_reshard_get_info(&info, plan));
    const char *timed = strstr(info.why, "timed ");
    assert_non_null(timed);
    assert_int_equal(sscanf(timed, "timed %d ways, at length p", &ways), 1);
    hd_copy_kernels(&kernels);
    assert_true(ways > 4 + 4 || kernels < 5); /* more than one of them after the other */
    heddle_reshard_destroy(plan);
    return HEDDLE_OK;
}

/* Zeros are faster than data on some CPUs, and would choose the wrong kernel. The trials' arrays are given back before
 * the plan is handed out, and what is allocated next gets their place in the arena. */
HD_RANK_CASE(trials_do_not_copy_zeros, "2 shm")
{
    heddle_reshard *plan = NULL;
    heddle_reshard_line line;
    heddle_reshard_info info = {.struct_bytes = sizeof info};
    void *side[2];
    heddle_status st;
    HD_TRY(heddle_reshard_parse(&line, "f32[t=64 s=2 c=144] on [sp=2]: t@sp -> s@sp"));
    HD_TRY(heddle_reshard_create_line(&plan, comm, &line, NULL));
    HD_TRY(heddle_reshard_get_info(&info, plan));
    CHECK(strstr(info.why, "timed ") != NULL);
    HD_TRY(heddle_buffer_alloc(&side[0], comm, info.src_bytes, HEDDLE_SPACE_HOST));
    HD_TRY(heddle_buffer_alloc(&side[1], comm, info.dst_bytes, HEDDLE_SPACE_HOST));
    for (int s = 0; s < 2; s++) {
        size_t zeros = 0;
        for (size_t i = 0; i < info.src_bytes; i++) {
            zeros += ((const unsigned char *)side[s])[i] == 0;
        }
        CHECK(zeros == 0);
    }
    heddle_buffer_free(comm, side[0]);
    heddle_buffer_free(comm, side[1]);
out:
    heddle_reshard_destroy(plan);
    return st;
}

int main(int argc, char **argv)
{
    rc_prepare(lines, LINES);
    rc_prepare(sum_lines, SUMS);
    rc_prepare(timed_lines, TIMED);
    return hd_run_cases(HD_CASE_SECONDS, argc, argv);
}
