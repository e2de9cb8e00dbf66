/* Planner: model + mesh in, schedule out. Needs no ranks, no MPI and no GPU.
 *
 * A model may be read by several threads at a time, but resized by one only while nobody reads it.
 */
#ifndef HEDDLE_PLANNER_H
#define HEDDLE_PLANNER_H

#include <heddle/block.h>
#include <heddle/layout.h>
#include <heddle/machine.h>
#include <heddle/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_model heddle_model;

typedef struct heddle_model_info {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    const char *name;    /* owned by the model, like all pointers here */
    heddle_shape shape;  /* the activation tensor; dims in memory order, last one the channels */
    int batch_dim;       /* index in shape, -1 if none */
    int channel_dim;     /* index in shape */
    int64_t text_tokens; /* rows of text per sample, 0 without cross-attention */
    int patch[3];        /* patch size in time, height, width of the input clip, for `heddle run` */
    int repeat;          /* how often the list of stages is run */
    int nstages;         /* stages of one repetition */
    /* What surrounds the stages (docs/formats.md); 0: the model says nothing. */
    int64_t nweights;       /* parameters of the stages of all repetitions */
    int guidance;           /* copies of a sample that a step computes, with and without the condition: 2 */
    int steps, cache_every; /* of a sample; the stages run in one of so many */
    int64_t passes;         /* of the stages, per sample: what follows from those three and the batch */
    int64_t patch_channels, final_channels; /* of a token in front of the first stage and behind the final layer */
    int64_t serial_flops;                   /* per sample on every rank alike: text encoder */
    int weights_sharded;                    /* 1: parameters are gathered for each stage (FSDP) */
    const char *source;                     /* where the figures come from; NULL: not said */
    int64_t serial_token_flops;             /* as serial_flops, for each token of a sample: the VAE's decoder */
} heddle_model_info;

typedef struct heddle_stage_info {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    const char *name;    /* "s.attn"; owned by the model */
    heddle_stage_kind kind;
    int mixed_dim;        /* dim attended over, of several the first; -1 for token-wise stages */
    int heads;            /* ATTENTION, CROSS, LINEAR: divides the channels */
    int64_t mlp_channels; /* MLP: hidden width */
    int modulate, rope, qk_norm;
    int causal;                      /* LINEAR, ATTENTION */
    double decay;                    /* LINEAR, as in heddle_block_options: 0 is slopes */
    unsigned mixed_dims;             /* a bit for every dim attended over */
    int kv_heads;                    /* heads, where the model says nothing of keys and values */
    int zigzag;                      /* causal rows are placed so that ranks are balanced */
    int64_t window[HEDDLE_MAX_DIMS]; /* by dim of the shape: tokens that a query sees each way; 0: all */
    int64_t joined_rows;             /* of text per sample, which are part of the sequence and sharded with it */
    int64_t in_channels, channels;   /* of the activation before and behind the stage */
    int64_t nweights;                /* parameters of one repetition */
    const char *refusal;             /* why no block runs it: it can be planned alone; NULL: one does. Static */
} heddle_stage_info;

/* Read a model file (YAML or JSON; docs/formats.md has the format; at most 1 MiB), or, where there is no such file, the
 * preset of that name: "hunyuanvideo"; a name that only one preset goes on behind with '-' is enough ("latte"). The
 * caller owns *out. HEDDLE_ERR_IO: the file cannot be opened or read, and no preset has the name; the sentence has the
 * nearest. HEDDLE_ERR_PARSE: it does not follow the format (unknown or missing
 * keys, wrong types, numbers out of range). HEDDLE_ERR_LAYOUT: it contradicts itself (heads that do not divide the
 * channels, attention over a dim the activation lacks, ...). These two begin with file:line:column. `name` of
 * heddle_model_parse stands for the file there; the text is not kept. */
HEDDLE_CHECKED heddle_status heddle_model_load(heddle_model **out, const char *name);
HEDDLE_CHECKED heddle_status heddle_model_parse(heddle_model **out, const char *text, size_t text_bytes,
                                                const char *name);
HEDDLE_API void heddle_model_destroy(heddle_model *model); /* NULL is legal */

/* A model that is part of the library: the text of a model file, with its source in comments. */
typedef struct heddle_preset_info {
    size_t struct_bytes;     /* HEDDLE_EMPTY sets it */
    const char *name, *text; /* static */
} heddle_preset_info;

HEDDLE_API int heddle_model_presets(void); /* how many there are, ordered by name */
/* HEDDLE_ERR_ARG: NULL, index outside 0 .. heddle_model_presets() - 1, struct_bytes. */
HEDDLE_CHECKED heddle_status heddle_model_preset(heddle_preset_info *out, int index);
/* The index of the preset that heddle_model_load takes for this name. HEDDLE_ERR_ARG: NULL, or there is none; the
 * sentence has the nearest. */
HEDDLE_CHECKED heddle_status heddle_model_find_preset(int *index, const char *name);

typedef struct heddle_import_options {
    size_t struct_bytes;
    int64_t frames, height,
        width; /* of the clip, in pixels, from which tokens follow; 0: what is usual for the model */
} heddle_import_options;

HEDDLE_API void heddle_import_options_init(heddle_import_options *options);

enum { HEDDLE_IMPORT_BYTES = 4096 /* are always enough */ };
/* The model file (YAML, with its 0 at the end) of the transformer that a config.json of diffusers describes. options
 * may be NULL. HEDDLE_ERR_IO: the file cannot be read. HEDDLE_ERR_PARSE: it is no such config, or one of a class
 * (_class_name) that is not known; the sentence has file:line:column and lists those that are. HEDDLE_ERR_ARG: NULL, a
 * clip that this model cannot make, out_bytes are too few. HEDDLE_ERR_LAYOUT: the config contradicts itself. */
HEDDLE_CHECKED heddle_status heddle_model_import(char *out, size_t out_bytes, const char *path,
                                                 const heddle_import_options *options);

/* HEDDLE_ERR_ARG: NULL argument, stage outside 0..nstages-1. Pointers live as long as the model. */
HEDDLE_CHECKED heddle_status heddle_model_get_info(heddle_model_info *out, const heddle_model *model);
HEDDLE_CHECKED heddle_status heddle_model_stage(heddle_stage_info *out, const heddle_model *model, int stage);

/* Change extents (of any dim the model declares) and the repeat count: sizes is "t=16,s=256", "" or NULL; repeat 0
 * keeps the model's. HEDDLE_ERR_ARG names unknown dims and lists the known ones, and refuses sizes that contradict the
 * model (heads, MLP ratio, element count); the model is then unchanged. */
HEDDLE_CHECKED heddle_status heddle_model_resize(heddle_model *model, const char *sizes, int repeat);

/* Change the dtype of the activation: HEDDLE_F32 or HEDDLE_BF16 (else HEDDLE_ERR_ARG). */
HEDDLE_CHECKED heddle_status heddle_model_set_dtype(heddle_model *model, heddle_dtype dtype);

typedef struct heddle_plan_options {
    size_t struct_bytes;
    /* Layout in which the activation arrives; NULL: free choice (every rank can make any part), the first stage's
     * layout costs nothing. May have explicit block lengths or partial sums. */
    const char *prologue;
    /* Layout in which it must end; NULL: replicated ("*"), so that the final gather is counted; "any": free choice. */
    const char *epilogue;
    /* A stage's largest box may exceed that of its most even layout by this much; default 25. Work is this constraint,
     * bytes are the objective: otherwise replication would be chosen for moving nothing (docs/formats.md). */
    int slack_percent;
    /* How mixing stages may run: "STAGE=METHOD,..." where STAGE is a stage's name or "*" (all that have the method) and
     * METHOD a method of heddle/attention.h (softmax stages) or heddle/linear_attention.h (linear ones), "local", or
     * "auto": whatever sends the fewest bytes, local where equal; later entries win, stages that none names are auto.
     * "" is "*=auto". NULL is that with a machine, whose seconds are asked for; without one it is "*=local": whole
     * fibres in every stage, as callers that run the stages themselves expect them (heddle/session.h). Auto never
     * takes rsa, and ulysses and usp only where their shares of the heads are even within the slack. A method other
     * than local wants the mixed dim sharded over one mesh axis or two neighbouring ones, and f32, bf16 or f64; on one
     * rank all are local. */
    const char *methods;
    int backward; /* 1: the objective counts forward and backward bytes, else forward alone */
    /* 0: no limit. Else no stage runs in a layout that leaves its busiest rank more than this over an even split;
     * infeasible where a stage has no other. */
    int max_waste_percent;
    /* Machine whose seconds and link classes count; NULL: none, bytes alone. Borrowed during the call. */
    const heddle_machine *machine;
    /* What is made smallest: "time" (the default with a machine), "bytes" (the default without one), "slow-bytes": the
     * bytes of the slowest link class first, "memory": the peak of the fullest rank, then time, "gpu-seconds": time
     * times ranks (differs from time where heddle_plan_ranks may use fewer). NULL: the default. */
    const char *objective;
    /* 0: no limit. Else no rank may need more (heddle_forecast_memory); infeasible where no plan fits, and the sentence
     * names the stage and both numbers. */
    int64_t memory_bytes;
    int training, recompute; /* as in heddle_forecast_options; training implies backward */
    /* "STAGE=LAYOUT/METHOD;...": these stages run so in every repetition, or "STAGE#3=..." in the third alone; #1 is
     * the first. LAYOUT is a text form, METHOD a name or auto; either may be left out ("STAGE=/ring", "STAGE=t@sp").
     * Infeasible, with the reason, where a stage cannot. NULL: none. */
    const char *force;
    int64_t workspace_bytes; /* as in heddle_forecast_options */
} heddle_plan_options;

HEDDLE_API void heddle_plan_options_init(heddle_plan_options *options);

/* The schedule that the objective makes least, over all layouts that put each mesh axis on a batch or sequence dim or
 * replicate over it (DSP, arXiv 2403.10266, chooses these by hand) and all methods that may run in them. Exact,
 * deterministic, pure. Sums over edges and stages are compared in this order:
 *
 *   bytes        sent by the busiest rank, in total; stages that are not local, switches, work of the busiest rank
 *   slow-bytes   sent by the outermost links that the mesh reaches, then as bytes
 *   time, gpu-seconds   picoseconds, bytes of the outermost links, of the busiest rank; then as bytes
 *   memory       the peak of the fullest rank, then as time (as bytes without a machine)
 *
 * By bytes uneven layouts are left out by slack_percent; by time work has its price, so none is.
 *
 * The schedule says its value, what no schedule can be below, and the value of the next best one
 * (heddle_schedule_info). With a cap on memory and training the next best is not known where too many partial plans
 * would have to be kept; then it is 0. The caller owns *out, which keeps nothing of model, mesh and machine. options
 * may be NULL.
 *
 * HEDDLE_ERR_INFEASIBLE: max_waste_percent, memory_bytes, a forced stage, or a method that no layout of its stage
 * allows; names the stage and says why not. HEDDLE_ERR_ARG: methods or force names no stage, a token-wise one or no
 * method of its kind (the sentence lists what there is), or does not follow the form; no such objective, or one that
 * needs a machine; more ranks than the machine. HEDDLE_ERR_LAYOUT, HEDDLE_ERR_PARSE: prologue, epilogue, force or mesh.
 * HEDDLE_ERR_UNSUPPORTED: more than 1296 layouts (meshes of one and two axes are always searched), more than 10^9 steps
 * of search, more than 2^20 partial plans under a cap on memory, or more than 2^63 bytes moved. */
HEDDLE_CHECKED heddle_status heddle_plan(heddle_schedule **out, const heddle_model *model, const heddle_mesh *mesh,
                                         const heddle_plan_options *options);
/* The best schedule over all meshes of `ranks` ranks: every ordered factorisation into up to four axes that nests with
 * the machine's levels, but those of more than 1296 layouts. By gpu-seconds also over those of every divisor of
 * `ranks`. Axes are named for what they shard: b the batch; sp a sequence dim, or node and gpu where several do and a
 * machine says how they lie; r and u the ring and the heads of usp; rep nothing; a name that is taken gets a number.
 * Ties go to fewer axes. Meshes are searched by as many threads as the calling one has cores, at most 16, which end
 * before it returns; what is found does not depend on them. Errors as heddle_plan, those of one mesh where no other has
 * a plan. HEDDLE_ERR_ARG: prologue, epilogue or force names axes; ranks < 1 or above 131072. */
HEDDLE_CHECKED heddle_status heddle_plan_ranks(heddle_schedule **out, const heddle_model *model, int ranks,
                                               const heddle_plan_options *options);

#ifdef __cplusplus
}
#endif

#endif
