/* Ulysses over the inner of two mesh axes, ring over the outer one. */
#include "runtime/method/method.h"

static int heads_over(const hd_method_group *group)
{
    return group->inner;
}

static const char *why_not(char *reason, const hd_method_group *group)
{
    (void)reason;
    return group->naxes == 2 ? NULL : "usp wants the dim sharded over two mesh axes, the ring's first";
}

static void sends(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    hd_sends_heads(out, group, member, among, group->inner);
    hd_sends_ring(out, group, member, among, group->inner, 1);
}

static void holds(hd_memory *out, const hd_method_group *group, int member)
{
    hd_hold_ring(out, group, member, group->inner, 2);
}

const hd_method hd_method_usp = {.name = "usp",
                                 .kind = HEDDLE_STAGE_ATTENTION,
                                 .heads_over = heads_over,
                                 .why_not = why_not,
                                 .sends = sends,
                                 .holds = holds};
