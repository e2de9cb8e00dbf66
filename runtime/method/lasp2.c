/* LASP-2: every rank gathers all states (arXiv 2502.07563, section 3). Without decay one gather serves both directions.
 */
#include "runtime/method/method.h"

static void sends(hd_sends *out, const hd_method_group *group, int member)
{
    (void)member;
    hd_sends_states(out, group, group->n - 1, group->n - 1, !group->stage.decays);
}

const hd_method hd_method_lasp2 = {.name = "lasp2", .kind = HEDDLE_STAGE_LINEAR, .sends = sends};
