/* Linear attention of whole fibres, forward and backward: chunk by chunk of each head, with the states of a fibre only.
 *
 * The order of operations of a head depends on the length of its fibre alone, so any sharding of the other dims gives
 * the same bits. q is not scaled: 1/sqrt(d) is a factor of the result, which the norm behind it takes out again; what
 * is left of it is d times the norm's epsilon.
 */
#include "runtime/base/base.h"
#include "runtime/block/block_internal.h"

#include <math.h>
#include <string.h>

enum { ALIGNMENT = 64, LEAST_CHUNK = 128, MOST_CHUNK = 256 };
enum { KV_LEFT, KV_RIGHT, G_RIGHT, G_LEFT, STATES };

/* One thread's scratch, divided. */
typedef struct linear_work {
    const heddle_block *block;
    const hd_linear_kernels *kernels;
    hd_linear_dims dims;
    int64_t t, nchunks, state_elems;
    size_t state_bytes;
    unsigned char *scratch;
    unsigned char *states[STATES]; /* at the border of every chunk; NULL: not needed */
    unsigned char *carry[2];
    float *raw; /* a fibre's results before their norm where those behind it are bf16; backward: their gradient */
    size_t bytes;
} linear_work;

static unsigned char *take(linear_work *w, void *memory, size_t bytes)
{
    unsigned char *at = memory == NULL ? NULL : (unsigned char *)memory + w->bytes;
    w->bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

/* memory NULL: only counts bytes. */
static linear_work divide(const heddle_block *block, void *memory, int64_t t, int backward)
{
    int64_t d = block->head_channels;
    int64_t chunk = (d + 63) / 64 * 64;
    chunk = chunk < LEAST_CHUNK ? LEAST_CHUNK : chunk > MOST_CHUNK ? MOST_CHUNK : chunk;
    chunk = t < chunk ? t : chunk;
    linear_work w = {.block = block, .kernels = &block->kernels->linear_f32, .t = t};
    w.dims = (hd_linear_dims){.dk = d, .dv = d, .chunk_rows = chunk, .bidirectional = !block->options.causal};
    w.nchunks = chunk > 0 ? (t + chunk - 1) / chunk : 0;
    w.state_elems = d * w.kernels->padded(d);
    w.state_bytes = (size_t)w.state_elems * sizeof(float);
    w.scratch = take(&w, memory, w.kernels->scratch_bytes(&w.dims));
    for (int i = 0; i < STATES; i++) {
        int two_sided = i == KV_RIGHT || i == G_LEFT, gradient = i == G_RIGHT || i == G_LEFT;
        if ((!two_sided || w.dims.bidirectional) && (!gradient || backward)) {
            w.states[i] = take(&w, memory, (size_t)w.nchunks * w.state_bytes);
        }
    }
    for (int i = 0; i < 2; i++) {
        w.carry[i] = take(&w, memory, w.state_bytes);
    }
    if (backward || block->options.shape.dtype != HEDDLE_F32) {
        w.raw = (float *)(void *)take(&w, memory, (size_t)(t * block->channels) * sizeof(float));
    }
    return w;
}

size_t hd_linear_scratch_bytes(const heddle_block *block, int64_t t, int backward)
{
    return divide(block, NULL, t, backward).bytes;
}

/* --- one head of one fibre ---------------------------------------------------------------------------------------- */

/* Where the head's first row begins; what a direction does not have is NULL. */
typedef struct head_rows {
    const float *qkv; /* q; k and v behind it */
    float *out;
    float *d_out;
    float *d_qkv;
} head_rows;

static hd_linear_rows rows_of(const float *base, int64_t row, int64_t stride, int64_t column)
{
    void *data = base == NULL ? NULL : (void *)(uintptr_t)(base + row * stride + column);
    return (hd_linear_rows){.data = data, .row = stride, .column = 1, .dtype = HEDDLE_F32};
}

static hd_linear_chunk chunk_of(const linear_work *w, const head_rows *x, int64_t index)
{
    int64_t c = w->block->channels, row = index * w->dims.chunk_rows;
    hd_linear_chunk chunk = {.rows = w->t - row < w->dims.chunk_rows ? w->t - row : w->dims.chunk_rows};
    chunk.q = rows_of(x->qkv, row, 3 * c, 0);
    chunk.k = rows_of(x->qkv, row, 3 * c, c);
    chunk.v = rows_of(x->qkv, row, 3 * c, 2 * c);
    chunk.o = chunk.o_so_far = rows_of(x->out, row, c, 0);
    chunk.d_o = rows_of(x->d_out, row, c, 0);
    chunk.dq = rows_of(x->d_qkv, row, 3 * c, 0);
    chunk.dk = chunk.dk_so_far = rows_of(x->d_qkv, row, 3 * c, c);
    chunk.dv = chunk.dv_so_far = rows_of(x->d_qkv, row, 3 * c, 2 * c);
    return chunk;
}

static unsigned char *state_at(const linear_work *w, int which, int64_t chunk)
{
    return w->states[which] != NULL ? w->states[which] + (size_t)chunk * w->state_bytes : NULL;
}

/* The chunks' contributions become the sums of those before (ascending) or behind each chunk. */
static void accumulate(const linear_work *w, int which, double decay, int ascending)
{
    unsigned char *now = w->carry[0], *next = w->carry[1];
    memset(now, 0, w->state_bytes);
    for (int64_t i = 0; i < w->nchunks && w->states[which] != NULL; i++) {
        int64_t chunk = ascending ? i : w->nchunks - 1 - i;
        int64_t row = chunk * w->dims.chunk_rows;
        int64_t rows = w->t - row < w->dims.chunk_rows ? w->t - row : w->dims.chunk_rows;
        unsigned char *slot = state_at(w, which, chunk), *swap = now;
        w->kernels->fold(next, pow(decay, (double)rows), now, slot, w->state_elems);
        memcpy(slot, now, w->state_bytes);
        now = next;
        next = swap;
    }
}

/* States at all borders from k and v, or (gradient) from q and d_o. */
static void make_states(const linear_work *w, const head_rows *x, double decay, int gradient)
{
    int right = gradient ? G_LEFT : KV_LEFT, left = gradient ? G_RIGHT : KV_RIGHT;
    for (int64_t i = 0; i < w->nchunks; i++) {
        hd_linear_chunk chunk = chunk_of(w, x, i);
        w->kernels->states(w->scratch, &chunk, gradient, state_at(w, right, i), state_at(w, left, i));
    }
    accumulate(w, right, decay, 1);
    accumulate(w, left, decay, 0);
}

/* The states on both sides of a chunk; NULL where nothing is. */
static const void *before(const linear_work *w, int which, int64_t chunk)
{
    return chunk == 0 ? NULL : state_at(w, which, chunk);
}

static const void *behind(const linear_work *w, int which, int64_t chunk)
{
    return chunk == w->nchunks - 1 ? NULL : state_at(w, which, chunk);
}

static void head_forward(const linear_work *w, const head_rows *x, double decay)
{
    w->kernels->begin(w->scratch, &w->dims, decay);
    if (w->dims.bidirectional) {
        make_states(w, x, decay, 0);
    } else {
        memset(w->carry[0], 0, w->state_bytes);
    }
    for (int64_t i = 0; i < w->nchunks; i++) {
        hd_linear_chunk chunk = chunk_of(w, x, i);
        if (!w->dims.bidirectional) {
            w->kernels->forward(w->scratch, &chunk, w->carry[0]);
            continue;
        }
        w->kernels->inner(w->scratch, &chunk);
        if (w->nchunks > 1) {
            w->kernels->outer(w->scratch, &chunk, before(w, KV_LEFT, i), behind(w, KV_RIGHT, i));
        }
    }
}

static void head_backward(const linear_work *w, const head_rows *x, double decay)
{
    w->kernels->begin(w->scratch, &w->dims, decay);
    make_states(w, x, decay, 0);
    make_states(w, x, decay, 1);
    for (int64_t i = 0; i < w->nchunks; i++) {
        hd_linear_chunk chunk = chunk_of(w, x, i);
        w->kernels->inner_back(w->scratch, &chunk, before(w, KV_LEFT, i), behind(w, KV_RIGHT, i));
        if (w->nchunks > 1) {
            w->kernels->outer_back(w->scratch, &chunk, before(w, G_LEFT, i), behind(w, G_RIGHT, i));
        }
    }
}

/* --- the norm of every head's result ------------------------------------------------------------------------------ */

void hd_linear_norm(const heddle_block *block, void *o, float *inverse, const float *raw, int64_t rows)
{
    block->kernels->head_norm(o, block->options.shape.dtype, inverse, raw, rows * block->options.heads,
                              block->head_channels);
}

void hd_linear_norm_back(const heddle_block *block, float *d_raw, const float *d_o, const void *o, const float *inverse,
                         int64_t rows)
{
    block->kernels->head_norm_back(d_raw, d_o, o, block->options.shape.dtype, inverse, rows * block->options.heads,
                                   block->head_channels);
}

/* --- fibres ------------------------------------------------------------------------------------------------------- */

void hd_linear_fibre(const heddle_block *block, void *scratch, const float *qkv, void *o, float *inverse, int64_t t)
{
    linear_work w = divide(block, scratch, t, 0);
    float *raw = w.raw != NULL ? w.raw : o;
    for (int64_t h = 0; h < block->options.heads; h++) {
        int64_t column = h * block->head_channels;
        head_rows x = {.qkv = qkv + column, .out = raw + column};
        head_forward(&w, &x, block->decay[h]);
    }
    hd_linear_norm(block, o, inverse, raw, t);
}

void hd_linear_fibre_back(const heddle_block *block, void *scratch, const hd_linear_back *x, int64_t t)
{
    linear_work w = divide(block, scratch, t, 1);
    hd_linear_norm_back(block, w.raw, x->d_o, x->o, x->inverse, t);
    for (int64_t h = 0; h < block->options.heads; h++) {
        int64_t column = h * block->head_channels;
        head_rows rows = {.qkv = x->qkv + column, .d_out = w.raw + column, .d_qkv = x->d_qkv + column};
        head_backward(&w, &rows, block->decay[h]);
    }
}

/* --- the mixer of whole fibres ------------------------------------------------------------------------------------ */

static size_t kept_bytes(const heddle_block *block, const hd_block_view *view)
{
    return (size_t)(view->outer * view->inner * view->t * block->options.heads) * sizeof(float);
}

static heddle_status forward_job(heddle_block *block, const hd_block_view *view, int seat, int64_t fibre)
{
    const hd_mixer_call *call = view->call;
    size_t elem = hd_block_elem_bytes(block);
    int64_t row = fibre * view->t, c = block->channels;
    hd_linear_fibre(block, block->scratch->seat[seat].part[HD_MIXER_PART], (const float *)call->qkv + row * 3 * c,
                    (char *)call->o + (size_t)(row * c) * elem, (float *)call->kept + row * block->options.heads,
                    view->t);
    return HEDDLE_OK;
}

static heddle_status backward_job(heddle_block *block, const hd_block_view *view, int seat, int64_t fibre)
{
    const hd_mixer_call *call = view->call;
    size_t elem = hd_block_elem_bytes(block);
    int64_t row = fibre * view->t, c = block->channels;
    hd_linear_back x = {.qkv = (const float *)call->qkv + row * 3 * c,
                        .o = (const char *)call->o + (size_t)(row * c) * elem,
                        .inverse = (const float *)call->kept + row * block->options.heads,
                        .d_o = call->d_o + row * c,
                        .d_qkv = call->d_qkv + row * 3 * c};
    hd_linear_fibre_back(block, block->scratch->seat[seat].part[HD_MIXER_PART], &x, view->t);
    return HEDDLE_OK;
}

static heddle_status run(const hd_mixer_call *call, hd_block_job job, int backward)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view view = *call->view;
    view.call = call;
    HD_TRY(hd_block_reserve(call->block, HD_MIXER_PART, hd_linear_scratch_bytes(call->block, view.t, backward)));
    HD_TRY(hd_block_run_jobs(call->block, &view, job, view.outer * view.inner));
out:
    return st;
}

static heddle_status forward(const hd_mixer_call *call)
{
    return run(call, forward_job, 0);
}

static heddle_status backward(const hd_mixer_call *call)
{
    return run(call, backward_job, 1);
}

const hd_block_mixer hd_mixer_linear = {
    .name = "linear", .kept_bytes = kept_bytes, .forward = forward, .backward = backward};
