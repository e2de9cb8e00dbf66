/* Planner: model + mesh in, schedule out. Needs no ranks, no MPI and no GPU. */
#ifndef HEDDLE_PLANNER_H
#define HEDDLE_PLANNER_H

#include <heddle/block.h>
#include <heddle/layout.h>
#include <heddle/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_model heddle_model;

typedef struct heddle_model_info {
    size_t struct_bytes;
    const char *name;    /* owned by the model, like all pointers here */
    heddle_shape shape;  /* the activation tensor; dims in memory order, last one the channels */
    int batch_dim;       /* index in shape, -1 if none */
    int channel_dim;     /* index in shape */
    int64_t text_tokens; /* rows of text per sample, 0 without cross-attention */
    int patch[3];        /* patch size in time, height, width of the input clip, for `heddle run` */
    int repeat;          /* how often the list of stages is run */
    int nstages;         /* stages of one repetition */
} heddle_model_info;

typedef struct heddle_stage_info {
    const char *name; /* "s.attn" */
    heddle_stage_kind kind;
    int mixed_dim; /* dim attended over: must be whole; -1 for token-wise stages */
    int heads;
    int64_t mlp_channels;
    int modulate, rope, qk_norm;
} heddle_stage_info;

/* The format is written down in docs/formats.md. HEDDLE_ERR_IO: cannot be read; HEDDLE_ERR_PARSE and HEDDLE_ERR_LAYOUT
 * start with file:line:col. `name` of heddle_model_parse is used for that. */
HEDDLE_API heddle_status heddle_model_load(heddle_model **out, const char *path);
HEDDLE_API heddle_status heddle_model_parse(heddle_model **out, const char *text, size_t text_bytes, const char *name);
HEDDLE_API void heddle_model_destroy(heddle_model *model);
HEDDLE_API heddle_status heddle_model_get_info(heddle_model_info *out, const heddle_model *model);
HEDDLE_API heddle_status heddle_model_stage(heddle_stage_info *out, const heddle_model *model, int stage);

/* Change extents or the repeat count: "t=16,s=256", repeat 0 keeps the model's. HEDDLE_ERR_ARG names unknown dims and
 * lists the known ones. */
HEDDLE_API heddle_status heddle_model_resize(heddle_model *model, const char *sizes, int repeat);

/* Change the dtype of the activation: HEDDLE_F32 or HEDDLE_BF16 (else HEDDLE_ERR_ARG). */
HEDDLE_API heddle_status heddle_model_set_dtype(heddle_model *model, heddle_dtype dtype);

typedef struct heddle_plan_options {
    size_t struct_bytes;
    const char *prologue; /* layout x arrives in; NULL: free choice (every rank can make any part) */
    const char *epilogue; /* layout x must end in; NULL: replicated ("*"), "any": free choice */
    int slack_percent;    /* a stage's largest box may exceed that of its most even layout by this much; default 25 */
    int max_waste_percent; /* 0: no limit; else infeasible when a stage's most even layout wastes more than this */
} heddle_plan_options;

HEDDLE_API void heddle_plan_options_init(heddle_plan_options *options);

/* The schedule with the fewest bytes sent by the busiest rank, then the fewest bytes in total, then the fewest
 * switches. HEDDLE_ERR_INFEASIBLE says which stage has no layout. */
HEDDLE_API heddle_status heddle_plan(heddle_schedule **out, const heddle_model *model, const heddle_mesh *mesh,
                                     const heddle_plan_options *options);

#ifdef __cplusplus
}
#endif

#endif
