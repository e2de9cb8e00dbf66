/* From options to a job: model, input, schedule, weights; everything that can be wrong is found first. */
#include "run.h"

#include "ask.h"
#include "launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_mesh(heddle_mesh *out, const char *mesh)
{
    heddle_status st = cli_parse_mesh(out, mesh);
    return st == HEDDLE_OK ? CLI_OK : cli_usage_error("--mesh %s: %s", mesh, heddle_last_error());
}

static int make_mesh(run_job *job, int ranks)
{
    char text[32];
    snprintf(text, sizeof(text), "sp=%d", ranks);
    const char *mesh = job->options->mesh != NULL ? job->options->mesh : text;
    int code = read_mesh(&job->task.mesh, mesh);
    if (code == CLI_OK && heddle_mesh_size(&job->task.mesh) != ranks) {
        return cli_usage_error("--mesh %s has %d ranks, but %d run", mesh, heddle_mesh_size(&job->task.mesh), ranks);
    }
    return code;
}

static const char *mask_name(int causal)
{
    return causal ? "causal" : "bidirectional";
}

static const char *decay_name(int decays)
{
    return decays ? "decay" : "all decays 1";
}

/* A schedule from a file must be this model's. */
static int check_schedule(run_job *job, int ranks)
{
    const char *path = job->options->schedule;
    char has[HEDDLE_LINE_BYTES] = "?", wants[HEDDLE_LINE_BYTES] = "?";
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    heddle_status st = heddle_schedule_get_info(&info, job->schedule);
    if (st == HEDDLE_OK) {
        st = heddle_schedule_edge_at(&edge, job->schedule, 0);
    }
    if (st != HEDDLE_OK) {
        return cli_report(st);
    }
    heddle_ignore(heddle_shape_format(has, sizeof(has), &info.shape));
    heddle_ignore(heddle_shape_format(wants, sizeof(wants), &job->task.info.shape));
    if (strcmp(has, wants) != 0) {
        return cli_usage_error("%s is for %s, the model is %s", path, has, wants);
    }
    if (info.nstages != job->task.info.nstages * job->task.info.repeat) {
        return cli_usage_error("%s has %d stages, the model runs %d stages %d times", path, info.nstages,
                               job->task.info.nstages, job->task.info.repeat);
    }
    for (int i = 0; i < info.nstages; i++) {
        heddle_schedule_stage planned = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        heddle_ignore(heddle_schedule_stage_at(&planned, job->schedule, i));
        heddle_ignore(heddle_model_stage(&stage, job->model, i % job->task.info.nstages));
        if (strcmp(planned.name, stage.name) != 0) {
            return cli_usage_error("%s: stage %d is '%s', the model's is '%s'", path, i, planned.name, stage.name);
        }
        if (planned.kind != stage.kind || planned.mixed_dim != stage.mixed_dim ||
            (strcmp(planned.method, "local") != 0 && planned.heads != stage.heads)) {
            return cli_usage_error("%s: stage %d, '%s', is of another kind than the model's, attends over another dim "
                                   "or with other heads",
                                   path, i, planned.name);
        }
        const int decays = stage.decay != 1; /* 0: slopes */
        if (strcmp(planned.method, "local") != 0 && planned.kind == HEDDLE_STAGE_LINEAR &&
            (planned.causal != stage.causal || planned.decays != decays)) {
            return cli_usage_error("%s: stage %d, '%s', is %s with %s, the model's is %s with %s", path, i,
                                   planned.name, mask_name(planned.causal), decay_name(planned.decays),
                                   mask_name(stage.causal), decay_name(decays));
        }
    }
    for (int a = 0; a < info.mesh.naxes; a++) {
        if (edge.from.dim_of_axis[a] == HEDDLE_PARTIAL) {
            return cli_usage_error("%s begins with partial sums, which heddle run cannot make", path);
        }
    }
    if (heddle_mesh_size(&info.mesh) != ranks) {
        return cli_usage_error("%s is for %d ranks, but %d run", path, heddle_mesh_size(&info.mesh), ranks);
    }
    job->task.mesh = info.mesh;
    return CLI_OK;
}

/* By bytes, unless a machine or an objective was asked for. */
static int plan(run_job *job)
{
    const cli_arguments *a = job->options;
    heddle_plan_options options;
    heddle_machine *machine = NULL;
    char from[ASK_TEXT_BYTES];
    int code = CLI_OK;
    heddle_plan_options_init(&options);
    options.methods = a->methods;
    options.backward = a->backward;
    options.objective = cli_objective(a);
    if (a->machine != NULL || (options.objective != NULL && strcmp(options.objective, "bytes") != 0)) {
        code = cli_open_machine(&machine, from, sizeof from, a->machine);
        options.machine = machine;
    }
    code = code != CLI_OK ? code : cli_report(heddle_plan(&job->schedule, job->model, &job->task.mesh, &options));
    heddle_machine_destroy(machine);
    return code;
}

static int make_schedule(run_job *job, int ranks)
{
    if (job->schedule != NULL) {
        return check_schedule(job, ranks);
    }
    if (job->options->schedule != NULL) {
        int code = cli_load_schedule(&job->schedule, job->options->schedule);
        return code != CLI_OK ? code : check_schedule(job, ranks);
    }
    const int code = make_mesh(job, ranks);
    return code != CLI_OK ? code : plan(job);
}

/* The number of ranks: --ranks, else the mesh's or the schedule's, else the launcher's. */
int run_count_ranks(int *ranks, const cli_arguments *o)
{
    int asked = (int)o->ranks;
    if (asked == 0 && o->mesh != NULL) {
        heddle_mesh mesh;
        int code = read_mesh(&mesh, o->mesh);
        if (code != CLI_OK) {
            return code;
        }
        asked = heddle_mesh_size(&mesh);
    } else if (asked == 0 && o->schedule != NULL) {
        heddle_schedule *schedule = NULL;
        heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
        int code = cli_load_schedule(&schedule, o->schedule);
        if (code == CLI_OK) {
            code = cli_report(heddle_schedule_get_info(&info, schedule));
            asked = heddle_mesh_size(&info.mesh);
        }
        heddle_schedule_destroy(schedule);
        if (code != CLI_OK) {
            return code;
        }
    }
    return cli_rank_count(ranks, o->transport, asked);
}

/* Every tensor that will be read is there and has the right shape. */
static int open_weights(run_job *job)
{
    const run_task *task = &job->task;
    heddle_status st = HEDDLE_OK;
    if (job->options->weights == NULL) {
        return CLI_OK;
    }
    st = feed_open_weights(&job->feed, job->options->weights);
    for (int stage = 0; stage < task->info.nstages && st == HEDDLE_OK; stage++) {
        heddle_stage_info info = HEDDLE_EMPTY(heddle_stage_info);
        heddle_block_options options;
        heddle_block *block = NULL;
        st = heddle_model_stage(&info, job->model, stage);
        st = st == HEDDLE_OK ? run_block_options(&options, task, stage) : st;
        st = st == HEDDLE_OK ? heddle_block_create(&block, &options) : st;
        for (int r = 0; r < task->info.repeat && st == HEDDLE_OK; r++) {
            st = feed_check_weights(&job->feed, block, info.name, r);
        }
        heddle_block_destroy(block);
    }
    return cli_report(st);
}

/* Some stages are planned alone. */
static int check_stages(const run_job *job)
{
    for (int k = 0; k < job->task.info.nstages; k++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        heddle_ignore(heddle_model_stage(&stage, job->model, k));
        if (stage.refusal != NULL) {
            return cli_usage_error("model '%s' can be planned, but not run: stage '%s' has %s, which no block does yet",
                                   job->task.info.name, stage.name, stage.refusal);
        }
    }
    return CLI_OK;
}

int run_prepare(run_job *job, int ranks)
{
    const cli_arguments *a = job->options;
    run_task *task = &job->task;
    task->info = HEDDLE_EMPTY(heddle_model_info);
    int code = cli_report(heddle_model_load(&job->model, a->operand));
    if (code == CLI_OK) {
        code = cli_report(heddle_model_get_info(&task->info, job->model));
    }
    code = code == CLI_OK ? check_stages(job) : code;
    if (code == CLI_OK && task->info.batch_dim < 0) { /* the reader has put it in front, and the channels last */
        return cli_usage_error("model '%s': heddle run wants a batch dim in front of the activation's %d dims; one of "
                               "size 1 does",
                               task->info.name, task->info.shape.ndim);
    }
    code = code != CLI_OK ? code : run_open_input(job);
    code = code != CLI_OK ? code : run_fit_model(job);
    code = code != CLI_OK ? code : make_schedule(job, ranks);
    task->model = job->model;
    task->schedule = job->schedule;
    task->feed = &job->feed;
    task->passes = a->passes;
    task->threads = (int)a->threads;
    task->blocks_on_device = a->device != NULL && cli_choice(a->blocks) == 0;
    task->unfused = cli_choice(a->fused) == 1;
    task->backward = a->backward;
    task->recompute = a->recompute;
    job->feed.shape = task->info.shape;
    job->feed.seed = (uint64_t)a->seed;
    job->feed.threads = task->threads;
    code = code != CLI_OK ? code : open_weights(job);
    return code != CLI_OK ? code : cli_report(feed_make_embedding(&job->feed));
}

void run_release_job(run_job *job)
{
    heddle_schedule_destroy(job->schedule);
    heddle_model_destroy(job->model);
    feed_close(&job->feed);
}
