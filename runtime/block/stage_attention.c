/* x += gate * proj(attention over one dim(qkv(modulate(norm(x))))), group of fibres by group of fibres. */
#include "runtime/base/base.h"
#include "runtime/block/block_internal.h"

#include <math.h>

enum { PART_NORMED = 0, PART_QKV = 1, PART_OUT = 2, PART_SCRATCH = 3 };
enum { SHIFT = 0, SCALE = 1, GATE = 2 };

/* A group: inner indices i0 .. i0+ni of outer indices o0 .. o0+no (no > 1 only with all inner ones). Its rows are
 * gathered fibre after fibre, (o, i, t): tokens a power of two apart would fall on the same few cache sets. */
typedef struct fibre_group {
    int64_t o0;
    int64_t no;
    int64_t i0;
    int64_t ni;
} fibre_group;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t jobs_per_outer(const hd_block_view *view)
{
    return view->fibres_per_job >= view->inner ? 1 : (view->inner + view->fibres_per_job - 1) / view->fibres_per_job;
}

static fibre_group group_of(const hd_block_view *view, int64_t job)
{
    fibre_group group = {.o0 = job, .no = 1, .i0 = 0, .ni = view->inner};
    if (view->fibres_per_job >= view->inner) {
        int64_t outers = view->fibres_per_job / view->inner;
        group.o0 = job * outers;
        group.no = smaller(outers, view->outer - group.o0);
        return group;
    }
    int64_t pieces = jobs_per_outer(view);
    group.o0 = job / pieces;
    group.i0 = job % pieces * view->fibres_per_job;
    group.ni = smaller(view->fibres_per_job, view->inner - group.i0);
    return group;
}

/* Where row r of the group lies in the box. */
static int64_t row_in_box(const hd_block_view *view, const fibre_group *group, int64_t r)
{
    int64_t t = r % view->t;
    int64_t i = r / view->t % group->ni;
    int64_t o = r / view->t / group->ni;
    return ((group->o0 + o) * view->t + t) * view->inner + group->i0 + i;
}

/* Rows from r on that lie together in the box and belong to one sample. */
static int64_t run_rows(const hd_block_view *view, const fibre_group *group, int64_t r, int64_t end)
{
    if (view->inner > 1) {
        return 1;
    }
    return smaller(end - r, view->sample_rows - row_in_box(view, group, r) % view->sample_rows);
}

static void normalise(heddle_block *block, const hd_block_view *view, int seat_index, const fibre_group *group,
                      int64_t rows)
{
    size_t row_bytes = (size_t)block->channels * hd_block_elem_bytes(block);
    char *normed = block->scratch->seat[seat_index].part[PART_NORMED];
    int64_t count;
    for (int64_t r = 0; r < rows; r += count) {
        int64_t row = row_in_box(view, group, r);
        int64_t sample = row / view->sample_rows;
        count = run_rows(view, group, r, rows);
        block->kernels->norm_modulate(normed + (size_t)r * row_bytes, view->x + (size_t)row * row_bytes,
                                      block->options.shape.dtype, count, block->channels,
                                      hd_block_condition(block, view, sample, SHIFT),
                                      hd_block_condition(block, view, sample, SCALE));
    }
}

static void norm_rotate(heddle_block *block, const hd_block_view *view, char *qkv, int64_t rows)
{
    int64_t c = block->channels;
    heddle_dtype dtype = hd_mixer_dtype(block);
    size_t elem = heddle_dtype_bytes(dtype);
    if (!block->options.qk_norm && !block->options.rope) {
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        char *row = qkv + (size_t)(r * 3 * c) * elem;
        int64_t t = r % view->t;
        const float *cos_sin = block->cos_sin != NULL ? block->cos_sin + t * block->head_channels : NULL;
        for (int which = 0; which < 2; which++) {
            const float *weight = block->options.qk_norm ? block->param[HD_PARAM_Q_NORM + which].data : NULL;
            block->kernels->norm_rotate(row + (size_t)(which * c) * elem, dtype, block->options.heads,
                                        block->head_channels, weight, cos_sin);
        }
    }
}

hd_attention_head hd_fibre_head(const heddle_block *block, const void *qkv, void *out, int64_t t, int64_t h)
{
    const int64_t c = block->channels, d = block->head_channels;
    const size_t elem = hd_block_elem_bytes(block);
    const char *q = (const char *)qkv + (size_t)(h * d) * elem;
    return (hd_attention_head){.dtype = block->options.shape.dtype,
                               .q = q,
                               .k = q + (size_t)c * elem,
                               .v = q + (size_t)(2 * c) * elem,
                               .out = (char *)out + (size_t)(h * d) * elem,
                               .nq = t,
                               .nk = t,
                               .d = d,
                               .q_stride = 3 * c,
                               .kv_stride = 3 * c,
                               .out_stride = c,
                               .scale = 1.0f / sqrtf((float)d)};
}

/* Every fibre and head of the group; the result lies where the normalised rows were. */
static void mix(heddle_block *block, const hd_block_view *view, int seat_index, const fibre_group *group)
{
    const hd_block_seat *seat = &block->scratch->seat[seat_index];
    int64_t c = block->channels;
    size_t elem = hd_block_elem_bytes(block), qkv_elem = heddle_dtype_bytes(hd_mixer_dtype(block));
    int linear = block->options.kind == HEDDLE_STAGE_LINEAR;
    for (int64_t fibre = 0; fibre < group->no * group->ni; fibre++) {
        int64_t row = fibre * view->t;
        const void *qkv = (const char *)seat->part[PART_QKV] + (size_t)(row * 3 * c) * qkv_elem;
        char *out = (char *)seat->part[PART_NORMED] + (size_t)(row * c) * elem;
        if (linear) {
            hd_linear_fibre(block, seat->part[PART_SCRATCH], qkv, out, NULL, view->t);
        }
        for (int64_t h = 0; h < block->options.heads && !linear; h++) {
            hd_attention_head head = hd_fibre_head(block, qkv, out, view->t, h);
            block->kernels->attention(&head, seat->part[PART_SCRATCH]);
        }
    }
}

static heddle_status project(heddle_block *block, const hd_block_view *view, int seat_index, const fibre_group *group,
                             int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_seat *seat = &block->scratch->seat[seat_index];
    int64_t c = block->channels;
    size_t row_bytes = (size_t)c * hd_block_elem_bytes(block);
    for (int64_t first = 0; first < rows; first += HD_CHUNK_ROWS) {
        int64_t end = smaller(rows, first + HD_CHUNK_ROWS);
        const float *change = seat->part[PART_OUT];
        int64_t count;
        HD_TRY(hd_gemm_run(block->layer[HD_LAYER_PROJ], seat_index, seat->part[PART_OUT],
                           (const char *)seat->part[PART_NORMED] + (size_t)first * row_bytes, end - first));
        for (int64_t r = first; r < end; r += count, change += count * c) {
            int64_t row = row_in_box(view, group, r);
            count = run_rows(view, group, r, end);
            block->kernels->gate_residual(view->x + (size_t)row * row_bytes, block->options.shape.dtype, change, count,
                                          c, hd_block_condition(block, view, row / view->sample_rows, GATE));
        }
    }
out:
    return st;
}

static heddle_status group_job(heddle_block *block, const hd_block_view *view, int seat_index, int64_t job)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_seat *seat = &block->scratch->seat[seat_index];
    fibre_group group = group_of(view, job);
    int64_t rows = group.no * view->t * group.ni;
    normalise(block, view, seat_index, &group, rows);
    HD_TRY(hd_gemm_run(block->layer[HD_LAYER_QKV], seat_index, seat->part[PART_QKV], seat->part[PART_NORMED], rows));
    norm_rotate(block, view, seat->part[PART_QKV], rows);
    mix(block, view, seat_index, &group);
    HD_TRY(project(block, view, seat_index, &group, rows));
out:
    return st;
}

/* Time of `rows` rows in the linear layers, in arbitrary units: whole large blocks, the rest in padded small ones,
 * which are some 6 % slower per row. */
static int64_t cost_of(int64_t rows)
{
    int64_t rest = rows % HD_GEMM_LARGE_ROWS;
    return (rows - rest) * 16 + (rest + HD_GEMM_ROWS - 1) / HD_GEMM_ROWS * HD_GEMM_ROWS * 17;
}

/* Of `count` units of `rows` rows each, taken `step` at a time. */
static int64_t cost_of_steps(int64_t count, int64_t rows, int64_t step)
{
    return count / step * cost_of(step * rows) + cost_of(count % step * rows);
}

/* Fibres per job: what pads the fewest rows, within HD_GROUP_ROWS rows (at least one fibre) and leaving every thread a
 * job. */
static void divide(const heddle_block *block, hd_block_view *view)
{
    int64_t share = (view->outer * view->inner + block->seats - 1) / block->seats;
    int64_t limit = smaller(share, HD_GROUP_ROWS / view->t);
    int64_t best = INT64_MAX;
    view->fibres_per_job = 1;
    for (int64_t fibres = 1; fibres < view->inner && fibres <= limit; fibres++) {
        int64_t cost = view->outer * cost_of_steps(view->inner, view->t, fibres);
        if (cost < best) {
            best = cost;
            view->fibres_per_job = fibres;
        }
    }
    for (int64_t outers = 1; outers <= view->outer && outers * view->inner <= limit; outers++) {
        int64_t cost = cost_of_steps(view->outer, view->inner * view->t, outers);
        if (cost < best) {
            best = cost;
            view->fibres_per_job = outers * view->inner;
        }
    }
    if (view->fibres_per_job >= view->inner) {
        int64_t outers = view->fibres_per_job / view->inner;
        view->jobs = (view->outer + outers - 1) / outers;
    } else {
        view->jobs = view->outer * jobs_per_outer(view);
    }
}

heddle_status hd_stage_attention(heddle_block *block, hd_block_view *view)
{
    heddle_status st = HEDDLE_OK;
    size_t elem = hd_block_elem_bytes(block);
    divide(block, view);
    size_t plain = (size_t)(view->fibres_per_job * view->t * block->channels);
    HD_TRY(hd_block_reserve(block, PART_NORMED, plain * elem));
    HD_TRY(hd_block_reserve(block, PART_QKV, 3 * plain * heddle_dtype_bytes(hd_mixer_dtype(block))));
    HD_TRY(hd_block_reserve(block, PART_OUT, (size_t)(HD_CHUNK_ROWS * block->channels) * sizeof(float)));
    HD_TRY(hd_block_reserve(block, PART_SCRATCH,
                            block->options.kind == HEDDLE_STAGE_LINEAR
                                ? hd_linear_scratch_bytes(block, view->t, 0)
                                : block->kernels->attention_scratch_bytes(view->t, block->head_channels)));
    HD_TRY(hd_block_run_jobs(block, view, group_job, view->jobs));
out:
    return st;
}
