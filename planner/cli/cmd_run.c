/* heddle run: plan a model, run its blocks on several ranks, compare with one rank. */
#include "run.h"
#include "runtime/files/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), wanted = strlen(end);
    return length > wanted && strcmp(text + length - wanted, end) == 0;
}

static int check_options(const cli_arguments *a)
{
    if (a->recompute && !a->backward) {
        return cli_usage_error("--recompute is for the backward of --backward; a forward pass keeps nothing");
    }
    if (a->schedule != NULL && a->methods[0] != '\0') {
        return cli_usage_error("--schedule names the methods of its stages; --method '%s' cannot change them",
                               a->methods);
    }
    if (a->output != NULL && !ends_with(a->output, ".npy") && !ends_with(a->output, ".y4m")) {
        return cli_usage_error("--output wants a file that ends in .npy or .y4m, not '%s'", a->output);
    }
    if (a->output != NULL && ends_with(a->output, ".y4m") && (a->input == NULL || ends_with(a->input, ".npy"))) {
        return cli_usage_error("--output %s: a clip can only be made when --input is one (its width and height)",
                               a->output);
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

static int run_ranks(run_job *job, int ranks)
{
    const size_t bytes = (size_t)ranks * sizeof(int);
    void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    job->place = place == MAP_FAILED ? NULL : place;
    const int code = cli_with_ranks(job->options, ranks, run_main, job);
    if (code == CLI_FAILED) {
        say_place(job, ranks);
    }
    if (job->place != NULL) {
        munmap(place, bytes);
    }
    return code;
}

static int run(const cli_arguments *a)
{
    run_job job = {.options = a};
    int ranks = 0, code = check_options(a);
    code = code == CLI_OK ? run_count_ranks(&ranks, a) : code;
    code = code == CLI_OK ? run_prepare(&job, ranks) : code;
    if (code == CLI_OK && a->output != NULL && cli_speaks()) {
        code = cli_report(file_output_check(a->output));
    }
    if (code == CLI_OK && a->input != NULL && strcmp(a->input, "-") == 0 && cli_will_exec(a->transport)) {
        code = stage_standard_input(&job, a->argc, a->argv);
    }
    code = code == CLI_OK ? run_ranks(&job, ranks) : code;
    run_release_job(&job);
    return code;
}

const cli_command cli_run = {
    .name = "run",
    .bit = CLI_RUN,
    .has_ranks = 1,
    .operand = "model file",
    .synopsis = "usage: heddle run MODEL --ranks 4 [--transport threads|shm|mpi|auto] [options]\n\n"
                "Runs the blocks of MODEL (a YAML file) on several ranks; between stages the sharded dim switches as "
                "planned.\n",
    .notes = "exit codes: 0 done, 1 failed while running, 2 bad input, 3 infeasible, 5 --check found a difference\n",
    .run = run,
};
