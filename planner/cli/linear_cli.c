#include "linear_cli.h"

#include "attention_cli.h"
#include "launch.h"

#include <stdlib.h>
#include <string.h>

static int take_decay(linear_request *r)
{
    linear_case *c = &r->problem;
    int64_t heads = c->shape.dim[2].extent;
    if (c->shape.ndim != 4 || heads > LINEAR_MAX_HEADS) {
        return cli_usage_error("%s wants the dims batch, sequence, heads (at most %d) and width", r->command,
                               LINEAR_MAX_HEADS);
    }
    if (r->decay != NULL && strcmp(r->decay, "per-head") == 0) {
        return heads < 1 ? CLI_OK : cli_report(heddle_linear_attention_slopes(c->decay, heads));
    }
    char *end = NULL;
    double decay = r->decay == NULL ? 1 : strtod(r->decay, &end);
    if (r->decay != NULL && (end == r->decay || *end != 0 || !(decay > 0 && decay <= 1))) {
        return cli_usage_error("--decay wants a number above 0 and at most 1, or per-head, not '%s'", r->decay);
    }
    for (int h = 0; h < LINEAR_MAX_HEADS; h++) {
        c->decay[h] = decay;
    }
    return CLI_OK;
}

static int take_number(int64_t *out, const char *option, const char *value, long long low, long long high)
{
    long long number = 0;
    int code = cli_parse_int(&number, option, value, low, high);
    *out = number;
    return code;
}

static int take_threads(linear_request *r, const char *value)
{
    int64_t threads = 0;
    int code = take_number(&threads, "--threads", value, 1, 256);
    r->problem.options.threads = (int)threads;
    return code;
}

static int take_value(linear_request *r, const char *option, const char *value)
{
    const struct {
        const char *name;
        long long *to, low, high;
    } number[] = {{"--ranks", &r->ranks, 1, 4096},          {"--random", &r->random, 1, 1000000},
                  {"--seed", &r->seed, 0, INT64_MAX},       {"--hosts", &r->hosts, 1, 4096},
                  {"--deadline", &r->deadline_s, 1, 86400}, {"--iterations", &r->iterations, 1, 1000000},
                  {"--seconds", &r->seconds, 0, 86400}};
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++) {
        if (strcmp(option, number[i].name) == 0) {
            return cli_parse_int(number[i].to, option, value, number[i].low, number[i].high);
        }
    }
    if (strcmp(option, "--method") == 0) {
        return cli_report(heddle_linear_method_parse(&r->problem.options.method, value));
    }
    if (strcmp(option, "--dv") == 0) {
        return take_number(&r->problem.options.dv, option, value, 1, 65536);
    }
    if (strcmp(option, "--chunk") == 0) {
        return take_number(&r->problem.options.chunk_rows, option, value, 1, 1024);
    }
    if (strcmp(option, "--threads") == 0) {
        return take_threads(r, value);
    }
    if (strcmp(option, "--arena") == 0) {
        return cli_take_arena(value);
    }
    if (strcmp(option, "--transport") == 0) {
        r->transport = value;
        return cli_check_transport(value);
    }
    if (strcmp(option, "--save") == 0 || strcmp(option, "--decay") == 0) {
        *(option[2] == 's' ? &r->save : &r->decay) = value;
        return CLI_OK;
    }
    return cli_usage_error("%s: unknown option '%s' (try: %s --help)", r->command, option, r->command);
}

static int take_argument(linear_request *r, int *at, int argc, char **argv)
{
    const char *a = argv[*at];
    const struct {
        const char *name;
        int *to;
    } flag[] = {{"--help", &r->help},
                {"-h", &r->help},
                {"--json", &r->json},
                {"--messages", &r->messages},
                {"--backward", &r->backward},
                {"--causal", &r->causal},
                {"--bidirectional", &r->problem.options.bidirectional},
                {"--receive-first", &r->problem.options.receive_first}};
    for (size_t i = 0; i < sizeof flag / sizeof flag[0]; i++) {
        if (strcmp(a, flag[i].name) == 0) {
            *flag[i].to = 1;
            return CLI_OK;
        }
    }
    if (a[0] == '-' && a[1] == '-') {
        return *at + 1 < argc ? take_value(r, a, argv[++*at])
                              : cli_usage_error("%s: '%s' is unknown or wants a value", r->command, a);
    }
    if (r->line != NULL) {
        return cli_usage_error("%s wants one problem in quotes, got '%s' after it", r->command, a);
    }
    r->line = a;
    return CLI_OK;
}

static int take_problem(linear_request *r)
{
    attention_case read;
    heddle_attention_traffic traffic;
    memset(&read, 0, sizeof read);
    if (attention_parse_line(&read, r->line) != HEDDLE_OK) {
        return CLI_BAD_INPUT;
    }
    linear_case *c = &r->problem;
    c->shape = read.shape;
    c->mesh = read.mesh;
    c->layout = read.layout;
    c->seed = (uint64_t)r->seed;
    int ranks = heddle_mesh_size(&c->mesh), code = take_decay(r);
    if (code == CLI_OK && r->ranks != 0 && r->ranks != ranks) {
        return cli_usage_error("--ranks %lld, but the mesh of the problem has %d", r->ranks, ranks);
    }
    r->ranks = ranks;
    c->options.decay = c->decay;
    return code != CLI_OK ? code
                          : cli_report(heddle_linear_attention_plan_traffic(&traffic, &c->shape, &c->mesh, &c->layout,
                                                                            &c->options, 0));
}

int linear_parse(linear_request *out, int argc, char **argv)
{
    linear_request *r = out;
    heddle_linear_attention_options_init(&r->problem.options);
    r->problem.options.method = HEDDLE_LINEAR_LASP;
    for (int i = 2; i < argc; i++) {
        int code = take_argument(r, &i, argc, argv);
        if (code != CLI_OK) {
            return code;
        }
    }
    if (r->help) {
        return CLI_OK;
    }
    if (r->causal && r->problem.options.bidirectional) {
        return cli_usage_error("%s: --causal and --bidirectional contradict one another", r->command);
    }
    if ((r->line == NULL) == (r->random == 0) || (r->random > 0 && r->save != NULL)) {
        return cli_usage_error("%s wants either one problem or --random, which saves nothing", r->command);
    }
    return r->line == NULL ? CLI_OK : take_problem(r);
}
