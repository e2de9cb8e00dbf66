/* Every rank gathers all keys and values; their gradients come back in f32. */
#include "runtime/method/method.h"

static void sends(hd_sends *out, const hd_method_group *group, int member)
{
    __int128 row = (__int128)group->kv_heads * group->width * group->fibres;
    int64_t mine = hd_group_rows(group, member, 1);
    if (group->kv_heads == 0) {
        return;
    }
    out->forward_bytes += row * mine * 2 * group->elem_bytes * (group->n - 1);
    out->forward_messages += mine > 0 ? group->n - 1 : 0;
    out->backward_bytes += row * (group->sequence - mine) * 2 * group->real_bytes;
    out->backward_messages += hd_group_full(group, 0, group->n) - (mine > 0);
}

/* All keys and values, kept for backward; the gradients of all of them. */
static void holds(hd_memory *out, const hd_method_group *group, int member)
{
    __int128 elems = (__int128)2 * group->kv_heads * group->fibres * group->sequence * group->width;
    (void)member;
    if (group->n > 1) {
        out->saved_bytes += elems * group->elem_bytes;
        out->workspace_bytes += group->forward_only ? 0 : elems * group->real_bytes;
    }
}

const hd_method hd_method_gather_kv = {
    .name = "gather-kv", .kind = HEDDLE_STAGE_ATTENTION, .sends = sends, .holds = holds};
