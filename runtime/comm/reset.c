/* After a failure: the ranks meet, set back what they have, and go on with the plans that they have made. */
#include "runtime/comm/comm_private.h"

void hd_comm_renewal_add(heddle_comm *comm, hd_renewal *renewal)
{
    hd_renewal **first = &comm->root->renewals;
    renewal->next = *first;
    renewal->from = first;
    if (renewal->next != NULL) {
        renewal->next->from = &renewal->next;
    }
    *first = renewal;
}

void hd_comm_renewal_remove(hd_renewal *renewal)
{
    if (renewal->from == NULL) {
        return;
    }
    *renewal->from = renewal->next;
    if (renewal->next != NULL) {
        renewal->next->from = renewal->from;
    }
    renewal->from = NULL;
}

int64_t hd_comm_resets(const heddle_comm *comm)
{
    return (int64_t)comm->group->resets;
}

static void renew_all(void *arg)
{
    const heddle_comm *comm = arg;
    for (const hd_renewal *r = comm->renewals; r != NULL; r = r->next) {
        r->renew(r->arg);
    }
}

heddle_status hd_comm_reset(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_group_owned(comm->group, "reset"));
    if (comm->parent != NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_comm_reset of an axis group: wanted the communicator that it is of");
    }
    if (comm->ops != &hd_local_ops || hd_comm_wire_of(comm)->devices_wait) {
        heddle_ignore(hd_comm_abort(comm, "it resets the communicator, which can only be destroyed"));
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "a communicator %s cannot be reset: destroy it and open another one",
                       comm->ops != &hd_local_ops ? "whose messages a transport carries"
                                                  : "on whose wire devices wait for one another");
    }
    st = hd_group_meet_again(comm->group, hd_comm_deadline_ns(comm, 0), renew_all, comm);
out:
    return st;
}
