/* The report: one page that loads nothing. */
#include "planner/draw/draw.h"
#include "planner/draw/place.h"
#include "planner/report/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char sheet[] =
    "body{font:14px/1.5 Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif;color:#1f2328;background:#fff;"
    "margin:24px auto;max-width:1200px;padding:0 16px}\n"
    "svg{max-width:100%;height:auto}h2{font-size:17px;margin:30px 0 8px}.wide{overflow-x:auto}\n"
    "table{border-collapse:collapse}th,td{padding:4px 12px;border-bottom:1px solid #d0d7de;text-align:left;"
    "white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\n"
    "th[aria-sort]{cursor:pointer}code{font-size:13px}\n"
    "@media (prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}th,td{border-color:#30363d}}\n";

/* A click on a heading sorts by what data-v says, else by the text. */
static const char script[] =
    "document.querySelectorAll('table').forEach(function(t){t.querySelectorAll('th').forEach(function(h,i){"
    "h.setAttribute('aria-sort','none');h.onclick=function(){var b=t.tBodies[0],up=h.getAttribute('aria-sort')!="
    "'ascending';function v(r){var c=r.cells[i],d=c.getAttribute('data-v');return d===null?c.textContent:+d}\n"
    "t.querySelectorAll('th').forEach(function(o){o.setAttribute('aria-sort','none')});"
    "h.setAttribute('aria-sort',up?'ascending':'descending');"
    "Array.from(b.rows).sort(function(p,q){var x=v(p),y=v(q);return (x<y?-1:x>y?1:0)*(up?1:-1)})"
    ".forEach(function(r){b.appendChild(r)})}})})\n";

static void head(FILE *to, const char *title, const char *const *column)
{
    fprintf(to, "<h2>%s</h2>\n<div class=\"wide\"><table><thead><tr>", title);
    for (; *column != NULL; column++) { /* numbers stand right */
        fprintf(to, **column == '#' ? "<th class=\"n\">%s</th>" : "<th>%s</th>", *column + (**column == '#'));
    }
    fputs("</tr></thead><tbody>\n", to);
}

static void tail(FILE *to)
{
    fputs("</tbody></table></div>\n", to);
}

static void cell(FILE *to, const char *text)
{
    fputs("<td>", to);
    pen_escape(to, text);
    fputs("</td>", to);
}

static void number(FILE *to, double value, const char *text)
{
    fprintf(to, "<td class=\"n\" data-v=\"%.12g\">", value);
    pen_escape(to, text);
    fputs("</td>", to);
}

static void bytes(FILE *to, double value)
{
    char text[16];
    number(to, value, report_si(text, sizeof text, value));
}

static void seconds(FILE *to, double value)
{
    char text[16];
    number(to, value, pen_seconds(text, sizeof text, value));
}

static void count(FILE *to, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    number(to, (double)value, text);
}

static void layout(FILE *to, const draw_plan *plan, const heddle_layout *l)
{
    char text[HEDDLE_LINE_BYTES] = "...";
    heddle_ignore(heddle_layout_format(text, sizeof text, l, &plan->view.info.shape, &plan->view.info.mesh));
    cell(to, text);
}

/* How often the cell's stage runs: turns of its block. */
static int turns(const place *p, const place_cell *c)
{
    return c->block >= 0 ? p->block[c->block].count : 1;
}

static void write_stages(FILE *to, const draw_plan *plan, const place *p)
{
    static const char *const plain[] = {"stage", "#runs", "layout", "method", "#inside, max", "#in all", NULL};
    static const char *const timed[] = {"stage",   "#runs", "layout",   "method", "#inside, max",
                                        "#in all", "#time", "#exposed", "#held",  NULL};
    head(to, "Stages", plan->stage != NULL ? timed : plain);
    for (int i = 0; i < p->ncells; i++) {
        const place_cell *c = &p->cell[i];
        heddle_schedule_stage s = HEDDLE_EMPTY(heddle_schedule_stage);
        if (c->kind != PLACE_STAGE || heddle_schedule_stage_at(&s, plan->view.schedule, c->stage) != HEDDLE_OK) {
            continue;
        }
        fputs("<tr>", to);
        cell(to, s.name);
        count(to, turns(p, c));
        layout(to, plan, &s.layout);
        cell(to, s.method);
        bytes(to, (double)s.forward_bytes_per_rank_max);
        bytes(to, (double)s.forward_bytes_total);
        if (plan->stage != NULL) {
            const draw_cost *cost = &plan->stage[c->stage];
            seconds(to, cost->time_s);
            seconds(to, cost->transfer_s - cost->hidden_s);
            bytes(to, (double)cost->memory_bytes);
        }
        fputs("</tr>\n", to);
    }
    tail(to);
}

static void write_edges(FILE *to, const draw_plan *plan, const place *p)
{
    static const char *const plain[] = {"into",           "kind",    "from",      "to", "#sent, max",
                                        "#received, max", "#in all", "#messages", NULL};
    static const char *const timed[] = {"into",           "kind",    "from",      "to",    "#sent, max",
                                        "#received, max", "#in all", "#messages", "#time", NULL};
    head(to, "Moves between stages", plan->edge != NULL ? timed : plain);
    for (int i = 0; i < p->ncells; i++) {
        const place_cell *c = &p->cell[i];
        heddle_schedule_edge e = HEDDLE_EMPTY(heddle_schedule_edge);
        heddle_schedule_stage s = HEDDLE_EMPTY(heddle_schedule_stage);
        if (!place_is_move(plan, c) || heddle_schedule_edge_at(&e, plan->view.schedule, c->edge) != HEDDLE_OK) {
            continue;
        }
        const int is_out =
            c->kind == PLACE_OUT || heddle_schedule_stage_at(&s, plan->view.schedule, c->stage) != HEDDLE_OK;
        fputs("<tr>", to);
        cell(to, is_out ? "(end)" : s.name);
        cell(to, e.kind);
        layout(to, plan, &e.from);
        layout(to, plan, &e.to);
        bytes(to, (double)e.bytes_per_rank_max);
        bytes(to, (double)e.bytes_received_max);
        bytes(to, (double)e.bytes_total);
        count(to, e.messages);
        if (plan->edge != NULL) {
            seconds(to, plan->edge[c->edge].time_s);
        }
        fputs("</tr>\n", to);
    }
    tail(to);
}

static void write_links(FILE *to, const draw_plan *plan)
{
    static const char *const columns[] = {"link class", "#sent, max", "#received, max", "#in all", NULL};
    if (plan->forecast == NULL) {
        return;
    }
    head(to, "Links, bytes of a pass", columns);
    for (int l = 0; l < plan->cost.nlinks; l++) {
        heddle_forecast_link link = HEDDLE_EMPTY(heddle_forecast_link);
        if (heddle_forecast_link_at(&link, plan->forecast, l) == HEDDLE_OK) {
            fputs("<tr>", to);
            cell(to, link.name);
            bytes(to, (double)link.sent_max);
            bytes(to, (double)link.received_max);
            bytes(to, (double)link.total);
            fputs("</tr>\n", to);
        }
    }
    tail(to);
}

static heddle_status write_memory(FILE *to, const draw_plan *plan)
{
    const int n = plan->view.info.nstages + plan->view.info.nedges;
    draw_series c = {.is_steps = 1,
                     .x_words = "seconds since the pass began",
                     .y_words = "bytes that the fullest rank holds",
                     .ceiling = (double)plan->where.memory_bytes,
                     .ceiling_words = "memory of a rank",
                     .format_x = pen_seconds,
                     .format_y = report_si};
    if (plan->forecast == NULL) {
        return HEDDLE_OK;
    }
    double *x = calloc((size_t)n, sizeof *x), *y = calloc((size_t)n, sizeof *y), now = 0;
    if (x != NULL && y != NULL) {
        for (int i = 0; i < n; i++) {
            const draw_cost *cost = i % 2 == 0 ? &plan->edge[i / 2] : &plan->stage[i / 2];
            x[i] = now;
            y[i] = (double)cost->memory_bytes;
            now += cost->time_s;
        }
        c.x = x;
        c.y = y;
        c.count = n;
        fputs("<h2>Memory</h2>\n", to);
        draw_chart(to, &c);
    }
    free(x);
    free(y);
    return x != NULL && y != NULL ? HEDDLE_OK : heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %d points", n);
}

static void write_alternatives(FILE *to, const draw_plan *plan, const draw_extras *extras)
{
    static const char *const columns[] = {"stage", "otherwise", "#value", "#against the plan", "why", NULL};
    const int is_time =
        plan->view.info.objective != NULL && strstr("time gpu-seconds", plan->view.info.objective) != NULL;
    const double own = draw_value(&plan->view.info);
    if (extras->nalternatives == 0) {
        return;
    }
    head(to, "Why not?", columns);
    for (int i = 0; i < extras->nalternatives; i++) {
        const draw_alternative *a = &extras->alternative[i];
        char text[32] = "";
        fputs("<tr>", to);
        cell(to, a->stage);
        cell(to, a->otherwise);
        if (a->outcome[0] != '\0') {
            fputs("<td></td><td></td>", to);
            cell(to, a->outcome);
        } else {
            (is_time ? seconds : bytes)(to, a->value);
            snprintf(text, sizeof text, "%+.1f %%", own > 0 ? (a->value / own - 1) * 100 : 0.0);
            number(to, a->value - own, a->value == own ? "the same" : text);
            cell(to, a->value > own   ? "the whole plan, best where this is fixed, costs more"
                     : a->value < own ? report_left_out(a->method)
                                      : "as good");
        }
        fputs("</tr>\n", to);
    }
    tail(to);
}

static const char *ranks_text(char *out, size_t out_bytes, double value)
{
    snprintf(out, out_bytes, "%.3g", value);
    return out;
}

static heddle_status write_sweep(FILE *to, const draw_extras *extras)
{
    static const char *const columns[] = {"#ranks", "mesh", "#time", "#GPU seconds", "#memory", "#sent, max", NULL};
    const int n = extras->npoints;
    draw_series c = {.is_log = 1,
                     .x_words = "ranks",
                     .y_words = "seconds of a pass",
                     .format_x = ranks_text,
                     .format_y = pen_seconds,
                     .count = n};
    double *xy = calloc((size_t)n * 2 + 1, sizeof *xy);
    if (xy == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %d points", n);
    }
    for (int i = 0; i < n; i++) {
        xy[i] = extras->point[i].ranks;
        xy[n + i] = extras->point[i].time_s;
    }
    c.x = xy;
    c.y = xy + n;
    if (n > 1) {
        head(to, "Numbers of ranks", columns);
        for (int i = 0; i < n; i++) {
            const draw_sweep_point *point = &extras->point[i];
            fputs("<tr>", to);
            count(to, point->ranks);
            cell(to, point->mesh);
            seconds(to, point->time_s);
            seconds(to, point->time_s * point->ranks);
            bytes(to, point->memory_bytes);
            bytes(to, point->bytes);
            fputs("</tr>\n", to);
        }
        tail(to);
        draw_chart(to, &c);
    }
    free(xy);
    return HEDDLE_OK;
}

heddle_status draw_page(FILE *to, const draw_plan *plan, const draw_extras *extras)
{
    place p;
    heddle_status st = place_make(&p, plan);
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
          "<meta name=\"color-scheme\" content=\"light dark\"/><title>",
          to);
    pen_escape(to, plan->view.info.model);
    fprintf(to, "</title>\n<style>\n%s</style></head><body>\n", sheet);
    st = st == HEDDLE_OK ? draw_picture(to, plan) : st;
    if (plan->view.info.note != NULL) {
        fputs("<p>", to);
        pen_escape(to, plan->view.info.note);
        fputs("</p>\n", to);
    }
    if (st == HEDDLE_OK) {
        write_stages(to, plan, &p);
        write_edges(to, plan, &p);
        write_links(to, plan);
        st = write_memory(to, plan);
    }
    write_alternatives(to, plan, extras);
    st = st == HEDDLE_OK ? write_sweep(to, extras) : st;
    fprintf(to, "<script>%s</script></body></html>\n", script);
    place_free(&p);
    return st;
}
