/* Exclusive scan of the states in ceil(log2 n) steps. */
#include "runtime/method/method.h"

/* Steps in which the member at place p sends. */
static int64_t steps(int p, int n)
{
    int64_t count = 0;
    for (int64_t d = 1; d < n; d *= 2) {
        count += p + d < n;
    }
    return count;
}

static void sends(hd_sends *out, const hd_method_group *group, int member)
{
    hd_sends_states(out, group, steps(member, group->n), steps(group->n - 1 - member, group->n), 0);
}

const hd_method hd_method_scan = {.name = "scan", .kind = HEDDLE_STAGE_LINEAR, .sends = sends};
