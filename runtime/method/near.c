/* A framework's module of which rows of neighbours or sums are all that it wants of other ranks: a convolution or a
 * window (halo), a norm (sums). They send what heddle.torch's Halo and Sums do. */
#include "runtime/method/method.h"

static const char *halo_why_not(char *reason, const hd_method_group *group)
{
    (void)reason;
    for (int d = 0; d < HEDDLE_MAX_DIMS; d++) {
        if ((group->cut >> d & 1) != 0 && group->stage.window[d] == 0) {
            return "halo wants the 'window' of every dim that is sharded: the rows that the module reaches";
        }
    }
    return group->stage.joined_rows > 0 ? "halo is of the rows of the activation, and text joins them" : NULL;
}

/* All channels of the rows that others reach, once; their gradients come back as wide as they went. */
static void halo_sends(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    const hd_seen seen = hd_halo_seen(&group->halo, member, among);
    const __int128 row = (__int128)group->heads * group->width * group->elem_bytes * group->fibres;
    out->forward_bytes += row * seen.sent;
    out->forward_received += row * seen.received;
    out->backward_bytes += row * seen.received;
    out->backward_received += row * seen.sent;
    out->forward_messages += seen.sent_to;
    out->backward_messages += seen.received_from;
}

static void halo_holds(hd_memory *out, const hd_method_group *group, int member)
{
    const hd_seen seen = hd_halo_seen(&group->halo, member, hd_group_all(group));
    out->saved_bytes += (__int128)group->heads * group->width * group->elem_bytes * group->fibres * seen.received;
}

/* The mean and the sum of squares of every group of channels, to all others. */
static void sums_sends(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    const int others = among.count - (member >= among.first && member < among.first + among.count);
    const __int128 bytes = (__int128)2 * group->heads * group->real_bytes * group->fibres * others;
    out->forward_bytes += bytes;
    out->forward_received += bytes;
    out->backward_bytes += bytes;
    out->backward_received += bytes;
    out->forward_messages += others;
    out->backward_messages += others;
}

const hd_method hd_method_halo = {.name = "halo",
                                  .kind = HEDDLE_STAGE_MODULE,
                                  .is_near = 1,
                                  .why_not = halo_why_not,
                                  .sends = halo_sends,
                                  .holds = halo_holds};
const hd_method hd_method_sums = {.name = "sums", .kind = HEDDLE_STAGE_MODULE, .is_near = 1, .sends = sums_sends};
