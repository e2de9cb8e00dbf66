/* ATTENTION and LINEAR in phases over the whole box: rows in (norm, qkv), the mixer, rows out (projection, residual);
 * and the same backwards. */
#include "runtime/block/back_internal.h"

#include "runtime/base/base.h"

#include <string.h>

enum { PART_NORMED = 0, PART_OUT = 2 }; /* of a seat, as in stage_attention.c; HD_SEAT_SCALED holds gathered rows */

static size_t row_bytes(const heddle_block *block)
{
    return (size_t)block->channels * hd_block_elem_bytes(block);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static size_t qkv_bytes(const heddle_block *block)
{
    return 3 * (size_t)block->channels * heddle_dtype_bytes(hd_mixer_dtype(block));
}

/* qkv of the rows as the mixer wants them. They are turned in place where nobody needs them as they were. */
static char *turned(const heddle_block *block, const hd_kept *kept)
{
    return block->options.qk_norm ? (char *)hd_back_work(block, HD_WORK_TURNED) : kept->wide;
}

/* Norm and rotation of q and k, head by head. A row's position is that in the whole dim: the part begins at t_lo. */
static void turn_rows(heddle_block *block, const hd_block_view *view, const hd_kept *kept, const hd_row_piece *piece)
{
    int64_t c = block->channels, d = block->head_channels;
    heddle_dtype dtype = hd_mixer_dtype(block);
    size_t elem = heddle_dtype_bytes(dtype), wide = qkv_bytes(block);
    char *to = turned(block, kept) + (size_t)piece->first * wide;
    if (to != kept->wide + (size_t)piece->first * wide) {
        memcpy(to, kept->wide + (size_t)piece->first * wide, (size_t)piece->rows * wide);
    }
    if (!block->options.qk_norm && block->cos_sin == NULL) {
        return;
    }
    for (int64_t r = 0; r < piece->rows; r++) {
        int64_t t = view->t_lo + (piece->first + r) % view->t;
        const float *cos_sin = block->cos_sin != NULL ? block->cos_sin + t * d : NULL;
        for (int which = 0; which < 2; which++) {
            const float *weight = block->options.qk_norm ? block->param[HD_PARAM_Q_NORM + which].data : NULL;
            block->kernels->norm_rotate(to + (size_t)r * wide + (size_t)(which * c) * elem, dtype, block->options.heads,
                                        d, weight, cos_sin);
        }
    }
}

/* A job of the first phase: gather up to HD_CHUNK_ROWS rows in fibre order, norm, qkv. With `again` (recomputing)
 * the rows were gathered by the forward and kept. */
static heddle_status rows_in(heddle_block *block, const hd_block_view *view, int seat_index, int64_t job)
{
    heddle_status st = HEDDLE_OK;
    const hd_kept *kept = view->call;
    const hd_block_seat *seat = &block->scratch->seat[seat_index];
    hd_row_piece piece = hd_view_piece(view, job);
    char *x = kept->x != NULL ? kept->x + (size_t)piece.first * row_bytes(block) : seat->part[HD_SEAT_SCALED];
    if (!kept->again) {
        hd_view_gather(block, view, x, block->options.shape.dtype, &piece);
    }
    block->kernels->norm_modulate(seat->part[PART_NORMED], x, block->options.shape.dtype, piece.rows, block->channels,
                                  hd_block_condition(block, view, piece.sample, HD_SHIFT),
                                  hd_block_condition(block, view, piece.sample, HD_SCALE));
    HD_TRY(hd_gemm_run(block->layer[HD_LAYER_QKV], seat_index, kept->wide + (size_t)piece.first * qkv_bytes(block),
                       seat->part[PART_NORMED], piece.rows));
    turn_rows(block, view, kept, &piece);
out:
    return st;
}

/* A job of the last phase: projection, gate, residual. Rows that lie together in the activation go in one call. */
static heddle_status rows_out(heddle_block *block, const hd_block_view *view, int seat_index, int64_t job)
{
    heddle_status st = HEDDLE_OK;
    const hd_kept *kept = view->call;
    heddle_dtype dtype = block->options.shape.dtype;
    int64_t c = block->channels, count, stride;
    hd_row_piece piece = hd_view_piece(view, job);
    const float *change = block->scratch->seat[seat_index].part[PART_OUT];
    const float *gate = hd_block_condition(block, view, piece.sample, HD_GATE);
    HD_TRY(hd_gemm_run(block->layer[HD_LAYER_PROJ], seat_index, block->scratch->seat[seat_index].part[PART_OUT],
                       kept->o + (size_t)piece.first * row_bytes(block), piece.rows));
    for (int64_t r = 0; r < piece.rows; r += count) {
        char *x = view->x + (size_t)hd_view_row(view, piece.first + r) * row_bytes(block);
        count = hd_view_run(view, piece.first + r, piece.rows - r, &stride);
        if (stride == 1) {
            block->kernels->gate_residual(x, dtype, change + r * c, count, c, gate);
        }
        for (int64_t i = 0; i < count && stride != 1; i++) {
            block->kernels->gate_residual(x + (size_t)(i * stride) * row_bytes(block), dtype, change + (r + i) * c, 1,
                                          c, gate);
        }
    }
out:
    return st;
}

/* back: HD_BACK_..., for which the mixer keeps what its backward needs. Workspace is taken before the first job: a job
 * cannot fail for want of memory after it has changed the activation. */
heddle_status hd_forward_mixed(heddle_block *block, hd_block_view *view, const hd_kept *kept, int back)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view mine = *view;
    int64_t rows = hd_view_rows(view), plain = HD_CHUNK_ROWS * block->channels;
    mine.call = kept;
    HD_TRY(hd_block_reserve(block, PART_NORMED, (size_t)plain * hd_block_elem_bytes(block)));
    HD_TRY(hd_block_reserve(block, PART_OUT, (size_t)plain * sizeof(float)));
    HD_TRY(hd_block_reserve(block, HD_SEAT_SCALED, (size_t)plain * sizeof(float)));
    if (block->options.qk_norm) {
        HD_TRY(hd_back_reserve(block, HD_WORK_TURNED, (size_t)rows * qkv_bytes(block)));
    }
    HD_TRY(hd_block_run_jobs(block, &mine, rows_in, hd_view_pieces(view)));
    hd_mixer_call call = {.block = block, .view = view, .o = kept->o, .kept = kept->mixer, .back = back};
    call.qkv = turned(block, kept);
    call.forward = kept->forward;
    HD_TRY(block->mixer->forward(&call));
    if (!kept->again) {
        HD_TRY(hd_block_run_jobs(block, &mine, rows_out, hd_view_pieces(view)));
    }
out:
    return st;
}

heddle_status hd_stage_mixed(heddle_block *block, hd_block_view *view)
{
    heddle_status st = HEDDLE_OK;
    hd_kept kept;
    HD_TRY(hd_back_make(block));
    HD_TRY(hd_back_keep(&kept, block, view, NULL));
    HD_TRY(hd_forward_mixed(block, view, &kept, HD_BACK_NEVER));
out:
    return st;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* dy of the rows, times the gate, through the projection. */
static heddle_status out_piece(heddle_block *block, const hd_block_view *view, int seat_index,
                               const hd_row_piece *piece, int64_t at, float *sums)
{
    heddle_status st = HEDDLE_OK;
    const hd_walk *walk = hd_walk_of(view);
    int64_t c = block->channels;
    (void)sums;
    const void *scaled =
        hd_back_gather_gated(block, view, seat_index, hd_back_rows(block, HD_WORK_DY, at * c), piece, HD_GATE);
    HD_TRY(hd_gemm_run(block->back->layer[HD_LAYER_PROJ], seat_index,
                       (float *)hd_back_work(block, HD_WORK_D_O) + piece->first * c, scaled, piece->rows));
    hd_back_operand(block, hd_back_rows(block, HD_WORK_X, at * c),
                    walk->kept->o + (size_t)piece->first * row_bytes(block), block->options.shape.dtype,
                    piece->rows * c);
out:
    return st;
}

static heddle_status back_out(heddle_block *block, const hd_block_view *view, hd_walk *walk)
{
    int64_t c = block->channels;
    int direct = block->options.shape.dtype == block->back->dtype;
    walk->piece = out_piece;
    walk->columns = 0;
    walk->reduce = NULL;
    walk->nweights = 1;
    walk->weight[0] = (hd_weight_grad){.dtype = block->back->dtype,
                                       .dy = hd_back_work(block, HD_WORK_DY),
                                       .n = c,
                                       .x = direct ? (void *)walk->kept->o : hd_back_work(block, HD_WORK_X),
                                       .k = c,
                                       .x_whole = direct,
                                       .param = 2 * HD_LAYER_PROJ,
                                       .gate = block->options.modulate ? HD_GATE : -1};
    return hd_walk_run(block, view, walk);
}

static heddle_status turn_job(heddle_block *block, const hd_block_view *view, int seat, int64_t job)
{
    hd_row_piece piece = hd_view_piece(view, job);
    (void)seat;
    turn_rows(block, view, view->call, &piece);
    return HEDDLE_OK;
}

static int64_t shift_and_scale(const heddle_block *block)
{
    return block->options.modulate ? 2 * block->channels : 0;
}

/* d_qkv of the rows: back through rotation and norm of q and k, the linear layer, the norm of the row. */
static heddle_status in_piece(heddle_block *block, const hd_block_view *view, int seat_index, const hd_row_piece *piece,
                              int64_t at, float *sums)
{
    heddle_status st = HEDDLE_OK;
    const hd_kept *kept = hd_walk_of(view)->kept;
    int64_t c = block->channels, d = block->head_channels;
    heddle_dtype dtype = hd_mixer_dtype(block);
    float *d_qkv = (float *)hd_back_work(block, HD_WORK_D_WIDE) + piece->first * 3 * c;
    float *dy = block->scratch->seat[seat_index].part[HD_SEAT_OUT];
    for (int64_t r = 0; r < piece->rows && (block->options.qk_norm || block->cos_sin != NULL); r++) {
        int64_t t = view->t_lo + (piece->first + r) % view->t;
        const char *raw = kept->wide + (size_t)(piece->first + r) * qkv_bytes(block);
        for (int which = 0; which < 2; which++) {
            const float *weight = block->options.qk_norm ? block->param[HD_PARAM_Q_NORM + which].data : NULL;
            block->kernels->norm_rotate_back(
                d_qkv + (r * 3 + which) * c, raw + (size_t)(which * c) * heddle_dtype_bytes(dtype), dtype,
                block->options.heads, d, weight, block->cos_sin != NULL ? block->cos_sin + t * d : NULL,
                weight != NULL ? sums + shift_and_scale(block) + which * d : NULL);
        }
    }
    const void *operand =
        hd_back_operand(block, hd_back_rows(block, HD_WORK_NARROW, at * 3 * c), d_qkv, HEDDLE_F32, piece->rows * 3 * c);
    HD_TRY(hd_gemm_run(block->back->layer[HD_LAYER_QKV], seat_index, dy, operand, piece->rows));
    hd_back_norm_again(block, view, seat_index, hd_back_rows(block, HD_WORK_X, at * c), piece, 0);
    hd_norm_back x = {piece, dy, sums, 0};
    hd_back_norm(block, view, &x);
out:
    return st;
}

static void in_reduce(heddle_block *block, const hd_block_view *view, const hd_row_piece *piece, const float *sums)
{
    int64_t d = block->head_channels;
    hd_back_reduce_norm(block, view, piece, sums, 0);
    for (int which = 0; which < 2 && block->options.qk_norm; which++) {
        const float *from = sums + shift_and_scale(block) + which * d;
        block->kernels->add_columns(block->back->gradient[HD_PARAM_Q_NORM + which], from, 1, d, d);
    }
}

static heddle_status back_in(heddle_block *block, const hd_block_view *view, hd_walk *walk)
{
    int64_t c = block->channels;
    int direct = block->back->dtype == HEDDLE_F32;
    walk->piece = in_piece;
    walk->columns = shift_and_scale(block) + (block->options.qk_norm ? 2 * block->head_channels : 0);
    walk->reduce = walk->columns > 0 ? in_reduce : NULL;
    walk->nweights = 1;
    walk->weight[0] = (hd_weight_grad){.dtype = block->back->dtype,
                                       .dy = hd_back_work(block, direct ? HD_WORK_D_WIDE : HD_WORK_NARROW),
                                       .n = 3 * c,
                                       .x = hd_back_work(block, HD_WORK_X),
                                       .k = c,
                                       .dy_whole = direct,
                                       .param = 2 * HD_LAYER_QKV,
                                       .gate = -1};
    return hd_walk_run(block, view, walk);
}

/* What both walks of a backward work in. */
static heddle_status reserve(heddle_block *block, const hd_block_view *view)
{
    heddle_status st = HEDDLE_OK;
    size_t rows = (size_t)hd_view_rows(view), c = (size_t)block->channels;
    size_t stretch = (size_t)hd_walk_rows(block, view->samples, view->sample_rows);
    HD_TRY(hd_back_reserve(block, HD_WORK_D_O, rows * c * sizeof(float)));
    HD_TRY(hd_back_reserve(block, HD_WORK_D_WIDE, 3 * rows * c * sizeof(float)));
    size_t elem = heddle_dtype_bytes(block->back->dtype);
    HD_TRY(hd_back_reserve(block, HD_WORK_DY, stretch * c * elem));
    HD_TRY(hd_back_reserve(block, HD_WORK_X, stretch * c * elem));
    if (block->back->dtype != HEDDLE_F32) {
        HD_TRY(hd_back_reserve(block, HD_WORK_NARROW, 3 * stretch * c * elem));
    }
    HD_TRY(hd_block_reserve(block, HD_SEAT_SCALED, HD_CHUNK_ROWS * c * sizeof(float)));
    HD_TRY(hd_block_reserve(block, HD_SEAT_OUT, HD_CHUNK_ROWS * c * sizeof(float)));
    if (block->options.qk_norm) {
        HD_TRY(hd_back_reserve(block, HD_WORK_TURNED, rows * qkv_bytes(block)));
    }
out:
    return st;
}

/* Forward was in, mixer, out; so: what the forward did not keep is made again, then out, mixer, in. */
heddle_status hd_back_mixed(heddle_block *block, hd_block_view *view, const hd_kept *kept,
                            const heddle_conditioning_gradient *wanted)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view mine = *view;
    hd_walk walk = {.kept = kept, .wanted = wanted, .samples = view->samples, .sample_rows = view->sample_rows};
    HD_TRY(reserve(block, view));
    if (kept->again) {
        HD_TRY(hd_forward_mixed(block, view, kept, HD_BACK_NEXT));
    } else if (block->options.qk_norm) {
        mine.call = kept;
        HD_TRY(hd_block_run_jobs(block, &mine, turn_job, hd_view_pieces(view)));
    }
    HD_TRY(back_out(block, view, &walk));
    hd_mixer_call call = {.block = block, .view = view, .o = kept->o, .kept = kept->mixer};
    call.qkv = turned(block, kept);
    call.forward = kept->forward;
    call.d_o = hd_back_work(block, HD_WORK_D_O);
    call.d_qkv = hd_back_work(block, HD_WORK_D_WIDE);
    HD_TRY(block->mixer->backward(&call));
    HD_TRY(back_in(block, view, &walk));
out:
    return st;
}
