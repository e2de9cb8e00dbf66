/* Small helpers of creation. */
#include "runtime/parallel/parallel_internal.h"

#include <string.h>

heddle_status hd_creation_end(heddle_comm *comm, heddle_status mine)
{
    if (mine == HEDDLE_ERR_TRANSPORT || mine == HEDDLE_ERR_TIMEOUT) {
        return hd_comm_abort_with(comm, mine);
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
