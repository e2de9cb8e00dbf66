/* LASP: one state per fibre from rank to rank, whatever the length (arXiv 2404.02882). */
#include "runtime/method/method.h"

static int64_t states(int member, int n, hd_members among)
{
    int next = member + 1;
    return next < n && next >= among.first && next < among.first + among.count;
}

const hd_method hd_method_lasp = {.name = "lasp", .kind = HEDDLE_STAGE_LINEAR, .states = states};
