/* Ulysses: queries, keys and values to heads in one packed exchange, the result back. Heads that do not divide are
 * uneven. */
#include "runtime/method/method.h"

static int heads_over(const hd_method_group *group)
{
    return group->n;
}

static void sends(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    hd_sends_heads(out, group, member, among, group->n);
}

const hd_method hd_method_ulysses = {
    .name = "ulysses", .kind = HEDDLE_STAGE_ATTENTION, .heads_over = heads_over, .sends = sends};
