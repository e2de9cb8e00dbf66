/* x += proj(attention of q(x) to k,v(text)); k and v of the text once per call, then chunks of rows of one sample. */
#include "runtime/base/base.h"
#include "runtime/block/back_internal.h"

#include <math.h>

enum { PART_Q = 0, PART_MIXED = 1, PART_OUT = 2, PART_SCRATCH = 3, ALIGNMENT = 64 };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t hd_cross_length(const heddle_block *block, const hd_block_view *view, int64_t sample)
{
    const int64_t *lengths = view->conditioning->text_lengths;
    return lengths != NULL ? lengths[view->first_sample + sample] : block->options.text_tokens;
}

static char *sample_kv(const heddle_block *block, const hd_block_view *view, int64_t sample)
{
    const hd_kept *kept = view->call;
    return (kept != NULL ? kept->text : (char *)block->back->space->keep.part[HD_KEEP_TEXT]) +
           (size_t)(sample * block->options.text_tokens * 2 * block->channels) * hd_block_elem_bytes(block);
}

/* One sample's keys and values. */
static heddle_status text_job(heddle_block *block, const hd_block_view *view, int seat_index, int64_t sample)
{
    heddle_status st = HEDDLE_OK;
    heddle_dtype dtype = block->options.shape.dtype;
    int64_t c = block->channels;
    int64_t length = hd_cross_length(block, view, sample);
    const float *text = view->conditioning->text + (view->first_sample + sample) * block->options.text_tokens * c;
    char *kv = sample_kv(block, view, sample);
    for (int64_t r = 0; r < length; r += HD_CHUNK_ROWS) {
        int64_t rows = smaller(HD_CHUNK_ROWS, length - r);
        const void *src = text + r * c;
        if (dtype != HEDDLE_F32) {
            block->kernels->convert(block->scratch->seat[seat_index].part[PART_Q], dtype, src, HEDDLE_F32, rows * c);
            src = block->scratch->seat[seat_index].part[PART_Q];
        }
        HD_TRY(hd_gemm_run(block->layer[HD_LAYER_KV], seat_index, kv + (size_t)(r * 2 * c) * hd_block_elem_bytes(block),
                           src, rows));
    }
out:
    return st;
}

/* Where the rows from `row` on are read and written: the thread's scratch, or what is kept. */
typedef struct rows_at {
    char *x, *q, *mixed;
    float *top; /* of the sample: [head][2][row]; NULL: not wanted */
} rows_at;

static rows_at rows_of(const heddle_block *block, const hd_block_view *view, const hd_block_seat *seat, int64_t sample,
                       int64_t row)
{
    const hd_kept *kept = view->call;
    size_t offset = (size_t)(row * block->channels) * hd_block_elem_bytes(block);
    if (kept == NULL) {
        return (rows_at){view->x + offset, seat->part[PART_Q], seat->part[PART_MIXED], NULL};
    }
    return (rows_at){(kept->again ? kept->x : view->x) + offset, kept->wide + offset, kept->o + offset,
                     (float *)(void *)kept->mixer + sample * block->options.heads * 2 * view->sample_rows};
}

static heddle_status chunk(heddle_block *block, const hd_block_view *view, int seat_index, int64_t job)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_seat *seat = &block->scratch->seat[seat_index];
    heddle_dtype dtype = block->options.shape.dtype;
    int64_t c = block->channels;
    int64_t d = block->head_channels;
    size_t elem = hd_block_elem_bytes(block);
    int64_t sample_chunks = (view->sample_rows + HD_CHUNK_ROWS - 1) / HD_CHUNK_ROWS;
    int64_t sample = job / sample_chunks;
    int64_t first = job % sample_chunks * HD_CHUNK_ROWS;
    int64_t rows = smaller(HD_CHUNK_ROWS, view->sample_rows - first);
    const char *kv = sample_kv(block, view, sample);
    const hd_kept *kept = view->call;
    rows_at at = rows_of(block, view, seat, sample, sample * view->sample_rows + first);
    hd_attention_head head = {.dtype = dtype,
                              .nq = rows,
                              .nk = hd_cross_length(block, view, sample),
                              .d = d,
                              .q_stride = c,
                              .kv_stride = 2 * c,
                              .out_stride = c,
                              .scale = 1.0f / sqrtf((float)d)};
    if (kept != NULL && !kept->again) {
        block->kernels->convert(kept->x + (at.x - view->x), dtype, at.x, dtype, rows * c);
    }
    if (head.nk == 0) {
        return HEDDLE_OK; /* no text, no contribution */
    }
    HD_TRY(hd_gemm_run(block->layer[HD_LAYER_Q], seat_index, at.q, at.x, rows));
    for (int64_t h = 0; h < block->options.heads; h++) {
        head.q = at.q + (size_t)(h * d) * elem;
        head.k = kv + (size_t)(h * d) * elem;
        head.v = kv + (size_t)(c + h * d) * elem;
        head.out = at.mixed + (size_t)(h * d) * elem;
        head.top = at.top != NULL ? at.top + h * 2 * view->sample_rows + first : NULL;
        head.log_sum = at.top != NULL ? head.top + view->sample_rows : NULL;
        block->kernels->attention(&head, seat->part[PART_SCRATCH]);
    }
    if (kept == NULL || !kept->again) {
        HD_TRY(hd_gemm_run(block->layer[HD_LAYER_CROSS_PROJ], seat_index, seat->part[PART_OUT], at.mixed, rows));
        block->kernels->gate_residual(at.x, dtype, seat->part[PART_OUT], rows, c, NULL);
    }
out:
    return st;
}

static heddle_status reserve(heddle_block *block, const hd_block_view *view)
{
    heddle_status st = HEDDLE_OK;
    size_t elem = hd_block_elem_bytes(block);
    size_t plain = (size_t)(HD_CHUNK_ROWS * block->channels);
    size_t kv_bytes = 0;
    if (__builtin_mul_overflow((size_t)(view->samples * 2 * block->channels) * elem, (size_t)block->options.text_tokens,
                               &kv_bytes)) {
        return hd_fail(HEDDLE_ERR_NOMEM,
                       "keys and values of %lld samples x %lld text tokens do not fit the address space",
                       (long long)view->samples, (long long)block->options.text_tokens);
    }
    HD_TRY(hd_block_reserve(block, PART_Q, plain * elem));
    HD_TRY(hd_block_reserve(block, PART_MIXED, plain * elem));
    HD_TRY(hd_block_reserve(block, PART_OUT, plain * sizeof(float)));
    HD_TRY(hd_block_reserve(block, PART_SCRATCH,
                            block->kernels->attention_scratch_bytes(block->options.text_tokens, block->head_channels)));
    if (view->call == NULL) {
        HD_TRY(hd_back_make(block));
        hd_keep *keep = &block->back->space->keep;
        HD_TRY(hd_reserve(&keep->part[HD_KEEP_TEXT], &keep->held_bytes[HD_KEEP_TEXT], ALIGNMENT, kv_bytes,
                          "keys and values of the text"));
    }
out:
    return st;
}

heddle_status hd_stage_cross(heddle_block *block, hd_block_view *view)
{
    heddle_status st = HEDDLE_OK;
    int64_t sample_chunks = (view->sample_rows + HD_CHUNK_ROWS - 1) / HD_CHUNK_ROWS;
    HD_TRY(reserve(block, view));
    HD_TRY(hd_block_run_jobs(block, view, text_job, view->samples));
    HD_TRY(hd_block_run_jobs(block, view, chunk, view->samples * sample_chunks));
out:
    return st;
}
