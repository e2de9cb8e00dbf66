/* What a method moves by the links of every level. */
#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"
#include "runtime/method/method.h"

#include <string.h>

/* A set of `within` ranks is a run of coordinates on one axis, whole axes behind it and one coordinate on those before.
 * Runs need not divide the axis where no axis lies before it. */
int hd_levels_nest(const hd_levels *levels, const heddle_mesh *mesh)
{
    for (int level = 0; level < levels->count; level++) {
        int64_t behind = 1, within = levels->within[level];
        int a = mesh->naxes - 1;
        while (a > 0 && within % (behind * mesh->axis[a].size) == 0) {
            behind *= mesh->axis[a--].size;
        }
        int64_t before = heddle_mesh_size(mesh) / (behind * mesh->axis[a].size);
        if (within % behind != 0 || (before > 1 && mesh->axis[a].size % (within / behind) != 0)) {
            return 0;
        }
    }
    return 1;
}

/* Members in the set that has the rank of `member`, where member 0 is rank `base`. */
static hd_members members_within(const hd_method_group *group, int base, int member, int within)
{
    int64_t rank = base + (int64_t)member * group->stride, set = rank / within * within;
    int64_t first = set <= base ? 0 : (set - base + group->stride - 1) / group->stride;
    int64_t end = (set + within - base + group->stride - 1) / group->stride;
    return (hd_members){(int)first, (int)((end < group->n ? end : group->n) - first)};
}

/* sent, received: of one fibre of one member of `times`. */
static void count(hd_link_bytes *out, __int128 sent, __int128 received, int64_t fibres, __int128 fibres_total,
                  int times)
{
    out->sent_max = hd_larger(out->sent_max, hd_saturated((__int128)fibres * hd_saturated(sent)));
    out->received_max = hd_larger(out->received_max, hd_saturated((__int128)fibres * hd_saturated(received)));
    __int128 total = (__int128)hd_saturated(fibres_total) * hd_saturated(sent);
    out->total = hd_add_saturated(out->total, hd_saturated((__int128)times * hd_saturated(total)));
}

/* One group. */
typedef struct tally {
    hd_link_bytes *forward, *backward;
    const hd_method *method;
    const hd_method_group *group;
    const hd_levels *levels;
    int base;
    int64_t fibres;
    __int128 fibres_total;
} tally;

static void count_members(void *context, int member, int times)
{
    const tally *t = context;
    hd_sends below = {0, 0, 0, 0, 0, 0};
    for (int level = 0; level < t->levels->count; level++) {
        hd_sends s;
        hd_method_sends(&s, t->method, t->group, member,
                        members_within(t->group, t->base, member, t->levels->within[level]));
        count(&t->forward[level], s.forward_bytes - below.forward_bytes, s.forward_received - below.forward_received,
              t->fibres, t->fibres_total, times);
        count(&t->backward[level], s.backward_bytes - below.backward_bytes,
              s.backward_received - below.backward_received, t->fibres, t->fibres_total, times);
        below = s;
    }
}

/* Of the group that `rank` is in, and whether it is its first member. */
static int64_t fibres_of(int *is_first, const hd_method_group *group, const heddle_mesh *mesh,
                         const heddle_layout *layout, int rank)
{
    int coords[HEDDLE_MAX_AXES];
    heddle_box box;
    int64_t fibres = 1;
    hd_mesh_coords(coords, mesh, rank);
    hd_layout_box(&box, group->shape, mesh, layout, coords);
    *is_first = 1;
    for (int i = 0; i < group->naxes; i++) {
        *is_first &= coords[group->axis[i]] == 0;
    }
    for (int d = 0; d < group->shape->ndim - 1; d++) {
        unsigned mixed = group->stage.dims != 0 ? group->stage.dims : 1U << group->stage.dim;
        fibres *= (mixed >> d & 1) != 0 ? 1 : box.len[d];
    }
    return fibres;
}

/* Where the levels nest all groups see them alike, and the fullest stands for all. */
void hd_method_links(hd_link_bytes *forward, hd_link_bytes *backward, const hd_method *method,
                     const hd_method_group *group, const heddle_mesh *mesh, const heddle_layout *layout,
                     const hd_levels *levels)
{
    memset(forward, 0, (size_t)levels->count * sizeof *forward);
    memset(backward, 0, (size_t)levels->count * sizeof *backward);
    if (method == &hd_method_local || group->n == 1) {
        return;
    }
    tally t = {forward, backward, method, group, levels, 0, group->fibres_max, group->fibres_total};
    if (hd_levels_nest(levels, mesh)) {
        hd_method_kinds(method, group, levels, 0, count_members, &t);
        return;
    }
    for (int rank = heddle_mesh_size(mesh) - 1; rank >= 0; rank--) {
        int is_first = 0;
        t.base = rank;
        t.fibres_total = t.fibres = fibres_of(&is_first, group, mesh, layout, rank);
        if (is_first) {
            hd_method_kinds(method, group, levels, rank, count_members, &t);
        }
    }
}
