/* Tapes and backward: what a forward keeps, how rows are walked, gradients of weights.
 *
 * Rows are counted in fibre order (outer, inner, t) where a stage mixes a dim, else as in the box. A sample's rows are
 * cut into units of at most HD_UNIT_ROWS rows and those into pieces of at most HD_CHUNK_ROWS. Units are what sums over
 * rows are made of, in their order; so the sums do not depend on the number of threads.
 */
#ifndef HD_BACK_INTERNAL_H
#define HD_BACK_INTERNAL_H

#include "runtime/attention/inner.h"
#include "runtime/block/block_internal.h"

#include <heddle/train/tape.h>

enum {
    HD_UNIT_ROWS = 1024,
    HD_UNIT_PIECES = HD_UNIT_ROWS / HD_CHUNK_ROWS,
    HD_PANEL_ROWS = 192, /* of a weight's gradient: one thread's job */
};

/* Parts of every seat in backward. */
enum { HD_SEAT_SCALED = 4, HD_SEAT_OUT = 5, HD_SEAT_PANEL = 6 };

/* What a forward keeps. */
enum {
    HD_KEEP_X = 0,     /* [rows][c]: the stage's input, in fibre order */
    HD_KEEP_WIDE = 1,  /* ATTENTION, LINEAR: qkv [rows][3][c] of hd_mixer_dtype, before qk_norm; CROSS: q [rows][c];
                          MLP: fc1's result */
    HD_KEEP_O = 2,     /* [rows][c]: result of attention */
    HD_KEEP_MIXER = 3, /* the mixer's own; CROSS: top and log_sum [sample][head][2][row] f32 */
    HD_KEEP_TEXT = 4,  /* CROSS: k and v of the text [samples][text_tokens][2][c] */
    HD_KEEPS = 5
};

typedef struct hd_keep {
    void *part[HD_KEEPS];
    size_t held_bytes[HD_KEEPS];
    size_t used_bytes[HD_KEEPS];
} hd_keep;

/* How a device's block cuts its box: parts of `units` units, which are samples, or what there is along the dims in
 * front of the mixed one in a sample, or behind it. */
typedef enum hd_on_cut { HD_ON_WHOLE = 0, HD_ON_SAMPLES, HD_ON_OUTER, HD_ON_INNER } hd_on_cut;
typedef struct hd_on_parts {
    hd_on_cut cut;
    int64_t units;
} hd_on_parts;

struct heddle_tape {
    heddle_block *block;
    int recompute;
    int filled;
    uint64_t commits; /* of the block at the forward */
    heddle_box box;
    uint64_t forward;  /* of a block whose attention is sharded: which of its forwards */
    hd_on_parts parts; /* of a device's block: in which the forward went, so that they lie behind one another */
    hd_keep keep;
};

/* A tape's parts as one call sees them. */
typedef struct hd_kept {
    char *x;
    char *wide;
    char *o;
    char *mixer;
    char *text;
    int again;         /* 1: x is there, fill the others from it and leave the activation alone */
    uint64_t *forward; /* of a tape or a workspace, as the arrays; NULL on a device, where calls have the tape */
} hd_kept;

/* Workspace of backward besides the seats. */
enum {
    HD_WORK_TURNED = 0, /* [rows][3][c] of the dtype: qkv after qk_norm and rope */
    HD_WORK_D_O = 1,    /* [rows][c] */
    HD_WORK_D_WIDE = 2, /* [rows][3][c]; CROSS: [rows][c]; MLP, back->dtype F32: [stretch][mlp] */
    HD_WORK_DY = 3,     /* [stretch][c] of back->dtype */
    HD_WORK_X = 4,      /* [stretch][c] of back->dtype: what a linear layer was given */
    HD_WORK_ACTIVE = 5, /* MLP: [stretch][mlp] of back->dtype */
    HD_WORK_SUMS = 6,   /* sums over the rows of every piece of a stretch */
    HD_WORK_D_TEXT = 7, /* CROSS: [samples][text_tokens][2][c] */
    HD_WORK_NARROW = 8, /* back->dtype BF16: the stretch of D_WIDE, rounded */
    HD_WORK_RAW = 9,    /* sharded dims, [rows][c]: LINEAR's results before their norm, or their gradient; gradients of
                           bf16 ATTENTION */
    HD_WORKS = 10
};

/* Memory that lives from the beginning of a call to its end, so that several blocks may share it. */
typedef struct hd_back_space {
    int owners;   /* blocks */
    hd_keep keep; /* of forwards without a tape, and what recomputing tapes do not keep */
    uint64_t forward;
    void *work[HD_WORKS];
    size_t work_bytes[HD_WORKS];
    hd_room *room; /* of objects over sharded dims; NULL: there is none */
} hd_back_space;

struct hd_block_back {
    heddle_dtype
        dtype; /* of what the products of linear layers read; BF16: rounded for them, but the text's in CROSS */
    hd_gemm *layer[HD_BLOCK_LAYERS]; /* the layers' weights transposed; results are f32 */
    hd_gemm_outer *outer;            /* BF16 only: gradients of weights */
    uint64_t packed;                 /* block->commits of the packed weights */
    float *gradient[HD_BLOCK_PARAMS];
    hd_back_space *space;
};

/* block->back, made on first use. */
heddle_status hd_back_make(heddle_block *block);
void hd_back_destroy(heddle_block *block);
int64_t hd_back_bytes(const heddle_block *block);
/* The transposed layers, packed from the present weights. */
heddle_status hd_back_pack(heddle_block *block);
heddle_status hd_back_gradients(heddle_block *block);
static inline void *hd_back_work(const heddle_block *block, int which)
{
    return block->back->space->work[which];
}
/* Of work of back->dtype, from element `at` on; NULL where there is none. */
static inline char *hd_back_rows(const heddle_block *block, int which, int64_t at)
{
    char *work = hd_back_work(block, which);
    return work != NULL ? work + (size_t)at * heddle_dtype_bytes(block->back->dtype) : NULL;
}
/* `elems` elements as back->dtype: src itself, or a copy in dst. */
const void *hd_back_operand(const heddle_block *block, void *dst, const void *src, heddle_dtype src_dtype,
                            int64_t elems);
heddle_status hd_back_reserve(heddle_block *block, int which, size_t bytes);
/* Parts for one call; tape NULL: a forward that keeps nothing (x is NULL then). */
heddle_status hd_back_keep(hd_kept *out, heddle_block *block, const hd_block_view *view, heddle_tape *tape);
void hd_keep_free(hd_keep *keep);
heddle_status hd_keep_bytes(size_t *bytes, const heddle_block *block,
                            const hd_block_view *view); /* of HD_KEEPS parts */

/* --- rows --------------------------------------------------------------------------------------------------------- */

typedef struct hd_row_piece {
    int64_t sample; /* local */
    int64_t first;
    int64_t rows;
} hd_row_piece;

int64_t hd_view_rows(const hd_block_view *view);
int64_t hd_view_pieces(const hd_block_view *view);
hd_row_piece hd_view_piece(const hd_block_view *view, int64_t job);
/* Where row r, counted in fibre order, lies in the box; and how many rows from there on lie evenly spaced, `stride`
 * rows apart (at most `limit`). */
int64_t hd_view_row(const hd_block_view *view, int64_t r);
int64_t hd_view_run(const hd_block_view *view, int64_t r, int64_t limit, int64_t *stride);
/* Rows of the box to dense rows in fibre order. */
void hd_view_gather(const heddle_block *block, const hd_block_view *view, void *dst, heddle_dtype dtype,
                    const hd_row_piece *piece);

/* --- walking over the rows ---------------------------------------------------------------------------------------- */

/* dW[n][k] += dy^T x, db += column sums of dy, with dy times the gate where there is one. `whole`: the array holds all
 * rows, else those of the stretch. */
typedef struct hd_weight_grad {
    heddle_dtype dtype; /* of dy and x */
    const void *dy;
    int64_t n;
    const void *x;
    int64_t k;
    int dy_whole, x_whole;
    int param; /* of the weight; the bias follows */
    int gate;  /* row of the conditioning vector, whose gradient is added too; -1: none */
} hd_weight_grad;

typedef struct hd_walk hd_walk;
struct hd_walk {
    const hd_kept *kept;
    const heddle_conditioning_gradient *wanted;
    const void *stage; /* the stage's own */
    int64_t samples, sample_rows;
    /* Rows of a sample that take part, the first of its sample_rows; NULL: all */
    int64_t (*rows_of)(const heddle_block *block, const hd_block_view *view, int64_t sample);
    /* `at`: the piece's first row within the stretch; sums: zeroed, `columns` floats */
    heddle_status (*piece)(heddle_block *block, const hd_block_view *view, int seat, const hd_row_piece *piece,
                           int64_t at, float *sums);
    int64_t columns;
    void (*reduce)(heddle_block *block, const hd_block_view *view, const hd_row_piece *piece, const float *sums);
    int nweights;
    hd_weight_grad weight[2];
    int64_t first_unit, units, first_row; /* the present stretch */
};

/* Most rows of a stretch: what stretch buffers must hold. */
int64_t hd_walk_rows(const heddle_block *block, int64_t samples, int64_t sample_rows);
/* dw over rows of dtype F32, or of back->dtype. */
heddle_status hd_back_outer(const heddle_block *block, int seat, heddle_dtype dtype, const hd_outer_product *product);
/* Stretch by stretch: pieces, then the weights' gradients, then reduce of every piece in order. view->call is the walk
 * in all of them. */
heddle_status hd_walk_run(heddle_block *block, const hd_block_view *view, hd_walk *walk);

static inline const hd_walk *hd_walk_of(const hd_block_view *view)
{
    return view->call;
}

/* --- stages ------------------------------------------------------------------------------------------------------- */

enum { HD_SHIFT = 0, HD_SCALE = 1, HD_GATE = 2, HD_MLP_ROWS = 3 }; /* rows of the vector; MLP's are HD_MLP_ROWS later */

/* Where the gradient of row `which` of a local sample's vector is added; NULL: not wanted. */
float *hd_back_condition(const heddle_block *block, const hd_block_view *view, int64_t sample, int which);

/* What the gradients of norm and modulation need, shared by ATTENTION and MLP. */
typedef struct hd_norm_back {
    const hd_row_piece *piece;
    const float *dy; /* [rows][c] */
    float *sums;     /* shift, scale */
    int base;        /* 0 or HD_MLP_ROWS */
} hd_norm_back;
/* dy of the rows into dst, of back->dtype; returns them times row `gate` of the vector where the block is modulated, in
 * HD_SEAT_SCALED. Uses HD_SEAT_OUT. */
const void *hd_back_gather_gated(heddle_block *block, const hd_block_view *view, int seat, void *dst,
                                 const hd_row_piece *piece, int gate);
/* normed rows again, of back->dtype, into dst; uses HD_SEAT_SCALED where that is not the block's */
void hd_back_norm_again(heddle_block *block, const hd_block_view *view, int seat, void *dst, const hd_row_piece *piece,
                        int base);
void hd_back_norm(heddle_block *block, const hd_block_view *view, const hd_norm_back *x);
void hd_back_reduce_norm(heddle_block *block, const hd_block_view *view, const hd_row_piece *piece, const float *sums,
                         int base);

/* The same on a device (device/): forward and backward behind their checks, and what a tape holds there. */
heddle_status hd_on_forward_tape(heddle_block *block, const hd_block_view *view, heddle_tape *tape,
                                 heddle_stream stream);
heddle_status hd_on_backward(heddle_block *block, const hd_block_view *view, heddle_tape *tape,
                             const heddle_conditioning_gradient *wanted, heddle_stream stream);
heddle_status hd_on_reserve_tape(heddle_tape *tape, const hd_block_view *view);
void hd_on_keep_free(const struct hd_block_on *on, hd_keep *keep);
heddle_status hd_on_gradients(heddle_block *block, heddle_stream stream);
void hd_on_zero_gradients(heddle_block *block, heddle_stream stream);
float *hd_on_gradient(const struct hd_block_on *on, int param);
heddle_status hd_on_share(heddle_block *block, heddle_block *with);

heddle_status hd_forward_mixed(heddle_block *block, hd_block_view *view, const hd_kept *kept, int back);
heddle_status hd_back_mixed(heddle_block *block, hd_block_view *view, const hd_kept *kept,
                            const heddle_conditioning_gradient *wanted);
heddle_status hd_back_cross(heddle_block *block, hd_block_view *view, const hd_kept *kept,
                            const heddle_conditioning_gradient *wanted);
int64_t hd_cross_length(const heddle_block *block, const hd_block_view *view, int64_t sample); /* of its text */
heddle_status hd_back_mlp(heddle_block *block, hd_block_view *view, const hd_kept *kept,
                          const heddle_conditioning_gradient *wanted);

#endif
