/* Parts of the picture of a schedule. */
#ifndef HD_DRAW_PICTURE_H
#define HD_DRAW_PICTURE_H

#include "place.h"

/* The lanes of one mesh axis: what it shards from stage to stage, and the threads that cross where that changes. */
void picture_lane(FILE *to, const draw_plan *plan, const place *p, int axis);
/* Colours and hatches that lanes refer to. */
void picture_patterns(FILE *to, const draw_plan *plan, const place *p);
/* Times below the lanes; nothing where none are known. */
void picture_times(FILE *to, const draw_plan *plan, const place *p);
/* Names, methods and moves above the lanes. */
void picture_heads(FILE *to, const draw_plan *plan, const place *p);

#endif
