/* What the objective makes of a price: a few numbers, compared in order. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <string.h>

const char *const hd_objective_names[HD_OBJECTIVES] = {[HD_OBJECTIVE_BYTES] = "bytes",
                                                       [HD_OBJECTIVE_TIME] = "time",
                                                       [HD_OBJECTIVE_SLOW_BYTES] = "slow-bytes",
                                                       [HD_OBJECTIVE_MEMORY] = "memory",
                                                       [HD_OBJECTIVE_GPU_SECONDS] = "gpu-seconds"};

const hd_cost hd_cost_none = {{INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}};

int hd_cost_compare(const hd_cost *a, const hd_cost *b)
{
    for (int i = 0; i < HD_COST_PARTS; i++) {
        if (a->part[i] != b->part[i]) {
            return a->part[i] < b->part[i] ? -1 : 1;
        }
    }
    return 0;
}

hd_cost hd_cost_add(const hd_cost *a, const hd_cost *b)
{
    hd_cost sum;
    for (int i = 0; i < HD_COST_PARTS; i++) {
        sum.part[i] = hd_add_saturated(a->part[i], b->part[i]);
    }
    return sum;
}

/* The level of links that ranks 0 and the last one meet on. */
static heddle_status slow_link(int *out, const heddle_machine *machine, int nranks)
{
    heddle_machine_info info = HEDDLE_EMPTY(heddle_machine_info);
    heddle_status st = heddle_machine_get_info(&info, machine);
    if (st == HEDDLE_OK && nranks > info.ranks) {
        st = hd_fail(HEDDLE_ERR_ARG,
                     "the mesh has %d ranks, machine '%s' has %d; the number of hosts is written in front, for example "
                     "4x8xh100-nvlink+ib400",
                     nranks, info.name, info.ranks);
    }
    if (st == HEDDLE_OK) {
        *out = nranks > 1 ? hd_machine_level(machine, 0, nranks - 1) : 0;
    }
    return st;
}

heddle_status hd_aim_read(hd_aim *out, const heddle_plan_options *options, int nranks)
{
    heddle_status st = HEDDLE_OK;
    const heddle_machine *machine = options->machine;
    const char *name = options->objective;
    *out = (hd_aim){.slow_link = -1, .has_machine = machine != NULL};
    name = name != NULL ? name : machine != NULL ? "time" : "bytes";
    int i = 0;
    while (i < HD_OBJECTIVES && strcmp(name, hd_objective_names[i]) != 0) {
        i++;
    }
    if (i == HD_OBJECTIVES) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "there is no objective '%.60s'; there are time, bytes, slow-bytes, memory and gpu-seconds",
                       name);
    }
    out->objective = (hd_objective)i;
    if (machine == NULL && out->objective != HD_OBJECTIVE_BYTES && out->objective != HD_OBJECTIVE_MEMORY) {
        return hd_fail(HEDDLE_ERR_ARG, "objective %s needs a machine, whose links and rates it goes by", name);
    }
    if (machine != NULL) {
        st = slow_link(&out->slow_link, machine, nranks);
    }
    out->is_time = out->objective == HD_OBJECTIVE_TIME || out->objective == HD_OBJECTIVE_GPU_SECONDS ||
                   (out->objective == HD_OBJECTIVE_MEMORY && machine != NULL);
    return st;
}

hd_cost hd_aim_cost(const hd_aim *aim, const hd_price *price, const hd_extras *x)
{
    const hd_edge_cost *moved = &price->moved;
    int64_t slow = aim->slow_link >= 0 ? price->link[aim->slow_link].sent_max : 0;
    if (aim->is_time) {
        return (hd_cost){{price->time_ps, slow, moved->bytes_per_rank_max, x->methods, x->switches, x->elems}};
    }
    if (aim->objective == HD_OBJECTIVE_SLOW_BYTES) {
        return (hd_cost){{slow, moved->bytes_per_rank_max, moved->bytes_total, x->methods, x->switches, x->elems}};
    }
    return (hd_cost){{moved->bytes_per_rank_max, moved->bytes_total, x->methods, x->switches, x->elems, slow}};
}
