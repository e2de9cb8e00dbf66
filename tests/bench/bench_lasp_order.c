/* What follows one another in LASP, as if every rank had a core of its own.
 *
 *   bench_lasp_order [ROWS_PER_RANK [SAMPLES]]
 *
 * Few machines have as many cores as a sequence group has ranks, and ranks that share cores cannot show what is serial
 * between them. So the kernels are replaced: each first runs alone and is timed, and then sleeps for that long instead
 * of computing (what a sleep is too long or short is made up for by the next one). Sleeping ranks share no core. All
 * the rest is real: the order of work, states, their folds, messages and waiting. Times in units of a rank's own work:
 * 1 + (N-1) s, where s is what is serial per rank. The published order must show s = 1.
 */
#include "widest.h"

#include "runtime/attention/linear_internal.h"

#include <heddle/heddle.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { CHUNK = 256, WIDTH = 128, HEADS = 2, MOST_SAMPLES = 64, TIMED = 7 };

/* Nanoseconds of each kernel alone. */
static struct costs {
    double states[2], inner, outer, forward, inner_back, outer_back;
} cost;

static _Thread_local double owed_ns;

static void pass_time(double ns)
{
    owed_ns += ns;
    if (owed_ns <= 0) {
        return;
    }
    int64_t began = hd_now_ns();
    const struct timespec pause = {(time_t)(owed_ns / 1e9), (long)fmod(owed_ns, 1e9)};
    nanosleep(&pause, NULL);
    owed_ns -= (double)(hd_now_ns() - began);
}

static void sleep_states(void *scratch, const hd_linear_chunk *chunk, int gradient, void *to_left, void *to_right)
{
    (void)scratch;
    (void)chunk;
    for (int i = 0; i < 2; i++) {
        if ((i ? to_left : to_right) != NULL) {
            memset(i ? to_left : to_right, 0, WIDTH * WIDTH * sizeof(float));
        }
    }
    pass_time(cost.states[gradient]);
}

static void sleep_inner(void *scratch, const hd_linear_chunk *chunk)
{
    (void)scratch;
    (void)chunk;
    pass_time(cost.inner);
}

static void sleep_outer(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right)
{
    (void)scratch;
    (void)chunk;
    (void)left;
    (void)right;
    pass_time(cost.outer);
}

static void sleep_forward(void *scratch, const hd_linear_chunk *chunk, void *state)
{
    (void)scratch;
    (void)chunk;
    (void)state;
    pass_time(cost.forward);
}

static void sleep_inner_back(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right)
{
    (void)scratch;
    (void)chunk;
    (void)left;
    (void)right;
    pass_time(cost.inner_back);
}

static void sleep_outer_back(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right)
{
    (void)scratch;
    (void)chunk;
    (void)left;
    (void)right;
    pass_time(cost.outer_back);
}

/* --- what the kernels cost -------------------------------------------------------------------------------------- */

typedef struct table {
    const hd_linear_kernels *kernels;
    void *scratch;
    hd_linear_chunk chunk;
    float *state[2];
} table;

static void run_kernel(const table *t, int which)
{
    const hd_linear_kernels *k = t->kernels;
    switch (which) {
    case 0:
        k->states(t->scratch, &t->chunk, 0, NULL, t->state[0]);
        break;
    case 1:
        k->states(t->scratch, &t->chunk, 1, t->state[0], NULL);
        break;
    case 2:
        k->inner(t->scratch, &t->chunk);
        break;
    case 3:
        k->outer(t->scratch, &t->chunk, t->state[1], NULL);
        break;
    case 4:
        k->forward(t->scratch, &t->chunk, t->state[0]);
        break;
    case 5:
        k->inner_back(t->scratch, &t->chunk, t->state[1], NULL);
        break;
    default:
        k->outer_back(t->scratch, &t->chunk, NULL, t->state[1]);
        break;
    }
}

static int time_kernels(void)
{
    const hd_linear_dims dims = {WIDTH, WIDTH, CHUNK, 0};
    double *to[] = {&cost.states[0], &cost.states[1],  &cost.inner,     &cost.outer,
                    &cost.forward,   &cost.inner_back, &cost.outer_back};
    table t = {.kernels = hd_kernels_linear(widest(), HEDDLE_F32)};
    hd_linear_rows *rows[] = {&t.chunk.q,        &t.chunk.k,         &t.chunk.v,        &t.chunk.d_o,
                              &t.chunk.o,        &t.chunk.dq,        &t.chunk.dk,       &t.chunk.dv,
                              &t.chunk.o_so_far, &t.chunk.dk_so_far, &t.chunk.dv_so_far};
    int64_t elems = CHUNK * WIDTH;
    float *memory = calloc((size_t)(11 * elems), sizeof *memory);
    t.scratch = aligned_alloc(64, (t.kernels->scratch_bytes(&dims) + 127) / 64 * 64);
    for (int i = 0; i < 2; i++) {
        t.state[i] = calloc((size_t)(WIDTH * t.kernels->padded(WIDTH)), sizeof(float));
    }
    if (memory == NULL || t.scratch == NULL || t.state[0] == NULL || t.state[1] == NULL) {
        return 1;
    }
    for (int64_t i = 0; i < 11 * elems; i++) {
        memory[i] = (float)(i * 7919 % 1999) / 2000 - 0.5f;
    }
    t.chunk.rows = CHUNK;
    for (int i = 0; i < 11; i++) {
        *rows[i] = (hd_linear_rows){.data = memory + i * elems, .row = WIDTH, .column = 1, .dtype = HEDDLE_F32};
    }
    t.kernels->begin(t.scratch, &dims, 0.99);
    for (int which = 0; which < TIMED; which++) {
        *to[which] = INFINITY;
        for (int i = 0; i < 20; i++) {
            int64_t began = hd_now_ns();
            run_kernel(&t, which);
            *to[which] = fmin(*to[which], (double)(hd_now_ns() - began));
        }
    }
    free(memory);
    free(t.scratch);
    free(t.state[0]);
    free(t.state[1]);
    return 0;
}

/* --- ranks -------------------------------------------------------------------------------------------------------- */

typedef struct job {
    heddle_linear_method method;
    int receive_first, samples;
    int64_t rows;
    double forward_ms, backward_ms; /* medians, of the slowest rank; by rank 0 */
} job;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median over the samples of the slowest rank's time. */
static heddle_status median_of(double *out, double *ms, int n, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    int ranks = heddle_comm_size(comm);
    double *all = calloc((size_t)ranks, sizeof *all);
    for (int i = 0; i < n && st == HEDDLE_OK && all != NULL; i++) {
        st = heddle_comm_allgather(comm, &ms[i], all, sizeof *ms);
        for (int r = 0; r < ranks; r++) {
            ms[i] = fmax(ms[i], all[r]);
        }
    }
    free(all);
    qsort(ms, (size_t)n, sizeof *ms, ascending);
    if (heddle_comm_rank(comm) == 0) {
        *out = ms[n / 2];
    }
    return st;
}

static heddle_status run_samples(heddle_linear_attention *attention, heddle_comm *comm, job *j,
                                 const heddle_attention_array *x)
{
    heddle_status st = HEDDLE_OK;
    double ms[2][MOST_SAMPLES];
    for (int i = -1; i < j->samples; i++) { /* the first does not count */
        int64_t at[4];
        HD_TRY(heddle_comm_barrier(comm));
        at[0] = hd_now_ns();
        HD_TRY(heddle_linear_attention_forward(attention, x, x, x, x + 1, HEDDLE_NO_STREAM));
        at[1] = hd_now_ns();
        HD_TRY(heddle_comm_barrier(comm));
        at[2] = hd_now_ns();
        HD_TRY(heddle_linear_attention_backward(attention, x, x, x, x, x + 1, x + 1, x + 1, HEDDLE_NO_STREAM));
        at[3] = hd_now_ns();
        ms[0][i < 0 ? 0 : i] = (double)(at[1] - at[0]) * 1e-6;
        ms[1][i < 0 ? 0 : i] = (double)(at[3] - at[2]) * 1e-6;
    }
    HD_TRY(median_of(&j->forward_ms, ms[0], j->samples, comm));
    HD_TRY(median_of(&j->backward_ms, ms[1], j->samples, comm));
out:
    return st;
}

static heddle_status run_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    job *j = arg;
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_linear_attention *attention = NULL;
    heddle_linear_attention_options options;
    const double decay[HEADS] = {0.99, 0.9};
    int n = heddle_comm_size(comm);
    char text[96];
    float *data = calloc(2 * (size_t)(j->rows * HEADS * WIDTH), sizeof *data);
    heddle_attention_array x[2] = {{.data = data}, {.data = data + j->rows * HEADS * WIDTH}};
    snprintf(text, sizeof text, "f32[b=1 s=%lld h=%d d=%d]", (long long)j->rows * n, HEADS, WIDTH);
    HD_TRY(heddle_shape_parse(&shape, text));
    snprintf(text, sizeof text, "[sp=%d]", n);
    HD_TRY(heddle_mesh_parse(&mesh, text));
    HD_TRY(heddle_layout_parse(&layout, "s@sp", &shape, &mesh));
    heddle_linear_attention_options_init(&options);
    options.method = j->method;
    options.receive_first = j->receive_first;
    options.chunk_rows = CHUNK;
    options.decay = decay;
    HD_TRY(heddle_linear_attention_create(&attention, comm, &shape, &mesh, &layout, &options));
    prctl(PR_SET_TIMERSLACK, 1);
    owed_ns = 0;
    hd_linear_kernels sleeping = *attention->kernels;
    sleeping.states = sleep_states;
    sleeping.inner = sleep_inner;
    sleeping.outer = sleep_outer;
    sleeping.forward = sleep_forward;
    sleeping.inner_back = sleep_inner_back;
    sleeping.outer_back = sleep_outer_back;
    attention->kernels = &sleeping;
    HD_TRY(run_samples(attention, comm, j, x));
out:
    heddle_linear_attention_destroy(attention);
    free(data);
    return st;
}

static int run_all(int64_t rows, int samples)
{
    static const struct {
        const char *name;
        heddle_linear_method method;
        int receive_first;
    } ways[] = {{"lasp, own work first", HEDDLE_LINEAR_LASP, 0},
                {"lasp, receive first", HEDDLE_LINEAR_LASP, 1},
                {"lasp2", HEDDLE_LINEAR_LASP2, 0},
                {"scan", HEDDLE_LINEAR_SCAN, 0}};
    double units = (double)(rows / CHUNK) * HEADS * 1e-6;
    double three = units * (cost.states[0] + cost.inner + cost.outer), one = units * cost.forward;
    double back = units * (cost.states[1] + cost.inner_back + cost.outer_back);
    printf("a rank's own work, kernels alone: forward in three steps %.1f ms, in one walk %.1f ms, backward %.1f ms\n"
           "(of rank 0 and the last rank a little less: nothing comes before or behind them)\n\n"
           "%-22s %5s %11s %6s %12s %6s   s = serial work per rank, forward, backward\n",
           three, one, back, "", "ranks", "forward ms", "/ own", "backward ms", "/ own");
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        double own = ways[w].receive_first ? one : three;
        for (int n = 2; n <= 16; n *= 2) {
            job j = {
                .method = ways[w].method, .receive_first = ways[w].receive_first, .samples = samples, .rows = rows};
            if (heddle_run_ranks(n, "threads", run_rank, &j) != HEDDLE_OK) {
                fprintf(stderr, "bench_lasp_order: %s\n", heddle_last_error());
                return 1;
            }
            printf("%-22s %5d %11.1f %6.2f %12.1f %6.2f   %6.3f %6.3f\n", ways[w].name, n, j.forward_ms,
                   j.forward_ms / own, j.backward_ms, j.backward_ms / back, (j.forward_ms / own - 1) / (n - 1),
                   (j.backward_ms / back - 1) / (n - 1));
            fflush(stdout);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    long rows = argc > 1 ? atol(argv[1]) : 32 * CHUNK, samples = argc > 2 ? atol(argv[2]) : 7;
    if (rows < CHUNK || rows > 1 << 20 || rows % CHUNK != 0 || samples < 1 || samples > MOST_SAMPLES) {
        fprintf(stderr,
                "usage: bench_lasp_order [ROWS_PER_RANK [SAMPLES]]   rows: a multiple of %d, up to %d; samples: 1 "
                "to %d\n",
                CHUNK, 1 << 20, MOST_SAMPLES);
        return 2;
    }
    if (time_kernels() != 0) {
        fprintf(stderr, "bench_lasp_order: no memory\n");
        return 1;
    }
    return run_all(rows, (int)samples);
}
