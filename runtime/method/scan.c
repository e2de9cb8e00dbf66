/* Exclusive scan of the states in ceil(log2 n) steps. */
#include "runtime/method/method.h"

/* One for every step in which the member has one so far behind it. */
static int64_t states(int member, int n, hd_members among)
{
    int64_t count = 0;
    for (int64_t d = 1; d < n; d *= 2) {
        count += member + d < n && member + d >= among.first && member + d < among.first + among.count;
    }
    return count;
}

static int64_t held(int n)
{
    (void)n;
    return 1; /* what arrives in a step */
}

const hd_method hd_method_scan = {.name = "scan", .kind = HEDDLE_STAGE_LINEAR, .states = states, .held = held};
