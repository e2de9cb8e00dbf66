/* The blocks of a run: which object runs which stage of which repetition, and what its attention sends. */
#include "run_pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_local(const heddle_schedule_stage *stage)
{
    return strcmp(stage->method, "local") == 0;
}

/* The earlier step whose block serves this one too, or -1: one for all repetitions that run locally, one for each
 * layout and method else. Going backward every repetition keeps its own. */
static int twin_of(const run_pass *f, const heddle_schedule *schedule, const heddle_schedule_info *info, int step)
{
    heddle_schedule_stage mine, other;
    if (heddle_schedule_stage_at(&mine, schedule, step) != HEDDLE_OK) {
        return -1;
    }
    for (int i = step % info->period; i < step && !f->job->options->backward; i += info->period) {
        if (heddle_schedule_stage_at(&other, schedule, i) == HEDDLE_OK && strcmp(mine.method, other.method) == 0 &&
            (is_local(&mine) || heddle_layout_equal(&mine.layout, &other.layout, &info->mesh))) {
            return i;
        }
    }
    return -1;
}

static heddle_status make_block(run_pass *f, const heddle_schedule *schedule, const heddle_schedule_info *info,
                                int step)
{
    heddle_schedule_stage stage;
    heddle_block **block = &f->block[step];
    heddle_status st = heddle_schedule_stage_at(&stage, schedule, step);
    if (st == HEDDLE_OK) {
        st = run_make_block(block, f->job, step % info->period);
    }
    f->joins[step] = !is_local(&stage);
    if (st == HEDDLE_OK && f->joins[step]) {
        st = heddle_block_shard_attention(*block, f->comm, &info->mesh, &stage.layout, stage.method);
        st = st != HEDDLE_OK ? run_at_stage(st, stage.name, stage.repetition) : HEDDLE_OK;
    }
    return st;
}

heddle_status run_make_blocks(run_pass *f, const heddle_schedule *schedule)
{
    heddle_schedule_info info = {.struct_bytes = sizeof(info)};
    heddle_status st = heddle_schedule_get_info(&info, schedule);
    f->nblocks = info.nstages;
    f->block = calloc((size_t)f->nblocks, sizeof(heddle_block *));
    f->is_shared = calloc((size_t)f->nblocks, 1);
    f->joins = calloc((size_t)f->nblocks, 1);
    if (f->block == NULL || f->is_shared == NULL || f->joins == NULL) {
        return run_no_memory("blocks", f->nblocks * (int64_t)sizeof(heddle_block *));
    }
    for (int i = 0; i < f->nblocks && st == HEDDLE_OK; i++) {
        const int twin = twin_of(f, schedule, &info, i);
        if (twin >= 0) {
            f->block[i] = f->block[twin];
            f->joins[i] = f->joins[twin];
            f->is_shared[i] = 1;
        } else {
            st = make_block(f, schedule, &info, i);
        }
    }
    return st;
}

void run_release_blocks(run_pass *f)
{
    for (int i = 0; f->block != NULL && f->is_shared != NULL && i < f->nblocks; i++) {
        heddle_block_destroy(f->is_shared[i] ? NULL : f->block[i]);
    }
    free(f->block);
    free(f->is_shared);
    free(f->joins);
}

heddle_block *run_block(const run_pass *f, int repetition, int stage)
{
    return f->block[repetition * f->job->info.nstages + stage];
}

int run_takes_part(const run_pass *f, int repetition, int stage, const heddle_box *box)
{
    return heddle_box_elems(box) > 0 || f->joins[repetition * f->job->info.nstages + stage];
}

int64_t run_block_sent(const heddle_block *block)
{
    heddle_block_traffic traffic = {.struct_bytes = sizeof(traffic)};
    return heddle_block_get_traffic(&traffic, block) == HEDDLE_OK ? traffic.measured_bytes : 0;
}

void run_add_block_traffic(run_step *step, const heddle_block *block, int64_t sent_before, int backward)
{
    heddle_block_traffic traffic = {.struct_bytes = sizeof(traffic)};
    if (heddle_block_get_traffic(&traffic, block) == HEDDLE_OK) {
        step->planned += backward ? traffic.planned_backward_bytes : traffic.planned_forward_bytes;
        step->sent += traffic.measured_bytes - sent_before;
    }
}
