/* Where everything of a picture lies. Equal repetitions are one block; a block's cells stand side by side, on several
 * rows where one is too short. */
#ifndef HD_DRAW_PLACE_H
#define HD_DRAW_PLACE_H

#include "planner/draw/draw.h"

enum {
    PLACE_WIDTH = 1400, /* of a row */
    PLACE_MARGIN = 28,
    PLACE_GUTTER = 76, /* names of the axes */
    PLACE_TOP = 124,   /* title */
    PLACE_PAD = 24,    /* of a block, left and right: its loop runs there */
    PLACE_GAP = 92,    /* that a move takes */
    PLACE_NEXT = 22,   /* between blocks where nothing moves */
    PLACE_LANE = 36,
    PLACE_LANE_STEP = 44,
    PLACE_HEAD = 84, /* above the lanes: names, methods, bytes */
    PLACE_BARS = 76, /* below them: times */
    PLACE_FOOT = 28, /* and the loop */
    PLACE_ROW_GAP = 18,
    PLACE_CELLS = 400 /* drawn at most */
};

typedef enum place_kind { PLACE_STAGE, PLACE_IN, PLACE_OUT, PLACE_AGAIN } place_kind;

/* A stage, or a stub: what arrives, what leaves, or the first stage of the next turn of a loop. */
typedef struct place_cell {
    place_kind kind;
    int stage, edge; /* edge: leads into it; -1: none is drawn */
    int block, row;
    double x, width, gap; /* gap: that the move into it wants */
    double gap_x;         /* where the edge into it begins */
    heddle_layout layout;
} place_cell;

/* Repetitions first .. first + cycle * count - 1. */
typedef struct place_block {
    int first, cycle, count;
    int cell, ncells;
    double left, right; /* of its panel, over all its rows */
    int row, last_row;
} place_block;

typedef struct place {
    place_cell *cell;
    place_block *block;
    int ncells, nblocks, nrows;
    int left_out; /* repetitions that are not drawn, for there are too many */
    double width, height, row_height;
} place;

/* HEDDLE_ERR_NOMEM. place_free in any case. */
heddle_status place_make(place *out, const draw_plan *plan);
void place_free(place *p);

double place_row_y(const place *p, int row); /* of its panel's upper edge */
double place_lane_y(const place *p, int row, int axis);
/* Does the edge into this cell move bytes, or change what an axis shards? */
int place_is_move(const draw_plan *plan, const place_cell *cell);

/* "over s", "text", "rows": what a stage does with the activation. Returns `out`. */
const char *place_work(char *out, size_t out_bytes, const draw_plan *plan, const heddle_schedule_stage *stage);

#endif
