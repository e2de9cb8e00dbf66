#include "place.h"

#include "pen.h"
#include "planner/report/text.h"

#include <stdlib.h>
#include <string.h>

const char *place_work(char *out, size_t out_bytes, const draw_plan *plan, const heddle_schedule_stage *stage)
{
    static const char *const words[] = {[HEDDLE_STAGE_ATTENTION] = "attends",
                                        [HEDDLE_STAGE_CROSS] = "reads the text",
                                        [HEDDLE_STAGE_MLP] = "row by row",
                                        [HEDDLE_STAGE_LINEAR] = "linear",
                                        [HEDDLE_STAGE_MODULE] = "module"};
    const int is_known = (size_t)stage->kind < sizeof words / sizeof words[0] && words[stage->kind] != NULL;
    snprintf(out, out_bytes, "%s", is_known ? words[stage->kind] : "");
    if (stage->mixed_dim >= 0 && stage->mixed_dim < plan->view.info.shape.ndim) {
        const size_t n = strlen(out);
        snprintf(out + n, out_bytes - n, " over %s", plan->view.info.shape.dim[stage->mixed_dim].name);
    }
    return out;
}

static double stage_width(const draw_plan *plan, int index)
{
    char text[64], bytes[16];
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    double width = 0;
    if (heddle_schedule_stage_at(&stage, plan->view.schedule, index) != HEDDLE_OK) {
        return 102;
    }
    width = pen_width(stage.name, 13) + 16;
    double other = pen_width(place_work(text, sizeof text, plan, &stage), 11) + 12;
    width = other > width ? other : width;
    snprintf(text, sizeof text, "%s %s", stage.method,
             report_si(bytes, sizeof bytes, (double)stage.forward_bytes_per_rank_max));
    other = pen_width(text, 11) + 26;
    width = strcmp(stage.method, "local") != 0 && other > width ? other : width;
    const double least = plan->view.info.period <= 3 ? 170 : 102; /* few stages have room */
    return width < least ? least : width > 200 ? 200 : width;
}

int place_is_move(const draw_plan *plan, const place_cell *cell)
{
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    return cell->edge >= 0 && heddle_schedule_edge_at(&edge, plan->view.schedule, cell->edge) == HEDDLE_OK &&
           strcmp(edge.kind, "keep") != 0 && strcmp(edge.kind, "free") != 0;
}

/* --- repetitions into blocks -------------------------------------------------------------------------------------- */

static place_cell *add_cell(place *p, place_kind kind, int stage, int edge)
{
    place_cell *c = &p->cell[p->ncells++];
    memset(c, 0, sizeof *c);
    c->kind = kind;
    c->stage = stage;
    c->edge = edge;
    c->block = p->nblocks;
    return c;
}

/* The stub of an end that is no free choice and changes something. */
static void add_end(place *p, const draw_plan *plan, int is_out)
{
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    const int index = is_out ? plan->view.info.nedges - 1 : 0;
    if (heddle_schedule_edge_at(&edge, plan->view.schedule, index) != HEDDLE_OK || strcmp(edge.kind, "free") == 0 ||
        strcmp(edge.kind, "keep") == 0) {
        return;
    }
    place_cell *c = add_cell(p, is_out ? PLACE_OUT : PLACE_IN, -1, is_out ? index : -1);
    c->layout = is_out ? edge.to : edge.from;
    c->width = 46;
    c->block = -1;
}

static void add_block(place *p, const draw_plan *plan, int first, int cycle, int count)
{
    const int period = plan->view.info.period;
    place_block *b = &p->block[p->nblocks];
    *b = (place_block){.first = first, .cycle = cycle, .count = count, .cell = p->ncells};
    for (int i = first * period; i < (first + cycle) * period; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        place_cell *c = add_cell(p, PLACE_STAGE, i, i);
        if (heddle_schedule_stage_at(&stage, plan->view.schedule, i) == HEDDLE_OK) {
            c->layout = stage.layout;
        }
        c->width = stage_width(plan, i);
        c->gap = place_is_move(plan, c) && (i > 0 || p->ncells > 1) ? PLACE_GAP : 0;
    }
    if (count > 1) {
        place_cell *c = add_cell(p, PLACE_AGAIN, first * period, (first + cycle) * period);
        c->layout = p->cell[b->cell].layout;
        c->width = 10;
        c->gap = place_is_move(plan, c) ? PLACE_GAP : 0;
    }
    b->ncells = p->ncells - b->cell;
    p->nblocks++;
}

static heddle_status fold(place *p, const draw_plan *plan)
{
    const schedule_view *v = &plan->view;
    const size_t cells = (size_t)v->info.nstages + (size_t)v->info.repeat + 2;
    p->cell = calloc(cells, sizeof *p->cell);
    p->block = calloc((size_t)v->info.repeat, sizeof *p->block);
    if (p->cell == NULL || p->block == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory to draw %d stages", v->info.nstages);
    }
    add_end(p, plan, 0);
    for (int r = 0; r < v->info.repeat;) {
        int cycle = 1, count = 1;
        report_find_cycle(&cycle, &count, v, r);
        if (p->ncells > 0 && p->ncells + cycle * v->info.period > PLACE_CELLS) {
            p->left_out = v->info.repeat - r;
            return HEDDLE_OK;
        }
        add_block(p, plan, r, cycle, count);
        r += cycle * count;
    }
    add_end(p, plan, 1);
    return HEDDLE_OK;
}

/* --- blocks into rows --------------------------------------------------------------------------------------------- */

typedef struct place_pen {
    double x, limit; /* limit: of this block's rows */
    int row;
} place_pen;

static const double row_left = PLACE_MARGIN + PLACE_GUTTER, row_right = PLACE_WIDTH - PLACE_MARGIN;

static double cells_width(const place *p, int from, int count)
{
    double width = 0;
    for (int i = from; i < from + count; i++) {
        width += p->cell[i].width + (i > from ? p->cell[i].gap : 0);
    }
    return width;
}

static void put_cell(place *p, place_pen *at, place_cell *c, double pad)
{
    if (at->x + c->gap + c->width + pad > at->limit && at->x > row_left + PLACE_PAD) {
        at->row++; /* the move into it, if any, is drawn where the row begins */
        at->x = row_left + pad;
    }
    c->x = at->x + c->gap;
    c->row = at->row;
    at->x = c->x + c->width;
    p->width = at->x + pad > p->width ? at->x + pad : p->width;
}

static void put_block(place *p, place_pen *at, place_block *b)
{
    place_cell *first = &p->cell[b->cell];
    double gap = b->cell == 0 ? 0 : first->gap > 0 ? first->gap : PLACE_NEXT;
    const double width = cells_width(p, b->cell, b->ncells) + 2 * PLACE_PAD;
    if (at->x > row_left && at->x + gap + width > row_right) {
        at->row++;
        at->x = row_left;
        gap = first->gap;
    }
    /* Rows of about the same length, the last one not a stub. */
    const int nrows = (int)(width / (row_right - row_left)) + 1;
    const double even = row_left + width / nrows + (nrows > 1 ? PLACE_GAP : 0);
    at->limit = nrows > 1 && even < row_right ? even : row_right;
    b->row = at->row;
    at->x += gap;
    b->left = at->x;
    at->x += PLACE_PAD;
    first->x = at->x;
    first->row = at->row;
    at->x += first->width;
    for (int i = b->cell + 1; i < b->cell + b->ncells; i++) {
        put_cell(p, at, &p->cell[i], PLACE_PAD);
    }
    at->x += PLACE_PAD;
    b->last_row = at->row;
    b->right = at->x;
    if (b->last_row > b->row) { /* over all its rows */
        b->left = row_left;
        for (int i = b->cell; i < b->cell + b->ncells; i++) {
            const double right = p->cell[i].x + p->cell[i].width + PLACE_PAD;
            b->right = right > b->right ? right : b->right;
        }
        at->x = b->right;
    }
    at->limit = row_right;
    p->width = b->right > p->width ? b->right : p->width;
}

/* An edge begins where the cell before it ends; behind a loop, where that is left. */
static void find_gaps(place *p)
{
    for (int i = 0; i < p->ncells; i++) {
        place_cell *c = &p->cell[i];
        const place_cell *before = c - 1;
        if (i == 0 || before->row != c->row) {
            c->gap_x = c->x - c->gap;
        } else {
            c->gap_x = before->kind == PLACE_AGAIN ? p->block[before->block].right : before->x + before->width;
        }
    }
}

heddle_status place_make(place *out, const draw_plan *plan)
{
    place_pen at = {row_left, row_right, 0};
    memset(out, 0, sizeof *out);
    const heddle_status st = fold(out, plan);
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int i = 0, b = 0; i < out->ncells;) {
        place_cell *c = &out->cell[i];
        if (c->block < 0) {
            c->gap = c->kind == PLACE_OUT ? PLACE_GAP : 0;
            put_cell(out, &at, c, 0);
            i++;
        } else {
            put_block(out, &at, &out->block[b]);
            i += out->block[b++].ncells;
        }
    }
    find_gaps(out);
    const int naxes = plan->view.info.mesh.naxes;
    out->nrows = at.row + 1;
    out->row_height = PLACE_HEAD + naxes * PLACE_LANE_STEP + (plan->stage != NULL ? PLACE_BARS : 0) + PLACE_FOOT;
    out->width = out->width + PLACE_MARGIN < 760 ? 760 : out->width + PLACE_MARGIN;
    out->height = PLACE_TOP + out->nrows * (out->row_height + PLACE_ROW_GAP);
    return HEDDLE_OK;
}

void place_free(place *p)
{
    free(p->cell);
    free(p->block);
    memset(p, 0, sizeof *p);
}

double place_row_y(const place *p, int row)
{
    return PLACE_TOP + row * (p->row_height + PLACE_ROW_GAP);
}

double place_lane_y(const place *p, int row, int axis)
{
    return place_row_y(p, row) + PLACE_HEAD + axis * PLACE_LANE_STEP;
}
