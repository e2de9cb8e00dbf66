/* A schedule as a picture. */
#include "picture.h"

#include "pen.h"
#include "planner/report/text.h"

#include <string.h>

/* --- above the lanes ---------------------------------------------------------------------------------------------- */

static const char *layout_text(char *out, size_t out_bytes, const draw_plan *plan, const heddle_layout *layout)
{
    if (heddle_layout_format(out, out_bytes, layout, &plan->view.info.shape, &plan->view.info.mesh) != HEDDLE_OK) {
        snprintf(out, out_bytes, "...");
    }
    return out;
}

static void draw_stage_head(FILE *to, const draw_plan *plan, const place_cell *c, double y)
{
    char name[128], text[96], bytes[16];
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    const double mid = c->x + c->width / 2;
    if (heddle_schedule_stage_at(&stage, plan->view.schedule, c->stage) != HEDDLE_OK) {
        return;
    }
    fputs("<g><title>", to);
    pen_print(to, "%s: %s, %s", stage.name, layout_text(text, sizeof text, plan, &stage.layout), stage.method);
    fputs("</title>\n", to);
    pen_label(to, mid, y + 26, "name mid", "%s", pen_fit(name, sizeof name, stage.name, 13, c->width - 8));
    place_work(text, sizeof text, plan, &stage);
    pen_label(to, mid, y + 43, "note soft mid", "%s", pen_fit(name, sizeof name, text, 11, c->width - 4));
    if (strcmp(stage.method, "local") != 0) {
        snprintf(text, sizeof text, "%s %s", stage.method,
                 report_si(bytes, sizeof bytes, (double)stage.forward_bytes_per_rank_max));
        const double width = pen_width(text, 11) + 12;
        fprintf(to, "<rect x=\"%.5g\" y=\"%.5g\" width=\"%.5g\" height=\"19\" rx=\"9.5\" class=\"pill\"/>\n",
                mid - width / 2, y + 52, width);
        pen_label(to, mid, y + 65.5, "note mid", "%s", text);
    } else if (stage.mixed_dim >= 0) {
        pen_label(to, mid, y + 65.5, "note soft mid", "local");
    }
    fputs("</g>\n", to);
}

/* Bytes and seconds of a move, and its arrow. */
static void draw_move(FILE *to, const draw_plan *plan, const place_cell *c, double y)
{
    char from[PEN_TEXT_BYTES], text[PEN_TEXT_BYTES], seconds[16];
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    const double mid = (c->gap_x + c->x) / 2;
    if (!place_is_move(plan, c) || c->x - c->gap_x < PLACE_GAP - 1 ||
        heddle_schedule_edge_at(&edge, plan->view.schedule, c->edge) != HEDDLE_OK) {
        return;
    }
    fputs("<g><title>", to);
    pen_print(to, "%s from %s to %s, %lld bytes in all", edge.kind, layout_text(from, sizeof from, plan, &edge.from),
              layout_text(text, sizeof text, plan, &edge.to), (long long)edge.bytes_total);
    fputs("</title>\n", to);
    if (edge.bytes_total > 0) {
        pen_label(to, mid, y + 26, "bytes mid", "%s", report_si(text, sizeof text, (double)edge.bytes_per_rank_max));
        pen_label(to, mid, y + 43, "note soft mid", "%s",
                  plan->edge != NULL ? pen_seconds(seconds, sizeof seconds, plan->edge[c->edge].time_s) : edge.kind);
    } else {
        pen_label(to, mid, y + 43, "note soft mid", "%s", edge.kind);
    }
    fprintf(to, "<path class=\"arrow\" d=\"M%.5g %.5gH%.5g\"/><path class=\"tip\" d=\"M%.5g %.5gl-10 -5v10z\"/></g>\n",
            mid - 30, y + 61, mid + 24, mid + 32, y + 61);
}

void picture_heads(FILE *to, const draw_plan *plan, const place *p)
{
    for (int i = 0; i < p->ncells; i++) {
        const place_cell *c = &p->cell[i];
        const double y = place_row_y(p, c->row);
        draw_move(to, plan, c, y);
        if (c->kind == PLACE_STAGE) {
            draw_stage_head(to, plan, c, y);
        } else if (c->kind != PLACE_AGAIN) {
            pen_label(to, c->x + c->width / 2, y + 26, "note soft mid", c->kind == PLACE_IN ? "in" : "out");
        }
    }
}

/* --- below them --------------------------------------------------------------------------------------------------- */

enum { BAR_MOST = 38 };

static double longest_of(const draw_plan *plan, const place *p)
{
    double longest = 0;
    for (int i = 0; i < p->ncells; i++) {
        const place_cell *c = &p->cell[i];
        const double stage = c->kind == PLACE_STAGE ? plan->stage[c->stage].time_s : 0;
        const double edge = c->edge >= 0 ? plan->edge[c->edge].time_s : 0;
        longest = stage > longest ? stage : longest;
        longest = edge > longest ? edge : longest;
    }
    return longest;
}

/* Exchanges that nothing hides stand on the work. */
static void draw_bar(FILE *to, double mid, double ground, double work, double moves)
{
    if (work > 0) {
        pen_rect(to, mid - 14, ground - work, 28, work, "work");
    }
    if (moves > 0) {
        const double height = moves < 1.5 ? 1.5 : moves;
        pen_rect(to, mid - 14, ground - work - height, 28, height, "moves");
    }
}

void picture_times(FILE *to, const draw_plan *plan, const place *p)
{
    char text[16];
    if (plan->stage == NULL) {
        return;
    }
    const double longest = longest_of(plan, p), scale = longest > 0 ? BAR_MOST / longest : 0;
    for (int i = 0; i < p->ncells; i++) {
        const place_cell *c = &p->cell[i];
        const double ground = place_lane_y(p, c->row, plan->view.info.mesh.naxes) + BAR_MOST + 6;
        if (c->edge >= 0 && place_is_move(plan, c) && c->x - c->gap_x > 30 && plan->edge[c->edge].time_s > 0) {
            draw_bar(to, (c->gap_x + c->x) / 2, ground, 0, plan->edge[c->edge].time_s * scale);
        }
        if (c->kind != PLACE_STAGE) {
            continue;
        }
        const draw_cost *cost = &plan->stage[c->stage];
        const double mid = c->x + c->width / 2, moves = cost->transfer_s - cost->hidden_s;
        draw_bar(to, mid, ground, (cost->time_s - moves) * scale, moves * scale);
        pen_label(to, mid, ground + 15, "note soft mid", "%s", pen_seconds(text, sizeof text, cost->time_s));
    }
}

/* --- around them -------------------------------------------------------------------------------------------------- */

/* From the last cell under the block back to the first one. */
static void draw_loop(FILE *to, const place *p, const place_block *b, double middle)
{
    const place_cell *first = &p->cell[b->cell], *last = &p->cell[b->cell + b->ncells - 1];
    const double y = place_row_y(p, b->last_row) + p->row_height - 14, left = b->left + 7;
    const double right = last->x + last->width + PLACE_PAD - 7, y0 = place_row_y(p, b->last_row) + middle;
    const double y1 = place_row_y(p, b->row) + middle;
    char text[48];
    fprintf(to,
            "<path class=\"loop\" d=\"M%.5g %.5gH%.5gQ%.5g %.5g %.5g %.5gV%.5gQ%.5g %.5g %.5g %.5gH%.5gQ%.5g %.5g %.5g "
            "%.5gV%.5gQ%.5g %.5g %.5g %.5gH%.5g\"/>\n",
            last->x + last->width, y0, right - 8, right, y0, right, y0 + 8, y - 8, right, y, right - 8, y, left + 8,
            left, y, left, y - 8, y1 + 8, left, y1, left + 8, y1, first->x - 6);
    fprintf(to, "<path class=\"looptip\" d=\"M%.5g %.5gl-9 -4.5v9z\"/>\n", first->x - 1, y1);
    snprintf(text, sizeof text, "\xc3\x97 %d", b->count);
    const double width = pen_width(text, 16) + 16, mid = (left + right) / 2;
    pen_rect(to, mid - width / 2, y - 10, width, 20, "panel");
    pen_label(to, mid, y + 6, "big mid", "%s", text);
}

static void draw_blocks(FILE *to, const draw_plan *plan, const place *p)
{
    const double middle = PLACE_HEAD + (plan->view.info.mesh.naxes * PLACE_LANE_STEP - 8) / 2.0;
    for (int i = 0; i < p->nblocks; i++) {
        const place_block *b = &p->block[i];
        const double y = place_row_y(p, b->row), end = place_row_y(p, b->last_row) + p->row_height;
        fprintf(to, "<rect x=\"%.5g\" y=\"%.5g\" width=\"%.5g\" height=\"%.5g\" rx=\"10\" class=\"panel\"/>\n", b->left,
                y, b->right - b->left, end - y);
        if (b->count > 1) {
            draw_loop(to, p, b, middle);
        } else if (plan->view.info.repeat > 1) {
            pen_label(to, (b->left + b->right) / 2, end - 9, "note soft mid", "repetition %d", b->first + 1);
        }
    }
}

/* The axes at the beginning of every row, and where one stage ends and the next begins. */
static void draw_axes(FILE *to, const draw_plan *plan, const place *p)
{
    const heddle_mesh *mesh = &plan->view.info.mesh;
    for (int row = 0; row < p->nrows; row++) {
        for (int a = 0; a < mesh->naxes; a++) {
            char name[32];
            const double y = place_lane_y(p, row, a) + PLACE_LANE / 2.0;
            pen_label(to, PLACE_MARGIN, y - 1, "name", "%s",
                      pen_fit(name, sizeof name, mesh->axis[a].name, 13, PLACE_GUTTER - 6));
            pen_label(to, PLACE_MARGIN, y + 13, "note soft", "%d rank%s", mesh->axis[a].size,
                      report_s(mesh->axis[a].size));
        }
    }
    fputs("<path class=\"cut\" stroke-opacity=\".7\" d=\"", to);
    for (int i = 1; i < p->ncells; i++) {
        const place_cell *c = &p->cell[i];
        for (int a = 0; a < mesh->naxes && c->gap_x > c->x - 1 && c[-1].row == c->row; a++) {
            fprintf(to, "M%.5g %.5gv%d", c->x, place_lane_y(p, c->row, a), PLACE_LANE);
        }
    }
    fputs("M0 0\"/>\n", to);
}

static void draw_title(FILE *to, const draw_plan *plan, const place *p)
{
    char shape[HEDDLE_LINE_BYTES] = "", mesh[256] = "", text[PEN_TEXT_BYTES], cut[PEN_TEXT_BYTES], a[16], b[16], c[16];
    const heddle_schedule_info *info = &plan->view.info;
    const double room = p->width - 2 * PLACE_MARGIN;
    heddle_ignore(heddle_shape_format(shape, sizeof shape, &info->shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &info->mesh));
    pen_label(to, PLACE_MARGIN, 40, "title", "%s", pen_fit(cut, sizeof cut, info->model, 21, room));
    snprintf(text, sizeof text, "%s on %s%s%s", shape, mesh, plan->cost.machine != NULL ? ", " : "",
             plan->cost.machine != NULL ? plan->cost.machine : "");
    pen_label(to, PLACE_MARGIN, 62, "soft", "%s", pen_fit(cut, sizeof cut, text, 12, room));
    snprintf(text, sizeof text, "%d stage%s, %d switch%s; the busiest rank sends %s", info->nstages,
             report_s(info->nstages), info->switches, info->switches == 1 ? "" : "es",
             report_si(a, sizeof a, (double)info->bytes_per_rank_max));
    pen_label(to, PLACE_MARGIN, 82, "soft", "%s", pen_fit(cut, sizeof cut, text, 12, room));
    if (plan->forecast != NULL) {
        snprintf(text, sizeof text, "a pass takes %s, %s of it exchanges that nothing hides; a rank holds %s",
                 pen_seconds(a, sizeof a, plan->cost.time_s),
                 pen_seconds(b, sizeof b, plan->cost.transfer_s - plan->cost.hidden_s),
                 report_si(c, sizeof c, (double)plan->cost.memory.total));
    } else {
        snprintf(text, sizeof text, "a pass takes %s", pen_seconds(a, sizeof a, plan->cost.time_s));
    }
    if (plan->stage != NULL) {
        pen_label(to, PLACE_MARGIN, 102, "soft", "%s", pen_fit(cut, sizeof cut, text, 12, room));
    }
}

/* --- legend ------------------------------------------------------------------------------------------------------- */

/* Bit d: dim d is sharded somewhere; behind the dims: replicated, partial sums. */
static unsigned lanes_used(const draw_plan *plan, const place *p)
{
    unsigned used = 0;
    for (int i = 0; i < p->ncells; i++) {
        for (int a = 0; a < plan->view.info.mesh.naxes; a++) {
            const int dim = p->cell[i].layout.dim_of_axis[a];
            used |= 1U << (dim >= 0 ? dim : HEDDLE_MAX_DIMS - 1 - dim);
        }
    }
    return used;
}

static double legend_entry(FILE *to, double x, double y, const char *style, const char *words)
{
    pen_rect(to, x, y - 11, 16, 14, style);
    pen_label(to, x + 22, y, "note", "%s", words);
    return x + 22 + pen_width(words, 11) + 14;
}

static void draw_legend(FILE *to, const draw_plan *plan, const place *p, double y)
{
    const unsigned used = lanes_used(plan, p);
    char words[64], style[24];
    double x = PLACE_MARGIN;
    for (int d = 0; d < plan->view.info.shape.ndim; d++) {
        if ((used >> d & 1) != 0) {
            snprintf(words, sizeof words, "%s is sharded", plan->view.info.shape.dim[d].name);
            x = legend_entry(to, x, y, pen_lane(style, sizeof style, d), words);
        }
    }
    if ((used >> HEDDLE_MAX_DIMS & 1) != 0) {
        x = legend_entry(to, x, y, "whole", "replicated");
    }
    if ((used >> (HEDDLE_MAX_DIMS + 1) & 1) != 0) {
        x = legend_entry(to, x, y, "sums", "partial sums");
    }
    if (plan->stage != NULL) {
        x = legend_entry(to, x, y, "work", "work");
        legend_entry(to, x, y, "moves", "exchange that nothing hides");
    }
    if (p->left_out > 0) {
        snprintf(words, sizeof words, "; %d more repetitions are not drawn", p->left_out);
    } else {
        words[0] = '\0';
    }
    pen_label(to, PLACE_MARGIN, y + 20, "note soft",
              "bytes: sent by the busiest rank in one stage or move; \xc3\x97: repetitions%s", words);
}

heddle_status draw_picture(FILE *to, const draw_plan *plan)
{
    place p;
    const heddle_status st = place_make(&p, plan);
    if (st == HEDDLE_OK) {
        const double height = p.height + 48;
        fprintf(to,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.5g %.5g\" width=\"%.5g\" height=\"%.5g\" "
                "role=\"img\">\n<title>",
                p.width, height, p.width, height);
        pen_print(to, "Schedule of %s", plan->view.info.model);
        fputs("</title>\n<style>\n", to);
        pen_style(to);
        fputs(".whole{fill:url(#whole)}.sums{fill:url(#sums)}\n</style>\n", to);
        picture_patterns(to, plan, &p);
        pen_rect(to, 0, 0, p.width, height, "paper");
        draw_title(to, plan, &p);
        draw_blocks(to, plan, &p);
        for (int a = 0; a < plan->view.info.mesh.naxes; a++) {
            picture_lane(to, plan, &p, a);
        }
        draw_axes(to, plan, &p);
        picture_heads(to, plan, &p);
        picture_times(to, plan, &p);
        draw_legend(to, plan, &p, p.height + 16);
        fputs("</svg>\n", to);
    }
    place_free(&p);
    return st;
}
