/* heddle verify attention: outputs and gradients of a method on real ranks against double precision on one. */
#include "launch.h"
#include "problem.h"
#include "verify_share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    attention_case problem;
    int random; /* problems to draw; 0: `problem` */
    uint64_t seed;
    const char *save;
} request;

static heddle_status save_all(const request *r, const attention_arrays *x)
{
    attention_extents n = attention_extents_of(&r->problem);
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
        st = cli_save_array(r->save, all[i].name, r->problem.shape.dtype, all[i].data, all[i].ndim, all[i].extent);
    }
    return st;
}

static void print_result(const attention_case *c, const attention_errors *e, const heddle_comm *comm)
{
    char text[2048];
    attention_describe(text, sizeof text, c);
    printf("%s\n", text);
    judge_list(text, sizeof text, e->of, ATTENTION_JUDGED);
    printf("errors in roundings: %s\n", text);
    printf("rank 0 sends forward %lld bytes in %lld messages, backward %lld bytes in %lld messages, as planned\n",
           (long long)e->planned.forward_bytes, (long long)e->planned.forward_messages,
           (long long)e->planned.backward_bytes, (long long)e->planned.backward_messages);
    printf("right on %s\n", heddle_comm_describe(comm));
    fflush(stdout);
}

static heddle_status verify_main(heddle_comm *comm, void *arg)
{
    const request *r = arg;
    random_source source = {r->seed};
    int count = r->random > 0 ? r->random : 1, failed = 0;
    heddle_status st = HEDDLE_OK;
    attention_case c = r->problem;
    attention_errors errors;
    judge_error worst[HEDDLE_DTYPE_COUNT][ATTENTION_JUDGED] = {0};
    for (int i = 0; i < count && st == HEDDLE_OK && !failed; i++) {
        char problem[ATTENTION_PROBLEM_BYTES] = "", which[2048];
        attention_arrays global = {NULL};
        if (r->random > 0) {
            attention_draw(&c, &source, heddle_comm_size(comm), HEDDLE_DTYPE_COUNT);
        }
        st = attention_check(comm, &c, problem, &errors, r->save != NULL ? &global : NULL);
        snprintf(which, sizeof which, ": ");
        attention_describe(which + 2, sizeof which - 2, &c);
        st = st != HEDDLE_OK ? st : cli_first_problem(&failed, comm, which, problem);
        if (st == HEDDLE_OK && r->save != NULL && heddle_comm_rank(comm) == 0) {
            st = save_all(r, &global);
        }
        attention_free(&global);
        if (st == HEDDLE_OK) {
            judge_gather(worst[c.shape.dtype], errors.of, ATTENTION_JUDGED);
        }
    }
    if (st == HEDDLE_OK && failed) {
        cli_verdict(CLI_MISMATCH);
    } else if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        if (r->random > 0) {
            printf("%d attention problems right on %s\n", count, heddle_comm_describe(comm));
            cli_print_worst(&worst[0][0], ATTENTION_JUDGED);
        } else {
            print_result(&c, &errors, comm);
        }
    }
    return st;
}

static int run(const cli_arguments *a)
{
    request r = {.random = (int)a->random, .seed = (uint64_t)a->seed, .save = a->save};
    int ranks = 0, code = cli_attention_problem(&r.problem, &ranks, a);
    if (code == CLI_OK && a->operand == NULL && a->save != NULL) {
        return cli_usage_error("--save needs a problem, not --random");
    }
    r.problem.options.log_sum_exp = 1;
    code = code == CLI_OK ? cli_make_directory(a->save) : code;
    if (code == CLI_OK && a->operand != NULL) {
        code = cli_report(attention_check_memory(&r.problem));
    }
    return code == CLI_OK ? cli_with_ranks(a, ranks, verify_main, &r) : code;
}

const cli_command cli_verify_attention = {
    .name = "verify attention",
    .bit = CLI_VERIFY_ATTENTION,
    .has_ranks = 1,
    .operand = "problem",
    .synopsis = "usage: heddle verify attention 'f32[b=2 s=37 h=6 d=16] on [sp=4]' --method M [options]\n"
                "       heddle verify attention --random COUNT --ranks N [--seed S] [options]\n",
    .notes = "The sequence is on all mesh axes unless a layout follows the mesh ('... on [dp=2 sp=2]: b@dp,s@sp'). "
             "Checked: o,\n"
             "log-sum-exp, dq, dk, dv (and of a projection its gradients), each element to a few roundings of the "
             "terms that\n"
             "make it; <do, o> = <dv, v> and <dq, q> = <dk, k>; bytes and messages measured = planned. Exit code 5 "
             "when\n"
             "anything differs.\n",
    .run = run,
};
