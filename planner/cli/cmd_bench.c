/* heddle bench: one reshard against the machine's contiguous copy, in the same run. */
#include "launch.h"

#include <heddle/sys/bench.h>
#include <stdio.h>
#include <string.h>

typedef struct bench_request {
    heddle_reshard_line line;
    heddle_reshard_options reshard;
    heddle_bench_options options;
    int json;
} bench_request;

static const char usage[] =
    "usage: heddle bench 'RESHARD LINE' [--ranks N] [--transport threads|shm|mpi|auto] [--iterations N]\n"
    "                    [--seconds S] [--kernel NAME] [--memory peer|any] [--tuning trials|rules] [--messages]\n"
    "                    [--hosts K] [--arena BYTES] [--json]\n"
    "       heddle bench --list-kernels\n"
    "       heddle bench attention|linear-attention --help\n"
    "\n"
    "  heddle bench 'bf16[t=32 s=1024 c=1152] on [sp=2]: t@sp -> s@sp' --ranks 2 --transport shm\n"
    "\n"
    "  --iterations  executions timed, at least 30 rounds of 4 by default, and until --seconds (3) are over\n"
    "  --kernel      this copy kernel instead of the chosen one\n"
    "  --memory any  private buffers, which peers cannot reach\n"
    "  --messages    boxes travel as messages even between ranks of one host; --hosts pretends K hosts "
    "(mpi)\n" CLI_ARENA_TEXT "\n"
    "The roofline is the same bytes, copied contiguously from the ranks that own them by the strongest kernel, all\n"
    "ranks at once, between the same flags, by turns with the reshards. roofline_ratio = roofline_min / min.\n";

static void print_string(const char *key, const char *text)
{
    printf("\"%s\": ", key);
    cli_put_json_text(stdout, text);
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static double gb_per_s(int64_t bytes, double ms)
{
    return ms > 0 ? (double)bytes / ms * 1e-6 : 0;
}

static void print_json(const bench_request *request, const heddle_comm *comm, const heddle_bench_result *r)
{
    char line[HEDDLE_LINE_BYTES];
    if (heddle_reshard_format(line, sizeof(line), &request->line) != HEDDLE_OK) {
        line[0] = '\0';
    }
    printf("{");
    print_string("line", line);
    printf(", \"ranks\": %d, ", heddle_comm_size(comm));
    print_string("comm", heddle_comm_describe(comm));
    printf(",\n \"min_ms\": %.6f, \"median_ms\": %.6f, \"roofline_min_ms\": %.6f, \"roofline_median_ms\": %.6f,\n",
           r->min_ms, r->median_ms, r->roofline_min_ms, r->roofline_median_ms);
    printf(" \"roofline_ratio\": %.4f, \"roofline_ratio_median\": %.4f, \"roofline_is_local\": %s,\n",
           ratio(r->roofline_min_ms, r->min_ms), ratio(r->roofline_median_ms, r->median_ms),
           r->roofline_is_local ? "true" : "false");
    printf(" \"bytes_per_rank\": %lld, \"bytes_sent_per_rank\": %lld, \"bytes_total\": %lld, \"gb_per_s\": %.3f,\n",
           (long long)r->bytes_per_rank, (long long)r->bytes_sent_per_rank, (long long)r->bytes_total,
           gb_per_s(r->bytes_total, r->min_ms));
    printf(" \"samples\": %lld, \"rounds\": %lld, \"repeats\": %lld, ", (long long)r->samples, (long long)r->rounds,
           (long long)r->repeats);
    print_string("path", r->path);
    printf(", ");
    print_string("kernel", r->kernel);
    printf(",\n ");
    print_string("roofline_kernel", r->roofline_kernel);
    printf(", ");
    print_string("roofline_way", r->roofline_way);
    printf(",\n ");
    print_string("why", r->why);
    printf("}\n");
}

static void print_table(const heddle_comm *comm, const heddle_bench_result *r)
{
    printf("%s\n", heddle_comm_describe(comm));
    printf("%-10s %12s %12s %9s  %s\n", "", "min ms", "median ms", "GB/s", "how");
    printf("%-10s %12.5f %12.5f %9.2f  %s, %s\n", "reshard", r->min_ms, r->median_ms,
           gb_per_s(r->bytes_total, r->min_ms), r->path, r->kernel);
    printf("%-10s %12.5f %12.5f %9.2f  %s, %s%s\n", "roofline", r->roofline_min_ms, r->roofline_median_ms,
           gb_per_s(r->bytes_total, r->roofline_min_ms), r->roofline_kernel, r->roofline_way,
           r->roofline_is_local ? " (part of it inside own memory: ranks are out of reach)" : "");
    printf("%-10s %12.3f %12.3f\n", "ratio", ratio(r->roofline_min_ms, r->min_ms),
           ratio(r->roofline_median_ms, r->median_ms));
    printf("%lld bytes per rank, %lld of them sent; %lld samples of %lld executions each\n",
           (long long)r->bytes_per_rank, (long long)r->bytes_sent_per_rank, (long long)r->samples,
           (long long)r->repeats);
    printf("why: %s\n", r->why);
}

static heddle_status bench_main(heddle_comm *comm, void *arg)
{
    bench_request request = *(const bench_request *)arg;
    request.options.reshard = &request.reshard;
    heddle_bench_result result = {.struct_bytes = sizeof(result)};
    heddle_status st = heddle_bench_reshard(&result, comm, &request.line, &request.options);
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        if (request.json) {
            print_json(&request, comm, &result);
        } else {
            print_table(comm, &result);
        }
        fflush(stdout);
    }
    return st;
}

static int list_kernels(void)
{
    int64_t min_run_bytes = 0;
    const char *name;
    if (heddle_copy_kernel_name(0, NULL) == NULL) {
        return cli_report(HEDDLE_ERR_ARG);
    }
    for (int i = 0; (name = heddle_copy_kernel_name(i, &min_run_bytes)) != NULL; i++) {
        printf("%-18s runs of at least %lld bytes\n", name, (long long)min_run_bytes);
    }
    return CLI_OK;
}

static int check_kernel(const char *name)
{
    const char *known;
    if (heddle_copy_kernel_name(0, NULL) == NULL) {
        return cli_report(HEDDLE_ERR_ARG);
    }
    for (int i = 0; (known = heddle_copy_kernel_name(i, NULL)) != NULL; i++) {
        if (strcmp(known, name) == 0) {
            return CLI_OK;
        }
    }
    return cli_usage_error("unknown copy kernel '%s' on this CPU (heddle bench --list-kernels)", name);
}

/* One of two words. */
static int parse_choice(int *out, const char *option, const char *text, const char *zero, const char *one)
{
    if (strcmp(text, zero) != 0 && strcmp(text, one) != 0) {
        return cli_usage_error("%s wants '%s' or '%s', not '%s'", option, zero, one, text);
    }
    *out = strcmp(text, one) == 0;
    return CLI_OK;
}

typedef struct command_line {
    const char *line, *transport;
    long long ranks, iterations, seconds, hosts;
    int memory, tuning, messages, json, list, help;
    const char *kernel;
} command_line;

static int parse_value(command_line *c, const char *option, const char *value)
{
    if (strcmp(option, "--ranks") == 0) {
        return cli_parse_int(&c->ranks, option, value, 1, 4096);
    }
    if (strcmp(option, "--iterations") == 0) {
        return cli_parse_int(&c->iterations, option, value, 1, 400000);
    }
    if (strcmp(option, "--seconds") == 0) {
        return cli_parse_int(&c->seconds, option, value, 0, 86400);
    }
    if (strcmp(option, "--hosts") == 0) {
        return cli_parse_int(&c->hosts, option, value, 1, 4096);
    }
    if (strcmp(option, "--memory") == 0) {
        return parse_choice(&c->memory, option, value, "peer", "any");
    }
    if (strcmp(option, "--tuning") == 0) {
        return parse_choice(&c->tuning, option, value, "trials", "rules");
    }
    if (strcmp(option, "--transport") == 0) {
        c->transport = value;
        return cli_check_transport(value);
    }
    if (strcmp(option, "--arena") == 0) {
        return cli_take_arena(value);
    }
    if (strcmp(option, "--kernel") == 0) {
        c->kernel = value;
        return check_kernel(value);
    }
    return cli_usage_error("heddle bench: unknown option '%s' (try: heddle bench --help)", option);
}

static int parse_arguments(command_line *c, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--json") == 0) {
            c->json = 1;
        } else if (strcmp(a, "--messages") == 0) {
            c->messages = 1;
        } else if (strcmp(a, "--list-kernels") == 0) {
            c->list = 1;
        } else if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            c->help = 1;
        } else if (a[0] == '-' && a[1] == '-') {
            if (i + 1 == argc) {
                return cli_usage_error("heddle bench: '%s' is unknown or wants a value (try: heddle bench --help)", a);
            }
            int code = parse_value(c, a, argv[++i]);
            if (code != CLI_OK) {
                return code;
            }
        } else if (c->line != NULL) {
            return cli_usage_error("heddle bench wants one reshard line in quotes, got '%s' after it", a);
        } else {
            c->line = a;
        }
    }
    if (c->line == NULL && !c->list && !c->help) {
        return cli_usage_error("heddle bench wants a reshard line (try: heddle bench --help)");
    }
    return CLI_OK;
}

static int mesh_ranks(const heddle_mesh *mesh)
{
    int ranks = 1;
    for (int a = 0; a < mesh->naxes; a++) {
        ranks *= mesh->axis[a].size;
    }
    return ranks;
}

int cli_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "linear-attention") == 0) {
        return cli_bench_linear(argc, argv);
    }
    if (argc > 1 && strcmp(argv[1], "attention") == 0) {
        return cli_bench_attention(argc, argv);
    }
    command_line c = {.transport = "auto", .seconds = 3};
    int code = parse_arguments(&c, argc, argv);
    if (code != CLI_OK) {
        return code;
    }
    if (c.help) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    if (c.list) {
        return list_kernels();
    }
    bench_request request = {.json = c.json};
    heddle_status st = heddle_reshard_parse(&request.line, c.line);
    if (st != HEDDLE_OK) {
        return cli_report(st);
    }
    int ranks = mesh_ranks(&request.line.mesh);
    if (c.ranks != 0 && c.ranks != ranks) {
        return cli_usage_error("--ranks %lld, but the mesh of the reshard has %d", c.ranks, ranks);
    }
    heddle_reshard_options_init(&request.reshard);
    request.reshard.memory = (heddle_memory)c.memory;
    request.reshard.tuning = (heddle_tuning)c.tuning;
    request.reshard.kernel = c.kernel;
    heddle_bench_options_init(&request.options);
    request.options.budget_ms = c.seconds * 1000;
    if (c.iterations > 0) { /* four to a round */
        request.options.min_rounds = (c.iterations + 3) / 4;
        request.options.max_rounds = request.options.min_rounds;
    }
    heddle_comm_options options;
    cli_comm_options(&options, c.messages, c.hosts, 0);
    return cli_with_ranks(c.transport, ranks, argc, argv, &options, bench_main, &request);
}
