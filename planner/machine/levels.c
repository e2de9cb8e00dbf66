/* Which ranks are near one another, and what a machine says of itself. */
#include "planner/machine/machine.h"
#include "runtime/base/base.h"

#include <string.h>

int hd_machine_level(const heddle_machine *machine, int rank, int other)
{
    for (int l = 0; l < machine->nlevels - 1; l++) {
        rank /= machine->level[l].size;
        other /= machine->level[l].size;
        if (rank == other) {
            return l;
        }
    }
    return machine->nlevels - 1;
}

heddle_status heddle_machine_get_info(heddle_machine_info *out, const heddle_machine *machine)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, machine));
    heddle_machine_info info = {.name = machine->name,
                                .source = machine->source != NULL ? machine->source : "",
                                .ranks = machine->ranks,
                                .memory_bytes = machine->memory_bytes,
                                .is_calibrated = machine->is_calibrated};
    int64_t within = 1;
    for (int l = 0; l < machine->nlevels && (l == 0 || within < machine->ranks); l++) {
        within *= machine->level[l].size;
        info.link[l] = machine->link[machine->level[l].link].name;
        info.ranks_within[l] = (int)(within < machine->ranks ? within : machine->ranks);
        info.nlinks = l + 1;
    }
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_machine_info, name));
out:
    return st;
}

int hd_link_has_figures(const hd_link *link)
{
    int groups = 0;
    for (int e = 0; e < HD_EXCHANGES; e++) {
        groups += link->exchange[e].ngroups;
    }
    return groups > 0;
}

heddle_status heddle_machine_resize(heddle_machine *machine, int ranks)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(machine));
    if (ranks < 1) {
        st = hd_fail(HEDDLE_ERR_ARG, "a machine of %d ranks was asked for; it has 1 or more", ranks);
        goto out;
    }
    if (ranks > 1 && !hd_link_has_figures(&machine->link[machine->level[0].link])) {
        st = hd_fail(HEDDLE_ERR_ARG,
                     "machine '%s' has figures of one rank alone, %d are asked for (heddle calibrate --ranks 2)",
                     machine->name, ranks);
        goto out;
    }
    int inner = 1; /* reader and presets saw to it that this fits */
    for (int l = 0; l < machine->nlevels - 1; l++) {
        inner *= machine->level[l].size;
    }
    machine->level[machine->nlevels - 1].size = (int)(((int64_t)ranks + inner - 1) / inner);
    machine->ranks = ranks;
out:
    return st;
}

void heddle_machine_destroy(heddle_machine *machine)
{
    if (machine != NULL) {
        HD_FREE_ALL(machine->source, machine);
    }
}
