/* Opening and ending what the wire nccl needs. */
#include "runtime/comm/device_nccl.h"
#include "runtime/device/enqueued.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { WORD_BYTES = 16, SPARES = 8 /* exchanges that may be under way before execute makes events */ };

/* Which library it is, if there is one. */
static heddle_status check(const heddle_comm *comm, const hd_device *device, const hd_device_place *place)
{
    hd_messages found;
    (void)comm;
    (void)place;
    if (device->library->kernels == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "the library of %s was built without kernels (nvcc)", device->name);
    }
    return hd_messages_load(&found, "nccl", device->folder, device);
}

/* Collective: rank 0's name for all. */
static heddle_status share_id(unsigned char *id, heddle_comm *comm, const hd_messages *messages)
{
    hd_record own = {.name = 0};
    _Static_assert(HEDDLE_MESSAGES_ID_BYTES <= sizeof own.text, "it goes with what all are told");
    heddle_status st = comm->rank == 0 ? messages->table->make_id((unsigned char *)own.text) : HEDDLE_OK;
    st = hd_comm_agree_with(comm, st, &own);
    memcpy(id, comm->records[0].text, HEDDLE_MESSAGES_ID_BYTES);
    return st;
}

/* A word to and from every rank, so that what the library sets up for two ranks when they talk first is there. */
typedef struct greeting {
    hd_nccl_batch batch;
    heddle_stream stream;
    void *words;
    hd_enqueued enqueued;
} greeting;

/* Half of the deadline: who waits for a rank that has failed comes to where they agree before that one's patience ends.
 */
static int64_t patience_ms(const hd_comm_nccl *nccl)
{
    return (hd_comm_deadline_ms(nccl->root) + 1) / 2;
}

/* All that may fail on one rank alone, and the meeting. */
static heddle_status prepare(greeting *g, hd_comm_nccl *nccl)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = nccl->device->library;
    const heddle_comm *root = nccl->root;
    int device = nccl->device->number;
    hd_nccl_batch *l = &g->batch;
    HD_TRY(library->alloc(&g->words, device, (size_t)(root->size + 1) * WORD_BYTES));
    HD_TRY(library->stream_create(&g->stream, device));
    g->enqueued.names = (hd_enqueued_names){root->rank, "end", "first exchange", "between devices"};
    HD_TRY(hd_enqueued_open(&g->enqueued, nccl->device));
    HD_TRY(hd_alloc((void **)&l->send, (size_t)root->size, sizeof *l->send, "messages between devices"));
    HD_TRY(hd_alloc((void **)&l->recv, (size_t)root->size, sizeof *l->recv, "messages between devices"));
    for (int r = 0; r < root->size; r++) {
        if (r != root->rank) {
            l->send[l->nsends++] = (heddle_device_message){g->words, WORD_BYTES, r};
            l->recv[l->nrecvs++] = (heddle_device_message){(char *)g->words + (r + 1) * WORD_BYTES, WORD_BYTES, r};
        }
    }
    st = hd_comm_nccl_settle(nccl, patience_ms(nccl), "the meeting of the ranks");
out:
    return st;
}

/* Nobody watches yet. */
static heddle_status look(void *arg)
{
    hd_comm_nccl *nccl = arg;
    int settled = 0;
    heddle_status st = hd_comm_nccl_look(nccl, &settled);
    return st == HEDDLE_OK ? hd_comm_check(nccl->root) : st;
}

static heddle_status greet(greeting *g, hd_comm_nccl *nccl)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(g->batch.nsends > 0 ? hd_comm_nccl_begin(nccl, &g->batch, g->stream) : HEDDLE_OK);
    HD_TRY(hd_comm_nccl_settle(nccl, patience_ms(nccl), "the first exchange between devices"));
    HD_TRY(hd_enqueued_end(&g->enqueued, g->stream, HEDDLE_OK));
    HD_TRY(hd_enqueued_wait(&g->enqueued, hd_comm_deadline_ns(nccl->root, patience_ms(nccl)), look, nccl));
    HD_TRY(look(nccl)); /* what failed has ended, too */
    st = hd_comm_nccl_start_watch(nccl);
out:
    return st;
}

static void end_greeting(greeting *g, const hd_comm_nccl *nccl, int has_failed)
{
    const heddle_device *library = nccl->device->library;
    hd_enqueued_close(&g->enqueued);
    library->stream_destroy(g->stream, nccl->device->number);
    if (!has_failed || nccl->root->lent == NULL) { /* what a lender has to end may still come */
        library->free(g->words, nccl->device->number);
    }
    hd_free(g->batch.send);
    hd_free(g->batch.recv);
}

/* A rank that has failed ends the handle, so that others may hear of it; its reason comes before theirs where they have
 * waited for it in vain. */
static heddle_status agree(hd_comm_nccl *nccl, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    int has_waited = mine == HEDDLE_ERR_TIMEOUT || mine == HEDDLE_ERR_TRANSPORT;
    const hd_sentence why = hd_sentence_keep();
    if (mine != HEDDLE_OK && !nccl->is_watched) {
        hd_messages_end(&nccl->messages, 1);
    }
    HD_TRY(hd_comm_agree(nccl->root, has_waited ? HEDDLE_OK : mine));
    st = hd_comm_agree(nccl->root, has_waited ? hd_sentence_say(&why, mine) : mine);
out:
    return st;
}

/* Collective. Everything that may fail or wait once: later exchanges only enqueue. */
static heddle_status try_out(hd_comm_nccl *nccl)
{
    heddle_status st = HEDDLE_OK;
    greeting g = {0};
    HD_TRY(agree(nccl, prepare(&g, nccl)));
    HD_TRY(agree(nccl, greet(&g, nccl)));
out:
    if (st != HEDDLE_OK && !nccl->is_watched) {
        hd_messages_end(&nccl->messages, 1); /* before its memory goes */
    }
    end_greeting(&g, nccl, st != HEDDLE_OK);
    return st;
}

static heddle_status make_nccl(hd_comm_nccl **out, heddle_comm *root, const hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    pthread_condattr_t by_monotonic;
    HD_TRY(hd_alloc((void **)out, 1, sizeof **out, "messages between devices"));
    (*out)->root = root;
    (*out)->device = device;
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_condattr_init(&by_monotonic);
    pthread_condattr_setclock(&by_monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&(*out)->news, &by_monotonic);
    pthread_condattr_destroy(&by_monotonic);
    HD_TRY(hd_group_copy_lives(&(*out)->life, root->group));
    for (int i = 0; i < SPARES; i++) {
        HD_TRY(hd_comm_nccl_add_spare(*out));
    }
    st = hd_messages_load(&(*out)->messages, "nccl", device->folder, device);
out:
    return st;
}

static heddle_status open_nccl(heddle_comm *comm, hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    hd_comm_nccl *nccl = NULL;
    unsigned char id[HEDDLE_MESSAGES_ID_BYTES];
    HD_TRY(hd_comm_agree(comm, make_nccl(&nccl, comm, device)));
    const heddle_device_messages *library = nccl->messages.table;
    void **handle = &nccl->messages.handle;
    if (comm->lent != NULL) { /* on all ranks */
        HD_TRY(hd_comm_agree(comm, library->borrow(handle, comm->lent, comm->rank, comm->size, device->number)));
    } else {
        HD_TRY(share_id(id, comm, &nccl->messages));
        HD_TRY(hd_comm_agree(comm, library->begin(handle, id, comm->rank, comm->size, device->number)));
    }
    HD_TRY(try_out(nccl));
    comm->nccl = nccl;
    nccl = NULL;
out:
    if (nccl != NULL) {
        hd_comm_nccl_end(nccl, 1);
    }
    return st;
}

/* When all has gone well nothing is under way any more: plans and sessions end before. */
void hd_comm_close_nccl(heddle_comm *comm)
{
    hd_comm_nccl *nccl = comm->nccl;
    if (nccl == NULL || hd_group_is_fork(comm->group)) {
        return; /* what a fork has of it is the parent's */
    }
    hd_comm_nccl_end(nccl, hd_comm_check(comm) != HEDDLE_OK);
    comm->nccl = NULL;
}

const hd_wire hd_wire_nccl = {.check = check, .open = open_nccl, .look = hd_comm_nccl_check, .devices_wait = 1};
