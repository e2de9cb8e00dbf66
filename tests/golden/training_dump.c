/* Trains a small model for a few steps on the numbers of a folder and writes what it computed there, for
 * golden/training_numpy.py to compare with. Public headers only.
 *
 *     training_dump FOLDER RANKS TRANSPORT METHODS MESH RECOMPUTE SHARD_AXIS */
#include <heddle/heddle.h>
#include <heddle/train/adamw.h>
#include <heddle/train/bucket.h>
#include <heddle/train/tape.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = 16, MAX_PARTS = 128, STEPS = 3 };

static struct {
    const char *folder, *methods, *mesh;
    int recompute, shard_axis;
} job;

typedef struct trainer {
    heddle_mesh mesh;
    heddle_model *model;
    heddle_schedule *schedule;
    heddle_schedule_info info;
    heddle_session *session;
    heddle_block *block[MAX_STAGES];
    heddle_tape *tape[MAX_STAGES];
    heddle_bucket_part part[MAX_PARTS];
    int nparts;
    heddle_bucket *bucket;
    heddle_adamw *adamw;
    heddle_conditioning conditioning;
    heddle_conditioning_gradient dconditioning;
    float *vector, *text, *x, *dy;
    int64_t *lengths;
    size_t bytes; /* of x */
    double loss;
} trainer;

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        heddle_status status_ = (call);                                                                                \
        if (status_ != HEDDLE_OK) {                                                                                    \
            return status_;                                                                                            \
        }                                                                                                              \
    } while (0)

static FILE *file(const char *name, const char *mode)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", job.folder, name);
    FILE *f = fopen(path, mode);
    if (f == NULL) {
        perror(path);
        exit(2);
    }
    return f;
}

static void *load(const char *name, size_t *bytes)
{
    FILE *f = file(name, "rb");
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    void *data = calloc(1, *bytes + 1);
    if (data == NULL || fread(data, 1, *bytes, f) != *bytes) {
        exit(2);
    }
    fclose(f);
    return data;
}

static void save(const char *name, const void *data, size_t bytes)
{
    FILE *f = file(name, "wb");
    if (fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        exit(2);
    }
}

static heddle_status make_plan(trainer *t, heddle_comm *comm)
{
    size_t bytes = 0;
    char *text = load("model.yaml", &bytes);
    heddle_plan_options plan;
    heddle_session_options session;
    heddle_plan_options_init(&plan);
    heddle_session_options_init(&session);
    plan.methods = job.methods;
    session.backward = 1;
    TRY(heddle_model_parse(&t->model, text, bytes, "model.yaml"));
    free(text);
    TRY(heddle_mesh_parse(&t->mesh, job.mesh));
    TRY(heddle_plan(&t->schedule, t->model, &t->mesh, &plan));
    t->info.struct_bytes = sizeof t->info;
    TRY(heddle_schedule_get_info(&t->info, t->schedule));
    return heddle_session_create(&t->session, comm, t->schedule, &session);
}

static heddle_status make_block(trainer *t, heddle_comm *comm, int i, const float **weights)
{
    heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
    heddle_schedule_stage planned = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_block_options o;
    heddle_tape_options tape;
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    heddle_block_options_init(&o);
    heddle_tape_options_init(&tape);
    TRY(heddle_model_get_info(&model, t->model));
    TRY(heddle_model_stage(&stage, t->model, i));
    TRY(heddle_schedule_stage_at(&planned, t->schedule, i));
    o.kind = stage.kind;
    o.shape = model.shape;
    o.mixed_dim = stage.mixed_dim;
    o.heads = stage.heads > 0 ? stage.heads : 1;
    o.mlp_channels = stage.mlp_channels;
    o.text_tokens = model.text_tokens;
    o.modulate = stage.modulate;
    o.rope = stage.rope;
    o.qk_norm = stage.qk_norm;
    o.causal = stage.causal;
    o.decay = stage.decay;
    tape.recompute = job.recompute;
    TRY(heddle_block_create(&t->block[i], &o));
    if (strcmp(planned.method, "local") != 0) {
        TRY(heddle_block_shard_attention(t->block[i], comm, &t->mesh, &planned.layout, planned.method));
    }
    for (int p = 0; p < heddle_block_nparams(t->block[i]); p++) {
        heddle_param param = HEDDLE_EMPTY(heddle_param), gradient = HEDDLE_EMPTY(heddle_param);
        TRY(heddle_block_param(&param, t->block[i], p));
        TRY(heddle_block_gradient(&gradient, t->block[i], p));
        const int64_t elems = param.extent[0] * (param.ndim > 1 ? param.extent[1] : 1);
        memcpy(param.data, *weights, (size_t)elems * sizeof(float));
        *weights += elems;
        t->part[t->nparts++] = (heddle_bucket_part){param.data, gradient.data, elems, param.ndim > 1};
    }
    TRY(heddle_block_commit(t->block[i]));
    return heddle_tape_create(&t->tape[i], t->block[i], &tape);
}

/* The conditioning's gradients are summed over the ranks like all others; there is nothing to update. */
static float *add_conditioning(trainer *t, const char *name, float **gradient)
{
    size_t bytes = 0;
    float *values = load(name, &bytes);
    float *unused = calloc(1, bytes + 1);
    *gradient = calloc(1, bytes + 1);
    t->part[t->nparts++] = (heddle_bucket_part){unused, *gradient, (int64_t)(bytes / sizeof(float)), 0};
    return values;
}

static heddle_status make(trainer *t, heddle_comm *comm)
{
    size_t bytes = 0;
    heddle_bucket_options bucket;
    heddle_adamw_options adamw;
    heddle_bucket_options_init(&bucket);
    heddle_adamw_options_init(&adamw);
    TRY(make_plan(t, comm));
    float *weights = load("weights.bin", &bytes);
    const float *next = weights;
    for (int i = 0; i < t->info.nstages; i++) {
        TRY(make_block(t, comm, i, &next));
    }
    free(weights);
    t->vector = add_conditioning(t, "vector.bin", &t->dconditioning.vector);
    t->text = add_conditioning(t, "text.bin", &t->dconditioning.text);
    t->lengths = load("lengths.bin", &bytes);
    t->conditioning = (heddle_conditioning){.vector = t->vector, .text = t->text, .text_lengths = t->lengths};
    t->x = load("x.bin", &t->bytes);
    t->dy = load("dy.bin", &bytes);
    bucket.sum_axes = (1u << t->mesh.naxes) - 1;
    bucket.shard_axis = job.shard_axis;
    adamw.weight_decay = 0.05;
    adamw.max_norm = 0.7;
    TRY(heddle_bucket_create(&t->bucket, comm, &t->mesh, t->part, t->nparts, &bucket));
    return heddle_adamw_create(&t->adamw, t->bucket, &adamw);
}

static heddle_status forward(trainer *t, heddle_tensor *x, int rank)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_box box;
    for (int i = 0; i < t->info.nstages; i++) {
        TRY(heddle_schedule_stage_at(&stage, t->schedule, i));
        TRY(heddle_session_enter(t->session, stage.name, x, NULL, HEDDLE_NO_STREAM));
        TRY(heddle_layout_box(&box, &t->info.shape, &t->mesh, &x->layout, rank));
        TRY(heddle_block_forward_tape(t->block[i], x, &box, &t->conditioning, t->tape[i], HEDDLE_NO_STREAM));
    }
    TRY(heddle_session_enter(t->session, "end", x, NULL, HEDDLE_NO_STREAM));
    t->loss = 0;
    for (size_t i = 0; i < t->bytes / sizeof(float); i++) {
        t->loss += (double)((const float *)x->data)[i] * (double)t->dy[i];
    }
    return HEDDLE_OK;
}

static heddle_status backward(trainer *t, heddle_tensor *dx)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    TRY(heddle_session_backward(t->session, "end", dx, NULL, HEDDLE_NO_STREAM));
    for (int i = t->info.nstages - 1; i >= 0; i--) {
        TRY(heddle_schedule_stage_at(&stage, t->schedule, i));
        TRY(heddle_block_backward(t->block[i], dx, &t->conditioning, &t->dconditioning, t->tape[i], HEDDLE_NO_STREAM));
        TRY(heddle_session_backward(t->session, stage.name, dx, NULL, HEDDLE_NO_STREAM));
    }
    return heddle_bucket_reduce(t->bucket, HEDDLE_NO_STREAM);
}

static void save_parts(const trainer *t, const char *name, int gradients, int nparts)
{
    FILE *f = file(name, "wb");
    for (int i = 0; i < nparts; i++) {
        const heddle_bucket_part *p = &t->part[i];
        if (fwrite(gradients ? p->grad : p->param, sizeof(float), (size_t)p->elems, f) != (size_t)p->elems) {
            exit(2);
        }
    }
    fclose(f);
}

static heddle_status save_first_step(const trainer *t, const heddle_tensor *dx, int rank)
{
    char name[64];
    heddle_box box;
    TRY(heddle_layout_box(&box, &t->info.shape, &t->mesh, &dx->layout, rank));
    snprintf(name, sizeof name, "dx%d.bin", rank);
    FILE *f = file(name, "wb");
    int64_t elems = 1;
    for (int d = 0; d < box.ndim; d++) {
        elems *= box.len[d];
    }
    fwrite(box.lo, sizeof(int64_t), (size_t)box.ndim, f);
    fwrite(box.len, sizeof(int64_t), (size_t)box.ndim, f);
    fwrite(dx->data, sizeof(float), (size_t)elems, f);
    fclose(f);
    if (rank == 0 && job.shard_axis < 0) {
        save_parts(t, "gradients.bin", 1, t->nparts);
    }
    return HEDDLE_OK;
}

static heddle_status step(trainer *t, int number, int rank)
{
    const heddle_layout whole = heddle_layout_replicated();
    heddle_tensor x, dx;
    float *copy = malloc(t->bytes), *gradient = malloc(t->bytes);
    memcpy(copy, t->x, t->bytes);
    memcpy(gradient, t->dy, t->bytes);
    heddle_bucket_zero(t->bucket, HEDDLE_NO_STREAM);
    TRY(heddle_session_rewind(t->session));
    TRY(heddle_tensor_init(&x, copy, &t->info.shape, &t->mesh, &whole, NULL, rank));
    TRY(heddle_tensor_init(&dx, gradient, &t->info.shape, &t->mesh, &whole, NULL, rank));
    TRY(forward(t, &x, rank));
    if (number == 0 && rank == 0) {
        save("y.bin", x.data, t->bytes);
    }
    if (number < STEPS) {
        TRY(backward(t, &dx));
        TRY(number == 0 ? save_first_step(t, &dx, rank) : HEDDLE_OK);
        TRY(heddle_adamw_step(t->adamw, 0.01 * (number + 1), HEDDLE_NO_STREAM));
        for (int i = 0; i < t->info.nstages; i++) {
            TRY(heddle_block_commit(t->block[i]));
        }
    }
    free(copy);
    free(gradient);
    return HEDDLE_OK;
}

static heddle_status rank_main(heddle_comm *comm, void *arg)
{
    trainer *t = calloc(1, sizeof *t);
    const int rank = heddle_comm_rank(comm);
    (void)arg;
    TRY(make(t, comm));
    for (int i = 0; i <= STEPS; i++) {
        TRY(step(t, i, rank));
    }
    if (rank == 0) {
        save_parts(t, "params.bin", 0, t->nparts - 2);
        save("loss.bin", &t->loss, sizeof t->loss);
    }
    heddle_adamw_destroy(t->adamw);
    heddle_bucket_destroy(t->bucket);
    for (int i = 0; i < t->info.nstages; i++) {
        heddle_tape_destroy(t->tape[i]);
        heddle_block_destroy(t->block[i]);
    }
    heddle_session_destroy(t->session);
    heddle_schedule_destroy(t->schedule);
    heddle_model_destroy(t->model);
    for (int i = t->nparts - 2; i < t->nparts; i++) {
        free(t->part[i].param);
        free(t->part[i].grad);
    }
    free(t->vector);
    free(t->text);
    free(t->lengths);
    free(t->x);
    free(t->dy);
    free(t);
    return HEDDLE_OK;
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: training_dump FOLDER RANKS TRANSPORT METHODS MESH RECOMPUTE SHARD_AXIS\n");
        return 2;
    }
    job.folder = argv[1];
    job.methods = argv[4];
    job.mesh = argv[5];
    job.recompute = atoi(argv[6]);
    job.shard_axis = atoi(argv[7]);
    if (heddle_run_ranks(atoi(argv[2]), argv[3], rank_main, NULL) != HEDDLE_OK) {
        fprintf(stderr, "%s\n", heddle_last_error());
        return 1;
    }
    return 0;
}
