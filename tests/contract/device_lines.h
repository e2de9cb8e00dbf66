/* Reshards of arrays in a device's memory, chosen and random, for one to four ranks: against the oracle, bitwise, with
 * the bytes that the plan says. */
#ifndef HD_TEST_DEVICE_LINES_H
#define HD_TEST_DEVICE_LINES_H

#include "reshard_check.h"
#include "runtime/verify/random_line.h"

static const char *const device_lines[] = {
    "f32[t=5 s=7] on [sp=1]: t@sp -> s@sp",
    "bf16[b=2 t=5 s=7] on [sp=1]: sum@sp -> * as s,t,b",
    "bf16[b=2 t=50 s=70] on [sp=2 x=1]: sum@x -> t@sp", /* a sum of one term is that term, whatever its bits */
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

/* Lines, of which a communicator checks those for as many ranks as it has. */
typedef struct device_job {
    rc_mode mode;
    const char *const *line;
    size_t nlines;
} device_job;

#define DEVICE_JOB(mode, lines) ((device_job){(mode), (lines), sizeof(lines) / sizeof *(lines)})

static inline heddle_status device_check_lines(heddle_comm *comm, void *arg)
{
    const device_job *j = arg;
    for (size_t i = 0; i < j->nlines; i++) {
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

/* arg: the seed. With HEDDLE_TEST_ROUNDS at 21000 ten thousand of them. */
static inline heddle_status device_check_random(heddle_comm *comm, void *arg)
{
    random_source source = {*(const uint64_t *)arg + (uint64_t)heddle_comm_size(comm)};
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

#endif
