/* libFuzzer: what a user types behind options of the planner's commands: why-not expressions, ranges of a sweep,
 * meshes, methods, extents, bytes. The command ends with one of its exit codes, and complaints are sentences. */
#include "planner/cli/cli.h"
#include "planner/cli/range.h"

#include "fuzz.h"

#include <limits.h>
#include <string.h>

enum { TEXT_BYTES = 512, MOST_RANKS = 64, MOST_POINTS = 4, WORDS = 12 };

int heddle_program(int argc, char **argv); /* the program's main */

static const char model[] = "model: small\ndtype: bf16\ndims: {b: {size: 2, role: batch}, t: 6, s: 12, "
                            "c: {size: 64, role: channel}}\ntensors: {x: [b, t, s, c]}\nstages:\n"
                            "  - {name: s.attn, kind: attention, over: s, heads: 4}\n"
                            "  - {name: t.attn, kind: attention, over: t, heads: 4}\n"
                            "  - {name: mlp, kind: mlp, ratio: 4}\n";

/* By the first byte of an input: what is typed before the text and, where it says more, behind it. */
static const char *const asked[][WORDS] = {
    {"explain", "--mesh", "a=2 b=2", "--why-not", "TEXT"},
    {"explain", "--mesh", "sp=3", "--objective", "bytes", "--why-not", "TEXT", "--json"},
    {"sweep", "--ranks", "TEXT"},
    {"sweep", "--mesh", "sp=2", "--size", "TEXT"},
    {"plan", "--mesh", "TEXT"},
    {"plan", "--mesh", "a=2 b=2", "--force", "TEXT"},
    {"plan", "--mesh", "sp=2", "--memory", "TEXT"},
    {"compare", "--mesh", "sp=2", "--methods", "TEXT"},
    {"compare", "--meshes", "TEXT"},
    {"compare", "--mesh", "sp=2", "--baseline", "TEXT"},
    {"memory", "--mesh", "sp=2", "--memory", "1M", "--longest", "TEXT"},
    {"simulate", "--mesh", "a=2 b=2", "--method", "TEXT"},
    {"plan", "-n", "2", "--machine", "TEXT"},
};
enum { LINES = sizeof asked / sizeof asked[0] };

/* The product of all numbers: what would be planned for so many ranks takes its time, and is no matter of reading. */
static int is_small(const char *text)
{
    double all = 1;
    for (const char *p = text; *p != '\0';) {
        char *end = NULL;
        const double n = *p >= '0' && *p <= '9' ? (double)strtoull(p, &end, 10) : 1;
        all *= n > 1 ? n : 1;
        p = end != NULL ? end : p + 1;
    }
    return all <= MOST_RANKS;
}

static void read_range(const char *text)
{
    static cli_range range;
    if (!cli_read_range(&range, text, LLONG_MAX)) {
        return;
    }
    fuzz_need(range.count >= 1 && range.count <= CLI_RANGE_POINTS);
    for (int i = 0; i < range.count; i++) {
        fuzz_need(range.value[i] >= 1 && range.value[i] <= 1LL << 40);
    }
}

/* Sweeps of few and small points alone are made. */
static int takes_long(const char *option, const char *text)
{
    static cli_range range;
    int is_long =
        strcmp(option, "--ranks") == 0 && cli_read_range(&range, text, LLONG_MAX) && range.count > MOST_POINTS;
    for (int i = 0; i < range.count && !is_long && strcmp(option, "--ranks") == 0; i++) {
        is_long = range.value[i] > MOST_RANKS;
    }
    const int has_ranks = strcmp(option, "--mesh") == 0 || strcmp(option, "--meshes") == 0;
    return is_long || ((has_ranks || strcmp(option, "--size") == 0) && !is_small(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TEXT_BYTES], path[FUZZ_PATH_BYTES], *word[WORDS + 2] = {"heddle"};
    int count = 1, line = size > 0 ? data[0] % LINES : 0, is_long = 0;
    snprintf(text, sizeof text, "%.*s", size > 0 ? (int)(size - 1) : 0, (const char *)data + (size > 0));
    read_range(text);
    const int fd = fuzz_file(path, (const uint8_t *)model, sizeof model - 1);
    for (int i = 0; i < WORDS && asked[line][i] != NULL; i++) {
        const int is_text = strcmp(asked[line][i], "TEXT") == 0;
        is_long = is_long || (is_text && takes_long(asked[line][i - 1], text));
        word[count++] = is_text ? text : (char *)asked[line][i];
        if (i == 0) {
            word[count++] = path;
        }
    }
    if (!is_long) {
        const int code = heddle_program(count, word);
        fuzz_need(code == CLI_OK || code == CLI_BAD_INPUT || code == CLI_INFEASIBLE);
    }
    close(fd);
    return 0;
}
