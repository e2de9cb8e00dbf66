/* Random schedules, one and the same on every rank. */
#ifndef HD_TEST_DRAWN_SCHEDULE_H
#define HD_TEST_DRAWN_SCHEDULE_H

#include "runtime/base/base.h"
#include "runtime/schedule/schedule_internal.h"
#include "runtime/verify/random_line.h"

#include <heddle/heddle.h>
#include <stdio.h>

enum { MAX_PERIOD = 4, MAX_REPEAT = 3, MAX_ELEMS = 300 };

typedef struct problem {
    random_source source; /* the same on every rank */
    heddle_schedule *schedule;
    heddle_schedule_info info;
    heddle_layout first, last; /* of the activation at both ends */
    heddle_layout other;       /* any layout at all, for a gradient that comes as it likes */
    uint64_t seed;
    int backward; /* option of the session */
    heddle_comm *comm;
} problem;

static inline heddle_status add_layout(int *out, problem *p, const heddle_reshard_line *line, int partial)
{
    heddle_layout layout;
    heddle_order order;
    random_side(&layout, &order, &p->source, line, partial);
    return hd_schedule_layout(out, p->schedule, &layout);
}

static inline heddle_status draw(problem *p, int ranks)
{
    static const heddle_dtype dtypes[] = {HEDDLE_F32, HEDDLE_BF16, HEDDLE_F64};
    const random_limits limits = {ranks, 3, 4, MAX_ELEMS, 0};
    heddle_reshard_line line;
    heddle_order order;
    int layout = 0, before = 0;
    heddle_status st;
    random_line(&line, &p->source, &limits);
    line.shape.dtype = dtypes[random_between(&p->source, 0, 2)];
    const int period = (int)random_between(&p->source, 1, MAX_PERIOD);
    const int repeat = (int)random_between(&p->source, 1, MAX_REPEAT);
    HD_TRY(hd_schedule_new(&p->schedule, "drawn", period, repeat));
    p->schedule->shape = line.shape;
    p->schedule->mesh = line.mesh;
    HD_TRY(add_layout(&before, p, &line, 1));
    for (int i = 0; i < period * repeat; i++) {
        if (i < period) {
            snprintf(p->schedule->stage[i].name, sizeof(p->schedule->stage[i].name), "stage-%d", i);
            p->schedule->stage[i].mixes = (hd_method_stage){.kind = HEDDLE_STAGE_MLP, .dim = -1};
        }
        HD_TRY(random_between(&p->source, 0, 3) == 0 && i > 0 ? HEDDLE_OK : add_layout(&layout, p, &line, 0));
        p->schedule->run[i].layout = layout;
        HD_TRY(hd_schedule_set_method(p->schedule, i, &hd_method_local));
        HD_TRY(hd_schedule_set_edge(p->schedule, i, before, layout, 0));
        before = layout;
    }
    HD_TRY(add_layout(&layout, p, &line, 1));
    HD_TRY(hd_schedule_set_edge(p->schedule, period * repeat, before, layout, 0));
    HD_TRY(hd_schedule_sum(p->schedule));
    p->info.struct_bytes = sizeof p->info;
    HD_TRY(heddle_schedule_get_info(&p->info, p->schedule));
    p->first = p->schedule->layout[p->schedule->edge[0].from];
    p->last = p->schedule->layout[layout];
    random_side(&p->other, &order, &p->source, &line, 1);
    p->backward = (int)random_between(&p->source, 0, 1);
    p->seed = random_bits(&p->source);
out:
    return st;
}

/* What failed, as text that can be read. */
static inline heddle_status say(const problem *p, heddle_status st, int number)
{
    char shape[HEDDLE_LINE_BYTES] = "?", mesh[HEDDLE_LINE_BYTES] = "?", all[1024] = "", text[HEDDLE_LINE_BYTES];
    size_t at = 0;
    if (st == HEDDLE_OK || p->schedule == NULL) {
        return st;
    }
    heddle_ignore(heddle_shape_format(shape, sizeof(shape), &p->info.shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof(mesh), &p->info.mesh));
    for (int i = 0; i < p->info.nedges && at < sizeof(all); i++) {
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        if (heddle_schedule_edge_at(&edge, p->schedule, i) == HEDDLE_OK &&
            heddle_layout_format(text, sizeof(text), &edge.from, &p->info.shape, &p->info.mesh) == HEDDLE_OK) {
            at += (size_t)snprintf(all + at, sizeof(all) - at, "%s -> ", text);
        }
    }
    heddle_ignore(heddle_layout_format(text, sizeof(text), &p->last, &p->info.shape, &p->info.mesh));
    return hd_fail_prefix(st, "draw %d, %s on %s: %s%s", number, shape, mesh, all, text);
}

#endif
