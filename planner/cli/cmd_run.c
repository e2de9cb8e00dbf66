/* heddle run: plan a model, run its blocks on several ranks, compare with one rank. */
#include "run.h"

#include "launch.h"
#include "planner/report/run.h"
#include "runtime/files/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
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
    for (size_t at = 0; at < job->feed.clip_file.size;) {
        const ssize_t wrote = write(fd, job->feed.clip_file.bytes + at, job->feed.clip_file.size - at);
        if (wrote < 0) {
            return cli_usage_error("cannot pass %zu bytes of standard input on to mpirun's ranks: %s",
                                   job->feed.clip_file.size, strerror(errno));
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
    if (job->task.step_of == NULL || cli_launcher(NULL, NULL) != NULL || strstr(sentence, "stage '") != NULL ||
        strstr(sentence, "entering '") != NULL || strstr(sentence, "backward from '") != NULL || rank < 0 ||
        rank >= ranks) {
        return;
    }
    const int step = job->task.step_of[rank] - 1;
    if (step < 0) {
        snprintf(name, sizeof(name), "before the first stage");
    } else {
        run_step_name(name, sizeof(name), &job->task, step);
    }
    cli_say("rank %d was last seen at: %s", rank, name);
}

/* Rank 0: the table, the checks, the files. */
static heddle_status conclude(const run_job *job, const run_report *all)
{
    const cli_arguments *a = job->options;
    run_verdict verdict = {.differs = 0};
    double reference_ms = 0;
    if (!a->json) {
        report_run(all);
        fflush(stdout);
    }
    heddle_status st = a->check ? run_check(&verdict, &reference_ms, all) : HEDDLE_OK;
    if (st != HEDDLE_OK) {
        return st;
    }
    if (a->json) {
        report_run_json(all, &verdict);
    } else if (a->check) {
        report_run_check(&verdict, reference_ms);
    }
    int code = verdict.differs ? CLI_MISMATCH : CLI_OK;
    if (a->output != NULL) {
        const int written = cli_report_written(feed_write(&job->feed, a->output, all->mine.output));
        code = code != CLI_OK ? code : written;
    }
    fflush(stdout);
    cli_verdict(code);
    return HEDDLE_OK;
}

static heddle_status run_main(heddle_comm *comm, void *arg)
{
    const run_job *job = arg;
    run_report all;
    heddle_status st = run_task_run(&all, &job->task, comm, job->options->check || job->options->output != NULL);
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        st = conclude(job, &all);
    }
    run_report_free(&all);
    return st;
}

/* Of a pass: which layer and stage, or that it is done as a whole. */
static void name_place(char *out, size_t bytes, const run_task *task, run_how how, int step)
{
    const int nstages = task->info.nstages * task->info.repeat;
    heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
    if (how != RUN_BY_STEPS) {
        snprintf(out, bytes, "%s", how == RUN_BY_GRAPH ? "by a graph" : "in one go");
    } else if (step < nstages && heddle_model_stage(&stage, task->model, step % task->info.nstages) == HEDDLE_OK) {
        snprintf(out, bytes, "layer %d/%d  %s", step / task->info.nstages + 1, task->info.repeat, stage.name);
    } else {
        snprintf(out, bytes, "layer %d/%d  end", task->info.repeat, task->info.repeat);
    }
}

/* The stage that rank 0 is in: on a terminal over the one before, elsewhere a line now and then, of long runs only. */
static void show_step(const run_task *task, run_how how, int pass, int step)
{
    enum { QUIET_S = 10 };
    static time_t next; /* by rank 0 alone */
    const int is_terminal = isatty(STDERR_FILENO);
    struct timespec now = {0};
    char passes[48] = "", place[128];
    clock_gettime(CLOCK_MONOTONIC, &now);
    next = next == 0 ? now.tv_sec + QUIET_S : next;
    fprintf(stderr, "%s", is_terminal ? "\r\033[K" : "");
    if (step < 0 || (!is_terminal && now.tv_sec < next)) {
        return;
    }
    next = now.tv_sec + QUIET_S;
    if (task->passes > 1) {
        snprintf(passes, sizeof passes, "pass %d/%lld  ", pass + 1, (long long)task->passes);
    }
    name_place(place, sizeof place, task, how, step);
    fprintf(stderr, "%s%s%s%s", task->is_reference ? "check, on one rank: " : "", passes, place,
            is_terminal ? "" : "\n");
    fflush(stderr);
}

int run_on_ranks(run_job *job, int ranks, heddle_rank_main fn)
{
    const size_t bytes = (size_t)ranks * sizeof(int);
    void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    job->task.step_of = place == MAP_FAILED ? NULL : place;
    job->task.watch = show_step;
    const int code = cli_with_ranks(job->options, ranks, fn, job);
    if (code == CLI_FAILED) {
        say_place(job, ranks);
    }
    if (job->task.step_of != NULL) {
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
    job.task.in_one_go = job.task.blocks_on_device && job.task.passes > 1;
    if (code == CLI_OK && a->output != NULL && cli_speaks()) {
        code = cli_report(file_output_check(a->output));
    }
    if (code == CLI_OK && a->input != NULL && strcmp(a->input, "-") == 0 && cli_will_exec(a->transport)) {
        code = stage_standard_input(&job, a->argc, a->argv);
    }
    code = code == CLI_OK ? run_on_ranks(&job, ranks, run_main) : code;
    run_release_job(&job);
    return code;
}

const cli_action cli_run = {
    .synopsis = "usage: heddle run MODEL --ranks 4 [--transport threads|shm|tcp|mpi|auto] [options]\n"
                "\n"
                "Runs the blocks of MODEL (a YAML file) on several ranks; between stages the sharded dim switches\n"
                "as planned.\n",
    .notes = "exit codes: 0 done, 1 failed while running, 2 bad input, 3 infeasible,\n"
             "            5 --check found a difference, 77 no such device or wire here\n",
    .run = run,
};
