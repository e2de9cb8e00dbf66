/* What every mesh axis shards, as bands of threads: a thread is a rank's part. Where ranks exchange parts each thread
 * is cut in as many pieces as there are ranks, and piece j of thread i becomes piece i of thread j. */
#include "pen.h"
#include "picture.h"

enum { THREADS_MOST = 4 };

static int threads_of(const draw_plan *plan, int axis)
{
    const int size = plan->view.info.mesh.axis[axis].size;
    return size < THREADS_MOST ? size : THREADS_MOST;
}

/* What the edge into a cell comes from. */
static heddle_layout before(const draw_plan *plan, const place *p, int i)
{
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    if (p->cell[i].edge >= 0 && heddle_schedule_edge_at(&edge, plan->view.schedule, p->cell[i].edge) == HEDDLE_OK) {
        return edge.from;
    }
    return p->cell[i].layout;
}

/* From x to right; what it shards is as in the cell. */
typedef struct band {
    double x, right;
    int row, dim, cell, last;
} band;

static void draw_words(FILE *to, const draw_plan *plan, const place *p, const band *b, double y)
{
    const heddle_shape *shape = &plan->view.info.shape;
    char words[96] = "whole on every rank", style[32] = "bytes mid";
    const char *brief = "whole";
    heddle_box box;
    if (b->dim == HEDDLE_PARTIAL) {
        brief = "sums";
        snprintf(words, sizeof words, "partial sums");
    } else if (b->dim >= 0) {
        brief = shape->dim[b->dim].name;
        snprintf(words, sizeof words, "%s", brief);
        if (heddle_layout_box(&box, shape, &plan->view.info.mesh, &p->cell[b->cell].layout, 0) == HEDDLE_OK) {
            snprintf(words, sizeof words, "%s: %lld of %lld", brief, (long long)box.len[b->dim],
                     (long long)shape->dim[b->dim].extent);
        }
        snprintf(style, sizeof style, "bytes mid on%d", b->dim);
    }
    /* Within one cell, so that no line between two stages crosses the words. */
    const place_cell *middle = &p->cell[(b->cell + b->last) / 2];
    for (int i = b->cell; i <= b->last; i++) {
        middle = middle->width < p->cell[i].width - 20 ? &p->cell[i] : middle;
    }
    const double room = middle->width - 8, x = middle->x + middle->width / 2;
    const char *fits = pen_width(words, 12) < room ? words : pen_width(brief, 12) < room ? brief : "";
    if (fits[0] != '\0') {
        pen_label(to, x, y + PLACE_LANE / 2.0 + 4.3, style, "%s", fits);
    }
}

static void draw_band(FILE *to, const draw_plan *plan, const place *p, int axis, const band *b)
{
    char style[24];
    const double y = place_lane_y(p, b->row, axis);
    const int n = threads_of(plan, axis);
    pen_rect(to, b->x, y, b->right - b->x, PLACE_LANE, pen_lane(style, sizeof style, b->dim));
    if (n > 1 && b->dim >= 0) {
        fprintf(to, "<path class=\"thread\" d=\"");
        for (int i = 1; i < n; i++) {
            fprintf(to, "M%.5g %.5gH%.5g", b->x, y + PLACE_LANE * (double)i / n, b->right);
        }
        fprintf(to, "\"/>\n");
    }
    draw_words(to, plan, p, b, y);
}

/* The threads from gap_x to x; with `crosses` those of a change between ranks. */
static void draw_threads(FILE *to, const draw_plan *plan, const place *p, int cell, int axis, int crosses)
{
    const place_cell *c = &p->cell[cell];
    const int n = threads_of(plan, axis);
    const double width = c->x - c->gap_x, slot = (double)PLACE_LANE / (n * n);
    fprintf(to,
            "<g transform=\"translate(%.5g %.5g)\"><path fill=\"none\" stroke=\"url(#g%d-%d)\" "
            "stroke-width=\"%.3g\" d=\"",
            c->gap_x, place_lane_y(p, c->row, axis), cell, axis, crosses ? slot * 0.86 : slot);
    for (int i = 0; i < n * n; i++) {
        const int to_slot = crosses ? i % n * n + i / n : i;
        const double y0 = (i + 0.5) * slot, y1 = (to_slot + 0.5) * slot;
        fprintf(to, "M0 %.4gC%.4g %.4g %.4g %.4g %.4g %.4g", y0, width * 0.5, y0, width * 0.5, y1, width, y1);
    }
    fprintf(to, "\"/></g>\n");
}

/* The threads into cell i, which shards something else than the cell before it. */
static void draw_change(FILE *to, const draw_plan *plan, const place *p, int axis, int i)
{
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    const place_cell *c = &p->cell[i];
    if (c->edge >= 0 && c->x - c->gap_x > 1 &&
        heddle_schedule_edge_at(&edge, plan->view.schedule, c->edge) == HEDDLE_OK) {
        draw_threads(to, plan, p, i, axis, edge.bytes_total > 0);
    }
}

void picture_lane(FILE *to, const draw_plan *plan, const place *p, int axis)
{
    band b = {.cell = -1};
    for (int i = 0; i < p->ncells; i++) {
        const place_cell *c = &p->cell[i];
        const heddle_layout origin = before(plan, p, i);
        const int from = origin.dim_of_axis[axis], goal = c->layout.dim_of_axis[axis];
        const int goes_on =
            b.cell >= 0 && b.row == c->row && b.dim == from && from == goal && c[-1].kind != PLACE_AGAIN;
        if (!goes_on) {
            if (b.cell >= 0) {
                draw_band(to, plan, p, axis, &b);
            }
            b = (band){.x = from == goal ? c->gap_x : c->x, .row = c->row, .dim = goal, .cell = i, .last = i};
            if (from != goal) {
                draw_change(to, plan, p, axis, i);
            }
        }
        b.right = c->x + c->width;
        b.last = c->kind == PLACE_AGAIN ? b.last : i;
    }
    if (b.cell >= 0) {
        draw_band(to, plan, p, axis, &b);
    }
}

/* Behind threads that change what they shard: over the width of their gap, in the coordinates of draw_threads. */
static void draw_gradients(FILE *to, const draw_plan *plan, const place *p, int i)
{
    const place_cell *c = &p->cell[i];
    const heddle_layout origin = before(plan, p, i);
    for (int axis = 0; axis < plan->view.info.mesh.naxes; axis++) {
        const int from = origin.dim_of_axis[axis], goal = c->layout.dim_of_axis[axis];
        if (from != goal && c->x - c->gap_x > 1) {
            fprintf(to,
                    "<linearGradient id=\"g%d-%d\" gradientUnits=\"userSpaceOnUse\" x1=\"0\" y1=\"0\" x2=\"%.5g\" "
                    "y2=\"0\"><stop offset=\".2\" stop-color=\"%s\"/><stop offset=\".8\" stop-color=\"%s\"/>"
                    "</linearGradient>\n",
                    i, axis, c->x - c->gap_x, pen_colour(from), pen_colour(goal));
        }
    }
}

void picture_patterns(FILE *to, const draw_plan *plan, const place *p)
{
    fputs("<defs>\n"
          "<pattern id=\"whole\" width=\"9\" height=\"9\" patternUnits=\"userSpaceOnUse\" "
          "patternTransform=\"rotate(45)\"><rect width=\"9\" height=\"9\" class=\"ground\"/>"
          "<rect width=\"3\" height=\"9\" fill=\"#9aa5b1\" fill-opacity=\".55\"/></pattern>\n"
          "<pattern id=\"sums\" width=\"9\" height=\"9\" patternUnits=\"userSpaceOnUse\">"
          "<rect width=\"9\" height=\"9\" class=\"ground\"/><circle cx=\"4.5\" cy=\"4.5\" r=\"1.8\" "
          "fill=\"#9aa5b1\"/></pattern>\n",
          to);
    for (int i = 0; i < p->ncells; i++) {
        draw_gradients(to, plan, p, i);
    }
    fputs("</defs>\n", to);
}
