/* Graphs that executions of plans were captured into. A replay is enqueued as executions are: while it is under way
 * peers that end free nothing that it stores to. */
#include "runtime/comm/comm_private.h"

#include <string.h>

static const int64_t END_NS = 3000000000; /* behind a failure kernels end soon */

static heddle_status ask(void *arg)
{
    (void)arg; /* what has gone wrong in it the plans say */
    return HEDDLE_OK;
}

static void ask_beside(void *arg)
{
    hd_enqueued_look_beside(arg);
}

heddle_status hd_replays_open(heddle_comm *comm, const hd_device *device)
{
    hd_comm_view view;
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_enqueued_open(&comm->replays, device));
    hd_comm_get_view(&view, comm);
    comm->replays.count = view.on_device;
    comm->replays.names = (hd_enqueued_names){comm->rank, "end", "replay", "of a graph"};
    comm->replays_outlook = (hd_outlook){.ask = ask, .ask_beside = ask_beside, .arg = &comm->replays};
    hd_comm_outlook_add(comm, &comm->replays_outlook);
out:
    return st;
}

void hd_replays_close(heddle_comm *comm)
{
    if (comm->replays.event == NULL) {
        return;
    }
    if (comm->device != NULL && !hd_group_is_fork(comm->group)) {
        (void)hd_enqueued_lets_free(&comm->replays, comm->device, hd_now_ns() + END_NS);
    }
    hd_comm_outlook_remove(comm, &comm->replays_outlook);
    hd_enqueued_close(&comm->replays);
    memset(&comm->replays, 0, sizeof comm->replays);
}

/* As hd_push does it: said before anything is enqueued, and behind it the alarm is looked at. */
heddle_status hd_replay(heddle_comm *comm, void *graph, heddle_stream stream)
{
    const hd_device *device = comm->device;
    hd_enqueued *e = &comm->replays;
    heddle_status st = HEDDLE_OK;
    if (e->event == NULL) {
        HD_TRY(hd_comm_wire_of(comm)->look(comm));
        return device->library->graph_launch(graph, device->number, stream);
    }
    HD_TRY(hd_enqueued_order(e, stream));
    hd_enqueued_begin(e);
    st = hd_comm_check(comm);
    if (st != HEDDLE_OK) {
        hd_enqueued_end_none(e);
        return st;
    }
    st = hd_enqueued_end(e, stream, device->library->graph_launch(graph, device->number, stream));
out:
    return st;
}
