/* Dense pairs over a tensor axis: outputs and all gradients against one rank in f64, bytes against the formula, and
 * the adjoint identity. */
#include "case.h"
#include "check.h"
#include "pair_model.h"

#include "kernels/small_float.h"
#include "runtime/base/base.h"
#include "runtime/verify/random.h"

#include <heddle/train/dense_pair.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rows of a box, in its order, as row numbers of the whole. */
static int64_t rows_of(int64_t *out, const whole *w, const heddle_layout *layout, int rank)
{
    heddle_box box;
    int64_t n = 0;
    if (heddle_layout_box(&box, &w->shape, &w->mesh, layout, rank) != HEDDLE_OK) {
        return -1;
    }
    for (int64_t r = 0; r < w->rows; r++) {
        int64_t rest = r;
        int inside = 1;
        for (int d = w->shape.ndim - 2; d >= 0; d--) {
            int64_t at = rest % w->shape.dim[d].extent;
            inside = inside && at >= box.lo[d] && at < box.lo[d] + box.len[d];
            rest /= w->shape.dim[d].extent;
        }
        if (inside) {
            out[n++] = r;
        }
    }
    return n;
}

static void put(const whole *w, void *dst, int64_t i, double value)
{
    if (w->bf16) {
        ((uint16_t *)dst)[i] = hd_bf16_from_f32((float)value);
    } else {
        ((float *)dst)[i] = (float)value;
    }
}

static double get(const whole *w, const void *src, int64_t i)
{
    return w->bf16 ? (double)hd_f32_from_bf16(((const uint16_t *)src)[i]) : (double)((const float *)src)[i];
}

/* This rank's blocks of the weights. */
static heddle_status fill(heddle_dense_pair *pair, int64_t hidden, int biases)
{
    heddle_status st = HEDDLE_OK;
    int64_t lo, len;
    heddle_param p[4];
    for (int i = 0; i < 4; i++) {
        p[i].struct_bytes = sizeof p[i];
        HD_TRY(heddle_dense_pair_param(&p[i], pair, i));
    }
    heddle_dense_pair_rows(&lo, &len, pair);
    int64_t c = p[B2].extent[0];
    CHECK(p[W1].extent[0] == len && p[W1].extent[1] == c && p[W2].extent[0] == c && p[W2].extent[1] == len);
    HD_TRY(heddle_dense_pair_commit(pair)); /* zeros; once more below */
    for (int64_t j = 0; j < len; j++) {
        p[B1].data[j] = biases ? (float)weight(B1, lo + j) : 0;
        for (int64_t i = 0; i < c; i++) {
            p[W1].data[j * c + i] = (float)weight(W1, (lo + j) * c + i);
            p[W2].data[i * len + j] = (float)weight(W2, i * hidden + lo + j);
        }
    }
    for (int64_t i = 0; i < c; i++) {
        p[B2].data[i] = biases ? (float)weight(B2, i) : 0;
    }
    HD_TRY(heddle_dense_pair_commit(pair));
out:
    return st;
}

static int near(double got, double wanted, double tolerance)
{
    return fabs(got - wanted) <= tolerance * (1 + fabs(wanted));
}

static heddle_status check_gradients(heddle_dense_pair *pair, const whole *w, int rank, double times, double tolerance)
{
    heddle_status st = HEDDLE_OK;
    int64_t rows[MAX_ROWS], own[MAX_ROWS], lo, len, c = w->c, h = w->hidden;
    int64_t n = rows_of(rows, w, &w->gathered, rank), m = rows_of(own, w, &w->layout, rank);
    heddle_param g[4];
    for (int i = 0; i < 4; i++) {
        g[i].struct_bytes = sizeof g[i];
        HD_TRY(heddle_dense_pair_gradient(&g[i], pair, i));
    }
    heddle_dense_pair_rows(&lo, &len, pair);
    for (int64_t j = 0; j < len; j++) {
        double b1 = 0;
        for (int64_t r = 0; r < n; r++) {
            b1 += w->du[rows[r] * h + lo + j];
        }
        CHECK(near(g[B1].data[j], times * b1, tolerance * sqrt((double)n + 1)));
        for (int64_t i = 0; i < c; i++) {
            double w1 = 0, w2 = 0;
            for (int64_t r = 0; r < n; r++) {
                w1 += w->du[rows[r] * h + lo + j] * w->x[rows[r] * c + i];
                w2 += w->dy[rows[r] * c + i] * w->a[rows[r] * h + lo + j];
            }
            CHECK(near(g[W1].data[j * c + i], times * w1, tolerance * sqrt((double)n + 1)));
            CHECK(near(g[W2].data[i * len + j], times * w2, tolerance * sqrt((double)n + 1)));
        }
    }
    for (int64_t i = 0; i < c; i++) {
        double b2 = 0;
        for (int64_t r = 0; r < m; r++) {
            b2 += w->dy[own[r] * c + i];
        }
        CHECK(near(g[B2].data[i], times * b2, tolerance * sqrt((double)m + 1)));
    }
out:
    return st;
}

typedef struct variant {
    int gelu, bf16, keep, threads;
} variant;

static heddle_status check_bytes(heddle_dense_pair *pair, const problem *p, const whole *w, int64_t own, int64_t all,
                                 int keep)
{
    heddle_status st = HEDDLE_OK;
    heddle_dense_pair_info info = HEDDLE_EMPTY(heddle_dense_pair_info);
    int n = w->mesh.axis[p->axis].size;
    int64_t row = w->c * (w->bf16 ? 2 : 4), gather = (n - 1) * own * row, scatter = (all - own) * row;
    HD_TRY(heddle_dense_pair_get_info(&info, pair));
    CHECK(info.forwards == 3 && info.backwards == 2);
    CHECK(info.measured_bytes == 3 * info.planned_forward_bytes + 2 * info.planned_backward_bytes);
    CHECK(!p->aligned || info.planned_forward_bytes == gather + scatter);
    CHECK(!p->aligned || info.planned_backward_bytes == (keep ? 1 : 2) * gather + scatter);
    CHECK(info.workspace_bytes >= 2 * all * row && (info.saved_bytes > 0) == (keep && all > 0));
out:
    return st;
}

/* Three forwards, of which the last two go back; in place, too. */
static heddle_status run_variant(heddle_comm *comm, const problem *p, const variant *v, float *bits, int64_t *nbits)
{
    heddle_status st = HEDDLE_OK;
    int rank = heddle_comm_rank(comm);
    heddle_dense_pair *pair = NULL;
    heddle_dense_pair_options options;
    whole *w = calloc(1, sizeof *w);
    int64_t rows[MAX_ROWS], all[MAX_ROWS];
    float *x = calloc(3 * MAX_ROWS * MAX_C, sizeof *x), *y = x + MAX_ROWS * MAX_C, *dy = y + MAX_ROWS * MAX_C;
    double tolerance = v->bf16 ? 4e-2 : 5e-6;
    HD_TRY(whole_make(w, p, v->gelu, v->bf16));
    int64_t m = rows_of(rows, w, &w->layout, rank), n = rows_of(all, w, &w->gathered, rank);
    heddle_dense_pair_options_init(&options);
    CHECK(options.activation == HEDDLE_ACTIVATION_GELU);
    options.hidden = p->hidden;
    options.activation = v->gelu ? HEDDLE_ACTIVATION_GELU : HEDDLE_ACTIVATION_NONE;
    options.keep_gathered = v->keep;
    options.threads = v->threads;
    HD_TRY(heddle_dense_pair_create(&pair, comm, &w->shape, &w->mesh, &w->layout, p->axis, &options));
    CHECK(heddle_dense_pair_nparams(pair) == 4);
    HD_TRY(fill(pair, p->hidden, 1));
    for (int64_t i = 0; i < m * w->c; i++) {
        put(w, x, i, w->x[rows[i / w->c] * w->c + i % w->c]);
        put(w, dy, i, w->dy[rows[i / w->c] * w->c + i % w->c]);
    }
    memcpy(y, x, (size_t)(m * w->c) * sizeof *x);
    HD_TRY(heddle_dense_pair_forward(pair, y, y, HEDDLE_NO_STREAM));
    HD_TRY(heddle_dense_pair_forward(pair, y, x, HEDDLE_NO_STREAM));
    HD_TRY(heddle_dense_pair_forward(pair, y, x, HEDDLE_NO_STREAM));
    for (int64_t i = 0; i < m * w->c; i++) {
        CHECK(near(get(w, y, i), w->y[rows[i / w->c] * w->c + i % w->c], tolerance));
    }
    *nbits = m * w->c;
    memcpy(bits, y, (size_t)*nbits * sizeof *bits);
    HD_TRY(heddle_dense_pair_backward(pair, y, dy, v->keep ? NULL : x, HEDDLE_NO_STREAM));
    HD_TRY(check_gradients(pair, w, rank, 1, tolerance));
    HD_TRY(heddle_dense_pair_backward(pair, dy, dy, x, HEDDLE_NO_STREAM)); /* adds; dx may be dy */
    HD_TRY(check_gradients(pair, w, rank, 2, tolerance));
    CHECK(memcmp(y, dy, (size_t)(m * w->c) * (v->bf16 ? 2 : 4)) == 0);
    for (int64_t i = 0; i < m * w->c; i++) {
        CHECK(near(get(w, dy, i), w->dx[rows[i / w->c] * w->c + i % w->c], tolerance));
    }
    memcpy(bits + *nbits, dy, (size_t)*nbits * sizeof *bits);
    *nbits *= 2;
    HD_TRY(check_bytes(pair, p, w, m, n, v->keep));
    heddle_dense_pair_zero_gradients(pair, HEDDLE_NO_STREAM);
    heddle_param g = HEDDLE_EMPTY(heddle_param);
    HD_TRY(heddle_dense_pair_gradient(&g, pair, B2));
    CHECK(g.data[0] == 0);
out:
    heddle_dense_pair_destroy(pair);
    free(w);
    free(x);
    return st;
}

static heddle_status pair_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    static const variant variants[] = {{1, 0, 0, 0}, {1, 0, 1, 1}, {1, 0, 0, 3},
                                       {0, 0, 0, 1}, {1, 1, 0, 1}, {0, 1, 1, 2}};
    float *first = calloc(2 * MAX_ROWS * MAX_C, sizeof *first), *bits = calloc(2 * MAX_ROWS * MAX_C, sizeof *bits);
    int64_t nbits = 0, same = 0;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        HD_TRY(run_variant(comm, arg, &variants[i], i == 0 ? first : bits, i == 0 ? &nbits : &same));
        CHECK(i == 0 || i > 2 || memcmp(first, bits, (size_t)nbits * sizeof *bits) == 0); /* keep, threads: no change */
    }
out:
    free(first);
    free(bits);
    return st;
}

static const problem problems[] = {
    {"f32[b=2 t=3 s=5 c=6]", "[tp=1]", "s@tp", 0, 1, 8},
    {"f32[b=2 t=3 s=8 c=6]", "[tp=2]", "s@tp", 0, 1, 8},
    {"f32[b=2 t=3 s=7 c=6]", "[tp=3]", "s@tp", 0, 0, 10},
    {"f32[n=3 c=1]", "[tp=5]", "n@tp", 0, 0, 3}, /* ranks without rows, and without hidden channels */
    {"f32[n=0 c=4]", "[tp=2]", "n@tp", 0, 1, 5},
    {"f32[n=9 c=4]", "[tp=3]", "n@tp(7 0 2)", 0, 0, 7},
    {"f32[b=1 t=20 s=32 c=13]", "[tp=2]", "t@tp", 0, 1, 24},
    {"f32[b=2 t=4 s=6 c=5]", "[dp=2 tp=2]", "b@dp,s@tp", 1, 1, 9},
    {"f32[b=2 t=4 s=6 c=5]", "[tp=2 sp=2]", "s@tp,t@sp", 0, 1, 9},
    {"f32[b=2 t=4 s=8 c=5]", "[sp=2 tp=2]", "s@sp,s@tp", 1, 1, 9},
    {"f32[b=2 t=4 s=8 c=5]", "[tp=2 sp=2]", "s@tp,s@sp", 0, 0, 9}, /* the gathered rows lie elsewhere, too */
    {"f32[b=2 t=4 s=7 c=5]", "[tp=2 sp=2]", "s@tp(1 6)", 0, 0, 9}, /* replicated over sp */
};

static void run_all(const char *transport, int messages, int hosts)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.force_messages = messages;
    options.pretend_hosts = hosts;
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        heddle_mesh mesh;
        if (i != 2 && !hd_goes("%s %s %s %d %d", problems[i].shape, problems[i].mesh, transport, messages, hosts)) {
            continue;
        }
        HD_OK(heddle_mesh_parse(&mesh, problems[i].mesh));
        HD_OK(heddle_run_ranks_with(heddle_mesh_size(&mesh), transport, &options, pair_rank, (void *)&problems[i]));
    }
}

HD_CASE(pairs_of_threads_and_of_processes)
{
    run_all("threads", 0, 0);
    run_all("shm", 0, 0);
}

HD_CASE(pairs_by_messages)
{
    run_all("shm", 1, 0);
    run_all("shm", 0, 2);
}

/* <dy, A x> = <A* dy, x> over all ranks, for a pair without activation and biases. */
static heddle_status adjoint_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const problem *p = arg;
    whole *w = calloc(1, sizeof *w);
    heddle_dense_pair *pair = NULL;
    heddle_dense_pair_options options;
    int64_t rows[MAX_ROWS];
    float *x = calloc(3 * MAX_ROWS * MAX_C, sizeof *x), *y = x + MAX_ROWS * MAX_C, *dy = y + MAX_ROWS * MAX_C;
    double sums[2] = {0, 0};
    HD_TRY(whole_make(w, p, 0, 0));
    heddle_dense_pair_options_init(&options);
    options.hidden = p->hidden;
    options.activation = HEDDLE_ACTIVATION_NONE;
    HD_TRY(heddle_dense_pair_create(&pair, comm, &w->shape, &w->mesh, &w->layout, p->axis, &options));
    HD_TRY(fill(pair, p->hidden, 0));
    int64_t m = rows_of(rows, w, &w->layout, heddle_comm_rank(comm)) * w->c;
    for (int64_t i = 0; i < m; i++) {
        x[i] = (float)w->x[rows[i / w->c] * w->c + i % w->c];
        dy[i] = (float)w->dy[rows[i / w->c] * w->c + i % w->c];
    }
    HD_TRY(heddle_dense_pair_forward(pair, y, x, HEDDLE_NO_STREAM));
    for (int64_t i = 0; i < m; i++) {
        sums[0] += (double)y[i] * (double)dy[i];
    }
    HD_TRY(heddle_dense_pair_backward(pair, y, dy, x, HEDDLE_NO_STREAM));
    for (int64_t i = 0; i < m; i++) {
        sums[1] += (double)y[i] * (double)x[i];
    }
    HD_TRY(heddle_comm_allreduce_sum(comm, sums, 2, HEDDLE_F64));
    CHECK(fabs(sums[0] - sums[1]) <= 1e-5 * (1 + fabs(sums[0])));
    CHECK(w->rows == 0 || fabs(sums[0]) > 1e-3);
out:
    heddle_dense_pair_destroy(pair);
    free(w);
    free(x);
    return st;
}

HD_CASE(adjoint)
{
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        heddle_mesh mesh;
        HD_OK(heddle_mesh_parse(&mesh, problems[i].mesh));
        HD_OK(heddle_run_ranks(heddle_mesh_size(&mesh), "threads", adjoint_rank, (void *)&problems[i]));
    }
}

/* Forward alone keeps rows for each thread, not for each job: the bits of a pair that keeps all of them. */
static heddle_status forward_only_rank(heddle_comm *comm, void *arg)
{
    enum { ROWS = 2600, CHANNELS = 8, HIDDEN = 24, TIMES = 20 };
    heddle_status st = HEDDLE_OK;
    heddle_dense_pair *pair = NULL;
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_box box;
    float *x = calloc(3 * ROWS * CHANNELS, sizeof *x), *wanted = x + ROWS * CHANNELS, *y = wanted + ROWS * CHANNELS;
    random_source source = {(uint64_t)heddle_comm_rank(comm)};
    (void)arg;
    HD_TRY(heddle_shape_parse(&shape, "f32[n=2600 c=8]"));
    HD_TRY(heddle_mesh_parse(&mesh, "[tp=2]"));
    HD_TRY(heddle_layout_parse(&layout, "n@tp", &shape, &mesh));
    HD_TRY(heddle_layout_box(&box, &shape, &mesh, &layout, heddle_comm_rank(comm)));
    const size_t bytes = (size_t)heddle_box_elems(&box) * sizeof *x;
    for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
        x[i] = (float)random_unit(&source);
    }
    for (int threads = 0; threads <= 4; threads += 2) {
        heddle_dense_pair_options options;
        heddle_dense_pair_options_init(&options);
        options.hidden = HIDDEN;
        options.threads = threads;
        options.forward_only = threads > 0;
        HD_TRY(heddle_dense_pair_create(&pair, comm, &shape, &mesh, &layout, 0, &options));
        HD_TRY(fill(pair, HIDDEN, 1));
        for (int i = 0; i < (threads > 0 ? TIMES : 1); i++) {
            memset(y, 0, bytes);
            HD_TRY(heddle_dense_pair_forward(pair, threads > 0 ? y : wanted, x, HEDDLE_NO_STREAM));
            CHECK(threads == 0 || memcmp(y, wanted, bytes) == 0);
        }
        heddle_dense_pair_destroy(pair);
        pair = NULL;
    }
out:
    heddle_dense_pair_destroy(pair);
    free(x);
    return st;
}

HD_CASE(forward_alone_gives_the_same_bits)
{
    HD_OK(heddle_run_ranks(2, "threads", forward_only_rank, NULL));
}
