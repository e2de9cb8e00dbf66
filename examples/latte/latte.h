/* Latte, a text-to-video diffusion transformer (arXiv 2401.03048), from the files it is published as, on N ranks under
 * Dynamic Sequence Parallelism. Read in this order:
 *
 *     options.c    what can be asked for                    plan.c       the model for the planner, the schedule
 *     config.c     config.json                              network.c    what a rank holds: blocks, session, buffers
 *     weights.c    the safetensors files, mapped            condition.c  time, text and positions
 *     layers.c     which tensor is which parameter          pass.c       one forward pass
 *     input.c      latent and text                          sample.c     DDIM: noise to latent
 *     main.c       starts the ranks                         device.c     what of a rank is on a GPU
 *
 * ../common has what is nothing of a transformer's: the command line's words, and random numbers without state.
 * A folder has config.json and diffusion_pytorch_model.safetensors, or shards with an index, as diffusers writes them.
 * The latent is [b c f h w]; patches of a frame are the tokens, the activation is x[b, t, s, c] (sample, frame, token,
 * channels). What comes before and behind the blocks works token by token; every rank does it for the tokens it has.
 *
 * One block per stage of a layer serves all layers: its weights are taken from the mapped files just before it runs, in
 * every pass. So a rank needs the memory of one layer, however many there are, and the files are in memory once. On a
 * device (--device) every layer has blocks of its own, whose weights stay there.
 */
#ifndef LATTE_H
#define LATTE_H

#include "runtime/files/safetensors.h"

#include <heddle/heddle.h>

enum {
    MAX_RANKS = 256,
    MAX_FILES = 256,      /* shards */
    MAX_VALUES = 1 << 28, /* of a latent, a text */
    STAGES_PER_LAYER = 5, /* s.attn s.cross s.mlp t.attn t.mlp */
    ROWS_OF_VECTOR = 6,   /* shift, scale, gate of attention, then of the MLP */
    TIME_FEATURES = 256,
    TRAINING_STEPS = 1000, /* timesteps are 0 .. 999 */
    PATH_BYTES = 4096,
    NAME_BYTES = 128,
    NO_DEVICE = 77 /* the exit code */
};

typedef struct options {
    const char *folder, *transport, *device, *wire_name, *mesh_text, *methods, *latent, *text, *negative, *output;
    int64_t ranks, threads, steps, seed, frames, text_tokens;
    double timestep, guidance;
    heddle_mesh mesh;
    heddle_wire wire;
} options;

/* 0, 1: help was printed, 2: a sentence was. */
int options_read(options *out, int argc, char **argv);

/* --- config.c ----------------------------------------------------------------------------------------------------- */
typedef struct config {
    int64_t heads, head_dim, in_channels, out_channels, layers, patch, caption_channels;
    int64_t side;   /* of the latent it was trained with, what positions refer to */
    int64_t frames; /* of a clip; a picture has one */
    int64_t text_channels, attention_bias;
    int64_t channels; /* heads * head_dim */
} config;

/* HEDDLE_ERR_IO, _PARSE: FOLDER/config.json cannot be read, is none, or asks for what this program does not do. */
heddle_status config_read(config *out, const char *folder);
/* `name` stands for the file in sentences. */
heddle_status config_parse(config *out, const char *text, size_t size, const char *name);

/* --- weights.c ---------------------------------------------------------------------------------------------------- */
typedef struct mapped {
    char path[PATH_BYTES];
    const uint8_t *bytes;
    size_t size;
} mapped;

heddle_status no_memory(const char *what, int64_t values);
heddle_status map_file(mapped *out, const char *folder, const char *name);
void unmap_file(mapped *file);

typedef struct shard {
    mapped file;
    safetensors_file tensors;
    char *used; /* [tensors.count] */
} shard;

typedef struct weights {
    const char *folder;
    int nshards, nmissing;
    shard shards[MAX_FILES];
    char missing[8 * NAME_BYTES]; /* the first names */
} weights;

heddle_status weights_open(weights *out, const char *folder);
/* Opens the files that an index names, in w->folder; every tensor is where it says. */
heddle_status index_parse(weights *w, const char *text, size_t size, const char *name);
void weights_close(weights *w);
/* The tensor as f32; its shape must be this. out NULL: only look; a missing one is remembered then. */
heddle_status weights_take(float *out, weights *w, const char *name, int ndim, const int64_t *extent);
/* After all was looked at: none is missing, none was left. */
heddle_status weights_all_used(const weights *w);

/* --- layers.c ----------------------------------------------------------------------------------------------------- */
typedef struct dense {
    int64_t in, out;
    float *weight, *bias; /* [out, in], [out] */
} dense;

typedef struct layers { /* all but the blocks */
    dense patch, time1, time2, vector, caption1, caption2, final;
    float *final_table; /* [2, c]: shift, scale */
} layers;

/* Every tensor that config asks for is in the files with its shape, and no other. */
heddle_status weights_check(weights *w, const config *cfg);
heddle_status layers_take(layers *out, weights *w, const config *cfg);
void layers_free(layers *l);
/* Stage 0 .. 4 of a layer. */
heddle_status block_take(heddle_block *block, weights *w, const config *cfg, int stage, int64_t layer);
heddle_status table_take(float *out, weights *w, const config *cfg, int stage, int64_t layer); /* [6, c] */
heddle_status dense_forward(float *y, const dense *layer, const float *x, int64_t rows, int64_t threads);

/* --- input.c ------------------------------------------------------------------------------------------------------ */
typedef struct floats {
    int ndim;
    int64_t extent[HEDDLE_MAX_DIMS];
    float *at;
} floats;

typedef struct input {
    floats latent;   /* [b, in, f, h, w] */
    floats text;     /* [b, tokens, caption channels]; with guidance [2b, ...]: without the prompt, with it */
    int64_t samples; /* b of latent */
} input;

heddle_status input_read(input *out, const options *opt, const config *cfg);
void input_free(input *in);

/* --- plan.c ------------------------------------------------------------------------------------------------------- */
typedef struct job {
    const options *opt;
    config cfg;
    weights *files;
    input in;
    int64_t samples, rows_of_patches,
        columns_of_patches; /* samples: of a pass, twice those of the latent with guidance */
    heddle_model *model;
    heddle_schedule *schedule;
} job;

heddle_status plan_make(job *work);

/* --- network.c ---------------------------------------------------------------------------------------------------- */
typedef struct net_stage {
    heddle_schedule_stage plan;
    heddle_block *block;
    int is_shared; /* the block of an earlier layer */
} net_stage;

/* On a device: arrays there, but for vectors_here. */
typedef struct there {
    heddle_stream stream;
    float *patch_weight, *patch_bias, *final_weight, *final_bias, *text;
    float *positions;              /* [rows, c] of first_box */
    float *frame_positions;        /* [rows, c] of the first temporal block's box */
    float *patches, *normed;       /* as the network's */
    float *vectors, *vectors_here; /* [2 layers, b, 6, c] of a pass, then [b, 2, c], the end's shift and scale */
    int64_t copied_bytes;          /* up and down, of all passes */
} there;

typedef struct network {
    const job *work;
    const config *cfg;
    heddle_comm *comm;
    int rank;
    heddle_schedule_info about;
    heddle_layout first, last; /* of the activation: before the first stage, behind the last one */
    heddle_box first_box, last_box;
    net_stage *stages; /* [about.nstages] */
    heddle_session *session;
    heddle_reshard *collect; /* the result's tokens, from `last` to every rank */
    layers layers;
    int is_there; /* stages work on a device; so do x, mine and whole */
    there there;
    float *x;                          /* [rows, c] of first_box */
    float *mine, *whole;               /* tokens of the result [rows, out * patch * patch]: of last_box, and all */
    float *tokens;                     /* whole, in host memory */
    float *patches;                    /* [rows, in * patch * patch] of first_box */
    float *normed;                     /* [rows, c] of last_box */
    float *positions;                  /* [s, c] */
    float *frame_positions;            /* [t, c] */
    float *text;                       /* [b, tokens, c] */
    float *features, *hidden, *active; /* of the time: [b, 256], [b, c], [b, c] */
    float *time;                       /* [b, c] */
    float *shared, *vector, *table;    /* [b, 6, c], [b, 6, c], [6, c] */
} network;

heddle_status network_create(network *out, heddle_comm *comm, const job *work);
void network_destroy(network *net);
/* Rows of a box: all dims but the channels. */
int64_t rows_of(const heddle_box *box);

/* --- condition.c -------------------------------------------------------------------------------------------------- */
void make_positions(network *net);
heddle_status project_text(network *net);
heddle_status embed_time(network *net, double timestep);
void make_vector(network *net); /* of a block: its table and what the time says */

/* --- device.c ----------------------------------------------------------------------------------------------------- */
heddle_status there_open(network *net); /* after all else was made; collective */
void there_close(network *net);
/* net->patches, and what the time says, to x and the conditioning there. */
heddle_status there_begin(network *net);
heddle_status there_add_frames(network *net, const heddle_tensor *x, const heddle_box *box);
const float *there_vector(const network *net, int index); /* of stage index of all */
/* x behind the last stage to net->tokens; returns when they are here. Collective. */
heddle_status there_end(network *net, const heddle_tensor *x, int64_t all_rows);

/* --- pass.c, sample.c --------------------------------------------------------------------------------------------- */
/* Global coordinates b, t, s of row `row` of a box. */
void place_of(int64_t *at, const heddle_box *box, int64_t row);
/* latent [b, in, f, h, w] to result [b, out, f, h, w] on every rank, b those of a pass. Collective. */
heddle_status network_forward(network *net, float *result, const float *latent, double timestep);
/* From noise to latent: the steps of DDIM (arXiv 2010.02502) with eta 0. latent is written over. Collective. */
heddle_status sample(network *net, float *latent);

#endif
