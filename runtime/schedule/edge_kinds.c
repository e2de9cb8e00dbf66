/* Which coordinates of an axis are alike: ranks there hold as much, send as much and receive as much. */
#include "runtime/schedule/edge_internal.h"

#include <string.h>

enum { LENGTHS = 4 };

static void begin_kind(hd_edge *e, int axis, int64_t coordinate)
{
    hd_kinds *k = &e->kind[axis];
    int at = 0;
    if (k->every || coordinate >= e->mesh->axis[axis].size) {
        return;
    }
    while (at < k->count && k->from[at] < coordinate) {
        at++;
    }
    if (at < k->count && k->from[at] == coordinate) {
        return;
    }
    if (k->count == HD_EDGE_KINDS_MAX) {
        k->every = 1;
        return;
    }
    memmove(&k->from[at + 1], &k->from[at], (size_t)(k->count - at) * sizeof k->from[0]);
    k->from[at] = (int)coordinate;
    k->count++;
}

/* Blocks before `rest` are one longer; a set of coordinates may have some of both. */
static void begin_kinds(hd_edge *e, int axis, int64_t rest)
{
    begin_kind(e, axis, rest);
    for (int level = 0; level < e->nlevels; level++) {
        int64_t width = e->width[level][axis], set = rest / width * width;
        begin_kind(e, axis, set);
        begin_kind(e, axis, set + width);
    }
}

static void every_kind(hd_edge *e, const hd_cut *c, int first)
{
    for (int i = first; i < c->naxes; i++) {
        e->kind[c->axis[i]].every = 1;
    }
}

/* All lengths that a block of the axes so far may have are cut by the next one. */
static void add_kinds(hd_edge *e, const hd_cut *c, int64_t extent)
{
    int64_t lengths[2 * LENGTHS] = {extent};
    int count = 1;
    if (c->lengths != NULL) {
        every_kind(e, c, 0);
        return;
    }
    for (int i = 0; i < c->naxes; i++) {
        int64_t next[2 * LENGTHS] = {0};
        int made = 0, size = e->mesh->axis[c->axis[i]].size;
        for (int k = 0; k < count; k++) {
            int64_t each = lengths[k] / size, rest = lengths[k] % size;
            begin_kinds(e, c->axis[i], rest);
            for (int64_t length = each; length <= each + (rest > 0); length++) {
                int known = 0;
                for (int j = 0; j < made; j++) {
                    known |= next[j] == length;
                }
                next[made] = length;
                made += !known;
            }
        }
        count = made;
        memcpy(lengths, next, sizeof lengths);
        if (count > LENGTHS) {
            every_kind(e, c, i + 1);
            return;
        }
    }
}

/* Axes that cut the dim alike in both layouts, from the major one on. */
static int cut_alike(const hd_cut_dim *d, const heddle_mesh *mesh)
{
    int count = 0;
    while (count < d->from.naxes && count < d->to.naxes && d->from.axis[count] == d->to.axis[count]) {
        const int64_t *a = d->from.lengths, *b = d->to.lengths;
        size_t bytes = (size_t)mesh->axis[d->from.axis[0]].size * sizeof *a;
        if (count == 0 && a != b && (a == NULL || b == NULL || memcmp(a, b, bytes) != 0)) {
            return 0;
        }
        count++;
    }
    return count;
}

void hd_edge_kinds(hd_edge *e)
{
    for (int a = 0; a < e->mesh->naxes; a++) {
        begin_kinds(e, a, 0);
        for (int level = 0; level < e->nlevels; level++) {
            int width = e->width[level][a];
            begin_kind(e, a, e->mesh->axis[a].size / width * width);
        }
    }
    for (int i = 0; i < e->ndims; i++) {
        const hd_cut_dim *d = &e->dim[i];
        int alike = cut_alike(d, e->mesh);
        if (alike < d->from.naxes && alike < d->to.naxes) {
            every_kind(e, &d->from, alike);
            every_kind(e, &d->to, alike);
        }
        add_kinds(e, &d->from, d->extent);
        add_kinds(e, &d->to, d->extent);
    }
}
