/* Lanes that are made: their bytes, where their sides lie, running them. */
#include "runtime/move/lanes.h"

#include <string.h>

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

void hd_lanes_run(const hd_lanes *lanes, const hd_bases *bases)
{
    hd_lanes_run_groups(lanes, bases, 0, lanes->ngroups);
}

void hd_lanes_run_groups(const hd_lanes *lanes, const hd_bases *bases, int first, int end)
{
    for (int g = first; g < end; g++) {
        const hd_lane_group *group = &lanes->group[g];
        const hd_load *load = lanes->load + group->first;
        for (int i = 0; i < group->nlanes && bases->moved != NULL; i++) {
            bases->moved[load[i].peer] += load[i].bytes;
        }
        group->kernel->copy(lanes->lane + group->first, group->nlanes, group->nloops, group->count, bases->src,
                            bases->dst);
    }
}
