/* heddle verify: run reshards on real ranks and check every element, canary and byte count. */
#include "launch.h"
#include "random_line.h"
#include "verify.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { RANDOM_ELEMS = 3000, RANDOM_DIMS = 5, RANDOM_AXES = 3, DEFAULT_RANKS = 4, PROBLEM_BYTES = 1024 };

static const char usage[] =
    "usage: heddle verify 'RESHARD LINE' [--ranks N] [--input X.npy] [--save DIR] [options]\n"
    "       heddle verify --random COUNT [--ranks N] [--seed S] [options]\n"
    "\n"
    "  --transport T    threads, shm, mpi, auto or fault(SPEC):T; default auto\n"
    "  --memory M       peer (default), any: private buffers, which peers cannot reach\n"
    "  --messages       boxes travel as messages even between ranks of one host (mpi)\n"
    "  --hosts K        pretend that the ranks sit on K hosts (mpi)\n"
    "  --deadline S     seconds a rank waits for another, default 60\n"
    "  --input X.npy    the global array; without it element i has the value i modulo 2^n, what the dtype holds "
    "exactly\n"
    "                   (n = 53 f64, 24 f32, 11 f16, 8 bf16 u8, 4 f8e4m3, 3 f8e5m2, 31 i32, 7 i8, 1 bool), and is\n"
    "                   checked in as many rounds as the whole index needs; the first is the one that is saved\n"
    "  --save DIR       writes DIR/from-RANK.npy and DIR/to-RANK.npy, the local arrays in their memory order\n"
    "\n"
    "Every rank checks each of its elements against the global index, canaries around and between them, that its\n"
    "source is unchanged, and that bytes planned and measured agree with one another and with the layouts, per peer.\n"
    "Exit code 5 and the first wrong coordinate when anything differs.\n";

typedef struct verify_request {
    heddle_reshard_line line;
    int random; /* problems to draw; 0: `line` */
    uint64_t seed;
    heddle_memory memory;
    const npy_array *input;
    const char *save;
} verify_request;

/* One problem on one rank. */
typedef struct trial {
    const verify_request *request;
    heddle_comm *comm;
    heddle_reshard_line line;
    heddle_reshard_options options;
    verify_storage storage[2]; /* from, to */
    verify_part part[2];
    int executions;
    int64_t checked_elems;
    char problem[PROBLEM_BYTES]; /* "": none so far */
} trial;

/* --- byte counts
 * ---------------------------------------------------------------------------------------------------------- */

static void check_bytes(trial *t, const heddle_reshard_info *info, const heddle_peer_bytes *sends, int count)
{
    int rank = heddle_comm_rank(t->comm), at = 0;
    for (int peer = 0; peer < info->nranks && t->problem[0] == '\0'; peer++) {
        int64_t planned = at < count && sends[at].peer == peer ? sends[at++].bytes : 0;
        int64_t measured = info->measured_bytes_to[peer];
        if (info->bytes_to[peer] != planned) {
            snprintf(t->problem, sizeof t->problem, "rank %d plans %lld bytes to rank %d, the layouts say %lld", rank,
                     (long long)info->bytes_to[peer], peer, (long long)planned);
        } else if (measured != planned * t->executions) {
            snprintf(t->problem, sizeof t->problem,
                     "rank %d moved %lld bytes to rank %d in %d executions, planned were %lld each", rank,
                     (long long)measured, peer, t->executions, (long long)planned);
        }
    }
    if (t->problem[0] == '\0' && info->bytes_peer_path + info->bytes_messages != info->bytes_sent) {
        snprintf(t->problem, sizeof t->problem, "rank %d: %lld bytes by peer path and %lld as messages are not %lld",
                 rank, (long long)info->bytes_peer_path, (long long)info->bytes_messages, (long long)info->bytes_sent);
    }
}

static heddle_status check_info(trial *t, const heddle_reshard *reshard)
{
    int n = heddle_comm_size(t->comm), count = 0;
    heddle_peer_bytes *sends = calloc((size_t)n, sizeof *sends);
    heddle_reshard_info info = {.struct_bytes = sizeof info};
    if (sends == NULL) {
        return HEDDLE_ERR_NOMEM;
    }
    heddle_status st = heddle_reshard_get_info(&info, reshard);
    if (st == HEDDLE_OK) {
        st = heddle_reshard_sends(sends, n, &count, &t->line, heddle_comm_rank(t->comm));
    }
    if (st == HEDDLE_OK) {
        check_bytes(t, &info, sends, count);
    }
    free(sends);
    return st;
}

/* --- one problem
 * ------------------------------------------------------------------------------------------------------------ */

static heddle_status save_parts(trial *t)
{
    for (int side = 0; side < 2; side++) {
        if (verify_part_save(&t->part[side], t->request->save) != CLI_OK) {
            cli_verdict(CLI_BAD_INPUT);
            return HEDDLE_OK;
        }
    }
    return HEDDLE_OK;
}

/* Blocking, or every other time split-phase with a few looks in between. */
static heddle_status move(trial *t, heddle_reshard *reshard)
{
    const void *src = t->part[0].data;
    void *dst = t->part[1].data;
    if (t->executions % 2 == 0) {
        return heddle_reshard_execute(reshard, src, dst, HEDDLE_NO_STREAM);
    }
    int done = 0;
    heddle_status st = heddle_reshard_start(reshard, src, dst, HEDDLE_NO_STREAM);
    for (int looks = 0; looks < 3 && st == HEDDLE_OK && !done; looks++) {
        st = heddle_reshard_test(reshard, &done);
    }
    return st == HEDDLE_OK && !done ? heddle_reshard_wait(reshard) : st;
}

static heddle_status run_round(trial *t, heddle_reshard *reshard, int round)
{
    const verify_values values = {&t->line, t->request->input, round};
    verify_part_fill(&t->part[0], &values);
    verify_part_fill(&t->part[1], NULL);
    heddle_status st = move(t, reshard);
    if (st != HEDDLE_OK) {
        return st;
    }
    t->executions++;
    for (int side = 1; side >= 0 && t->problem[0] == '\0'; side--) {
        verify_part_check(&t->part[side], &values, t->problem, sizeof t->problem);
        t->checked_elems += heddle_box_elems(&t->part[side].box);
    }
    return round == 0 && t->request->save != NULL ? save_parts(t) : HEDDLE_OK;
}

static heddle_status run_rounds(trial *t)
{
    heddle_reshard *reshard = NULL;
    heddle_status st = heddle_reshard_create_line(&reshard, t->comm, &t->line, &t->options);
    int rounds = verify_rounds(&t->line, t->request->input);
    for (int round = 0; round < (rounds > 2 ? rounds : 2) && st == HEDDLE_OK; round++) {
        st = run_round(t, reshard, round % rounds);
    }
    st = st != HEDDLE_OK ? st : check_info(t, reshard);
    /* No peer may be inside an execution any more when its memory goes. */
    st = st != HEDDLE_OK ? st : heddle_comm_barrier(t->comm);
    heddle_reshard_destroy(reshard);
    return st;
}

static heddle_status run_trial(trial *t)
{
    heddle_status st = HEDDLE_OK;
    for (int side = 0; side < 2 && st == HEDDLE_OK; side++) {
        st = verify_part_make(&t->part[side], t->comm, &t->line, side, &t->storage[side]);
    }
    if (st == HEDDLE_OK) {
        t->options.src_stride_elems = t->storage[0].pad_elems > 0 ? t->part[0].stride_elems : NULL;
        t->options.dst_stride_elems = t->storage[1].pad_elems > 0 ? t->part[1].stride_elems : NULL;
        st = run_rounds(t);
    }
    for (int side = 0; side < 2; side++) {
        verify_part_free(&t->part[side]);
    }
    return st;
}

/* Every rank hears whether any found a problem; the lowest that did prints it. */
static heddle_status agree(int *failed, trial *t, int number)
{
    int n = heddle_comm_size(t->comm), rank = heddle_comm_rank(t->comm), own = t->problem[0] != '\0', first = 0;
    int *all = calloc((size_t)n, sizeof *all);
    if (all == NULL) {
        return HEDDLE_ERR_NOMEM;
    }
    heddle_status st = heddle_comm_allgather(t->comm, &own, all, sizeof own);
    while (st == HEDDLE_OK && first < n && !all[first]) {
        first++;
    }
    *failed = st == HEDDLE_OK && first < n;
    free(all);
    if (*failed && first == rank) {
        char line[HEDDLE_LINE_BYTES] = "";
        heddle_reshard_format(line, sizeof line, &t->line);
        fprintf(stderr, "heddle: mismatch in problem %d: %s\nheddle: %s\n", number, line, t->problem);
    }
    return st;
}

/* Buffers and options of a random problem: mostly plain, some of each kind of trouble. */
static void draw_storage(trial *t, random_source *source)
{
    int private_memory = t->request->memory == HEDDLE_MEMORY_ANY || random_between(source, 0, 4) == 0;
    for (int side = 0; side < 2; side++) {
        t->storage[side].private_memory = private_memory;
        t->storage[side].pad_elems = random_between(source, 0, 3) == 0 ? random_between(source, 1, 5) : 0;
        t->storage[side].misaligned_elems = random_between(source, 0, 2) == 0 ? random_between(source, 1, 9) : 0;
    }
    t->options.memory = private_memory ? HEDDLE_MEMORY_ANY : HEDDLE_MEMORY_PEER;
    t->options.tuning = random_between(source, 0, 19) == 0 ? HEDDLE_TUNING_TRIALS : HEDDLE_TUNING_RULES;
}

static void draw_trial(trial *t, random_source *source)
{
    const random_limits limits = {heddle_comm_size(t->comm), RANDOM_AXES,
                                  random_between(source, 0, 15) == 0 ? HEDDLE_MAX_DIMS : RANDOM_DIMS, RANDOM_ELEMS,
                                  random_between(source, 0, 2) == 0 ? 2 : 0};
    random_line(&t->line, source, &limits);
    draw_storage(t, source);
}

static heddle_status verify_main(heddle_comm *comm, void *arg)
{
    const verify_request *request = arg;
    random_source source = {request->seed};
    int count = request->random > 0 ? request->random : 1, failed = 0, done = 0;
    int64_t checked = 0;
    for (; done < count && !failed; done++) {
        trial t = {.request = request, .comm = comm, .line = request->line};
        heddle_reshard_options_init(&t.options);
        t.options.memory = request->memory;
        t.storage[0].private_memory = t.storage[1].private_memory = request->memory == HEDDLE_MEMORY_ANY;
        if (request->random > 0) {
            draw_trial(&t, &source);
        }
        heddle_status st = run_trial(&t);
        st = st != HEDDLE_OK ? st : agree(&failed, &t, done + 1);
        if (st != HEDDLE_OK) {
            char line[HEDDLE_LINE_BYTES] = "";
            char why[PROBLEM_BYTES];
            snprintf(why, sizeof why, "%s", heddle_last_error());
            heddle_reshard_format(line, sizeof line, &t.line);
            fprintf(stderr, "heddle: rank %d, problem %d: %s\nheddle: %s\n", heddle_comm_rank(comm), done + 1, line,
                    why);
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

/* --- the command
 * -------------------------------------------------------------------------------------------------------------- */

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
        {"ranks", required_argument, NULL, 'n'},  {"random", required_argument, NULL, 'r'},
        {"seed", required_argument, NULL, 's'},   {"transport", required_argument, NULL, 't'},
        {"memory", required_argument, NULL, 'm'}, {"messages", no_argument, NULL, 'M'},
        {"hosts", required_argument, NULL, 'k'},  {"deadline", required_argument, NULL, 'd'},
        {"input", required_argument, NULL, 'i'},  {"save", required_argument, NULL, 'o'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    optind = 0;
    opterr = cli_speaks();
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
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

/* Every rank that joins later needs the directory; the one that starts them makes it. */
static int make_directory(const char *path)
{
    struct stat info;
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return cli_usage_error("--save: directory '%s' cannot be made: %s", path, strerror(errno));
    }
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return cli_usage_error("--save: '%s' is not a directory", path);
    }
    return CLI_OK;
}

static int verify_ranks(int *ranks, const command_line *c, const verify_request *request)
{
    int asked = (int)c->ranks, launched = 0;
    if (request->random > 0) {
        int code = cli_rank_count(&launched, c->transport, asked);
        *ranks = asked > 0 ? asked : launched > 1 || cli_launcher(NULL, NULL) != NULL ? launched : DEFAULT_RANKS;
        return code;
    }
    *ranks = heddle_mesh_size(&request->line.mesh);
    return asked == 0 || asked == *ranks
               ? CLI_OK
               : cli_usage_error("--ranks %d, but the mesh of the reshard line has %d", asked, *ranks);
}

static int run_verify(const command_line *c, int argc, char **argv)
{
    verify_request request = {.random = (int)c->random,
                              .seed = (uint64_t)c->seed,
                              .memory = c->memory_any ? HEDDLE_MEMORY_ANY : HEDDLE_MEMORY_PEER,
                              .save = c->save};
    npy_array input = {.data = NULL};
    heddle_comm_options options;
    int ranks = 0, code = CLI_OK;
    if (c->line != NULL) {
        code = cli_report(heddle_reshard_parse(&request.line, c->line));
    }
    if (code == CLI_OK && c->input != NULL) {
        code = npy_read(&input, c->input);
        code = code != CLI_OK ? code : check_input(&input, &request.line.shape, c->input);
        request.input = &input;
    }
    code = code == CLI_OK && c->save != NULL ? make_directory(c->save) : code;
    code = code == CLI_OK ? verify_ranks(&ranks, c, &request) : code;
    if (code == CLI_OK) {
        heddle_comm_options_init(&options);
        options.force_messages = c->messages;
        options.pretend_hosts = (int)c->hosts;
        options.deadline_ms = c->deadline_s > 0 ? c->deadline_s * 1000 : options.deadline_ms;
        code = cli_with_ranks(c->transport, ranks, argc, argv, &options, verify_main, &request);
    }
    npy_free(&input);
    return code;
}

int cli_verify(int argc, char **argv)
{
    command_line c = {.transport = "auto", .seed = 1};
    int code = parse_command(&c, argc, argv);
    if (code == CLI_OK && c.help) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    return code == CLI_OK ? run_verify(&c, argc, argv) : code;
}
