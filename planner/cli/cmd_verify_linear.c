/* heddle verify linear-attention: outputs, gradients and states on real ranks against the recurrence on one. */
#include "launch.h"
#include "problem.h"
#include "verify_share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    linear_case problem;
    int random; /* problems to draw; 0: `problem` */
    uint64_t seed;
    const char *save;
} request;

static heddle_status save_all(const request *r, const linear_arrays *x)
{
    int64_t dk = r->problem.shape.dim[3].extent, dv = r->problem.options.dv > 0 ? r->problem.options.dv : dk;
    const struct {
        const char *name;
        const double *data;
        int64_t width;
    } all[] = {{"q", x->q, dk}, {"k", x->k, dk},   {"v", x->v, dv},   {"do", x->d_o, dv},
               {"o", x->o, dv}, {"dq", x->dq, dk}, {"dk", x->dk, dk}, {"dv", x->dv, dv}};
    heddle_status st = HEDDLE_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && st == HEDDLE_OK; i++) {
        const heddle_dim *dim = r->problem.shape.dim;
        const int64_t extent[4] = {dim[0].extent, dim[1].extent, dim[2].extent, all[i].width};
        st = cli_save_array(r->save, all[i].name, r->problem.shape.dtype, all[i].data, 4, extent);
    }
    return st;
}

static heddle_status print_result(const linear_case *c, const linear_errors *e, const heddle_comm *comm)
{
    char text[2048];
    heddle_attention_traffic most, all;
    heddle_status st = linear_traffic(&most, &all, c);
    linear_describe(text, sizeof text, c);
    printf("%s\n", text);
    judge_list(text, sizeof text, e->of, LINEAR_JUDGED);
    printf("errors in roundings: %s\n", text);
    printf("sent forward %lld messages of %lld bytes, at most %lld by a rank; backward %lld messages of %lld bytes, at "
           "most %lld by a rank; as planned\n",
           (long long)all.forward_messages, (long long)e->state_bytes, (long long)most.forward_messages,
           (long long)all.backward_messages, (long long)e->state_bytes, (long long)most.backward_messages);
    printf("%lld messages follow one another\n", (long long)e->serial_steps);
    printf("right on %s\n", heddle_comm_describe(comm));
    fflush(stdout);
    return st;
}

static heddle_status verify_main(heddle_comm *comm, void *arg)
{
    const request *r = arg;
    random_source source = {r->seed};
    int count = r->random > 0 ? r->random : 1, failed = 0;
    heddle_status st = HEDDLE_OK;
    linear_case c = r->problem;
    linear_errors errors;
    judge_error worst[HEDDLE_DTYPE_COUNT][LINEAR_JUDGED] = {0};
    for (int i = 0; i < count && st == HEDDLE_OK && !failed; i++) {
        char problem[LINEAR_PROBLEM_BYTES] = "", which[2048];
        linear_arrays global = {NULL};
        if (r->random > 0) {
            linear_draw(&c, &source, heddle_comm_size(comm), HEDDLE_DTYPE_COUNT);
        }
        st = linear_check(comm, &c, problem, &errors, r->save != NULL ? &global : NULL);
        snprintf(which, sizeof which, ": ");
        linear_describe(which + 2, sizeof which - 2, &c);
        st = st != HEDDLE_OK ? st : cli_first_problem(&failed, comm, which, problem);
        if (st == HEDDLE_OK && r->save != NULL && heddle_comm_rank(comm) == 0) {
            st = save_all(r, &global);
        }
        linear_free(&global);
        if (st == HEDDLE_OK) {
            judge_gather(worst[c.shape.dtype], errors.of, LINEAR_JUDGED);
        }
    }
    if (st == HEDDLE_OK && failed) {
        cli_verdict(CLI_MISMATCH);
    } else if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        if (r->random > 0) {
            printf("%d linear attention problems right on %s\n", count, heddle_comm_describe(comm));
            cli_print_worst(&worst[0][0], LINEAR_JUDGED);
        } else {
            st = print_result(&c, &errors, comm);
        }
    }
    return st;
}

static int run(const cli_arguments *a)
{
    request r = {.random = (int)a->random, .seed = (uint64_t)a->seed, .save = a->save};
    int ranks = 0, code = cli_linear_problem(&r.problem, &ranks, a);
    if (code == CLI_OK && a->operand == NULL && a->save != NULL) {
        return cli_usage_error("--save needs a problem, not --random");
    }
    code = code == CLI_OK ? cli_make_directory(a->save) : code;
    return code == CLI_OK ? cli_with_ranks(a, ranks, verify_main, &r) : code;
}

const cli_command cli_verify_linear = {
    .name = "verify linear-attention",
    .bit = CLI_VERIFY_LINEAR,
    .has_ranks = 1,
    .operand = "problem",
    .synopsis = "usage: heddle verify linear-attention 'f32[b=2 s=37 h=6 d=16] on [sp=4]' --method M [options]\n"
                "       heddle verify linear-attention --random COUNT --ranks N [--seed S] [options]\n",
    .notes = "The sequence is on all mesh axes unless a layout follows the mesh ('... on [dp=2 sp=2]: b@dp,s@sp'). "
             "Checked: o,\n"
             "dq, dk, dv and the state behind the last row in both conventions, each element to a few roundings of the "
             "terms\n"
             "that make it; <do, o> = <q, dq> = <k, dk> = <v, dv>; bytes and messages measured = planned. Exit code 5 "
             "when\n"
             "anything differs.\n",
    .run = run,
};
