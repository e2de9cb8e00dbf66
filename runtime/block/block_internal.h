/* A block: options, parameters, linear layers and one workspace per thread. */
#ifndef HD_BLOCK_INTERNAL_H
#define HD_BLOCK_INTERNAL_H

#include "kernels/gemm.h"
#include "runtime/block/inner.h"

#include <heddle/block.h>

enum {
    HD_BLOCK_PARAMS = 6,
    HD_BLOCK_LAYERS = 3,
    HD_CHUNK_ROWS = HD_GEMM_LARGE_ROWS, /* rows that go through a stage together */
    HD_GROUP_ROWS = 1024,               /* at most so many rows of short fibres; a fibre is never cut */
    HD_SEAT_PARTS = 8,
    HD_MIXER_PART = 7 /* of every seat: the mixer's own */
};

/* Positions in block->layer and of its weight in block->param (the bias follows). */
enum { HD_LAYER_QKV = 0, HD_LAYER_PROJ = 1 };                      /* ATTENTION */
enum { HD_LAYER_Q = 0, HD_LAYER_CROSS_PROJ = 1, HD_LAYER_KV = 2 }; /* CROSS */
enum { HD_LAYER_FC1 = 0, HD_LAYER_FC2 = 1 };                       /* MLP */
enum { HD_PARAM_Q_NORM = 4, HD_PARAM_K_NORM = 5 };                 /* ATTENTION with qk_norm */

/* Scratch of one thread; the meaning of the parts is each stage's own. */
typedef struct hd_block_seat {
    void *part[HD_SEAT_PARTS];
    size_t part_bytes[HD_SEAT_PARTS];
} hd_block_seat;

/* Of all threads, from the beginning of a call to its end: blocks of one workspace have one. */
typedef struct hd_block_scratch {
    int owners, seats;
    hd_block_seat seat[];
} hd_block_scratch;

typedef struct hd_block_back hd_block_back;
typedef struct hd_block_mixer hd_block_mixer;
typedef struct hd_block_sharded hd_block_sharded;

struct heddle_block {
    heddle_block_options options;
    int64_t channels;
    int64_t head_channels;
    const hd_kernels *kernels;
    int nparams;
    heddle_param param[HD_BLOCK_PARAMS];
    int nlayers;
    hd_gemm *layer[HD_BLOCK_LAYERS];
    int committed;
    float *cos_sin; /* [extent of mixed_dim][d/2][2]; NULL without rope */
    double *decay;  /* LINEAR: [heads] */
    int seats;
    hd_block_scratch *scratch;
    uint64_t commits;
    const hd_block_mixer *mixer; /* ATTENTION, LINEAR: what lies between the linear layers */
    void *mixer_self;            /* the mixer's own, freed by mixer->destroy */
    hd_block_sharded *sharded;   /* after heddle_block_shard_attention */
    hd_block_back *back;         /* what tapes and backward need; NULL before the first of them */
    struct hd_block_on *on;      /* what it has on its device (device/); NULL: it works in host memory */
};

/* x[outer, t, inner, c]: the box as seen from the mixed dim (outer = everything before it, batch included). Stages that
 * mix nothing see [rows, 1, 1, c]. */
typedef struct hd_block_view {
    char *x;
    const heddle_conditioning *conditioning;
    int64_t outer;
    int64_t t;
    int64_t inner;
    int64_t t_lo;        /* global position of the first token of a fibre */
    int64_t sample_rows; /* rows per sample in the box */
    int64_t first_sample;
    int64_t samples;
    int64_t jobs;
    int64_t fibres_per_job; /* ATTENTION: of one outer index, or whole outer indices when >= inner */
    const void *call;       /* what a stage tells its jobs */
} hd_block_view;

/* The middle of an ATTENTION or LINEAR stage over the whole box, between the linear layers. Rows lie in fibre order
 * (outer, inner, t); elements of a row head after head. A mixer of a sharded dim communicates in it. */
typedef struct hd_mixer_call {
    heddle_block *block;
    const hd_block_view *view; /* outer x inner fibres of t tokens, of which the first is token t_lo of the fibre */
    const void *qkv;           /* [rows][3][c] of hd_mixer_dtype; q and k are normed and rotated */
    void *o;                   /* [rows][c] of the shape's dtype; forward writes it, backward reads it */
    void *kept;                /* kept_bytes of the mixer's own: what forward wants backward to know. 64-byte aligned */
    uint64_t *forward;         /* which one it was, likewise; NULL: nobody goes back */
    int back;                  /* forward: HD_BACK_...; kept is there all the same */
    const float *d_o;          /* backward: [rows][c] */
    float *d_qkv;              /* backward: [rows][3][c], written; gradients of q and k as they are in qkv */
} hd_mixer_call;

struct hd_block_mixer {
    const char *name;
    int collective; /* 1: forward and backward are called on every rank, also for an empty box (rows 0; all pointers but
                       kept may be NULL) */
    size_t (*kept_bytes)(const heddle_block *block, const hd_block_view *view);
    /* Workspace is made on the first call of a size (hd_block_reserve of HD_MIXER_PART, or mixer_self). */
    heddle_status (*forward)(const hd_mixer_call *call);
    heddle_status (*backward)(const hd_mixer_call *call);
    void (*destroy)(heddle_block *block); /* of mixer_self; NULL: nothing to do */
};

extern const hd_block_mixer hd_mixer_softmax; /* whole fibres on this rank: what ATTENTION blocks begin with */
extern const hd_block_mixer hd_mixer_linear;  /* and LINEAR blocks */

typedef heddle_status (*hd_block_job)(heddle_block *block, const hd_block_view *view, int seat, int64_t job);

/* Runs job 0..jobs-1 on the block's threads; every job is run by one thread from its start to its end. */
heddle_status hd_block_run_jobs(heddle_block *block, const hd_block_view *view, hd_block_job fn, int64_t jobs);
/* Head h of a fibre of `t` fused rows [3][c]; its result goes into rows [c]. */
hd_attention_head hd_fibre_head(const heddle_block *block, const void *qkv, void *out, int64_t t, int64_t h);
void hd_block_leave_scratch(hd_block_scratch *scratch); /* NULL is legal */
int64_t hd_block_scratch_bytes(const hd_block_scratch *scratch);
/* Makes part `index` of every seat at least `bytes` large. */
heddle_status hd_block_reserve(heddle_block *block, int index, size_t bytes);

/* What sentences call a function and its rows: "heddle_block_backward", "dx". */
typedef struct hd_call_names {
    const char *function, *rows;
} hd_call_names;

/* Checks of a call on x, and its view. *idle: the box is empty and nobody waits for this rank, so that nothing is to be
 * done. After an error of an API call, here or later, return hd_sharded_give_up(block, st). */
heddle_status hd_block_enter(hd_block_view *view, int *idle, const heddle_block *block, const heddle_tensor *x,
                             const heddle_box *box, const heddle_conditioning *conditioning, hd_call_names names);

/* A box that the block can be called on, without a tensor. */
heddle_status hd_block_look_at(hd_block_view *view, const heddle_block *block, const heddle_box *box);

/* Attention over a sharded mixed dim (sharded.c). */
void hd_sharded_destroy(hd_block_sharded *sharded);
int64_t hd_sharded_bytes(const heddle_block *block);
/* The block's workspace is another one: its object goes there. */
heddle_status hd_sharded_enter(heddle_block *block);
/* What its object keeps of its last forward for that one's way back; it is part of hd_sharded_bytes. */
int64_t hd_sharded_saved_bytes(const heddle_block *block, uint64_t forward); /* 0 where that was not the last */
heddle_status hd_sharded_check_box(const heddle_block *block, const heddle_box *box);
/* The others must not wait for a rank that does not come. Returns `st` with the present sentence; nothing else happens
 * where the block does not communicate. */
heddle_status hd_sharded_give_up(const heddle_block *block, heddle_status st);

heddle_status hd_stage_attention(heddle_block *block, hd_block_view *view);
/* ATTENTION and LINEAR forward in three phases over the whole box, for any mixer: norm and qkv of every row; the mixer;
 * projection, gate and residual. */
heddle_status hd_stage_mixed(heddle_block *block, hd_block_view *view);
heddle_status hd_stage_cross(heddle_block *block, hd_block_view *view);
heddle_status hd_stage_mlp(heddle_block *block, hd_block_view *view);

/* Linear attention of one whole fibre of t rows (stage_linear.c): qkv [t][3][c], o [t][c], inverse [t][heads] the
 * factors of the norm (NULL: not wanted). scratch: 64-byte aligned. */
size_t hd_linear_scratch_bytes(const heddle_block *block, int64_t t, int backward);
void hd_linear_fibre(const heddle_block *block, void *scratch, const float *qkv, void *o, float *inverse, int64_t t);
typedef struct hd_linear_back {
    const float *qkv; /* as forward left it, and the next two */
    const void *o;
    const float *inverse; /* [t][heads] */
    const float *d_o;     /* [t][c] */
    float *d_qkv;         /* [t][3][c], written */
} hd_linear_back;
void hd_linear_fibre_back(const heddle_block *block, void *scratch, const hd_linear_back *x, int64_t t);
/* The norm of every head of `rows` rows of results, and its backward: d_raw is the gradient of what was normed, o the
 * normed. o may be raw where it is f32. */
void hd_linear_norm(const heddle_block *block, void *o, float *inverse, const float *raw, int64_t rows);
void hd_linear_norm_back(const heddle_block *block, float *d_raw, const float *d_o, const void *o, const float *inverse,
                         int64_t rows);

/* Blocks on a device (device/life.c). What hd_on_make has made is block->on, also where it failed. */
heddle_status hd_on_make(heddle_block *block);
void hd_on_free(struct hd_block_on *on); /* NULL is legal */
heddle_status hd_on_commit(heddle_block *block);
heddle_status hd_on_agree(const heddle_block *block, heddle_comm *comm);
/* device/stages.c: heddle_block_forward behind its checks. */
heddle_status hd_on_forward(heddle_block *block, const hd_block_view *view, heddle_stream stream);
heddle_status hd_on_reserve_block(heddle_block *block, const hd_block_view *view);
/* How products of the stage and its backward are carried out. A library's trials allocate, free and wait for the
 * device: not in a call, where its kernels may wait for other ranks', and those for this one. */
heddle_status hd_on_choose_products(heddle_block *block);
int64_t hd_on_bytes(const struct hd_block_on *on); /* of heddle_block_workspace_bytes; NULL: 0 */

static inline size_t hd_block_elem_bytes(const heddle_block *block)
{
    return heddle_dtype_bytes(block->options.shape.dtype);
}

/* Of qkv. LINEAR's result may be nearly nothing where its terms cancel, and is normed after that: what is rounded
 * before is as much larger behind the norm. So on the host nothing is, from the linear layer to the norm. A device's
 * tensor units want the type. */
static inline heddle_dtype hd_mixer_dtype(const heddle_block *block)
{
    const int is_wide = block->options.kind == HEDDLE_STAGE_LINEAR && block->options.space == HEDDLE_SPACE_HOST;
    return is_wide ? HEDDLE_F32 : block->options.shape.dtype;
}

/* Row `which` (0..5) of the conditioning of local sample `sample`; NULL when the block is not modulated. */
const float *hd_block_condition(const heddle_block *block, const hd_block_view *view, int64_t sample, int which);

#endif
