/* Softmax attention over fibres that are whole on this rank. */
#include "runtime/base/base.h"
#include "runtime/block/block_internal.h"

#include <math.h>
#include <string.h>

/* A job is a fibre, or one head of a long one. */
enum { LONG_FIBRE = 128 };

typedef struct mixer_job {
    int64_t fibre, first_head, end_head;
} mixer_job;

/* Short fibres: one job for all heads of a fibre. Long ones: one for each head, so that few fibres still feed all
 * threads. */
static mixer_job job_of(const heddle_block *block, const hd_block_view *view, int64_t job)
{
    int64_t heads = block->options.heads;
    if (view->t < LONG_FIBRE) {
        return (mixer_job){job, 0, heads};
    }
    return (mixer_job){job / heads, job % heads, job % heads + 1};
}

static int64_t jobs_of(const heddle_block *block, const hd_block_view *view)
{
    return view->outer * view->inner * (view->t < LONG_FIBRE ? 1 : block->options.heads);
}

/* [fibre][head]: the largest scores of t rows, then the logarithms of their sums. */
static float *top_of(const hd_mixer_call *call, int64_t fibre, int64_t head)
{
    return (float *)call->kept + (fibre * call->block->options.heads + head) * 2 * call->view->t;
}

static size_t kept_bytes(const heddle_block *block, const hd_block_view *view)
{
    return (size_t)(view->outer * view->inner * view->t * block->options.heads) * 2 * sizeof(float);
}

static heddle_status forward_job(heddle_block *block, const hd_block_view *view, int seat_index, int64_t index)
{
    const hd_mixer_call *call = view->call;
    mixer_job job = job_of(block, view, index);
    int64_t c = block->channels;
    size_t elem = hd_block_elem_bytes(block);
    const char *qkv = (const char *)call->qkv + (size_t)(job.fibre * view->t * 3 * c) * elem;
    char *out = (char *)call->o + (size_t)(job.fibre * view->t * c) * elem;
    for (int64_t h = job.first_head; h < job.end_head; h++) {
        hd_attention_head head = hd_fibre_head(block, qkv, out, view->t, h);
        head.top = top_of(call, job.fibre, h);
        head.log_sum = head.top + view->t;
        block->kernels->attention(&head, block->scratch->seat[seat_index].part[HD_MIXER_PART]);
    }
    return HEDDLE_OK;
}

/* view.call is how a job finds its call: jobs get the block, the view and a number. */
static heddle_status run(const hd_mixer_call *call, size_t part_bytes, hd_block_job fn)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view view = *call->view;
    view.call = call;
    HD_TRY(hd_block_reserve(call->block, HD_MIXER_PART, part_bytes));
    HD_TRY(hd_block_run_jobs(call->block, &view, fn, jobs_of(call->block, &view)));
out:
    return st;
}

static heddle_status forward(const hd_mixer_call *call)
{
    const heddle_block *block = call->block;
    return run(call, block->kernels->attention_scratch_bytes(call->view->t, block->head_channels), forward_job);
}

/* Dense f32 rows of one head, and its gradients. */
typedef struct head_rows {
    float *q, *k, *v, *o, *d_o, *dq, *dk, *dv, *delta;
    void *scratch;
} head_rows;

enum { HEAD_ARRAYS = 8, LINE_FLOATS = 16 };

static int64_t lines(int64_t floats)
{
    return (floats + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

static size_t head_bytes(const heddle_block *block, int64_t t)
{
    int64_t d = block->head_channels;
    return (size_t)(HEAD_ARRAYS * lines(t * d) + lines(t)) * sizeof(float) + block->kernels->attn_f32.scratch_bytes(d);
}

/* Arrays begin at cache lines. */
static head_rows divide(float *memory, int64_t t, int64_t d)
{
    head_rows x;
    float **array[HEAD_ARRAYS] = {&x.q, &x.k, &x.v, &x.o, &x.d_o, &x.dq, &x.dk, &x.dv};
    for (int i = 0; i < HEAD_ARRAYS; i++) {
        *array[i] = memory + i * lines(t * d);
    }
    x.delta = memory + HEAD_ARRAYS * lines(t * d);
    x.scratch = x.delta + lines(t);
    return x;
}

/* Rows of one head lie 3c (qkv) or c (o) elements apart; the kernels of backward want them dense and in f32. */
static void gather(const heddle_block *block, float *dst, const void *src, heddle_dtype dtype, int64_t rows,
                   int64_t stride)
{
    int64_t d = block->head_channels;
    size_t elem = heddle_dtype_bytes(dtype);
    for (int64_t r = 0; r < rows; r++) {
        block->kernels->convert(dst + r * d, HEDDLE_F32, (const char *)src + (size_t)(r * stride) * elem, dtype, d);
    }
}

static void scatter(float *dst, const float *src, int64_t rows, int64_t d, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++) {
        memcpy(dst + r * stride, src + r * d, (size_t)d * sizeof(float));
    }
}

/* The softmax is not kept: backward makes it again from q, k and, per row, the largest score and the logarithm of the
 * sum. delta is the dot product of o and its gradient, row by row. */
static heddle_status backward_job(heddle_block *block, const hd_block_view *view, int seat_index, int64_t index)
{
    const hd_mixer_call *call = view->call;
    const hd_attn_kernels *kernels = &block->kernels->attn_f32;
    mixer_job job = job_of(block, view, index);
    heddle_dtype dtype = block->options.shape.dtype;
    int64_t c = block->channels, d = block->head_channels, t = view->t;
    size_t elem = hd_block_elem_bytes(block);
    head_rows x = divide(block->scratch->seat[seat_index].part[HD_MIXER_PART], t, d);
    hd_attn_block piece = {x.q, x.k, x.v, t, t, d, t, (double)(1.0f / sqrtf((float)d))};
    for (int64_t h = job.first_head; h < job.end_head; h++) {
        const char *qkv = (const char *)call->qkv + (size_t)(job.fibre * t * 3 * c + h * d) * elem;
        float *d_qkv = call->d_qkv + job.fibre * t * 3 * c + h * d;
        const float *top = top_of(call, job.fibre, h);
        hd_attn_grad grad = {x.d_o, top, top + t, x.delta, x.dq, x.dk, x.dv};
        gather(block, x.q, qkv, dtype, t, 3 * c);
        gather(block, x.k, qkv + (size_t)c * elem, dtype, t, 3 * c);
        gather(block, x.v, qkv + (size_t)(2 * c) * elem, dtype, t, 3 * c);
        gather(block, x.o, (const char *)call->o + (size_t)(job.fibre * t * c + h * d) * elem, dtype, t, c);
        gather(block, x.d_o, call->d_o + job.fibre * t * c + h * d, HEDDLE_F32, t, c);
        memset(x.dq, 0, (size_t)(3 * lines(t * d)) * sizeof(float)); /* dk and dv follow */
        kernels->row_dots(x.delta, x.o, x.d_o, t, d);
        kernels->backward(&piece, &grad, x.scratch);
        scatter(d_qkv, x.dq, t, d, 3 * c);
        scatter(d_qkv + c, x.dk, t, d, 3 * c);
        scatter(d_qkv + 2 * c, x.dv, t, d, 3 * c);
    }
    return HEDDLE_OK;
}

static heddle_status backward(const hd_mixer_call *call)
{
    return run(call, head_bytes(call->block, call->view->t), backward_job);
}

const hd_block_mixer hd_mixer_softmax = {
    .name = "softmax", .kept_bytes = kept_bytes, .forward = forward, .backward = backward};
