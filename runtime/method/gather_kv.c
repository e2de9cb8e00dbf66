/* Every rank gathers all keys and values, or those that its windows reach; their gradients come back in f32. */
#include "runtime/method/method.h"

/* All keys and values that it sees, kept for backward; the gradients of all of them. */
static void holds(hd_memory *out, const hd_method_group *group, int member)
{
    __int128 rows = group->sequence;
    if (group->halo.count > 0) {
        rows = hd_halo_seen(&group->halo, member, hd_group_all(group)).received + hd_group_rows(group, member, 1);
    }
    __int128 elems = 2 * group->kv_heads * group->fibres * rows * group->width;
    if (group->n > 1) {
        out->saved_bytes += elems * group->elem_bytes;
        out->workspace_bytes += group->forward_only ? 0 : elems * group->real_bytes;
    }
}

const hd_method hd_method_gather_kv = {
    .name = "gather-kv", .kind = HEDDLE_STAGE_ATTENTION, .sends = hd_sends_gathered, .holds = holds};
