/* Ranks compare what they ask for, and small helpers of creation. */
#include "runtime/parallel/parallel_internal.h"

#include <stdio.h>
#include <string.h>

/* The first rank that differs from the first one of its team (*first); -1: none. */
static int find_other(const hd_wish *all, int nranks, int *first)
{
    for (int r = 0; r < nranks; r++) {
        for (int f = 0; f < r; f++) {
            if (all[f].team == all[r].team) {
                if (strcmp(all[f].text, all[r].text) != 0) {
                    *first = f;
                    return r;
                }
                break;
            }
        }
    }
    return -1;
}

heddle_status hd_wishes_agree(heddle_comm *comm, const char *what, const hd_wish *wish, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    hd_wish *all = NULL;
    int nranks = heddle_comm_size(comm);
    if (mine == HEDDLE_OK) {
        mine = hd_alloc((void **)&all, (size_t)nranks, sizeof *all, "what all ranks ask for");
    }
    HD_TRY(hd_comm_agree(comm, mine));
    HD_TRY(heddle_comm_allgather(comm, wish, all, sizeof *all));
    int first = 0;
    int other = find_other(all, nranks, &first);
    if (other >= 0) {
        st = hd_fail(HEDDLE_ERR_MISMATCH, "rank %d asks for another %s than rank %d: '%s' and '%s'", other, what, first,
                     all[other].text, all[first].text);
    }
out:
    hd_free(all);
    return st;
}

heddle_status hd_creation_end(heddle_comm *comm, heddle_status mine)
{
    if (mine == HEDDLE_ERR_TRANSPORT || mine == HEDDLE_ERR_TIMEOUT) {
        char why[400];
        snprintf(why, sizeof why, "%s", heddle_last_error());
        heddle_comm_abort(comm, why);
        return hd_fail(mine, "%s", why);
    }
    return hd_comm_agree(comm, mine);
}

heddle_layout hd_layout_with(const heddle_layout *layout, int axis, int dim)
{
    heddle_layout changed = *layout;
    int at = 0; /* lengths of the axis, in block[] */
    for (int a = 0; a < axis; a++) {
        at += layout->nshards[a];
    }
    int gone = layout->nshards[axis];
    memmove(changed.shard_len + at, layout->shard_len + at + gone,
            (size_t)(HEDDLE_MAX_SHARDS - at - gone) * sizeof changed.shard_len[0]);
    changed.nshards[axis] = 0;
    changed.dim_of_axis[axis] = dim;
    return changed;
}
