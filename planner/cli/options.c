#include "options.h"
#include "launch.h"
#include "planner/report/text.h"
#include "runtime/verify/samples.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 24, HELP_WIDTH = 116, NAME_BYTES = 64 };

typedef enum option_kind { FLAG, NUMBER, BYTES, TEXT, CHOICE, TRANSPORT, METHODS } option_kind;

typedef struct cli_option {
    const char *name, *value; /* value: how the usage calls it; of CHOICE the words, with bars between */
    unsigned commands;
    option_kind kind;
    size_t at; /* of int (FLAG, CHOICE), long long (NUMBER, BYTES), const char * or methods in cli_arguments */
    const char *unasked; /* the default as if it were given; NULL: none */
    const char *help;
    long long low, high;
} cli_option;

#define BENCHES (CLI_BENCH | CLI_BENCH_ATTENTION | CLI_BENCH_LINEAR)
#define VERIFIES (CLI_VERIFY | CLI_VERIFY_ATTENTION | CLI_VERIFY_LINEAR)
#define AT(field) offsetof(cli_arguments, field)

/* An option that means another thing elsewhere has a row for each. In the order in which usages list them. */
static const cli_option table[] = {
    {"ranks", "N", CLI_RANKS, NUMBER, AT(ranks), NULL, "ranks to run on; else those of the mesh, or of the launcher", 1,
     4096},
    {"transport", "T", CLI_RANKS, TRANSPORT, AT(transport), "auto",
     "threads, shm, mpi, self, or fault(SPEC):T; auto joins a launcher's ranks and else starts threads"},
    {"messages", NULL, CLI_RANKS, FLAG, AT(messages), NULL,
     "boxes travel as messages even between ranks of one host (mpi)"},
    {"hosts", "K", CLI_RANKS, NUMBER, AT(hosts), NULL, "pretend that the ranks sit on K hosts (mpi)", 1, 4096},
    {"deadline", "S", CLI_RANKS, NUMBER, AT(deadline_s), NULL, "seconds that a rank waits for another (60)", 1,
     1000000},
    {"arena", "BYTES", CLI_RANKS, BYTES, AT(arena_bytes), NULL,
     "address space reserved per rank for what its peers reach, 512M say; the machine's memory, less where a limit "
     "(ulimit -v, ulimit -f) says so"},
    {"mesh", "MESH", CLI_PLAN | CLI_RUN, TEXT, AT(mesh), NULL, "ranks by axis: sp=4, or 'node=2 gpu=4'"},
    {"layers", "L", CLI_PLAN | CLI_RUN, NUMBER, AT(layers), NULL,
     "run the model's stages L times over; its own number without", 1, 65536},
    {"size", "t=16,s=256", CLI_PLAN | CLI_RUN, TEXT, AT(sizes), NULL, "extents instead of the model's"},
    {"prologue", "LAYOUT", CLI_PLAN, TEXT, AT(prologue), NULL, "layout the activation arrives in (free choice)"},
    {"epilogue", "LAYOUT", CLI_PLAN, TEXT, AT(epilogue), NULL, "layout it must end in, or 'any' (*, replicated)"},
    {"method", "STAGE=METHOD", CLI_PLAN | CLI_RUN, METHODS, AT(methods), NULL,
     "how an attention runs over a sharded dim, several with commas; STAGE is a name or *, METHOD one of auto, local, "
     "ulysses, usp, ring, gather-kv, rsa; lasp, scan, lasp2 for linear attention (auto)"},
    {"backward", NULL, CLI_PLAN, FLAG, AT(backward), NULL, "the bytes of the backward pass count too"},
    {"slack", "P", CLI_PLAN, NUMBER, AT(slack_percent), "25",
     "a stage's largest part may exceed that of its most even layout by P%", 0, 1000000},
    {"max-waste", "P", CLI_PLAN, NUMBER, AT(max_waste_percent), NULL,
     "infeasible (exit 3) when a stage must waste more than P%", 1, 1000000},
    {"output", "FILE", CLI_PLAN, TEXT, AT(output), NULL,
     "save the schedule as JSON; - is standard output. Also -o FILE"},
    {"schedule", "FILE", CLI_RUN, TEXT, AT(schedule), NULL,
     "run this schedule (heddle plan --output) instead of planning"},
    {"input", "FILE", CLI_RUN, TEXT, AT(input), NULL,
     "clip.y4m (- is standard input: ffmpeg -i any.mp4 -f yuv4mpegpipe - | heddle run ...), or x.npy, an activation of "
     "the model's shape; seeded numbers without"},
    {"output", "FILE", CLI_RUN, TEXT, AT(output), NULL,
     "y.npy, the activation behind the last stage (f32), or y.y4m, a clip made from it"},
    {"weights", "FILE", CLI_RUN, TEXT, AT(weights), NULL,
     "safetensors with the tensors blocks.LAYER.STAGE.PARAMETER; seeded without"},
    {"seed", "S", CLI_RUN, NUMBER, AT(seed), "1", "of input, weights, text and conditioning", 0, 1000000000},
    {"dtype", "f32|bf16", CLI_RUN, CHOICE, AT(dtype), NULL, "of the activation, instead of the model's"},
    {"backward", NULL, CLI_RUN, FLAG, AT(backward), NULL,
     "a training step: the way back from a seeded gradient of the output, and the sum of the parameters' gradients "
     "over "
     "the ranks"},
    {"recompute", NULL, CLI_RUN, FLAG, AT(recompute), NULL, "the way back has kept the inputs of the stages only"},
    {"threads", "N", CLI_RUN, NUMBER, AT(threads), "1", "compute threads of each rank", 1, 256},
    {"passes", "N", CLI_RUN, NUMBER, AT(passes), "1", "forward passes, the fastest is reported", 1, 1000000},
    {"check", NULL, CLI_RUN, FLAG, AT(check), NULL,
     "repeat on one rank and compare, bitwise where all attention is local, else within a tolerance; compare all "
     "ranks' "
     "copies of the result, and bytes sent with bytes planned"},
    {"random", "COUNT", VERIFIES, NUMBER, AT(random), NULL,
     "so many problems drawn from the seed, such as other options ask for", 1, 100000000},
    {"seed", "S", CLI_VERIFY, NUMBER, AT(seed), NULL, "of random problems (1)", 0, LLONG_MAX},
    {"seed", "S", CLI_VERIFY_ATTENTION | CLI_VERIFY_LINEAR | CLI_BENCH_LINEAR, NUMBER, AT(seed), "1",
     "of random problems, and of values", 0, LLONG_MAX},
    {"input", "X.npy", CLI_VERIFY, TEXT, AT(input), NULL,
     "the global array; without it element i has the value i modulo 2^n, what the dtype holds exactly (n = 53 f64, 24 "
     "f32, 11 f16, 8 bf16 u8, 4 f8e4m3, 3 f8e5m2, 31 i32, 7 i8, 1 bool), and is checked in up to 16 rounds, a digit "
     "of the index each, which tell all elements apart but those of more than 65536 bool; the first is the one that is "
     "saved"},
    {"save", "DIR", CLI_VERIFY, TEXT, AT(save), NULL,
     "writes DIR/from-RANK.npy and DIR/to-RANK.npy, the local arrays in their memory order"},
    {"method", "M", CLI_ATTENTION, TEXT, AT(method), NULL,
     "local, ulysses, ring, rsa, usp or gather-kv (local; of random problems any); usp wants two mesh axes, ring "
     "first"},
    {"method", "M", CLI_LINEAR, TEXT, AT(method), NULL, "local, lasp, lasp2 or scan (lasp; of random problems any)"},
    {"kv-heads", "K", CLI_ATTENTION, NUMBER, AT(kv_heads), NULL, "heads of k and v, divides those of q", 1, INT_MAX},
    {"causal", NULL, CLI_ATTENTION, FLAG, AT(causal), NULL, "query i sees keys 0..i"},
    {"zigzag", NULL, CLI_ATTENTION, FLAG, AT(zigzag), NULL, "rows placed so that this is balanced"},
    {"key-lengths", "A,B", CLI_ATTENTION, TEXT, AT(key_lengths), NULL, "keys seen per sample"},
    {"all-reduce", NULL, CLI_ATTENTION, FLAG, AT(all_reduce), NULL, "rsa: the paper's own sums"},
    {"project", "M", CLI_ATTENTION, NUMBER, AT(projected), NULL, "rsa: keys and values projected to length M", 1,
     INT_MAX},
    {"save", "DIR", CLI_VERIFY_ATTENTION, TEXT, AT(save), NULL,
     "writes q k v do o dq dk dv lse .npy: q and o [b s h d], k and v [b s kv-heads d]"},
    {"dv", "D", CLI_LINEAR, NUMBER, AT(dv), NULL, "width of v and o; that of the shape", 1, 65536},
    {"decay", "G", CLI_LINEAR, TEXT, AT(decay), NULL,
     "one number above 0 and at most 1 for all heads, or per-head (slopes of ALiBi) (1)"},
    {"causal", NULL, CLI_LINEAR, FLAG, AT(causal), NULL, "what is done without --bidirectional"},
    {"bidirectional", NULL, CLI_LINEAR, FLAG, AT(bidirectional), NULL, "every row sees every other, decay by distance"},
    {"receive-first", NULL, CLI_LINEAR, FLAG, AT(receive_first), NULL,
     "lasp in the published order: nothing before the state has come"},
    {"chunk", "C", CLI_LINEAR, NUMBER, AT(chunk), NULL, "rows worked on at once", 1, 1024},
    {"backward", NULL, CLI_BENCH_LINEAR, FLAG, AT(backward), NULL, "time backward instead of forward"},
    {"save", "DIR", CLI_VERIFY_LINEAR, TEXT, AT(save), NULL, "writes q k v do o dq dk dv .npy, [b s h d]"},
    {"threads", "N", CLI_ATTENTION | CLI_LINEAR, NUMBER, AT(threads), NULL, "compute threads of each rank (1)", 1, 256},
    {"iterations", "N", CLI_BENCH, NUMBER, AT(iterations), NULL,
     "executions timed; at least 30 rounds of 4, and until --seconds are over", 1, 400000},
    {"iterations", "N", CLI_BENCH_LINEAR, NUMBER, AT(iterations), NULL,
     "calls timed; as many as fit --seconds, at least 10", 1, SAMPLES_AT_MOST},
    {"seconds", "S", BENCHES, NUMBER, AT(seconds), "3", "time to spend", 0, 86400},
    {"memory", "peer|any", CLI_BENCH | CLI_VERIFY, CHOICE, AT(memory), "peer",
     "any: private buffers, which peers cannot reach"},
    {"device", "KIND[:N]", CLI_BENCH | CLI_VERIFY, TEXT, AT(device), NULL,
     "arrays lie in this device's memory: cuda, each rank's own, or cuda:1; exit 77 where there is none"},
    {"device", "KIND[:N]", CLI_RUN, TEXT, AT(device), NULL,
     "switches are done in this device's memory, blocks on the CPU, and what goes between is copied: cuda, each rank's "
     "own, or cuda:1; exit 77 where there is none"},
    {"wire", "auto|peer|nccl|host", CLI_RUN | CLI_BENCH | CLI_VERIFY, CHOICE, AT(wire), "auto",
     "how bytes go from device to device"},
    {"tuning", "trials|rules", CLI_BENCH, CHOICE, AT(tuning), "trials", "how the copy kernel is chosen"},
    {"kernel", "NAME", CLI_BENCH, TEXT, AT(kernel), NULL, "this copy kernel instead of the chosen one"},
    {"list-kernels", NULL, CLI_BENCH, FLAG, AT(list_kernels), NULL, "the copy kernels of this CPU"},
    {"json", NULL, CLI_PLAN | CLI_RUN | BENCHES | CLI_VOLUME, FLAG, AT(json), NULL, "JSON instead of text"},
    {"help", NULL, ~0U, FLAG, AT(help), NULL, "this text"},
};
enum { OPTIONS = sizeof(table) / sizeof(table[0]) };

/* --- values ------------------------------------------------------------------------------------------------------- */

static int take_number(long long *out, const cli_option *o, const char *text)
{
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (((*text < '0' || *text > '9') && *text != '-') || end == text || *end != '\0' || errno != 0 || value < o->low ||
        value > o->high) {
        return cli_usage_error("--%s wants a whole number from %lld to %lld, not '%s'", o->name, o->low, o->high, text);
    }
    *out = value;
    return CLI_OK;
}

/* "512M": K, M, G, T are powers of 1024. */
static int take_bytes(long long *out, const cli_option *o, const char *text)
{
    static const char letters[] = "KMGT";
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    const char *letter = end == text || *end == '\0' ? NULL : strchr(letters, *end);
    const int shift = letter == NULL ? 0 : 10 * (int)(letter - letters + 1);
    if (end == text || *(end + (letter != NULL)) != '\0' || errno != 0 || value < 1 || value > LLONG_MAX >> shift) {
        return cli_usage_error("--%s wants a number of bytes, perhaps with K, M, G or T behind it, not '%s'", o->name,
                               text);
    }
    *out = value << shift;
    return CLI_OK;
}

static int take_choice(int *out, const cli_option *o, const char *text)
{
    char words[256] = "";
    const char *word = o->value;
    for (int number = 1, used = 0; *word != '\0'; number++) {
        const int length = (int)strcspn(word, "|"), is_last = word[length] == '\0';
        if (strlen(text) == (size_t)length && memcmp(text, word, (size_t)length) == 0) {
            *out = number;
            return CLI_OK;
        }
        used += snprintf(words + used, sizeof words - (size_t)used, "%s'%.*s'",
                         number == 1 ? ""
                         : is_last   ? " or "
                                     : ", ",
                         length, word);
        word += length + !is_last;
    }
    return cli_usage_error("--%s wants %s, not '%s'", o->name, words, text);
}

/* --method adds to those before it; later entries win. */
static int take_methods(char *methods, const char *text)
{
    const size_t used = strlen(methods);
    if (text[0] == '\0') {
        return cli_usage_error("--method wants STAGE=METHOD, for example s.attn=ring or '*=local'");
    }
    if (used + 1 + strlen(text) >= CLI_METHODS_BYTES) {
        return cli_usage_error("--method: more than %d characters of methods", CLI_METHODS_BYTES - 1);
    }
    snprintf(methods + used, CLI_METHODS_BYTES - used, "%s%s", used > 0 ? "," : "", text);
    return CLI_OK;
}

static int take(cli_arguments *out, const cli_option *o, const char *text)
{
    void *at = (char *)out + o->at;
    switch (o->kind) {
    case FLAG:
        *(int *)at = 1;
        return CLI_OK;
    case NUMBER:
        return take_number(at, o, text);
    case BYTES:
        return take_bytes(at, o, text);
    case CHOICE:
        return take_choice(at, o, text);
    case METHODS:
        return take_methods(at, text);
    case TRANSPORT:
    case TEXT:
        *(const char **)at = text;
        return o->kind == TRANSPORT ? cli_check_transport(text) : CLI_OK;
    }
    return CLI_BAD_INPUT;
}

/* --- a command's line --------------------------------------------------------------------------------------------- */

/* The command's rows in getopt's form; val tells the row. */
static void list_options(struct option *out, const cli_command *command)
{
    int n = 0;
    for (int i = 0; i < OPTIONS; i++) {
        if ((table[i].commands & command->bit) != 0) {
            out[n++] = (struct option){table[i].name, table[i].kind == FLAG ? no_argument : required_argument, NULL,
                                       CHAR_MAX + 1 + i};
        }
    }
    out[n] = (struct option){NULL, 0, NULL, 0};
}

static int row_of(const cli_command *command, const char *name)
{
    for (int i = 0; i < OPTIONS; i++) {
        if ((table[i].commands & command->bit) != 0 && strcmp(table[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static int refuse(const cli_command *command, int option, const char *text)
{
    const char *what = option == ':'       ? "this option wants a value"
                       : optopt > CHAR_MAX ? "this option takes no value"
                                           : "unknown option";
    return cli_usage_error("heddle %s: '%s': %s (try: heddle %s --help)", command->name, text, what, command->name);
}

static int take_operand(cli_arguments *out, int count, char **operand)
{
    const cli_command *command = out->command;
    const int wanted = out->random > 0 || out->list_kernels ? 0 : 1;
    if (count == wanted) {
        out->operand = count == 1 ? operand[0] : NULL;
        return CLI_OK;
    }
    if (row_of(command, "random") >= 0) {
        return cli_usage_error("heddle %s wants either one %s or --random, found %d %s%s%s (try: heddle %s --help)",
                               command->name, command->operand, count, command->operand, report_s(count),
                               out->random > 0 ? " and --random" : "", command->name);
    }
    return cli_usage_error("heddle %s wants one %s, found %d (try: heddle %s --help)", command->name, command->operand,
                           count, command->name);
}

int cli_parse(cli_arguments *out, const cli_command *command, int first, int argc, char **argv)
{
    struct option options[OPTIONS + 1];
    const int output = row_of(command, "output"), help = row_of(command, "help");
    int code = CLI_OK;
    *out = (cli_arguments){.command = command, .argc = argc, .argv = argv, .seed = -1};
    for (int i = 0; i < OPTIONS && code == CLI_OK; i++) {
        if ((table[i].commands & command->bit) != 0 && table[i].unasked != NULL) {
            code = take(out, &table[i], table[i].unasked);
        }
    }
    list_options(options, command);
    optind = 0;
    opterr = 0;
    argc -= first;
    argv += first;
    while (code == CLI_OK) {
        optopt = 0;
        int option = getopt_long(argc, argv, output >= 0 ? ":ho:" : ":h", options, NULL);
        if (option == -1) {
            break;
        }
        if (option == '?' || option == ':') {
            return refuse(command, option, argv[optind - 1]);
        }
        const int row = option == 'h' ? help : option == 'o' ? output : option - CHAR_MAX - 1;
        code = take(out, &table[row], optarg);
    }
    return code != CLI_OK || out->help ? code : take_operand(out, argc - optind, argv + optind);
}

/* --- usage -------------------------------------------------------------------------------------------------------- */

/* `text` in lines from the column on, the first of which has been written up to `at`. */
static void print_wrapped(const char *text, int at)
{
    printf("%*s", at < HELP_COLUMN ? HELP_COLUMN - at : 1, "");
    at = at < HELP_COLUMN ? HELP_COLUMN : at + 1;
    for (const char *space = ""; *text != '\0'; space = " ") {
        const int length = (int)strcspn(text, " ");
        if (at + 1 + length > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
            space = "";
        }
        at += printf("%s%.*s", space, length, text);
        text += length + (text[length] == ' ');
    }
    printf("\n");
}

void cli_print_usage(const cli_command *command)
{
    printf("%s\n", command->action->synopsis);
    for (int i = 0; i < OPTIONS; i++) {
        const cli_option *o = &table[i];
        char name[NAME_BYTES], help[1024];
        if ((o->commands & command->bit) == 0) {
            continue;
        }
        int n = snprintf(name, sizeof name, "  --%s%s%s", o->name, o->value != NULL ? " " : "",
                         o->value != NULL ? o->value : "");
        snprintf(help, sizeof help, "%s%s%s%s", o->help, o->unasked != NULL ? " (" : "",
                 o->unasked != NULL ? o->unasked : "", o->unasked != NULL ? ")" : "");
        printf("%s", name);
        print_wrapped(help, n);
    }
    printf("%s%s", command->action->notes[0] != '\0' ? "\n" : "", command->action->notes);
}

int cli_mesh_ranks(int *ranks, const cli_arguments *a, const heddle_mesh *mesh)
{
    *ranks = heddle_mesh_size(mesh);
    return a->ranks == 0 || a->ranks == *ranks
               ? CLI_OK
               : cli_usage_error("--ranks %lld, but the mesh of the %s has %d", a->ranks, a->command->operand, *ranks);
}

heddle_status cli_parse_mesh(heddle_mesh *out, const char *text)
{
    char bracketed[HEDDLE_LINE_BYTES];
    if (text[0] == '[' || strlen(text) + 3 > sizeof bracketed) {
        return heddle_mesh_parse(out, text);
    }
    snprintf(bracketed, sizeof bracketed, "[%s]", text);
    for (char *p = bracketed; *p != '\0'; p++) {
        *p = *p == ',' ? ' ' : *p;
    }
    return heddle_mesh_parse(out, bracketed);
}
