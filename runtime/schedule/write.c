/* Schedule -> JSON, one stage or edge per line. */
#include "runtime/schedule/schedule_internal.h"

#include "runtime/base/base.h"
#include "runtime/files/output.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static void put_layout(FILE *f, const heddle_schedule *s, int layout)
{
    char text[HEDDLE_LINE_BYTES] = "";
    heddle_ignore(heddle_layout_format(text, sizeof text, &s->layout[layout], &s->shape, &s->mesh));
    hd_put_quoted(f, text);
}

static void put_cost(FILE *f, const char *direction, const hd_edge_cost *cost)
{
    fprintf(f, ", \"%s_bytes_per_rank_max\": %" PRId64 ", \"%s_bytes_total\": %" PRId64 ", \"%s_messages\": %" PRId64,
            direction, cost->bytes_per_rank_max, direction, cost->bytes_total, direction, cost->messages);
}

/* All dims that a stage mixes, where they are several. */
static void put_dims(FILE *f, const heddle_shape *shape, unsigned dims)
{
    const char *comma = "";
    if ((dims & (dims - 1)) == 0) {
        return;
    }
    fprintf(f, ", \"mixes\": [");
    for (int d = 0; d < shape->ndim; d++) {
        if ((dims >> d & 1) != 0) {
            fprintf(f, "%s\"%s\"", comma, shape->dim[d].name);
            comma = ", ";
        }
    }
    fputc(']', f);
}

/* Tokens each way, of every dim that is mixed. */
static void put_window(FILE *f, const hd_method_stage *stage)
{
    const char *comma = "";
    int64_t any = 0;
    for (int d = 0; d < HEDDLE_MAX_DIMS; d++) {
        any |= stage->window[d];
    }
    if (any == 0) {
        return;
    }
    fprintf(f, ", \"window\": [");
    for (int d = 0; d < HEDDLE_MAX_DIMS; d++) {
        if (d == stage->dim || (stage->dims >> d & 1) != 0) {
            fprintf(f, "%s%" PRId64, comma, stage->window[d]);
            comma = ", ";
        }
    }
    fputc(']', f);
}

/* What the bytes of a method follow from, and the bytes. */
static void put_method(FILE *f, const heddle_shape *shape, const hd_method_stage *stage, const hd_method_cost *cost)
{
    fprintf(f, ", \"heads\": %" PRId64, stage->heads);
    put_dims(f, shape, stage->dims);
    if (stage->kv_heads != 0 && stage->kv_heads != stage->heads) {
        fprintf(f, ", \"kv_heads\": %" PRId64, stage->kv_heads);
    }
    if (stage->joined_rows > 0) {
        fprintf(f, ", \"joined_rows\": %" PRId64, stage->joined_rows);
    }
    put_window(f, stage);
    if (stage->kind == HEDDLE_STAGE_LINEAR || stage->causal) {
        fprintf(f, ", \"causal\": %s", stage->causal ? "true" : "false");
    }
    if (stage->kind == HEDDLE_STAGE_LINEAR) {
        fprintf(f, ", \"decays\": %s", stage->decays ? "true" : "false");
    }
    put_cost(f, "forward", &cost->forward);
    put_cost(f, "backward", &cost->backward);
}

/* As many digits as read back the same; nothing where nothing was predicted. */
static void put_number(FILE *f, const char *name, double value)
{
    if (value > 0) {
        fprintf(f, ", \"%s\": %.17g", name, value);
    }
}

static void put_stages(FILE *f, const heddle_schedule *s)
{
    int nstages = s->period * s->repeat;
    fprintf(f, "  \"stages\": [\n");
    for (int i = 0; i < nstages; i++) {
        const hd_schedule_stage *stage = &s->stage[i % s->period];
        fprintf(f, "    {\"name\": ");
        hd_put_quoted(f, stage->name);
        fprintf(f, ", \"repetition\": %d, \"kind\": \"%s\", \"over\": ", i / s->period,
                hd_stage_kind_names[stage->mixes.kind]);
        if (stage->mixes.dim >= 0) {
            hd_put_quoted(f, s->shape.dim[stage->mixes.dim].name);
        } else {
            fprintf(f, "null");
        }
        fprintf(f, ", \"method\": \"%s\", \"layout\": ", s->run[i].method->name);
        put_layout(f, s, s->run[i].layout);
        if (s->run[i].method != &hd_method_local) {
            put_method(f, &s->shape, &stage->mixes, &s->run[i].cost);
        }
        put_number(f, "predicted_s", s->run[i].predicted_s);
        fprintf(f, "}%s\n", i + 1 < nstages ? "," : "");
    }
    fprintf(f, "  ],\n");
}

static void put_edges(FILE *f, const heddle_schedule *s)
{
    int nedges = s->period * s->repeat + 1;
    fprintf(f, "  \"edges\": [\n");
    for (int i = 0; i < nedges; i++) {
        const hd_schedule_edge *e = &s->edge[i];
        fprintf(f, "    {\"from\": ");
        put_layout(f, s, e->from);
        fprintf(f, ", \"to\": ");
        put_layout(f, s, e->to);
        fprintf(f,
                ", \"kind\": \"%s\", \"bytes_per_rank_max\": %" PRId64 ", \"bytes_received_max\": %" PRId64
                ", \"bytes_total\": %" PRId64 ", \"messages\": %" PRId64,
                hd_edge_kind_names[e->kind], e->cost.bytes_per_rank_max, e->cost.bytes_received_max,
                e->cost.bytes_total, e->cost.messages);
        put_number(f, "predicted_s", e->predicted_s);
        fprintf(f, "}%s\n", i + 1 < nedges ? "," : "");
    }
    fprintf(f, "  ],\n");
}

/* What the planner said of it, where it did. */
static void put_plan(FILE *f, const heddle_schedule *s)
{
    if (s->objective == NULL) {
        return;
    }
    fprintf(f, "  \"objective\": ");
    hd_put_quoted(f, s->objective);
    if (s->machine != NULL) {
        fprintf(f, ", \"machine\": ");
        hd_put_quoted(f, s->machine);
    }
    put_number(f, "value", s->value);
    put_number(f, "lower_bound", s->lower_bound);
    put_number(f, "runner_up", s->runner_up);
    put_number(f, "predicted_s", s->predicted_s);
    fprintf(f, ",\n");
}

static void put_schedule(FILE *f, const heddle_schedule *s)
{
    char shape[HEDDLE_LINE_BYTES] = "";
    char mesh[HEDDLE_LINE_BYTES] = "";
    heddle_ignore(heddle_shape_format(shape, sizeof shape, &s->shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &s->mesh));
    fprintf(f, "{\n  \"schema\": \"" HD_SCHEDULE_SCHEMA "\",\n  \"model\": ");
    hd_put_quoted(f, s->model);
    fprintf(f, ",\n  \"shape\": ");
    hd_put_quoted(f, shape);
    fprintf(f, ",\n  \"mesh\": ");
    hd_put_quoted(f, mesh);
    fprintf(f, ",\n  \"period\": %d,\n  \"repeat\": %d,\n", s->period, s->repeat);
    put_stages(f, s);
    put_edges(f, s);
    put_plan(f, s);
    fprintf(f, "  \"switches\": %d,\n  \"bytes_per_rank_max\": %" PRId64 ",\n  \"bytes_total\": %" PRId64 ",\n",
            s->switches, s->bytes_per_rank_max, s->bytes_total);
    fprintf(f,
            "  \"backward_bytes_per_rank_max\": %" PRId64 ",\n  \"backward_bytes_total\": %" PRId64 ",\n  \"note\": ",
            s->backward_bytes_per_rank_max, s->backward_bytes_total);
    hd_put_quoted(f, s->note != NULL ? s->note : "");
    fprintf(f, "\n}\n");
}

static heddle_status save(const heddle_schedule *schedule, const char *path)
{
    file_output out;
    if (file_output_open(&out, path) != HEDDLE_OK) {
        return hd_fail(HEDDLE_ERR_IO, "%s", heddle_last_error());
    }
    put_schedule(out.file, schedule);
    return file_output_close(&out, HEDDLE_OK);
}

heddle_status heddle_schedule_save(const heddle_schedule *schedule, const char *path)
{
    heddle_status st;
    HD_TRY(HD_NEED(schedule, path));
    if (path[0] == '\0') {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_schedule_save: path is empty");
    }
    if (strcmp(path, "-") != 0) {
        return save(schedule, path);
    }
    put_schedule(stdout, schedule);
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        st = hd_fail(HEDDLE_ERR_IO, "standard output cannot be written: %s", strerror(errno));
    }
out:
    return st;
}
