/* Lanes that are made are run. */
#include "runtime/move/lanes.h"

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
