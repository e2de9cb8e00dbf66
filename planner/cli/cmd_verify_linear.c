/* heddle verify linear-attention: outputs, gradients and states on real ranks against the recurrence on one. */
#include "problem.h"
#include "verify_share.h"

#include <stdio.h>

typedef struct trial {
    const cli_arguments *asked;
    linear_case problem;
    linear_errors errors;
} trial;

_Static_assert((int)LINEAR_JUDGED <= (int)CLI_JUDGED_MAX, "what a kind of problem may have");
_Static_assert(LINEAR_PROBLEM_BYTES <= sizeof((cli_outcome *)0)->problem, "a sentence must fit");

static heddle_status save_all(const linear_case *c, const linear_arrays *x, const char *save)
{
    int64_t dk = c->shape.dim[3].extent, dv = c->options.dv > 0 ? c->options.dv : dk;
    const struct {
        const char *name;
        const double *data;
        int64_t width;
    } all[] = {{"q", x->q, dk}, {"k", x->k, dk},   {"v", x->v, dv},   {"do", x->d_o, dv},
               {"o", x->o, dv}, {"dq", x->dq, dk}, {"dk", x->dk, dk}, {"dv", x->dv, dv}};
    heddle_status st = HEDDLE_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && st == HEDDLE_OK; i++) {
        const heddle_dim *dim = c->shape.dim;
        const int64_t extent[4] = {dim[0].extent, dim[1].extent, dim[2].extent, all[i].width};
        st = cli_save_array(save, all[i].name, c->shape.dtype, all[i].data, 4, extent);
    }
    return st;
}

static heddle_status attempt(cli_outcome *out, void *trial_of, heddle_comm *comm, random_source *source,
                             const char *save)
{
    trial *t = trial_of;
    linear_arrays global = {NULL};
    heddle_status st =
        source == NULL ? HEDDLE_OK : cli_linear_draw(&t->problem, source, heddle_comm_size(comm), t->asked);
    if (st != HEDDLE_OK) {
        return st;
    }
    linear_describe(out->line, sizeof out->line, &t->problem);
    out->dtype = t->problem.shape.dtype;
    out->errors = t->errors.of;
    st = linear_check(comm, &t->problem, out->problem, &t->errors, save != NULL ? &global : NULL);
    if (st == HEDDLE_OK && save != NULL && heddle_comm_rank(comm) == 0) {
        st = save_all(&t->problem, &global, save);
    }
    linear_free(&global);
    return st;
}

static heddle_status print_sent(const void *of)
{
    const trial *t = of;
    long long bytes = (long long)t->errors.state_bytes;
    heddle_attention_traffic most, all;
    heddle_status st = linear_traffic(&most, &all, &t->problem);
    printf("sent forward %lld messages of %lld bytes, at most %lld by a rank; backward %lld messages of %lld bytes, at "
           "most %lld by a rank; as planned\n",
           (long long)all.forward_messages, bytes, (long long)most.forward_messages, (long long)all.backward_messages,
           bytes, (long long)most.backward_messages);
    printf("%lld messages follow one another\n", (long long)t->errors.serial_steps);
    return st;
}

static const cli_trial_kind kind = {.name = "linear attention",
                                    .trial_bytes = sizeof(trial),
                                    .judged = LINEAR_JUDGED,
                                    .attempt = attempt,
                                    .print_sent = print_sent};

static int run(const cli_arguments *a)
{
    trial first = {.asked = a};
    int ranks = 0, code = cli_linear_problem(&first.problem, &ranks, a);
    if (code == CLI_OK && a->operand != NULL) {
        code = cli_report(linear_check_memory(&first.problem));
    }
    return code == CLI_OK ? cli_verify_trials(a, ranks, &kind, &first) : code;
}

const cli_action cli_verify_linear = {
    .synopsis = "usage: heddle verify linear-attention 'f32[b=2 s=37 h=6 d=16] on [sp=4]' --method M [options]\n"
                "       heddle verify linear-attention --random COUNT --ranks N [--seed S] [options]\n",
    .notes = "The sequence is on all mesh axes unless a layout follows the mesh ('... on [dp=2 sp=2]:\n"
             "b@dp,s@sp'). Checked: o, dq, dk, dv and the state behind the last row in both conventions, each\n"
             "element to a few roundings of the terms that make it; <do, o> = <q, dq> = <k, dk> = <v, dv>; bytes\n"
             "and messages measured = planned. Exit code 5 when anything differs.\n",
    .run = run,
};
