/* Forward and backward through the network. The blocks know nothing of other ranks: heddle_session_enter puts the
 * activation into the layout a stage wants, heddle_session_backward takes its gradient back. */
#include "train.h"

#include <string.h>

static float *vector_of(const network *net, float *base, int table)
{
    return base + (int64_t)table * net->cond.samples * ROWS_OF_VECTOR * net->cond.channels;
}

static heddle_status embed(network *net, const float *noisy, const double *time)
{
    const int64_t c = net->opt->channels;
    heddle_status st = dense_forward(net->x, &net->embed, noisy, net->rows);
    for (int64_t i = 0; i < net->rows * c; i++) {
        const int64_t s = net->box.lo[2] + i / c % net->box.len[2];
        net->x[i] += net->positions[s * c + i % c];
    }
    return st ? st : condition_forward(&net->cond, time, net->box.lo[0], net->box.len[0]);
}

static heddle_status run_stage(network *net, stage *s, heddle_tensor *x, int keep)
{
    const heddle_conditioning given = {.vector = vector_of(net, net->cond.vector, s->table)};
    heddle_box box; /* of this rank, in the layout of this stage */
    heddle_status st = heddle_session_enter(net->session, s->plan.name, x, NULL, HEDDLE_NO_STREAM);
    st = st ? st : heddle_layout_box(&box, &net->shape, &net->mesh, &x->layout, net->rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    st = keep ? heddle_block_forward_tape(s->block, x, &box, &given, s->tape, HEDDLE_NO_STREAM)
              : heddle_block_forward(s->block, x, &box, &given, HEDDLE_NO_STREAM);
    net->tape_bytes += keep ? heddle_tape_bytes(s->tape) : 0;
    return st;
}

/* The last layer's result is taken for the clip without noise, from which the velocity follows: x_t - x_0 = t (noise -
 * x_0). Noise has no structure, so a small network is better at the one than at the other. */
static float divisor(const double *time, int64_t sample)
{
    return (float)(time[sample] > 0.1 ? time[sample] : 0.1); /* else the last steps would count for everything */
}

static int64_t values_per_sample(const network *net)
{
    return net->box.len[1] * net->box.len[2] * net->width;
}

heddle_status network_forward(network *net, float *velocity, const float *noisy, const double *time, int keep)
{
    heddle_tensor x;
    heddle_status st = embed(net, noisy, time);
    st = st ? st : heddle_tensor_init(&x, net->x, &net->shape, &net->mesh, &net->home, NULL, net->rank);
    st = st ? st : heddle_session_rewind(net->session);
    net->tape_bytes = 0;
    for (int i = 0; st == HEDDLE_OK && i < net->nstages; i++) {
        st = run_stage(net, &net->stages[i], &x, keep);
    }
    st = st ? st : heddle_session_enter(net->session, "end", &x, NULL, HEDDLE_NO_STREAM); /* home again */
    if (st == HEDDLE_OK) {
        norm_forward(net->normed, net->rstd, x.data, net->rows, net->opt->channels);
        st = dense_forward(velocity, &net->final, net->normed, net->rows);
    }
    for (int64_t i = 0; st == HEDDLE_OK && i < net->rows * net->width; i++) {
        velocity[i] = (noisy[i] - velocity[i]) / divisor(time, i / values_per_sample(net));
    }
    return st;
}

static heddle_status run_stage_backward(network *net, stage *s, heddle_tensor *dx)
{
    const heddle_conditioning given = {.vector = vector_of(net, net->cond.vector, s->table)};
    const heddle_conditioning_gradient wanted = {.vector = vector_of(net, net->cond.dvector, s->table)};
    heddle_status st = heddle_block_backward(s->block, dx, &given, &wanted, s->tape, HEDDLE_NO_STREAM);
    return st ? st : heddle_session_backward(net->session, s->plan.name, dx, NULL, HEDDLE_NO_STREAM);
}

/* Adds to the gradients of all parameters: of this rank's tokens only, so that the sum over the ranks is the whole. */
heddle_status network_backward(network *net, float *dvelocity, const float *noisy, const double *time)
{
    heddle_tensor dx;
    for (int64_t i = 0; i < net->rows * net->width; i++) {
        dvelocity[i] /= -divisor(time, i / values_per_sample(net));
    }
    heddle_status st = dense_backward(net->dnormed, &net->final, dvelocity, net->normed, net->rows);
    norm_backward(net->dx, net->dnormed, net->normed, net->rstd, net->rows, net->opt->channels);
    st = st ? st : heddle_tensor_init(&dx, net->dx, &net->shape, &net->mesh, &net->home, NULL, net->rank);
    st = st ? st : heddle_session_backward(net->session, "end", &dx, NULL, HEDDLE_NO_STREAM);
    for (int i = net->nstages - 1; st == HEDDLE_OK && i >= 0; i--) {
        st = run_stage_backward(net, &net->stages[i], &dx);
    }
    st = st ? st : dense_backward(NULL, &net->embed, dx.data, noisy, net->rows);
    return st ? st : condition_backward(&net->cond, net->box.lo[0], net->box.len[0]);
}
