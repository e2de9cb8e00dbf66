/* The model as read: declared dims, one activation tensor, one optional constant text tensor, a list of stages that is
 * run `repeat` times. What depends on extents (heads, MLP width, the shape) is derived by hd_model_derive, so that a
 * resize only changes extents and derives again.
 */
#ifndef HD_MODEL_H
#define HD_MODEL_H

#include "runtime/document/node.h"
#include "runtime/method/method.h"

#include <heddle/planner.h>

enum {
    HD_MODEL_LIMIT_BYTES = 1 << 20,
    HD_MODEL_MAX_STAGES = 256,
    HD_MODEL_MAX_DIMS = 12,
    HD_MODEL_MAX_RUNS = 1 << 16, /* stages of all repetitions together */
    HD_MODEL_MAX_HEADS = 65536
};
#define HD_EXTENT_MAX (INT64_C(1) << 48) /* of a dim, and of what is as wide */

typedef enum hd_role { HD_ROLE_SEQ, HD_ROLE_BATCH, HD_ROLE_CHANNEL, HD_ROLE_HEADS, HD_ROLE_TEXT } hd_role;

/* Where something was written, for sentences; line 0: nowhere. */
typedef struct hd_mark {
    int line, column;
} hd_mark;

typedef struct hd_model_dim {
    char name[HEDDLE_NAME_BYTES];
    int64_t extent;
    hd_role role;
    hd_mark mark;
} hd_model_dim;

typedef struct hd_model_stage {
    char name[HD_NODE_LABEL_BYTES];
    heddle_stage_kind kind;
    int mixed_dim; /* index in the shape, -1: token-wise; of several the first in the shape */
    int heads_dim; /* index in dims[]; -1: heads_fixed */
    int64_t heads_fixed;
    int64_t width; /* MLP; 0: ratio */
    int64_t ratio_millionths;
    int modulate, rope, qk_norm, causal;
    double decay; /* LINEAR; 0: slopes */
    hd_mark mark;
    int64_t heads, mlp_channels; /* derived */
    /* What is planned and priced but not run (hd_model_stage_refusal says why). */
    unsigned mixed_dims;              /* all that are mixed, a bit each: over: [t, h, w]; mixed_dim is one of them */
    int64_t kv_heads_fixed, kv_heads; /* GQA; as written, 0: as many as heads; derived */
    int64_t window[HEDDLE_MAX_DIMS];  /* by dim of the shape: tokens that a query sees each way; 0: all */
    int joins;                        /* the text's rows are part of the sequence (MMDiT) */
    int64_t joined_rows;              /* how many, sharded with it; derived */
    int zigzag;                       /* causal rows are placed so that ranks are balanced */
    int64_t channels_fixed;           /* 0: they stay */
    int64_t in_channels, channels;    /* of the activation before and behind this stage; derived */
    int core;                         /* q, k and v are given: attention alone, no product, norm or residual */
    int64_t weights;                  /* parameters, where they are not a block's; 0: nothing was said */
    int64_t token_flops, token_bytes; /* MODULE: by token; token_bytes are kept from forward to backward */
    unsigned methods;                 /* MODULE: as in hd_method_stage; bit 0, local, is always there */
    int64_t nweights;                 /* derived for every kind: parameters of the stage */
} hd_model_stage;

struct heddle_model {
    char *file; /* for sentences */
    char name[HD_NODE_LABEL_BYTES];
    heddle_dtype dtype;
    int ndims;
    hd_model_dim dim[HD_MODEL_MAX_DIMS];
    int activation_ndim;
    int activation_dim[HEDDLE_MAX_DIMS]; /* indices in dim[], memory order */
    hd_mark activation_mark;
    int text_dim; /* index in dim[], -1: no text */
    int patch[3];
    int repeat;
    int nstages;
    hd_model_stage *stage;
    heddle_shape shape; /* derived, like all below */
    int batch_dim, channel_dim;
    int64_t text_tokens;
    /* What surrounds the stages; 0: nothing was said. */
    int guidance;           /* 2: with and without the condition, batch dim twice as long (CFG); part of the extent */
    int steps;              /* of a sample */
    int cache_every;        /* stages run in one step of so many, else their last output is taken */
    int64_t patch_channels; /* of a token before the first stage */
    int64_t final_channels; /* of a token behind the final layer; the ends are priced there */
    int64_t serial_flops;   /* per sample on every rank: text encoder */
    int64_t serial_token_flops; /* and for each of its tokens: VAE */
    int weights_sharded;        /* FSDP: parameters are gathered for each stage */
    char *source;               /* where the figures come from; NULL: nothing was said */
    int64_t nweights;           /* derived: parameters of the stages of all repetitions */
    int64_t passes;             /* derived: of the stages, per sample; 0: no steps given */
};

/* Everything that follows from the extents, checked. Sentences name the place in the file while `with_marks`. */
heddle_status hd_model_derive(heddle_model *model, int with_marks);
int hd_model_dim_index(const heddle_model *model, const char *name);
/* What a method has to know of the stage. */
hd_method_stage hd_model_stage_mixes(const hd_model_stage *stage);
/* Why `heddle run` and blocks cannot run stage k; NULL: they can. */
const char *hd_model_stage_refusal(const heddle_model *model, int k);

/* model_derive.c */
heddle_status hd_model_complain(const heddle_model *model, int with_marks, hd_mark mark, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Of a stage whose heads, channels and widths are known. */
heddle_status hd_model_derive_weights(heddle_model *model, int with_marks);

#endif
