/* Ring attention: keys and values travel; in backward again, with their gradients in f32. */
#include "runtime/method/method.h"

static void sends(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    hd_sends_ring(out, group, member, among, 1, 1);
}

static void holds(hd_memory *out, const hd_method_group *group, int member)
{
    hd_hold_ring(out, group, member, 1, 2);
}

const hd_method hd_method_ring = {.name = "ring", .kind = HEDDLE_STAGE_ATTENTION, .sends = sends, .holds = holds};
