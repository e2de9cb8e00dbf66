/* heddle verify: run reshards on real ranks and check every element, canary and byte count. */
#include "launch.h"
#include "runtime/verify/reshard_check.h"
#include "verify_share.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_RANKS = 4 };

static const char usage[] =
    "usage: heddle verify 'RESHARD LINE' [--ranks N] [--input X.npy] [--save DIR] [options]\n"
    "       heddle verify --random COUNT [--ranks N] [--seed S] [options]\n"
    "       heddle verify attention|linear-attention --help\n"
    "\n"
    "  --transport T    threads, shm, mpi, auto or fault(SPEC):T; default auto\n"
    "  --memory M       peer (default), any: private buffers, which peers cannot reach\n"
    "  --messages       boxes travel as messages even between ranks of one host (mpi)\n"
    "  --hosts K        pretend that the ranks sit on K hosts (mpi)\n"
    "  --deadline S     seconds a rank waits for another, default 60\n" CLI_ARENA_TEXT
    "  --input X.npy    the global array; without it element i has the value i modulo 2^n, what the dtype holds "
    "exactly\n"
    "                   (n = 53 f64, 24 f32, 11 f16, 8 bf16 u8, 4 f8e4m3, 3 f8e5m2, 31 i32, 7 i8, 1 bool), and is\n"
    "                   checked in as many rounds as the whole index needs; the first is the one that is saved\n"
    "  --save DIR       writes DIR/from-RANK.npy and DIR/to-RANK.npy, the local arrays in their memory order\n"
    "\n"
    "Every rank checks each of its elements against the global index, canaries around and between them, that its\n"
    "source is unchanged, and that bytes planned and measured agree with one another and with the layouts, per peer.\n"
    "Exit code 5 and the first wrong coordinate when anything differs.\n";

typedef struct command_line {
    const char *line, *transport, *input, *save;
    long long ranks, random, seed, hosts, deadline_s;
    int memory_any, messages, help;
} command_line;

static int take_option(command_line *c, int option)
{
    switch (option) {
    case 'n':
        return cli_parse_int(&c->ranks, "--ranks", optarg, 1, 4096);
    case 'r':
        return cli_parse_int(&c->random, "--random", optarg, 1, 100000000);
    case 's':
        return cli_parse_int(&c->seed, "--seed", optarg, 0, INT64_MAX);
    case 'k':
        return cli_parse_int(&c->hosts, "--hosts", optarg, 1, 4096);
    case 'd':
        return cli_parse_int(&c->deadline_s, "--deadline", optarg, 1, 86400);
    case 't':
        c->transport = optarg;
        return cli_check_transport(optarg);
    case 'a':
        return cli_take_arena(optarg);
    case 'm':
        c->memory_any = strcmp(optarg, "any") == 0;
        return c->memory_any || strcmp(optarg, "peer") == 0
                   ? CLI_OK
                   : cli_usage_error("--memory wants 'peer' or 'any', not '%s'", optarg);
    case 'M':
        c->messages = 1;
        return CLI_OK;
    case 'i':
        c->input = optarg;
        return CLI_OK;
    case 'o':
        c->save = optarg;
        return CLI_OK;
    case 'h':
        c->help = 1;
        return CLI_OK;
    default:
        return CLI_BAD_INPUT;
    }
}

static int parse_command(command_line *c, int argc, char **argv)
{
    static const struct option options[] = {
        {"ranks", required_argument, NULL, 'n'},
        {"random", required_argument, NULL, 'r'},
        {"seed", required_argument, NULL, 's'},
        {"transport", required_argument, NULL, 't'},
        {"memory", required_argument, NULL, 'm'},
        {"messages", no_argument, NULL, 'M'},
        {"hosts", required_argument, NULL, 'k'},
        {"deadline", required_argument, NULL, 'd'},
        {"input", required_argument, NULL, 'i'},
        {"save", required_argument, NULL, 'o'},
        {"arena", required_argument, NULL, 'a'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    optind = 0;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        if (option == '?' || option == ':') {
            return cli_usage_error("verify: '%s': %s (heddle verify --help)", argv[optind - 1],
                                   option == ':' ? "this option wants a value" : "unknown option or unwanted value");
        }
        int code = take_option(c, option);
        if (code != CLI_OK) {
            return code;
        }
    }
    if (c->help) {
        return CLI_OK;
    }
    if (argc - optind != (c->random > 0 ? 0 : 1)) {
        return cli_usage_error("verify wants either one reshard line or --random, found %d line%s%s", argc - optind,
                               argc - optind == 1 ? "" : "s", c->random > 0 ? " and --random" : "");
    }
    c->line = c->random > 0 ? NULL : argv[optind];
    if (c->line == NULL && (c->input != NULL || c->save != NULL)) {
        return cli_usage_error("--input and --save need a reshard line, not --random");
    }
    return CLI_OK;
}

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

static heddle_status run_problem(verify_trial *t, int *failed, int number)
{
    char line[HEDDLE_LINE_BYTES] = "", which[HEDDLE_LINE_BYTES + 64], why[VERIFY_PROBLEM_BYTES];
    heddle_status st = verify_run(t);
    if (t->saved != HEDDLE_OK) {
        cli_verdict(cli_report_written(t->saved));
    }
    heddle_reshard_format(line, sizeof line, &t->line);
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
        heddle_status st = run_problem(&t, &failed, done + 1);
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

static int verify_ranks(int *ranks, const command_line *c, const request *asks)
{
    int asked = (int)c->ranks, launched = 0;
    if (asks->random > 0) {
        int code = cli_rank_count(&launched, c->transport, asked);
        *ranks = asked > 0 ? asked : launched > 1 || cli_launcher(NULL, NULL) != NULL ? launched : DEFAULT_RANKS;
        return code;
    }
    *ranks = heddle_mesh_size(&asks->line.mesh);
    return asked == 0 || asked == *ranks
               ? CLI_OK
               : cli_usage_error("--ranks %d, but the mesh of the reshard line has %d", asked, *ranks);
}

static int run_verify(const command_line *c, int argc, char **argv)
{
    request asks = {.random = (int)c->random,
                    .seed = (uint64_t)c->seed,
                    .memory = c->memory_any ? HEDDLE_MEMORY_ANY : HEDDLE_MEMORY_PEER,
                    .save = c->save};
    npy_array input = {.data = NULL};
    heddle_comm_options options;
    int ranks = 0, code = CLI_OK;
    if (c->line != NULL) {
        code = cli_report(heddle_reshard_parse(&asks.line, c->line));
    }
    if (code == CLI_OK && c->input != NULL) {
        code = cli_report(npy_read(&input, c->input));
        code = code != CLI_OK ? code : check_input(&input, &asks.line.shape, c->input);
        asks.input = &input;
    }
    code = code == CLI_OK ? cli_make_directory(c->save) : code;
    code = code == CLI_OK ? verify_ranks(&ranks, c, &asks) : code;
    if (code == CLI_OK) {
        cli_comm_options(&options, c->messages, c->hosts, c->deadline_s);
        code = cli_with_ranks(c->transport, ranks, argc, argv, &options, verify_main, &asks);
    }
    npy_free(&input);
    return code;
}

int cli_verify(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "attention") == 0) {
        return cli_verify_attention(argc, argv);
    }
    if (argc > 1 && strcmp(argv[1], "linear-attention") == 0) {
        return cli_verify_linear(argc, argv);
    }
    command_line c = {.transport = "auto", .seed = 1};
    int code = parse_command(&c, argc, argv);
    if (code == CLI_OK && c.help) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    return code == CLI_OK ? run_verify(&c, argc, argv) : code;
}
