/* heddle run: plan a model, run its blocks on several ranks, compare with one rank. */
#include "run.h"
#include "runtime/files/output.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "usage: heddle run MODEL --ranks 4 [--transport threads|shm|mpi|auto] [options]\n\n"
    "Runs the blocks of MODEL (a YAML file) on several ranks; between stages the sharded dim switches as planned.\n\n"
    "  --layers L          repetitions of the model's stages, its own number by default\n"
    "  --size t=16,s=256   extents instead of the model's\n"
    "  --mesh sp=4         mesh of the ranks; '[node=2 gpu=2]' for two axes\n"
    "  --method STAGE=METHOD[,...]  how an attention runs over a sharded dim (heddle plan --help), for example\n"
    "                      s.attn=ring; as planned without\n"
    "  --schedule FILE     run this schedule (heddle plan --output) instead of planning\n"
    "  --input FILE        clip.y4m (- is standard input: ffmpeg -i any.mp4 -f yuv4mpegpipe - | heddle run ...), or\n"
    "                      x.npy, an activation of the model's shape; seeded numbers without\n"
    "  --output FILE       y.npy, the activation behind the last stage (f32), or y.y4m, a clip made from it\n"
    "  --weights FILE      safetensors with the tensors blocks.LAYER.STAGE.PARAMETER; seeded without\n"
    "  --seed N            for input, weights, text and conditioning (1)\n"
    "  --dtype f32|bf16    of the activation, instead of the model's\n"
    "  --backward          a training step: the way back from a seeded gradient of the output, the sum of the\n"
    "                      parameters' gradients over the ranks; --recompute keeps the stages' inputs only\n"
    "  --threads N         compute threads of each rank (1)\n"
    "  --passes N          forward passes, the fastest is reported (1)\n"
    "  --check             repeat on one rank and compare, bitwise where all attention is local, else within a\n"
    "                      tolerance; compare all ranks' copies of the result, and bytes sent with bytes planned\n"
    "  --messages          boxes travel as messages even between ranks of one host; --hosts K pretends K hosts\n"
    "  --deadline S        seconds that a rank waits for another (60)\n" CLI_ARENA_TEXT
    "  --json              the report as JSON\n\n"
    "exit codes: 0 done, 1 failed while running, 2 bad input, 3 infeasible, 5 --check found a difference\n";

static const struct option options_known[] = {
    {"ranks", required_argument, NULL, 'r'},    {"layers", required_argument, NULL, 'l'},
    {"size", required_argument, NULL, 's'},     {"mesh", required_argument, NULL, 'm'},
    {"schedule", required_argument, NULL, 'S'}, {"input", required_argument, NULL, 'i'},
    {"output", required_argument, NULL, 'o'},   {"weights", required_argument, NULL, 'w'},
    {"seed", required_argument, NULL, 'e'},     {"dtype", required_argument, NULL, 'd'},
    {"threads", required_argument, NULL, 't'},  {"passes", required_argument, NULL, 'p'},
    {"check", no_argument, NULL, 'c'},          {"json", no_argument, NULL, 'j'},
    {"method", required_argument, NULL, 'a'},   {"messages", no_argument, NULL, 'M'},
    {"backward", no_argument, NULL, 'B'},       {"recompute", no_argument, NULL, 'R'},
    {"hosts", required_argument, NULL, 'H'},    {"deadline", required_argument, NULL, 'D'},
    {"arena", required_argument, NULL, 'A'},    {"transport", required_argument, NULL, 'T'},
    {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0},
};

static int take_dtype(run_options *o, const char *text)
{
    for (int dtype = 0; dtype < HEDDLE_DTYPE_COUNT; dtype++) {
        if (strcmp(text, heddle_dtype_name((heddle_dtype)dtype)) == 0 &&
            (dtype == HEDDLE_F32 || dtype == HEDDLE_BF16)) {
            o->dtype = dtype;
            return CLI_OK;
        }
    }
    return cli_usage_error("--dtype is f32 or bf16, not '%s'", text);
}

static int take_flag(run_options *o, int option)
{
    const struct {
        int option;
        int *flag;
    } flags[] = {{'c', &o->check},    {'j', &o->json},      {'M', &o->messages},
                 {'B', &o->backward}, {'R', &o->recompute}, {'h', &o->help}};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (flags[i].option == option) {
            *flags[i].flag = 1;
            return CLI_OK;
        }
    }
    return CLI_BAD_INPUT;
}

static int take_option(run_options *o, int option, const char *value)
{
    switch (option) {
    case 'r':
        return cli_parse_int(&o->ranks, "--ranks", value, 1, 4096);
    case 'l':
        return cli_parse_int(&o->layers, "--layers", value, 1, 65536);
    case 's':
        o->sizes = value;
        return CLI_OK;
    case 'm':
        o->mesh = value;
        return CLI_OK;
    case 'S':
        o->schedule = value;
        return CLI_OK;
    case 'i':
        o->input = value;
        return CLI_OK;
    case 'o':
        o->output = value;
        return CLI_OK;
    case 'w':
        o->weights = value;
        return CLI_OK;
    case 'e':
        return cli_parse_int(&o->seed, "--seed", value, 0, 1000000000);
    case 'd':
        return take_dtype(o, value);
    case 't':
        return cli_parse_int(&o->threads, "--threads", value, 1, 256);
    case 'p':
        return cli_parse_int(&o->passes, "--passes", value, 1, 1000000);
    case 'H':
        return cli_parse_int(&o->hosts, "--hosts", value, 1, 4096);
    case 'D':
        return cli_parse_int(&o->deadline_s, "--deadline", value, 1, 1000000);
    case 'A':
        return cli_take_arena(value);
    case 'T':
        o->transport = value;
        return cli_check_transport(value);
    case 'a':
        return cli_add_methods(o->methods, value);
    default:
        return take_flag(o, option);
    }
}

static int ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), wanted = strlen(end);
    return length > wanted && strcmp(text + length - wanted, end) == 0;
}

static int parse_options(run_options *o, int argc, char **argv)
{
    int option, index = 0;
    optind = 1;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":", options_known, &index)) != -1) {
        if (option == '?' || option == ':') {
            return cli_usage_error("run: %s '%s' (try: heddle run --help)",
                                   option == ':' ? "a value is missing behind" : "unknown option or unwanted value",
                                   argv[optind - 1]);
        }
        int code = take_option(o, option, optarg);
        if (code != CLI_OK) {
            return code;
        }
    }
    if (o->help) {
        return CLI_OK;
    }
    if (optind + 1 != argc) {
        return cli_usage_error("heddle run wants one model file, found %d (try: heddle run --help)", argc - optind);
    }
    o->model = argv[optind];
    if (o->recompute && !o->backward) {
        return cli_usage_error("--recompute is for the backward of --backward; a forward pass keeps nothing");
    }
    if (o->schedule != NULL && o->methods[0] != '\0') {
        return cli_usage_error("--schedule names the methods of its stages; --method '%s' cannot change them",
                               o->methods);
    }
    if (o->output != NULL && !ends_with(o->output, ".npy") && !ends_with(o->output, ".y4m")) {
        return cli_usage_error("--output wants a file that ends in .npy or .y4m, not '%s'", o->output);
    }
    if (o->output != NULL && ends_with(o->output, ".y4m") && (o->input == NULL || ends_with(o->input, ".npy"))) {
        return cli_usage_error("--output %s: a clip can only be made when --input is one (its width and height)",
                               o->output);
    }
    return CLI_OK;
}

/* mpirun's ranks do not get this process's standard input: they read it from a file in memory that mpirun, which this
 * process becomes, holds open. */
static int stage_standard_input(run_job *job, int argc, char **argv)
{
    static char path[64];
    int fd = memfd_create("heddle-input", 0);
    if (fd < 0 || ftruncate(fd, 0) != 0) {
        return cli_usage_error("cannot pass standard input on to mpirun's ranks: %s", strerror(errno));
    }
    for (size_t at = 0; at < job->clip_file.size;) {
        const ssize_t wrote = write(fd, job->clip_file.bytes + at, job->clip_file.size - at);
        if (wrote < 0) {
            return cli_usage_error("cannot pass %zu bytes of standard input on to mpirun's ranks: %s",
                                   job->clip_file.size, strerror(errno));
        }
        at += (size_t)wrote;
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-") == 0 && strcmp(argv[i - 1], "--input") == 0) {
            argv[i] = path;
            return CLI_OK;
        }
        if (strcmp(argv[i], "--input=-") == 0) {
            static char joined[sizeof(path) + 8];
            snprintf(joined, sizeof(joined), "--input=%s", path);
            argv[i] = joined;
            return CLI_OK;
        }
    }
    return cli_usage_error("--input - must be written out when mpirun is started");
}

/* A rank that was killed did not say where. */
static void say_place(const run_job *job, int ranks)
{
    char name[128];
    const char *sentence = heddle_last_error();
    const char *named = strstr(sentence, "rank ");
    const int rank = named == NULL ? -1 : atoi(named + 5);
    if (job->place == NULL || cli_launcher(NULL, NULL) != NULL || strstr(sentence, "stage '") != NULL ||
        strstr(sentence, "entering '") != NULL || strstr(sentence, "backward from '") != NULL || rank < 0 ||
        rank >= ranks) {
        return;
    }
    const int step = job->place[rank] - 1;
    if (step < 0) {
        snprintf(name, sizeof(name), "before the first stage");
    } else {
        run_step_name(name, sizeof(name), job, step);
    }
    cli_say("rank %d was last seen at: %s", rank, name);
}

int cli_run(int argc, char **argv)
{
    run_options options = {.transport = "auto", .seed = 1, .threads = 1, .passes = 1, .dtype = -1};
    run_job job = {.options = &options};
    heddle_comm_options comm_options;
    int ranks = 0;
    int code = parse_options(&options, argc, argv);
    if (code != CLI_OK) {
        return code;
    }
    if (options.help) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    code = run_count_ranks(&ranks, &options);
    if (code == CLI_OK) {
        code = run_prepare(&job, ranks);
    }
    if (code == CLI_OK && options.output != NULL && cli_speaks()) {
        code = cli_report(file_output_check(options.output));
    }
    if (code == CLI_OK && options.input != NULL && strcmp(options.input, "-") == 0 &&
        cli_will_exec(options.transport)) {
        code = stage_standard_input(&job, argc, argv);
    }
    if (code == CLI_OK) {
        cli_comm_options(&comm_options, options.messages, options.hosts, options.deadline_s);
        if (options.threads > 1) {
            comm_options.bind = HEDDLE_BIND_NONE; /* a rank bound to one core would keep its threads there */
        }
        void *place =
            mmap(NULL, (size_t)ranks * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        job.place = place == MAP_FAILED ? NULL : place;
        code = cli_with_ranks(options.transport, ranks, argc, argv, &comm_options, run_main, &job);
        if (code == CLI_FAILED) {
            say_place(&job, ranks);
        }
        if (job.place != NULL) {
            munmap(place, (size_t)ranks * sizeof(int));
        }
    }
    run_release_job(&job);
    return code;
}
