/* A small video diffusion transformer, trained on N ranks under Dynamic Sequence Parallelism. Read in this order:
 *
 *     options.c    what can be asked for                    layers.c    layers that work token by token
 *     clip.c       the video, cut into patches (tokens)     network.c   the plan, the blocks, all parameters
 *     y4m.c        ... from a file                          pass.c      forward and backward through the network
 *     report.c     what is printed                          train.c     the training step
 *     picture.c    PNG                                      loop.c      the loop around it
 *     main.c       starts the ranks                         sample.c    noise to video, before and after training
 *     compare.c    the same training on other ranks
 *
 * ../common has what is nothing of a transformer's: the command line's words, random numbers without state, ranks.
 * The activation x[b, t, s, c] (sample, frame, patch of a frame, channels) is sharded over the mesh [dp=D sp=S]:
 * samples over dp, and over sp the dim that the stage at hand does not attend over. Everything random is a function of
 * seed and global position, so that every number of ranks sees the same data, noise and first weights.
 */
#ifndef TRAIN_H
#define TRAIN_H

#include "examples/common/random.h"

#include <heddle/heddle.h>
#include <heddle/train/adamw.h>
#include <heddle/train/bucket.h>
#include <heddle/train/tape.h>
#include <stdint.h>
#include <stdio.h>

enum {
    COLOURS = 3,
    ROWS_OF_VECTOR = 6,
    TIME_FEATURES = 64,
    MAX_STAGES = 128,
    MAX_RANKS = 256,
    COMPARE_DP = 2,
    MAX_FRAMES = 4096
};

typedef struct options {
    const char *transport, *mesh_text, *clip, *picture, *loss_csv, *methods;
    int64_t ranks, dp, sp; /* ranks = dp * sp */
    int64_t steps, batch, seed;
    int64_t frames, side, patch;     /* a sample: frames of side x side pixels, patches of patch x patch */
    int64_t layers, channels, heads; /* a layer is space then time, each attention and MLP */
    int64_t denoise_steps, print_every;
    double learning_rate, noise; /* noise: where the picture's denoising starts, 1 = nothing but noise */
    int shard_optimizer, recompute, linear, compare, quiet;
} options;

/* 0, 1: help was printed, 2: a sentence was. */
int options_read(options *out, int argc, char **argv);

typedef struct clip {
    int64_t frames, side;
    float *values; /* [frames, 3, side, side], red green blue, -1 .. 1 */
} clip;

int clip_generate(clip *out, int64_t frames, int64_t side);
/* The first frames, MAX_FRAMES at most, shrunk and cropped to side x side. 0, or -1 with one sentence in error. */
int clip_read_y4m(clip *out, const char *path, int64_t side, char *error, size_t error_bytes);
/* The tokens of `box` of the sub-clips that begin at frame first[b]: out [box, 3 * patch * patch]. */
void clip_tokens(float *out, const clip *video, const heddle_box *box, const int64_t *first, int64_t patch);
/* Standard normal noise for the tokens of `box`; sample b of the box is number sample[b] of the stream. */
void noise_tokens(float *out, const heddle_box *box, int64_t width, uint64_t seed, uint64_t stream,
                  const int64_t *sample);

/* --- layers.c: y = x W^T + b, and what else works on single tokens ------------------------------------------------ */
typedef struct dense {
    int64_t in, out;
    float *weight, *bias, *dweight, *dbias; /* [out, in], [out] */
} dense;

heddle_status dense_create(dense *layer, int64_t in, int64_t out, double range, uint64_t seed);
void dense_destroy(dense *layer);
heddle_status dense_forward(float *y, const dense *layer, const float *x, int64_t rows);
heddle_status dense_backward(float *dx, dense *layer, const float *dy, const float *x, int64_t rows);

void norm_forward(float *y, float *rstd, const float *x, int64_t rows, int64_t channels);
void norm_backward(float *dx, const float *dy, const float *y, const float *rstd, int64_t rows, int64_t channels);
void position_table(float *out, int64_t grid, int64_t channels);

/* From the noise level of a sample to shift, scale and gate of every block: [6, c] shared by all blocks, plus a table
 * [6, c] of each block's own. */
typedef struct condition {
    int64_t channels, samples; /* samples: of the whole activation */
    int ntables;
    dense fc1, fc2;
    float *table, *dtable;                                /* [ntables, 6, c] */
    float *vector, *dvector;                              /* [ntables, samples, 6, c] */
    float *features, *hidden, *active, *shared, *scratch; /* of the forward pass, [samples, ...] */
} condition;

heddle_status condition_create(condition *out, int64_t channels, int64_t samples, int ntables, uint64_t seed);
void condition_destroy(condition *out);
/* time[0 .. len-1]: of samples lo .. lo+len-1 */
heddle_status condition_forward(condition *out, const double *time, int64_t lo, int64_t len);
heddle_status condition_backward(condition *out, int64_t lo, int64_t len);

/* --- network.c ---------------------------------------------------------------------------------------------------- */
typedef struct stage {
    heddle_schedule_stage plan;
    heddle_block *block;
    heddle_tape *tape;
    int table; /* of the conditioning */
} stage;

typedef struct network {
    const options *opt;
    heddle_comm *comm;
    int rank;
    heddle_mesh mesh;    /* [dp=D sp=S] */
    heddle_shape shape;  /* f32[b=D t s c]: one sample per data rank at a time */
    heddle_layout home;  /* b@dp,t@sp: where tokens come from and go to */
    heddle_box box;      /* this rank's tokens there; b and t and s */
    int64_t rows, width; /* tokens of the box, values of a token's patch */
    heddle_model *model;
    heddle_schedule *schedule;
    heddle_session *session;
    int nstages;
    stage stages[MAX_STAGES];
    dense embed, final;
    condition cond;
    heddle_bucket_part *parts;
    int nparts;
    int64_t nparams;
    float *positions; /* [s, c] */
    float *x, *dx;    /* [rows, c], memory that peers can read */
    float *normed, *rstd, *dnormed;
    int64_t tape_bytes; /* activations that the last forward pass kept */
} network;

heddle_status network_create(network *out, heddle_comm *comm, const options *opt);
void network_destroy(network *net);
heddle_status network_commit(network *net); /* after parameters have changed */

/* --- pass.c ------------------------------------------------------------------------------------------------------- */
/* velocity [rows, width] of the tokens noisy [rows, width]; time[b]: of the box's samples. keep: backward will come. */
heddle_status network_forward(network *net, float *velocity, const float *noisy, const double *time, int keep);
/* After a forward pass that kept; dvelocity is written to. */
heddle_status network_backward(network *net, float *dvelocity, const float *noisy, const double *time);

/* --- train.c, sample.c, report.c, picture.c, compare.c ------------------------------------------------------------ */
/* Written by rank 0. Who reads it when ranks that were processes have ended gives memory that those share. */
typedef struct outcome {
    int64_t steps;
    uint64_t weights;                                    /* a sum over the bits of all parameters */
    double error_noised, error_untrained, error_trained; /* mean squared, of the picture's rows against the first */
    double seconds;
    double loss[]; /* [steps] */
} outcome;

typedef struct job {
    const options *opt;
    const clip *video;
    outcome *result;
} job;

typedef struct traffic { /* bytes sent by this rank */
    int64_t switches, switches_planned, attention, attention_planned, gradients, gradients_planned;
} traffic;

typedef struct trainer {
    const options *opt;
    const clip *video;
    network net;
    heddle_bucket *bucket;
    heddle_adamw *adamw;
    float *clean, *noise, *noisy, *velocity; /* [rows, width] of the sample at hand */
    double *token_loss;                      /* [batch, t, s] of a step */
    int64_t ntokens;                         /* batch * t * s */
    int64_t passes;                          /* forward and backward, in training */
    traffic before;                          /* training began */
} trainer;

heddle_status train_rank(heddle_comm *comm, void *arg); /* arg: a job */
heddle_status train_step(trainer *t, int64_t step, double *loss);
int compare_layouts(const options *opt, const clip *video); /* exit code */

typedef struct gallery { /* rows of the picture: [frames, 3, side, side] each */
    float *original, *noised, *untrained, *trained;
} gallery;

heddle_status gallery_begin(gallery *out, network *net, const clip *video); /* all but `trained` */
heddle_status gallery_finish(gallery *out, network *net, const clip *video);
void gallery_free(gallery *out);
double mean_squared(const float *a, const float *b, int64_t elems);
int picture_write(const char *path, const gallery *pictures, int64_t frames, int64_t side); /* 0, or -1 with errno */

void network_print_plan(const network *net);
void report_progress(const options *opt, int64_t step, double loss, double seconds);
void report_end(const options *opt, const outcome *result);
heddle_status count_traffic(traffic *out, const trainer *t);
heddle_status report_traffic(trainer *t);

#endif
