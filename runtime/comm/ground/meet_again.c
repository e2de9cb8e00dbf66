/* The ranks of one host meet after a failure: first all of them, so that nobody is in a call, or copies, any more; then
 * each sets back what is its own; and nobody goes on before all have. A rank whose wait ends otherwise may come again.
 */
#include "runtime/comm/ground/ground.h"

#include <stdio.h>

/* 2 * what it has been through; + 1: it is here; + 2: its own is set back. */
static _Atomic uint64_t *progress_of(const hd_group *group, int index)
{
    return &group->control[index]->resets;
}

static void come_to(hd_group *group, uint64_t progress)
{
    atomic_store(progress_of(group, group->me), progress);
    for (int i = 0; i < group->n; i++) {
        if (i != group->me) {
            hd_group_ring(group, i);
        }
    }
}

/* A member that has not come so far; -1: all have. */
static int late_member(const hd_group *group, uint64_t progress)
{
    int i = 0;
    while (i < group->n && atomic_load(progress_of(group, i)) >= progress) {
        i++;
    }
    return i < group->n ? i : -1;
}

static heddle_status look(hd_group *group, int member, int64_t deadline_ns)
{
    heddle_status st = HEDDLE_OK;
    char standing[HD_STAND_BYTES + 32];
    const int rank = group->rank[member], mine = group->rank[group->me];
    if (group->team == NULL) {
        hd_group_look_at_lives(group);
    }
    if (group->dead != 0) {
        return hd_fail(HEDDLE_ERR_PEER,
                       "rank %d died (process %ld has ended) and cannot come to the reset: what is left is to destroy "
                       "the communicator, and to open one of the ranks that live",
                       group->rank[group->dead - 1], (long)group->pid[group->dead - 1]);
    }
    if (hd_group_left(group, member)) {
        return hd_fail(HEDDLE_ERR_PEER, "rank %d has closed its communicator and cannot come to the reset", rank);
    }
    HD_TRY(group->lookout.look != NULL ? group->lookout.look(group->lookout.arg) : HEDDLE_OK);
    if (hd_now_ns() > deadline_ns) {
        hd_group_say_standing(standing, sizeof standing, group, member);
        st = hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not come in time (reset of the communicator)%s", mine,
                     rank, standing);
    }
out:
    return st;
}

static heddle_status await_all(hd_group *group, uint64_t progress, int64_t deadline_ns)
{
    heddle_status st = HEDDLE_OK;
    for (int round = 0; st == HEDDLE_OK; round++) {
        const int member = late_member(group, progress);
        if (member < 0) {
            break;
        }
        st = hd_group_looks(group, round) ? look(group, member, deadline_ns) : HEDDLE_OK;
        if (st == HEDDLE_OK) {
            hd_group_relax(group, round);
        }
    }
    hd_group_disarm(group);
    return st;
}

heddle_status hd_group_meet_again(hd_group *group, int64_t deadline_ns, void (*set_back)(void *arg), void *arg)
{
    heddle_status st = HEDDLE_OK;
    const uint64_t here = 2 * group->resets + 1, ready = here + 1;
    hd_control *own = group->control[group->me];
    if (atomic_load(&own->resets) < ready) {
        hd_group_raise(group, HEDDLE_ERR_PEER, "it resets the communicator, which all ranks have to do now");
        come_to(group, here);
        HD_TRY(await_all(group, here, deadline_ns));
        hd_group_release_held(group);
        atomic_store(&own->moving, 0);
        atomic_store(&own->why_state, 0);
        set_back(arg);
        atomic_store(&own->alarm, 0);
        come_to(group, ready);
    }
    HD_TRY(await_all(group, ready, deadline_ns));
    group->resets++;
out:
    return st;
}
