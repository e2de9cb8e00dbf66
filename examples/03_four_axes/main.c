/* Four kinds of parallelism in one training step: pipeline, data, sequence and tensor axes of one mesh.
 *
 *     ./example_03_four_axes                                16 ranks as threads on [pp=2 dp=2 sp=2 tp=2]
 *     ./example_03_four_axes '[pp=1 dp=2 sp=2 tp=1]' shm    another mesh of these axes, ranks as processes
 *     mpirun -n 8 ./example_03_four_axes '[pp=2 dp=1 sp=2 tp=2]' auto
 *
 * The model is 4 layers of spatial attention, temporal attention and two linear layers, all with residuals; the loss is
 * the mean squared distance to a target. Every rank trains the model alone as well and compares. trainer.c has the
 * step.
 *
 *   pp  layers in stages; activations and their gradients go from rank to rank      heddle_pipeline
 *   dp  other samples; gradients are averaged, the optimiser's state is sharded      heddle_bucket, heddle_adamw
 *   sp  other rows of the same samples; the sharded dim switches between stages      heddle_session
 *   tp  the linear layers' hidden width, and again other rows elsewhere              heddle_dense_pair
 */
#include "trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double largest_difference(trainer *many, trainer *one)
{
    double most = 0;
    for (int i = 0; i < many->nlayers; i++) {
        for (int j = 0; j < 8; j++) { /* what every rank of a stage has the whole of */
            heddle_param a = HEDDLE_EMPTY(heddle_param), b = HEDDLE_EMPTY(heddle_param);
            if (heddle_block_param(&a, many->layer[i].block[j / 4], j % 4) != HEDDLE_OK ||
                heddle_block_param(&b, one->layer[many->first_layer + i].block[j / 4], j % 4) != HEDDLE_OK) {
                return HUGE_VAL;
            }
            for (int64_t e = 0; e < a.extent[0] * (a.ndim == 2 ? a.extent[1] : 1); e++) {
                most = fmax(most, fabs((double)a.data[e] - (double)b.data[e]));
            }
        }
    }
    return most;
}

static heddle_status say_what_was_sent(trainer *t)
{
    heddle_session_counters moved = HEDDLE_EMPTY(heddle_session_counters);
    heddle_dense_pair_info pair = HEDDLE_EMPTY(heddle_dense_pair_info);
    heddle_bucket_info bucket[2] = {HEDDLE_EMPTY(heddle_bucket_info), HEDDLE_EMPTY(heddle_bucket_info)};
    int64_t pairs = 0;
    heddle_status st = heddle_session_get_counters(&moved, t->session);
    for (int i = 0; st == HEDDLE_OK && i < t->nlayers; i++) {
        st = heddle_dense_pair_get_info(&pair, t->layer[i].pair);
        pairs += pair.measured_bytes;
    }
    st = st ? st : heddle_bucket_get_info(&bucket[0], t->bucket[0]);
    st = st ? st : heddle_bucket_get_info(&bucket[1], t->bucket[1]);
    if (st != HEDDLE_OK) {
        return st;
    }
    printf("rank 0 sent per step  pp: %lld  dp with sp, tp: %lld  sp: %lld in %lld switches  tp: %lld bytes\n",
           (long long)(heddle_pipeline_bytes_sent(t->pipeline) / STEPS),
           (long long)((bucket[0].measured_bytes + bucket[1].measured_bytes) / STEPS),
           (long long)(moved.bytes_sent / STEPS), (long long)(moved.switches / STEPS), (long long)(pairs / STEPS));
    printf("rank 0 holds layers %d..%d, %lld of %lld parameters' optimiser state\n", t->first_layer,
           t->first_layer + t->nlayers - 1, (long long)(bucket[0].own_elems + bucket[1].own_elems),
           (long long)(bucket[0].elems + bucket[1].elems));
    return HEDDLE_OK;
}

static heddle_status rank_main(heddle_comm *comm, void *arg)
{
    heddle_comm *self = NULL;
    trainer *many = calloc(1, sizeof *many), *one = calloc(1, sizeof *one);
    const int rank = heddle_comm_rank(comm);
    double loss[2], off = 0;
    heddle_status st = heddle_comm_open(&self, "self", NULL);
    st = st ? st : trainer_make(many, comm, arg);
    st = st ? st : trainer_make(one, self, "[pp=1 dp=1 sp=1 tp=1]");
    if (st == HEDDLE_OK && rank == 0) {
        printf("%s on %s\nstep        one rank      this mesh\n", (const char *)arg, heddle_comm_describe(comm));
    }
    for (int step = 0; st == HEDDLE_OK && step < STEPS; step++) {
        st = train_step(&loss[0], many, step);
        st = st ? st : train_step(&loss[1], one, step);
        off = fmax(off, fabs(loss[0] - loss[1]) / loss[1]);
        if (st == HEDDLE_OK && rank == 0) {
            printf("%4d  %14.6f %14.6f\n", step, loss[1], loss[0]);
        }
    }
    if (st == HEDDLE_OK) {
        off = fmax(off, largest_difference(many, one));
        st = rank == 0 ? say_what_was_sent(many) : HEDDLE_OK;
        st = st ? st : heddle_comm_barrier(comm);
        printf("rank %d: largest difference to one rank %.1e: %s\n", rank, off, off < 2e-5 ? "ok" : "WRONG");
        st = st || off < 2e-5 ? st : heddle_set_error(HEDDLE_ERR_INTERNAL, "differs from one rank's result");
    }
    trainer_free(one);
    trainer_free(many);
    heddle_comm_destroy(self);
    free(one);
    free(many);
    return st;
}

int main(int argc, char **argv)
{
    const char *text = argc > 1 ? argv[1] : "[pp=2 dp=2 sp=2 tp=2]", *where = argc > 2 ? argv[2] : "threads";
    heddle_mesh mesh;
    heddle_comm *comm = NULL;
    heddle_status st = heddle_mesh_parse(&mesh, text);
    if (st == HEDDLE_OK && strcmp(where, "auto") == 0) { /* the ranks that mpirun, srun or torchrun started */
        st = heddle_comm_open(&comm, where, NULL);
        st = st ? st : rank_main(comm, (void *)text);
        heddle_comm_destroy(comm);
    } else if (st == HEDDLE_OK) {
        st = heddle_run_ranks(heddle_mesh_size(&mesh), where, rank_main, (void *)text);
    }
    if (st != HEDDLE_OK) {
        fprintf(stderr, "%s: %s\n", heddle_status_name(st), heddle_last_error());
    }
    return st != HEDDLE_OK;
}
