/* Copies become lanes of a kernel: which peers are walked together, in which order, by which kernel. */
#include "runtime/move/lanes.h"

#include <string.h>

static int64_t walk_offset(const hd_copy *copy, hd_side walk)
{
    return walk == HD_SIDE_SRC ? copy->src_offset_bytes : copy->dst_offset_bytes;
}

/* Copies may be walked together if their loops have the same counts and steps on the walked side; only offsets
 * differ. */
static int same_loops(const hd_copy *a, const hd_copy *b, hd_side walk)
{
    if (a->nloops != b->nloops) {
        return 0;
    }
    for (int i = 0; i < a->nloops; i++) {
        int64_t sa = walk == HD_SIDE_SRC ? a->src_stride_bytes[i] : a->dst_stride_bytes[i];
        int64_t sb = walk == HD_SIDE_SRC ? b->src_stride_bytes[i] : b->dst_stride_bytes[i];
        if (a->count[i] != b->count[i] || sa != sb) {
            return 0;
        }
    }
    return 1;
}

static void lane_fill(hd_lane *lane, hd_load *load, const hd_copy *copy, int peer)
{
    lane->run_bytes = copy->run_bytes;
    lane->src_offset_bytes = copy->src_offset_bytes;
    lane->dst_offset_bytes = copy->dst_offset_bytes;
    memcpy(lane->src_stride_bytes, copy->src_stride_bytes, sizeof lane->src_stride_bytes);
    memcpy(lane->dst_stride_bytes, copy->dst_stride_bytes, sizeof lane->dst_stride_bytes);
    *load = (hd_load){peer, hd_copy_bytes(copy)};
}

/* order[] lists the copies: own rank first, then its successors, so that ranks do not crowd on one peer. */
static void stagger(int *order, const int *peer, int ncopies, int rank, int nranks)
{
    for (int i = 0; i < ncopies; i++) {
        int distance = (peer[i] - rank + nranks) % nranks, j = i;
        for (; j > 0 && (peer[order[j - 1]] - rank + nranks) % nranks > distance; j--) {
            order[j] = order[j - 1];
        }
        order[j] = i;
    }
}

static void add_group(hd_lanes *out, const hd_copy *copy, const int *peer, const int *member, int nmembers)
{
    hd_lane_group *group = &out->group[out->ngroups++];
    group->first = out->nlanes;
    group->nlanes = nmembers;
    group->nloops = copy[member[0]].nloops;
    memcpy(group->count, copy[member[0]].count, sizeof group->count);
    for (int i = 0; i < nmembers; i++) {
        lane_fill(&out->lane[out->nlanes], &out->load[out->nlanes], &copy[member[i]], peer[member[i]]);
        out->nlanes++;
    }
}

/* All copies from order[at] on that share its loops, in the walked side's row order. */
static int collect_group(int *member, const hd_copy *copy, const int *order, int ncopies, int at, hd_side walk,
                         int64_t fuse_bytes, unsigned char *taken)
{
    const hd_copy *lead = &copy[order[at]];
    int n = 0, fuse = lead->nloops > 0 && hd_copy_stretch(lead, walk) < fuse_bytes;
    for (int i = at; i < ncopies; i++) {
        int k = order[i];
        if (taken[k] || (i > at && (!fuse || !same_loops(lead, &copy[k], walk)))) {
            continue;
        }
        taken[k] = 1;
        int j = n++;
        for (; j > 0 && walk_offset(&copy[member[j - 1]], walk) > walk_offset(&copy[k], walk); j--) {
            member[j] = member[j - 1];
        }
        member[j] = k;
    }
    return n;
}

heddle_status hd_lanes_build(hd_lanes *out, const hd_copy *copy, const int *peer, int ncopies, hd_side walk, int rank,
                             int nranks, int64_t fuse_bytes)
{
    heddle_status st = HEDDLE_OK;
    void *walked = NULL, *order = NULL, *taken = NULL;
    size_t n = (size_t)ncopies;
    memset(out, 0, sizeof *out);
    if (ncopies == 0) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_alloc(&walked, n, sizeof(hd_copy), "copies of a reshard"));
    HD_TRY(hd_alloc(&order, 2 * n, sizeof(int), "order of copies"));
    HD_TRY(hd_alloc(&taken, n, 1, "order of copies"));
    HD_TRY(hd_alloc((void **)&out->lane, n, sizeof(hd_lane), "lanes of a reshard"));
    HD_TRY(hd_alloc((void **)&out->load, n, sizeof(hd_load), "lanes of a reshard"));
    HD_TRY(hd_alloc((void **)&out->group, n, sizeof(hd_lane_group), "lanes of a reshard"));
    hd_copy *copies = walked;
    for (int i = 0; i < ncopies; i++) {
        copies[i] = copy[i];
        hd_copy_walk(&copies[i], walk);
    }
    stagger(order, peer, ncopies, rank, nranks);
    for (int i = 0; i < ncopies; i++) {
        int *member = (int *)order + n;
        if (!((unsigned char *)taken)[((int *)order)[i]]) {
            int nmembers = collect_group(member, copies, order, ncopies, i, walk, fuse_bytes, taken);
            add_group(out, copies, peer, member, nmembers);
        }
    }
out:
    HD_FREE_ALL(walked, order, taken);
    if (st != HEDDLE_OK) {
        hd_lanes_free(out);
    }
    return st;
}

/* Some kernels need rows of a least length. */
static int fits(const hd_copy_kernel *kernel, const hd_lanes *lanes, const hd_lane_group *group)
{
    for (int i = group->first; i < group->first + group->nlanes; i++) {
        if (lanes->lane[i].run_bytes < kernel->min_run_bytes) {
            return 0;
        }
    }
    return 1;
}

static int group_candidates(const hd_lanes *lanes, const hd_lane_group *group, const hd_copy_kernel **out, int capacity,
                            const hd_copy_hint *hint)
{
    return hd_copy_candidates(out, capacity, lanes->lane + group->first, group->nlanes, group->nloops, hint);
}

/* The asked kernel where it can, else the rule's first. Groups differ in row length, so each may get its own. */
void hd_lanes_choose(hd_lanes *lanes, const hd_copy_kernel *kernel, const hd_copy_hint *hint)
{
    for (int g = 0; g < lanes->ngroups; g++) {
        hd_lane_group *group = &lanes->group[g];
        group->kernel = kernel;
        if (kernel == NULL || !fits(kernel, lanes, group)) {
            group_candidates(lanes, group, &group->kernel, 1, hint);
        }
    }
}

/* Trials and `why` speak of the group with most bytes. */
const hd_lane_group *hd_lanes_largest(const hd_lanes *lanes)
{
    const hd_lane_group *best = NULL;
    int64_t most = -1;
    for (int g = 0; g < lanes->ngroups; g++) {
        int64_t bytes = 0;
        for (int i = 0; i < lanes->group[g].nlanes; i++) {
            bytes += lanes->load[lanes->group[g].first + i].bytes;
        }
        if (bytes > most) {
            most = bytes;
            best = &lanes->group[g];
        }
    }
    return best;
}

int hd_lanes_candidates(const hd_lanes *lanes, const hd_copy_kernel **out, int capacity, const hd_copy_hint *hint)
{
    const hd_lane_group *group = hd_lanes_largest(lanes);
    return group == NULL ? 0 : group_candidates(lanes, group, out, capacity, hint);
}

/* --- lanes that are made ------------------------------------------------------------------------------------------ */

void hd_lanes_free(hd_lanes *lanes)
{
    HD_FREE_ALL(lanes->lane, lanes->load, lanes->group);
    memset(lanes, 0, sizeof *lanes);
}

void hd_lanes_at_peers(hd_lanes *lanes, hd_side side)
{
    for (int i = 0; i < lanes->nlanes; i++) {
        *(side == HD_SIDE_SRC ? &lanes->lane[i].src_base : &lanes->lane[i].dst_base) = lanes->load[i].peer;
    }
}

int64_t hd_lanes_bytes(const hd_lanes *lanes)
{
    int64_t bytes = 0;
    for (int i = 0; i < lanes->nlanes; i++) {
        bytes += lanes->load[i].bytes;
    }
    return bytes;
}

int hd_lanes_own(const hd_lanes *lanes, int rank)
{
    return lanes->ngroups > 1 && lanes->group[0].nlanes == 1 && lanes->load[lanes->group[0].first].peer == rank;
}
