/* heddle verify attention: outputs and gradients of a method on real ranks against double precision on one. */
#include "attention_cli.h"
#include "launch.h"
#include "verify_share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: heddle verify attention 'f32[b=2 s=37 h=6 d=16] on [sp=4]' --method M [options]\n"
    "       heddle verify attention --random COUNT --ranks N [--seed S] [options]\n"
    "\n"
    "  --method M         local, ulysses, ring, rsa, usp or gather-kv; usp wants two mesh axes, ring first\n"
    "  --kv-heads K       heads of k and v, divides those of q\n"
    "  --causal           query i sees keys 0..i;  --zigzag: rows placed so that this is balanced\n"
    "  --key-lengths A,B  keys seen per sample\n"
    "  --all-reduce       rsa: the paper's own sums;  --project M: keys and values projected to length M\n"
    "  --transport T      threads, shm, mpi, auto; --messages, --hosts K, --deadline S, --arena BYTES as for heddle "
    "verify\n"
    "  --threads T        of every rank;  --seed S: of the values\n"
    "  --save DIR         writes q k v do o dq dk dv lse .npy: q and o [b s h d], k and v [b s kv-heads d]\n"
    "\n"
    "The sequence is on all mesh axes unless a layout follows the mesh ('... on [dp=2 sp=2]: b@dp,s@sp'). Checked: o,\n"
    "log-sum-exp, dq, dk, dv (and of a projection its gradients), each element to a few roundings of the terms that "
    "make\n"
    "it; <do, o> = <dv, v> and <dq, q> = <dk, k>; bytes and messages measured = planned. Exit code 5 when anything\n"
    "differs.\n";

typedef struct request {
    attention_case problem;
    const char *line, *transport, *save;
    long long ranks, random, seed, hosts, deadline_s;
    int messages, help;
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
    random_source source = {(uint64_t)r->seed};
    int count = r->random > 0 ? (int)r->random : 1, failed = 0;
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

static int take_value(request *r, const char *option, const char *value)
{
    if (strcmp(option, "--ranks") == 0) {
        return cli_parse_int(&r->ranks, option, value, 1, 4096);
    }
    if (strcmp(option, "--random") == 0) {
        return cli_parse_int(&r->random, option, value, 1, 1000000);
    }
    if (strcmp(option, "--seed") == 0) {
        return cli_parse_int(&r->seed, option, value, 0, INT64_MAX);
    }
    if (strcmp(option, "--hosts") == 0) {
        return cli_parse_int(&r->hosts, option, value, 1, 4096);
    }
    if (strcmp(option, "--deadline") == 0) {
        return cli_parse_int(&r->deadline_s, option, value, 1, 86400);
    }
    if (strcmp(option, "--arena") == 0) {
        return cli_take_arena(value);
    }
    if (strcmp(option, "--transport") == 0) {
        r->transport = value;
        return cli_check_transport(value);
    }
    if (strcmp(option, "--save") == 0) {
        r->save = value;
        return CLI_OK;
    }
    return cli_usage_error("heddle verify attention: unknown option '%s' (try: heddle verify attention --help)",
                           option);
}

static int take_argument(request *r, int *at, int argc, char **argv)
{
    const char *a = argv[*at];
    int kind = attention_option_kind(a), taken = 0;
    if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
        r->help = 1;
        return CLI_OK;
    }
    if (strcmp(a, "--messages") == 0) {
        r->messages = 1;
        return CLI_OK;
    }
    if (kind == 1) {
        return attention_take_option(&r->problem, &taken, a, NULL);
    }
    if (a[0] == '-' && a[1] == '-') {
        if (*at + 1 == argc) {
            return cli_usage_error("heddle verify attention: '%s' is unknown or wants a value", a);
        }
        const char *value = argv[++*at];
        return kind == 0 ? attention_take_option(&r->problem, &taken, a, value) : take_value(r, a, value);
    }
    if (r->line != NULL) {
        return cli_usage_error("heddle verify attention wants one problem in quotes, got '%s' after it", a);
    }
    r->line = a;
    return CLI_OK;
}

static int prepare(request *r)
{
    if ((r->line == NULL) == (r->random == 0) || (r->random > 0 && r->save != NULL)) {
        return cli_usage_error("heddle verify attention wants either one problem or --random, which saves nothing");
    }
    if (r->line == NULL) {
        return CLI_OK;
    }
    if (attention_parse_line(&r->problem, r->line) != HEDDLE_OK) {
        return CLI_BAD_INPUT;
    }
    r->problem.seed = (uint64_t)r->seed;
    r->problem.options.log_sum_exp = 1;
    int ranks = heddle_mesh_size(&r->problem.mesh);
    if (r->ranks != 0 && r->ranks != ranks) {
        return cli_usage_error("--ranks %lld, but the mesh of the problem has %d", r->ranks, ranks);
    }
    r->ranks = ranks;
    int code = cli_make_directory(r->save);
    code = code == CLI_OK ? attention_check_options(&r->problem) : code;
    return code == CLI_OK ? attention_check_memory(&r->problem) : code;
}

int cli_verify_attention(int argc, char **argv)
{
    request r = {.transport = "auto", .seed = 1};
    heddle_comm_options options;
    int code = CLI_OK;
    heddle_attention_options_init(&r.problem.options);
    for (int i = 2; i < argc && code == CLI_OK; i++) {
        code = take_argument(&r, &i, argc, argv);
    }
    if (code == CLI_OK && r.help) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    code = code == CLI_OK ? prepare(&r) : code;
    if (code != CLI_OK) {
        return code;
    }
    cli_comm_options(&options, r.messages, r.hosts, r.deadline_s);
    return cli_with_ranks(r.transport, r.ranks > 0 ? (int)r.ranks : 4, argc, argv, &options, verify_main, &r);
}
