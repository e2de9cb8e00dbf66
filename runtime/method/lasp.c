/* LASP: one state per fibre from rank to rank, whatever the length (arXiv 2404.02882). */
#include "runtime/method/method.h"

static int64_t states(int member, int n)
{
    return member + 1 < n;
}

const hd_method hd_method_lasp = {.name = "lasp", .kind = HEDDLE_STAGE_LINEAR, .states = states};
