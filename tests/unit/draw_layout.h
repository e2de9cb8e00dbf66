/* Random small shapes, meshes and blocks of a layout. */
#ifndef DRAW_LAYOUT_H
#define DRAW_LAYOUT_H

#include "draw.h"

#include <heddle/layout.h>
#include <stdio.h>

/* Extents of 1 to 9 on axes of 1 to 4. */
static inline void draw_extents(heddle_shape *shape, heddle_mesh *mesh)
{
    for (int d = 0; d < shape->ndim; d++) {
        snprintf(shape->dim[d].name, sizeof shape->dim[d].name, "d%d", d);
        shape->dim[d].extent = 1 + below(9);
    }
    for (int a = 0; a < mesh->naxes; a++) {
        snprintf(mesh->axis[a].name, sizeof mesh->axis[a].name, "a%d", a);
        mesh->axis[a].size = 1 + below(4);
    }
}

/* One time in three explicit lengths on the first axis, where it has its dim alone. */
static inline void draw_blocks(heddle_layout *layout, const heddle_shape *shape, const heddle_mesh *mesh)
{
    int d = layout->dim_of_axis[0];
    int is_alone = d >= 0;
    for (int a = 1; a < mesh->naxes; a++) {
        is_alone = is_alone && layout->dim_of_axis[a] != d;
    }
    if (is_alone && below(3) == 0) {
        int64_t left = shape->dim[d].extent;
        layout->nshards[0] = mesh->axis[0].size;
        for (int i = 0; i < layout->nshards[0]; i++) {
            layout->shard_len[i] = i + 1 < layout->nshards[0] ? below((int)left + 1) : left;
            left -= layout->shard_len[i];
        }
    }
}

#endif
