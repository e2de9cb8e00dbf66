/* LASP-2: every rank gathers all states (arXiv 2502.07563, section 3). Without decay one gather serves both directions.
 */
#include "runtime/method/method.h"

static int64_t states(int member, int n, hd_members among)
{
    (void)n;
    return among.count - (member >= among.first && member < among.first + among.count);
}

static int64_t held(int n)
{
    return n; /* all of them */
}

const hd_method hd_method_lasp2 = {
    .name = "lasp2", .kind = HEDDLE_STAGE_LINEAR, .states = states, .gathers = 1, .held = held};
