/* heddle verify: run reshards on real ranks and check every element, canary and byte count. */
#include "launch.h"
#include "options.h"
#include "runtime/verify/reshard_check.h"
#include "verify_share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_RANKS = 4 };

/* Type and extents of the file must be those of the line. */
static int check_input(const npy_array *input, const heddle_shape *shape, const char *path)
{
    const char *wanted = npy_type_of(shape->dtype);
    int raw_f16 = shape->dtype == HEDDLE_F16 && strcmp(input->type, "<u2") == 0;
    if (strcmp(input->type, wanted) != 0 && !raw_f16) {
        return cli_usage_error("%s: dtype '%s', but %s is stored as '%s'", path, input->type,
                               heddle_dtype_name(shape->dtype), wanted);
    }
    if (input->ndim != shape->ndim) {
        return cli_usage_error("%s: %d dims, the reshard line has %d", path, input->ndim, shape->ndim);
    }
    for (int d = 0; d < shape->ndim; d++) {
        if (input->extent[d] != shape->dim[d].extent) {
            return cli_usage_error("%s: dim %d has %lld elements, '%s' of the reshard line has %lld", path, d,
                                   (long long)input->extent[d], shape->dim[d].name, (long long)shape->dim[d].extent);
        }
    }
    return CLI_OK;
}

typedef struct request {
    heddle_reshard_line line;
    int random; /* problems to draw; 0: `line` */
    uint64_t seed;
    heddle_memory memory;
    const npy_array *input;
    const char *save;
} request;

/* `st` is what came of a problem. Apart, so that these texts are not on a stack, which may be small, while it runs. */
static __attribute__((noinline)) heddle_status tell_of(const verify_trial *t, heddle_status st, int *failed, int number)
{
    char line[HEDDLE_LINE_BYTES] = "", which[HEDDLE_LINE_BYTES + 64], why[VERIFY_PROBLEM_BYTES];
    if (t->saved != HEDDLE_OK) {
        cli_verdict(cli_report_written(t->saved));
    }
    heddle_ignore(heddle_reshard_format(line, sizeof line, &t->line));
    snprintf(which, sizeof which, " in problem %d: %s", number, line);
    st = st != HEDDLE_OK ? st : cli_first_problem(failed, t->comm, which, t->problem);
    if (st != HEDDLE_OK) {
        snprintf(why, sizeof why, "%s", heddle_last_error());
        cli_say("rank %d, problem %d: %s", heddle_comm_rank(t->comm), number, line);
        cli_say("%s", why);
    }
    return st;
}

/* All problems of the request, the same on every rank. A mismatch is said by the lowest rank that found one. */
static heddle_status verify_main(heddle_comm *comm, void *arg)
{
    const request *r = arg;
    random_source source = {r->seed};
    int count = r->random > 0 ? r->random : 1, failed = 0, done = 0;
    int64_t checked = 0;
    for (; done < count && !failed; done++) {
        verify_trial t = {.comm = comm, .line = r->line, .input = r->input, .save = r->save};
        heddle_reshard_options_init(&t.options);
        t.options.memory = r->memory;
        t.storage[0].private_memory = t.storage[1].private_memory = r->memory == HEDDLE_MEMORY_ANY;
        if (r->random > 0) {
            verify_draw(&t, &source, r->memory);
        }
        heddle_status st = tell_of(&t, verify_run(&t), &failed, done + 1);
        if (st != HEDDLE_OK) {
            return st;
        }
        checked += t.checked_elems;
    }
    if (failed) {
        cli_verdict(CLI_MISMATCH);
    } else if (heddle_comm_rank(comm) == 0) {
        printf("%d reshard%s bitwise right on %s; rank 0 checked %lld elements\n", done, done == 1 ? "" : "s",
               heddle_comm_describe(comm), (long long)checked);
        fflush(stdout);
    }
    return HEDDLE_OK;
}

static int count_ranks(int *ranks, const cli_arguments *a, const request *asks)
{
    int launched = 0;
    if (asks->random == 0) {
        return cli_mesh_ranks(ranks, a, &asks->line.mesh);
    }
    int code = cli_rank_count(&launched, a->transport, (int)a->ranks);
    *ranks = a->ranks > 0 ? (int)a->ranks : launched > 1 || cli_launcher(NULL, NULL) != NULL ? launched : DEFAULT_RANKS;
    return code;
}

static int run(const cli_arguments *a)
{
    request asks = {.random = (int)a->random,
                    .seed = a->seed < 0 ? 1 : (uint64_t)a->seed,
                    .memory = (heddle_memory)cli_choice(a->memory),
                    .save = a->save};
    npy_array input = {.data = NULL};
    int ranks = 0, code = CLI_OK;
    if (a->operand == NULL && (a->input != NULL || a->save != NULL)) {
        return cli_usage_error("--input and --save need a reshard line, not --random");
    }
    if (a->operand != NULL && a->seed >= 0) {
        return cli_usage_error("--seed needs --random: the values of a reshard line's array are their indices");
    }
    if (a->operand != NULL) {
        code = cli_report(heddle_reshard_parse(&asks.line, a->operand));
    }
    if (code == CLI_OK && a->input != NULL) {
        code = cli_report(npy_read(&input, a->input));
        code = code != CLI_OK ? code : check_input(&input, &asks.line.shape, a->input);
        asks.input = &input;
    }
    code = code == CLI_OK ? cli_make_directory(a->save) : code;
    code = code == CLI_OK ? count_ranks(&ranks, a, &asks) : code;
    code = code == CLI_OK ? cli_with_ranks(a, ranks, verify_main, &asks) : code;
    npy_free(&input);
    return code;
}

const cli_action cli_verify = {
    .synopsis = "usage: heddle verify 'RESHARD LINE' [--ranks N] [--input X.npy] [--save DIR] [options]\n"
                "       heddle verify --random COUNT [--ranks N] [--seed S] [options]\n"
                "       heddle verify attention|linear-attention --help\n",
    .notes = "Every rank checks each of its elements against the global index, canaries around and between them,\n"
             "that its source is unchanged, and that bytes planned and measured agree with one another and with\n"
             "the layouts, per peer. Exit code 5 and the first wrong coordinate when anything differs.\n",
    .run = run,
};
