/* What the programs of nccl-tests print, one behind another too. Every line of figures is checked against itself: its
 * rates follow from its size, its time and the number of ranks, or the text is not what it is taken for. */
#include "planner/machine/times.h"
#include "runtime/base/base.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 4096, WORDS = 32, MAX_LINES = 1 << 20 };

static const struct {
    const char *name;
    hd_test test;
} tests[] = {{"alltoall_perf", HD_TEST_ALL_TO_ALL},       {"all_to_all_perf", HD_TEST_ALL_TO_ALL},
             {"all_gather_perf", HD_TEST_GATHER},         {"reduce_scatter_perf", HD_TEST_SCATTER},
             {"all_reduce_perf", HD_TEST_SUM_AND_GATHER}, {"sendrecv_perf", HD_TEST_HOP}};

typedef struct text {
    hd_time_sets *out;
    const char *path;
    int line;
    int test; /* -1: none was named yet */
    int ranks, time_column;
} text;

/* The last name of a test in the line, if any. */
static heddle_status find_test(text *t, const char *line)
{
    const char *at = strstr(line, "_perf");
    if (at == NULL || strstr(line, "concluded") != NULL) {
        return HEDDLE_OK;
    }
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        const size_t length = strlen(tests[i].name);
        const char *begin = at + strlen("_perf") - length;
        if (begin >= line && strncmp(begin, tests[i].name, length) == 0 &&
            (begin == line || !isalnum((unsigned char)begin[-1]))) {
            t->test = (int)i;
            return HEDDLE_OK;
        }
    }
    return hd_fail(HEDDLE_ERR_PARSE,
                   "%s:%d: times of alltoall_perf, all_gather_perf, reduce_scatter_perf, all_reduce_perf and "
                   "sendrecv_perf are read, this names another test",
                   t->path, t->line);
}

static int split(char **word, char *line)
{
    int n = 0;
    for (char *rest = NULL, *w = strtok_r(line, " \t\r\n", &rest); w != NULL && n < WORDS;
         w = strtok_r(NULL, " \t\r\n", &rest)) {
        word[n++] = w;
    }
    return n;
}

/* "# Rank 3 Group 0 Pid ...", and the line that names the columns. */
static void read_comment(text *t, char **word, int n)
{
    const int first = strcmp(word[0], "#") == 0 ? 1 : 0;
    if (n > first + 1 && strcmp(word[first], "Rank") == 0 && isdigit((unsigned char)word[first + 1][0])) {
        const long rank = strtol(word[first + 1], NULL, 10);
        t->ranks = rank == 0 ? 1 : rank < HD_MACHINE_MAX_RANKS && rank >= t->ranks ? (int)rank + 1 : t->ranks;
    }
    if (n > first + 2 && strcmp(word[first], "size") == 0) {
        for (int i = first; i < n; i++) {
            if (strcmp(word[i], "time") == 0) {
                t->time_column = i - first;
                return;
            }
        }
    }
}

static int read_figure(double *out, const char *word)
{
    char *end = NULL;
    *out = strtod(word, &end);
    return isdigit((unsigned char)word[0]) && *end == '\0' && isfinite(*out);
}

/* Of sizes that take long enough for three digits of a rate. */
static heddle_status check_rates(const text *t, double size, double us, double algorithm, double bus)
{
    const hd_test test = tests[t->test].test;
    const double once = (double)(t->ranks - 1) / t->ranks;
    const double factor = test == HD_TEST_HOP ? 1 : test == HD_TEST_SUM_AND_GATHER ? 2 * once : once;
    if (algorithm < 1) {
        return HEDDLE_OK;
    }
    if (fabs(size / us * 1e-3 / algorithm - 1) > 0.02) {
        return hd_fail(HEDDLE_ERR_PARSE, "%s:%d: %g bytes in %g us are %.2f GB/s, the line says %g", t->path, t->line,
                       size, us, size / us * 1e-3, algorithm);
    }
    if (fabs(bus / algorithm / factor - 1) > 0.03) {
        return hd_fail(HEDDLE_ERR_PARSE, "%s:%d: %s of %d ranks has a bus rate of %.3g times %g GB/s, the line says %g",
                       t->path, t->line, tests[t->test].name, t->ranks, factor, algorithm, bus);
    }
    return HEDDLE_OK;
}

static heddle_status read_figures(text *t, char **word, int n)
{
    heddle_status st = HEDDLE_OK;
    double size = 0, us = 0, algorithm = 0, bus = 0;
    const int at = t->time_column;
    if (t->test < 0) {
        return hd_fail(HEDDLE_ERR_PARSE,
                       "%s:%d: which test these times are of is not said; a line '# alltoall_perf' above says it",
                       t->path, t->line);
    }
    if (t->ranks < 2) {
        return hd_fail(HEDDLE_ERR_PARSE, "%s:%d: times of %d ranks: lines '# Rank 0 ...' of two or more are missing",
                       t->path, t->line, t->ranks);
    }
    if (n < at + 3 || !read_figure(&size, word[0]) || !read_figure(&us, word[at]) ||
        !read_figure(&algorithm, word[at + 1]) || !read_figure(&bus, word[at + 2])) {
        return hd_fail(HEDDLE_ERR_PARSE, "%s:%d: size, time and rates are wanted in columns 1 and %d to %d", t->path,
                       t->line, at + 1, at + 3);
    }
    if (size == 0) {
        return HEDDLE_OK;
    }
    if (!(us > 0)) {
        return hd_fail(HEDDLE_ERR_PARSE, "%s:%d: %g bytes in %g us", t->path, t->line, size, us);
    }
    HD_TRY(check_rates(t, size, us, algorithm, bus));
    st = hd_times_add(t->out, tests[t->test].test, t->ranks, size, 1e-6 * us);
out:
    return st;
}

static heddle_status read_lines(text *t, FILE *f)
{
    heddle_status st = HEDDLE_OK;
    char line[LINE_BYTES];
    char *word[WORDS];
    while (fgets(line, sizeof line, f) != NULL) {
        if (++t->line > MAX_LINES || strlen(line) + 1 == sizeof line) {
            return hd_fail(HEDDLE_ERR_PARSE, "%s:%d: longer than what nccl-tests prints", t->path, t->line);
        }
        HD_TRY(find_test(t, line));
        const int n = split(word, line);
        if (n > 0 && word[0][0] == '#') {
            read_comment(t, word, n);
        } else if (n > 3 && isdigit((unsigned char)word[0][0]) && t->time_column > 0) {
            HD_TRY(read_figures(t, word, n));
        }
    }
    st = ferror(f) == 0 ? st : hd_fail(HEDDLE_ERR_IO, "%s cannot be read: %s", t->path, strerror(errno));
out:
    return st;
}

heddle_status hd_times_nccl_tests(hd_time_sets *out, const char *path)
{
    text t = {.out = out, .path = path, .test = -1};
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        return hd_fail(HEDDLE_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    }
    const heddle_status st = read_lines(&t, f);
    fclose(f);
    return st;
}
