#include "verify_share.h"

#include "launch.h"
#include "runtime/files/npy.h"

#include <errno.h>
#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

heddle_status cli_save_array(const char *dir, const char *name, heddle_dtype dtype, const double *data, int ndim,
                             const int64_t *extent)
{
    char path[4096];
    int64_t elems = 1;
    for (int i = 0; i < ndim; i++) {
        elems *= extent[i];
    }
    float *narrow = calloc((size_t)elems + 1, sizeof *narrow);
    if (narrow == NULL) {
        return judge_no_memory(name, (double)elems * sizeof *narrow);
    }
    for (int64_t i = 0; i < elems; i++) {
        narrow[i] = (float)data[i];
    }
    snprintf(path, sizeof path, "%s/%s.npy", dir, name);
    int wide = dtype == HEDDLE_F64;
    int code =
        cli_report_written(npy_write(path, wide ? "<f8" : "<f4", ndim, extent, wide ? (const void *)data : narrow));
    free(narrow);
    if (code != CLI_OK) {
        cli_verdict(code);
    }
    return HEDDLE_OK;
}

/* Every rank that joins later needs the directory; the one that starts them makes it. */
int cli_make_directory(const char *path)
{
    struct stat info;
    if (path == NULL) {
        return CLI_OK;
    }
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return cli_usage_error("--save: directory '%s' cannot be made: %s", path, strerror(errno));
    }
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return cli_usage_error("--save: '%s' is not a directory", path);
    }
    return CLI_OK;
}

heddle_status cli_first_problem(int *failed, heddle_comm *comm, const char *which, const char *problem)
{
    int speaks = 0;
    heddle_status st = judge_first_problem(failed, &speaks, comm, problem[0] != '\0');
    if (speaks) {
        cli_say("mismatch%s", which);
        cli_say("%s", problem);
    }
    return st;
}

typedef struct request {
    const cli_arguments *arguments;
    const cli_trial_kind *kind;
    const void *first;
} request;

/* Of every dtype, of which there are `count` errors each, what random problems were off by at most. */
static void print_worst(const judge_error *worst, int count)
{
    for (int dtype = 0; dtype < HEDDLE_DTYPE_COUNT; dtype++, worst += count) {
        char text[1024];
        if (worst->name != NULL) {
            judge_list(text, sizeof text, worst, count);
            printf("%s, errors in roundings: %s\n", heddle_dtype_name((heddle_dtype)dtype), text);
        }
    }
}

static heddle_status print_trial(const cli_outcome *outcome, const void *trial, const cli_trial_kind *kind)
{
    char text[2048];
    printf("%s\n", outcome->line);
    judge_list(text, sizeof text, outcome->errors, kind->judged);
    printf("errors in roundings: %s\n", text);
    return kind->print_sent(trial);
}

/* All problems of the request, the same on every rank, up to the first that any rank finds wrong. */
static heddle_status try_all(void *trial, const request *r, heddle_comm *comm)
{
    judge_error worst[HEDDLE_DTYPE_COUNT * CLI_JUDGED_MAX] = {0};
    random_source source = {(uint64_t)r->arguments->seed};
    const int random = (int)r->arguments->random, judged = r->kind->judged;
    cli_outcome outcome;
    heddle_status st = HEDDLE_OK;
    int failed = 0, done = 0;
    for (; done < (random > 0 ? random : 1) && !failed; done++) {
        char which[sizeof outcome.line + 2];
        outcome = (cli_outcome){.problem = ""};
        st = r->kind->attempt(&outcome, trial, comm, random > 0 ? &source : NULL, r->arguments->save);
        snprintf(which, sizeof which, ": %s", outcome.line);
        st = st == HEDDLE_OK ? cli_first_problem(&failed, comm, which, outcome.problem) : st;
        if (st != HEDDLE_OK) {
            return st;
        }
        judge_gather(&worst[(int)outcome.dtype * judged], outcome.errors, judged);
    }
    if (failed) {
        cli_verdict(CLI_MISMATCH);
    } else if (heddle_comm_rank(comm) == 0 && random > 0) {
        printf("%d %s problems right on %s\n", done, r->kind->name, heddle_comm_describe(comm));
        print_worst(worst, judged);
    } else if (heddle_comm_rank(comm) == 0) {
        st = print_trial(&outcome, trial, r->kind);
        printf("right on %s\n", heddle_comm_describe(comm));
    }
    fflush(stdout);
    return st;
}

static heddle_status verify_main(heddle_comm *comm, void *arg)
{
    const request *r = arg;
    void *trial = malloc(r->kind->trial_bytes);
    if (trial == NULL) {
        return judge_no_memory("a problem", (double)r->kind->trial_bytes);
    }
    memcpy(trial, r->first, r->kind->trial_bytes);
    heddle_status st = try_all(trial, r, comm);
    free(trial);
    return st;
}

int cli_verify_trials(const cli_arguments *a, int ranks, const cli_trial_kind *kind, const void *first)
{
    request r = {.arguments = a, .kind = kind, .first = first};
    if (a->operand == NULL && a->save != NULL) {
        return cli_usage_error("--save needs a problem, not --random");
    }
    int code = cli_make_directory(a->save);
    return code == CLI_OK ? cli_with_ranks(a, ranks, verify_main, &r) : code;
}
