/* heddle plan --analyze --candidates N: all ways in which the stages that mix a dim can run, alike in every repetition;
 * the N that are predicted fastest are run. */
#include "planner/report/candidates.h"

#include "analyze.h"
#include "launch.h"
#include "run.h"
#include "why_not.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3, PASSES = 3, STAGES_AT_MOST = 8, WAYS_AT_MOST = 64, TRIED_AT_MOST = 20000 };

typedef struct way {
    char text[160]; /* "t.attn=t@sp/ring" */
} way;

typedef struct trial {
    run_job job; /* first: what is run */
    const cli_question *q;
    const schedule_view *plan;
    way *way[STAGES_AT_MOST];
    int ways[STAGES_AT_MOST], stages;
    candidate *list; /* the fastest predicted first, until it is measured */
    int count, most, possible;
} trial;

#define METHOD_NAME(name, text) text,

/* --- which there are ---------------------------------------------------------------------------------------------- */

static heddle_status forced(cli_answer *out, const trial *t, const char *force)
{
    char all[2 * CLI_LIST_BYTES];
    cli_question same = *t->q;
    same.ranks = 0;
    same.mesh = t->plan->info.mesh;
    snprintf(all, sizeof all, "%s%s%s", force, t->q->a->force[0] != '\0' ? ";" : "",
             t->q->a->force); /* the last wins */
    same.options.force = all;
    return cli_answer_plan(out, &same, &same.options);
}

/* Does the stage run so, whatever --force says? */
static int runs_so(const cli_answer *answer, const heddle_schedule_stage *stage, const heddle_layout *layout,
                   const char *method)
{
    heddle_schedule_stage found = HEDDLE_EMPTY(heddle_schedule_stage);
    const int i = heddle_schedule_find(answer->schedule, stage->name, 0);
    return heddle_schedule_stage_at(&found, answer->schedule, i) == HEDDLE_OK && strcmp(found.method, method) == 0 &&
           heddle_layout_equal(&found.layout, layout, &answer->view.info.mesh);
}

/* Every layout by every method in which a plan exists; without rsa, which no plan takes that is not told to. */
static int find_ways(trial *t, const heddle_schedule_stage *stage, const heddle_model_info *model)
{
    static const char *const softmax[] = {HEDDLE_ATTENTION_METHOD_LIST(METHOD_NAME) NULL};
    static const char *const linear[] = {HEDDLE_LINEAR_METHOD_LIST(METHOD_NAME) NULL};
    const char *const *methods = stage->kind == HEDDLE_STAGE_LINEAR ? linear : softmax;
    heddle_layout layout;
    int *n = &t->ways[t->stages];
    way *list = t->way[t->stages] = calloc(WAYS_AT_MOST, sizeof *list);
    if (list == NULL) {
        return cli_report(heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %d candidates", (int)WAYS_AT_MOST));
    }
    for (int i = 0; cli_nth_layout(&layout, t->plan, model->shape.ndim - 1, model->channel_dim, i); i++) {
        for (const char *const *m = methods; *m != NULL; m++) {
            char text[128];
            cli_answer answer;
            if (strcmp(*m, "rsa") == 0) {
                continue;
            }
            if (*n == WAYS_AT_MOST) {
                return cli_usage_error("--candidates: stage '%s' can run in more than %d ways: --force leaves fewer",
                                       stage->name, (int)WAYS_AT_MOST);
            }
            snprintf(list[*n].text, sizeof list[*n].text, "%.20s=%.110s/%.20s", stage->name,
                     report_layout(text, sizeof text, t->plan, &layout), *m);
            if (forced(&answer, t, list[*n].text) == HEDDLE_OK) {
                *n += runs_so(&answer, stage, &layout, *m);
                cli_answer_end(&answer);
            }
        }
    }
    t->stages += *n > 0;
    return CLI_OK;
}

/* Every repetition of the plan is the same, and as `other`. */
static int is_the_plan(const trial *t, const schedule_view *other)
{
    const schedule_view *plan = t->plan;
    for (int i = 0; i < plan->info.nstages; i++) {
        heddle_schedule_stage a = HEDDLE_EMPTY(heddle_schedule_stage), b = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_ignore(heddle_schedule_stage_at(&a, t->list[0].schedule, i));
        heddle_ignore(heddle_schedule_stage_at(&b, other->schedule, i));
        if (strcmp(a.method, b.method) != 0 || !heddle_layout_equal(&a.layout, &b.layout, &plan->info.mesh)) {
            return 0;
        }
    }
    return 1;
}

/* Into its place behind the plan, the slowest out. */
static void insert(trial *t, cli_answer *answer, const char *how)
{
    candidate one = {.schedule = answer->schedule, .predicted_s = answer->view.of.time_s};
    snprintf(one.how, sizeof one.how, "%s", how);
    t->possible++;
    int at = t->count;
    while (at > 1 && t->list[at - 1].predicted_s > one.predicted_s) {
        at--;
    }
    if (at == t->most) {
        return;
    }
    answer->schedule = NULL;
    if (t->count == t->most) {
        heddle_schedule_destroy(t->list[--t->count].schedule);
    }
    memmove(&t->list[at + 1], &t->list[at], (size_t)(t->count - at) * sizeof one);
    t->list[at] = one;
    t->count++;
}

/* All combinations of the stages' ways. */
static int combine(trial *t)
{
    long long all = 1;
    for (int k = 0; k < t->stages; k++) {
        all *= t->ways[k];
        if (all > TRIED_AT_MOST) {
            return cli_usage_error("--candidates: the stages can run in more than %d ways: --force leaves fewer",
                                   (int)TRIED_AT_MOST);
        }
    }
    for (long long i = 0; i < all; i++) {
        char how[sizeof t->list->how] = "";
        cli_answer answer;
        int used = 0;
        long long rest = i;
        for (int k = 0; k < t->stages && used < (int)sizeof how; k++, rest /= t->ways[k - 1]) {
            used += snprintf(how + used, sizeof how - (size_t)used, "%s%s", k > 0 ? ";" : "",
                             t->way[k][rest % t->ways[k]].text);
        }
        if (used < (int)sizeof how && forced(&answer, t, how) == HEDDLE_OK) {
            if (is_the_plan(t, &answer.view)) {
                snprintf(t->list[0].how, sizeof t->list[0].how, "%s", how);
            } else {
                insert(t, &answer, how);
            }
            cli_answer_end(&answer);
        }
    }
    return CLI_OK;
}

static int enumerate(trial *t, cli_answer *answer)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    int code = cli_report(heddle_model_get_info(&model, t->q->model));
    t->list = calloc((size_t)t->most + 1, sizeof *t->list);
    if (code == CLI_OK && t->list == NULL) {
        return cli_report(heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %d candidates", t->most));
    }
    t->list[0] = (candidate){.schedule = answer->schedule, .predicted_s = answer->view.of.time_s, .is_plan = 1};
    snprintf(t->list[0].how, sizeof t->list[0].how, "its repetitions differ");
    t->count = t->possible = 1;
    for (int k = 0; k < t->plan->info.period && code == CLI_OK; k++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        code = cli_report(heddle_schedule_stage_at(&stage, answer->schedule, k));
        if (code == CLI_OK && stage.mixed_dim >= 0 && t->stages < STAGES_AT_MOST) {
            code = find_ways(t, &stage, &model);
        }
    }
    answer->schedule = NULL; /* the list's now */
    return code != CLI_OK ? code : combine(t);
}

/* --- how fast they are -------------------------------------------------------------------------------------------- */

static int by_measured(const void *a, const void *b)
{
    const double left = ((const candidate *)a)->measured_s, right = ((const candidate *)b)->measured_s;
    return (left > right) - (left < right);
}

/* One after the other, round after round: what disturbs the machine for a while disturbs all of them. The fastest. */
static heddle_status run_main(heddle_comm *comm, void *arg)
{
    trial *t = arg;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < ROUNDS * t->count && st == HEDDLE_OK; i++) {
        candidate *c = &t->list[i % t->count];
        run_task task = t->job.task;
        run_report all;
        task.schedule = c->schedule;
        task.watch = NULL;
        st = run_task_run(&all, &task, comm, 0);
        if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) { /* ranks may be threads */
            const double s = (double)run_report_most(&all, RUN_TOTAL_FORWARD_NS) * 1e-9;
            c->measured_s = i < t->count || s < c->measured_s ? s : c->measured_s;
        }
        if (i == ROUNDS * t->count - 1 && st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
            qsort(t->list, (size_t)t->count, sizeof *t->list, by_measured);
            (t->job.options->json ? report_candidates_json : report_candidates)(t->list, t->count, t->possible, &all,
                                                                                t->plan);
            fflush(stdout);
        }
        run_report_free(&all);
    }
    return st;
}

int cli_candidates(const cli_question *q, cli_answer *answer)
{
    cli_arguments options = *q->a;
    trial *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return cli_report(heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for candidates"));
    }
    *t = (trial){.job = {.options = &options, .schedule = answer->schedule},
                 .q = q,
                 .plan = &answer->view,
                 .most = (int)q->a->candidates};
    int ranks = heddle_mesh_size(&answer->view.info.mesh), code = CLI_OK;
    options.passes = PASSES;
    options.threads = 1;
    options.seed = 1;
    code = cli_rank_count(&ranks, options.transport, ranks);
    code = code != CLI_OK ? code : run_prepare(&t->job, ranks);
    t->job.schedule = NULL;
    code = code != CLI_OK ? code : enumerate(t, answer);
    code = code != CLI_OK ? code : run_on_ranks(&t->job, ranks, run_main);
    for (int i = 0; i < t->count; i++) {
        heddle_schedule_destroy(t->list[i].schedule);
    }
    for (int k = 0; k < STAGES_AT_MOST; k++) {
        free(t->way[k]);
    }
    free(t->list);
    run_release_job(&t->job);
    free(t);
    return code;
}
