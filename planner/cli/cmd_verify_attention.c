/* heddle verify attention: outputs and gradients of a method on real ranks against double precision on one. */
#include "problem.h"
#include "verify_share.h"

#include <stdio.h>

typedef struct trial {
    const cli_arguments *asked;
    attention_case problem;
    attention_errors errors;
} trial;

_Static_assert((int)ATTENTION_JUDGED <= (int)CLI_JUDGED_MAX, "what a kind of problem may have");
_Static_assert(ATTENTION_PROBLEM_BYTES <= sizeof((cli_outcome *)0)->problem, "a sentence must fit");

static heddle_status save_all(const attention_case *c, const attention_arrays *x, const char *save)
{
    attention_extents n = attention_extents_of(c);
    const int64_t q[4] = {n.batch, n.sequence, n.heads, n.width}, k[4] = {n.batch, n.sequence, n.kv_heads, n.width};
    const int64_t lse[3] = {n.batch, n.heads, n.sequence}, e[2] = {n.projected, n.sequence};
    const struct {
        const char *name;
        const double *data;
        int ndim;
        const int64_t *extent;
    } all[] = {{"q", x->q, 4, q},       {"k", x->k, 4, k},   {"v", x->v, 4, k},   {"do", x->d_o, 4, q},
               {"o", x->o, 4, q},       {"dq", x->dq, 4, q}, {"dk", x->dk, 4, k}, {"dv", x->dv, 4, k},
               {"lse", x->lse, 3, lse}, {"e", x->e, 2, e},   {"f", x->f, 2, e},   {"de", x->de, 2, e},
               {"df", x->df, 2, e}};
    heddle_status st = HEDDLE_OK;
    for (size_t i = 0; i < (n.projected > 0 ? sizeof all / sizeof all[0] : 9) && st == HEDDLE_OK; i++) {
        st = cli_save_array(save, all[i].name, c->shape.dtype, all[i].data, all[i].ndim, all[i].extent);
    }
    return st;
}

static heddle_status attempt(cli_outcome *out, void *trial_of, heddle_comm *comm, random_source *source,
                             const char *save)
{
    trial *t = trial_of;
    attention_arrays global = {NULL};
    heddle_status st =
        source == NULL ? HEDDLE_OK : cli_attention_draw(&t->problem, source, heddle_comm_size(comm), t->asked);
    if (st != HEDDLE_OK) {
        return st;
    }
    attention_describe(out->line, sizeof out->line, &t->problem);
    out->dtype = t->problem.shape.dtype;
    out->errors = t->errors.of;
    st = attention_check(comm, &t->problem, out->problem, &t->errors, save != NULL ? &global : NULL);
    if (st == HEDDLE_OK && save != NULL && heddle_comm_rank(comm) == 0) {
        st = save_all(&t->problem, &global, save);
    }
    attention_free(&global);
    return st;
}

static heddle_status print_sent(const void *of)
{
    const heddle_attention_traffic *planned = &((const trial *)of)->errors.planned;
    printf("rank 0 sends forward %lld bytes in %lld messages, backward %lld bytes in %lld messages, as planned\n",
           (long long)planned->forward_bytes, (long long)planned->forward_messages, (long long)planned->backward_bytes,
           (long long)planned->backward_messages);
    return HEDDLE_OK;
}

static const cli_trial_kind kind = {.name = "attention",
                                    .trial_bytes = sizeof(trial),
                                    .judged = ATTENTION_JUDGED,
                                    .attempt = attempt,
                                    .print_sent = print_sent};

static int run(const cli_arguments *a)
{
    trial first = {.asked = a};
    int ranks = 0, code = cli_attention_problem(&first.problem, &ranks, a);
    first.problem.options.log_sum_exp = 1;
    if (code == CLI_OK && a->operand != NULL) {
        code = cli_report(attention_check_memory(&first.problem));
    }
    return code == CLI_OK ? cli_verify_trials(a, ranks, &kind, &first) : code;
}

const cli_action cli_verify_attention = {
    .synopsis = "usage: heddle verify attention 'f32[b=2 s=37 h=6 d=16] on [sp=4]' --method M [options]\n"
                "       heddle verify attention --random COUNT --ranks N [--seed S] [options]\n",
    .notes = "The sequence is on all mesh axes unless a layout follows the mesh ('... on [dp=2 sp=2]:\n"
             "b@dp,s@sp'). Checked: o, log-sum-exp, dq, dk, dv (and of a projection its gradients), each element\n"
             "to a few roundings of the terms that make it; <do, o> = <dv, v> and <dq, q> = <dk, k>; bytes and\n"
             "messages measured = planned. Exit code 5 when anything differs.\n",
    .run = run,
};
