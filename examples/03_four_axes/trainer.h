/* One rank's share of a model that is divided over pipeline, data, sequence and tensor axes. */
#ifndef FOUR_AXES_TRAINER_H
#define FOUR_AXES_TRAINER_H

#include <heddle/heddle.h>
#include <heddle/train/adamw.h>
#include <heddle/train/bucket.h>
#include <heddle/train/dense_pair.h>
#include <heddle/train/pipeline.h>
#include <heddle/train/tape.h>

enum { LAYERS = 4, STEPS = 4, MICRO = 2, BATCH = 2, HIDDEN = 50 }; /* MICRO batches of BATCH samples in each step */
enum { PP, DP, SP, TP, PART = BATCH * 6 * 10 * 16 };               /* axes of the mesh; elements of the largest part */

typedef struct layer {
    heddle_block *block[2]; /* space, time */
    heddle_tape *tape[2][MICRO];
    heddle_dense_pair *pair;
    float pair_in[MICRO][PART];
} layer;

typedef struct trainer {
    heddle_comm *comm, *inner;    /* all ranks; those of this pipeline stage */
    heddle_mesh mesh, inner_mesh; /* [pp dp sp tp], and without pp */
    heddle_model *model;
    heddle_schedule *schedule;
    heddle_session *session;
    heddle_shape shape;
    heddle_layout ends, back; /* of the activation between pipeline stages, and of its gradient */
    heddle_box box;           /* this rank's part there */
    heddle_pipeline *pipeline;
    layer layer[LAYERS];
    int nlayers, first_layer;
    heddle_bucket *bucket[2]; /* what tensor ranks share, and what they have split */
    heddle_adamw *adamw[2];
    float x[PART], out[MICRO][PART], tmp[PART]; /* local parts */
} trainer;

/* Collective over comm, as many ranks as the mesh has: [pp=.. dp=.. sp=.. tp=..], pp 1, 2 or 4, dp 1 or 2. After an
 * error, too, call trainer_free. */
heddle_status trainer_make(trainer *t, heddle_comm *comm, const char *mesh_text);
void trainer_free(trainer *t);
/* Forward and backward of MICRO batches, gradients over the mesh, one step of the optimiser. *loss: of all samples. */
heddle_status train_step(double *loss, trainer *t, int step);

#endif
