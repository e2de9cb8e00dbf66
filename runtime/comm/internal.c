/* What the rest of the runtime asks of a made communicator: comm_internal.h. */
#include "runtime/comm/comm_private.h"

#include <stdio.h>
#include <string.h>

/* Work on a device is enqueued long before it runs, and what a program does meanwhile is not watched: what is only slow
 * (a checkpoint, a compiler) is given more time there. */
enum { DEADLINE_MS = 60000, DEVICE_DEADLINE_MS = 600000 };

int64_t hd_options_deadline_ms(const heddle_comm_options *options)
{
    return options->deadline_ms > 0 ? options->deadline_ms : DEADLINE_MS;
}

int64_t hd_comm_deadline_ms(const heddle_comm *comm)
{
    const int is_given = comm->options.deadline_ms > 0;
    return !is_given && comm->root->device != NULL ? DEVICE_DEADLINE_MS : hd_options_deadline_ms(&comm->options);
}

int64_t hd_comm_deadline_ns(const heddle_comm *comm, int64_t deadline_ms)
{
    return hd_now_ns() + (deadline_ms > 0 ? deadline_ms : hd_comm_deadline_ms(comm)) * 1000000;
}

/* An interrupt is this rank giving up. */
static heddle_status ask_interrupt(heddle_comm *root)
{
    if (!hd_interrupted(&root->interrupt)) {
        return HEDDLE_OK;
    }
    hd_group_raise(root->group, HEDDLE_ERR_PEER, "interrupted");
    heddle_ignore(root->ops->abort(root, "interrupted"));
    return hd_fail(HEDDLE_ERR_INTERRUPTED, "rank %d was interrupted while it waited for other ranks", root->rank);
}

heddle_status hd_comm_check_outside(heddle_comm *root)
{
    return root->ops->check != NULL ? root->ops->check(root) : HEDDLE_OK;
}

static heddle_status look_outside(void *arg)
{
    heddle_comm *root = arg;
    heddle_status st = hd_comm_check_outside(root);
    return st != HEDDLE_OK || root->interrupt.ask == NULL ? st : ask_interrupt(root);
}

void hd_comm_set_lookout(heddle_comm *root)
{
    if (root->ops->check != NULL || root->interrupt.ask != NULL) {
        root->group->lookout = (hd_lookout){look_outside, root};
    }
}

heddle_status hd_comm_check(heddle_comm *comm)
{
    heddle_status st = hd_group_check(comm->group);
    return st != HEDDLE_OK ? st : look_outside(comm->root);
}

heddle_status hd_comm_look(void *comm)
{
    return hd_comm_check(comm);
}

void hd_comm_relax(heddle_comm *comm, int round)
{
    heddle_comm *root = comm->root;
    if (root->ops->relax != NULL) {
        root->ops->relax(root, round);
    } else {
        hd_group_relax(comm->group, round);
    }
}

/* --- standing still ----------------------------------------------------------------------------------------------- */

enum { TURNS_BEFORE_REST = 2048, STAND_EVERY_NS = 20000000 }; /* of transports that ring no bell */

int hd_comm_rests(const heddle_comm *comm, int round)
{
    return comm->root->ops->relax == NULL ? comm->group->armed : round > 0 && round % TURNS_BEFORE_REST == 0;
}

heddle_status hd_comm_stand(heddle_comm *comm, const hd_wait *wait)
{
    hd_stand stand = {.key = wait->key, .is_slow = wait->is_slow};
    if (comm->root->ops->relax != NULL) {
        const int64_t now_ns = hd_now_ns();
        if (now_ns - comm->root->stood_ns < STAND_EVERY_NS) {
            return HEDDLE_OK;
        }
        comm->root->stood_ns = now_ns;
    }
    for (int i = 0; i < wait->npeers; i++) {
        const int member = comm->member[wait->peer[i]];
        if (member < 0) { /* of another host: nobody here knows what it does */
            stand.npeers = 0;
            break;
        }
        stand.peer[stand.npeers++] = member;
    }
    snprintf(stand.text, sizeof stand.text, "%s%s", wait->call, wait->line != NULL ? " " : "");
    if (wait->line != NULL) {
        const size_t at = strlen(stand.text);
        hd_copy_text(stand.text + at, sizeof stand.text - at, wait->line);
    }
    return hd_group_stand(comm->group, &stand);
}

void hd_comm_go_on(heddle_comm *comm)
{
    hd_group_disarm(comm->group);
    hd_group_move_on(comm->group);
}

void hd_comm_say_standing(char *out, size_t bytes, const heddle_comm *comm, int rank)
{
    hd_group_say_standing(out, bytes, comm->group, comm->member[rank]);
}

void hd_comm_makes(heddle_comm *comm, const char *what, const char *line)
{
    char *text = comm->root->makes;
    snprintf(text, HD_STAND_BYTES, "%s%s%s", what, line != NULL ? " " : "", line != NULL ? line : "");
}

int hd_comm_rank_name(const heddle_comm *comm, int rank)
{
    return hd_comm_root_rank(comm, rank);
}

int hd_comm_local_ranks(const heddle_comm *comm, const int **ranks)
{
    *ranks = comm->local;
    return comm->nlocal;
}

heddle_status hd_comm_begin(heddle_comm *comm, const char *call)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_group_owned(comm->group, call));
    HD_TRY(hd_fault_point(comm, call));
    comm->root->makes[0] = '\0';
    st = hd_comm_enter(comm);
out:
    return st;
}

hd_pair_ground *hd_comm_pair_ground(heddle_comm *comm)
{
    return &comm->pair;
}

heddle_status hd_comm_send_by_transport(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                                        size_t recv_bytes, int from)
{
    return comm->ops->sendrecv(comm, send, send_bytes, to, recv, recv_bytes, from);
}

void hd_comm_get_view(hd_comm_view *out, heddle_comm *comm)
{
    hd_control *own = comm->group->control[comm->group->me];
    *out = (hd_comm_view){.in_flight = &comm->in_flight,
                          .moving = &own->moving,
                          .on_device = &own->on_device,
                          .alarm = &own->alarm,
                          .device = &comm->root->device};
}

void hd_comm_quiesce(heddle_comm *comm)
{
    hd_group_quiesce(comm->group);
}

int hd_comm_links_all(const heddle_comm *comm)
{
    return comm->ops == &hd_local_ops;
}

int hd_comm_quiesce_devices(heddle_comm *comm)
{
    const int is_quiet = hd_group_quiesce_devices(comm->group);
    if (!is_quiet && comm->root->device != NULL) {
        hd_device_leave(comm->root->device);
    }
    return is_quiet;
}

int hd_comm_shares_address_space(const heddle_comm *comm)
{
    return comm->group->team != NULL;
}

pid_t hd_comm_peer_pid(const heddle_comm *comm, int rank)
{
    return comm->member[rank] >= 0 ? comm->group->pid[comm->member[rank]] : 0;
}

uint64_t hd_comm_export(const heddle_comm *comm, const void *memory, size_t bytes)
{
    return hd_window_name(comm->window[comm->rank], memory, bytes);
}

void *hd_comm_import(const heddle_comm *comm, int rank, uint64_t name)
{
    return hd_window_at(comm->window[rank], name);
}
