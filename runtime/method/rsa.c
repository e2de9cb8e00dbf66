/* Ring Self-Attention: a ring of keys, then one of values (arXiv 2105.13120, section 3). The bytes of ring attention
 * with whole score rows in memory, so it runs when named only. */
#include "runtime/method/method.h"

static void sends(hd_sends *out, const hd_method_group *group, int member)
{
    if (group->projected_length > 0) {
        hd_sends_projected(out, group, member);
    } else {
        hd_sends_ring(out, group, member, 1, 2);
    }
}

const hd_method hd_method_rsa = {.name = "rsa", .kind = HEDDLE_STAGE_ATTENTION, .only_named = 1, .sends = sends};
