/* Do stores of a peer's kernel arrive? A device may map the memory of another one, or say that it reaches it, and its
 * stores are lost on the way all the same, or never end: so does PCIe behind an IOMMU, or with access control services
 * on. So every rank stores a pattern to every other one before the wire is taken. */
#include "runtime/comm/comm_private.h"
#include "runtime/device/enqueued.h"

#include <string.h>

enum { PROOF_BYTES = 4096, WORDS = PROOF_BYTES / 8 };

/* Of each wait; the ranks do not come to their next meeting before, so it is less than a deadline. The device may do
 * something else first, and the machine much. */
static const int64_t MOST_NS = 30000000000;

typedef struct offer {
    heddle_device_name name;
    uint64_t address;
} offer;

typedef struct proof {
    heddle_comm *comm;
    hd_device *device;
    hd_enqueued ended;
    heddle_stream stream;
    char *memory;    /* on the device: what goes to each rank, then what comes from each */
    uint64_t *image; /* the same on the host */
    size_t bytes;    /* of both */
    offer *all;
    void **at;        /* [ranks] the memory of each as it is here; NULL: it is not */
    int is_under_way; /* something of the stream, here or of another rank */
} proof;

static uint64_t word_of(const heddle_comm *comm, int from, int to, int i)
{
    return (uint64_t)((from * comm->size + to) * WORDS + i + 1) * 0x9e3779b97f4a7c15u; /* odd: never 0 */
}

static size_t from_at(const proof *p, int rank)
{
    return (size_t)(p->comm->size + rank) * PROOF_BYTES;
}

/* --- on this rank ------------------------------------------------------------------------------------------------- */

/* Of what is in the stream, which waits for no rank; st: how it got there. */
static heddle_status finish(proof *p, const char *what, heddle_status st)
{
    int done = 0;
    const int64_t now = hd_now_ns(), half = (hd_comm_deadline_ns(p->comm, 0) - now) / 2;
    const int64_t ns = half < MOST_NS ? half : MOST_NS;
    st = hd_enqueued_end(&p->ended, p->stream, st);
    const heddle_status waited = hd_enqueued_await(&done, &p->ended, now + ns, NULL, NULL);
    st = st == HEDDLE_OK ? waited : st;
    const hd_sentence why = hd_sentence_keep();
    p->is_under_way = !done && (waited == HEDDLE_OK || !hd_enqueued_has_ended(&p->ended, now + ns));
    if (st == HEDDLE_OK && !done) {
        return hd_fail(HEDDLE_ERR_TIMEOUT, "%s did not end on device %s in %.1f s", what, p->device->name,
                       (double)ns * 1e-9);
    }
    return st == HEDDLE_OK ? st : hd_sentence_say(&why, st);
}

static heddle_status copy(const proof *p, void *dst, const void *src, size_t bytes)
{
    return p->device->library->copy(dst, 0, src, 0, (int64_t)bytes, 1, p->device->number, p->stream);
}

/* What comes from others is zeros until it is there. */
static heddle_status begin(proof *p, offer *own)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = p->device->library;
    const int ranks = p->comm->size;
    p->bytes = (size_t)ranks * 2 * PROOF_BYTES;
    HD_TRY(hd_alloc((void **)&p->image, 1, p->bytes, "a proof of stores"));
    HD_TRY(hd_alloc((void **)&p->all, (size_t)ranks, sizeof *p->all, "a proof of stores"));
    HD_TRY(hd_alloc((void **)&p->at, (size_t)ranks, sizeof *p->at, "a proof of stores"));
    for (int to = 0; to < ranks; to++) {
        for (int i = 0; i < WORDS; i++) {
            p->image[to * WORDS + i] = word_of(p->comm, p->comm->rank, to, i);
        }
    }
    HD_TRY(library->alloc((void **)&p->memory, p->device->number, p->bytes));
    HD_TRY(library->stream_create(&p->stream, p->device->number));
    HD_TRY(hd_enqueued_open(&p->ended, p->device));
    p->ended.may_ask_again = 1;
    HD_TRY(finish(p, "a copy to the device", copy(p, p->memory, p->image, p->bytes)));
    own->address = (uint64_t)(uintptr_t)p->memory;
    if (!hd_comm_shares_address_space(p->comm)) {
        st = library->share(&own->name, p->memory, p->device->number);
    }
out:
    return st;
}

/* The devices may not see one another from these processes, or the processes share too little of a host: that shows
 * when one tries. */
static heddle_status map_others(proof *p)
{
    heddle_status st = HEDDLE_OK;
    for (int r = 0; r < p->comm->size; r++) {
        if (hd_comm_is_here(p->comm, r)) {
            p->at[r] = (void *)(uintptr_t)p->all[r].address;
        } else {
            HD_TRY(p->device->library->map(&p->at[r], &p->all[r].name, p->device->number));
        }
    }
out:
    return st;
}

static heddle_status store_to_all(proof *p)
{
    heddle_status st = HEDDLE_OK;
    for (int r = 0; r < p->comm->size && st == HEDDLE_OK; r++) {
        if (r != p->comm->rank) {
            st = p->device->library->store((char *)p->at[r] + from_at(p, p->comm->rank),
                                           p->memory + (size_t)r * PROOF_BYTES, PROOF_BYTES, p->device->number,
                                           p->stream);
        }
    }
    return finish(p, "what kernels store in memory of other ranks", st);
}

static heddle_status compare(proof *p)
{
    heddle_status st = HEDDLE_OK;
    char *const from_all = (char *)p->image + from_at(p, 0);
    memset(from_all, 0, p->bytes / 2);
    HD_TRY(finish(p, "a copy from the device", copy(p, from_all, p->memory + from_at(p, 0), p->bytes / 2)));
    for (int r = 0; r < p->comm->size; r++) {
        int missing = 0;
        for (int i = 0; i < WORDS && r != p->comm->rank; i++) {
            missing += p->image[(p->comm->size + r) * WORDS + i] != word_of(p->comm, r, p->comm->rank, i);
        }
        if (missing > 0) {
            return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                           "of %d bytes that kernels of rank %d stored in memory of rank %d's device %s, %d are not "
                           "there",
                           PROOF_BYTES, r, p->comm->rank, p->device->name, 8 * missing);
        }
    }
out:
    return st;
}

/* --- together ----------------------------------------------------------------------------------------------------- */

/* Where somebody's stores are under way nobody's memory is free; a rank that is gone may have some. */
static heddle_status agree(proof *p, heddle_status mine)
{
    hd_record own = {.number = p->is_under_way};
    p->is_under_way = 1;
    const heddle_status st = hd_comm_agree_with(p->comm, mine, &own);
    if (st == HEDDLE_OK || hd_comm_check(p->comm) == HEDDLE_OK) {
        p->is_under_way = 0;
        for (int r = 0; r < p->comm->size; r++) {
            p->is_under_way |= p->comm->records[r].number != 0;
        }
    }
    return st;
}

static void unmap_others(const proof *p)
{
    for (int r = 0; p->at != NULL && r < p->comm->size; r++) {
        if (p->at[r] != NULL && !hd_comm_is_here(p->comm, r)) {
            p->device->library->unmap(p->at[r], p->device->number);
        }
    }
}

/* What is stored to, or from, stays where that may go on. Freeing would wait for it. */
static void end(proof *p)
{
    if (p->is_under_way) {
        hd_device_leave(p->device);
    } else {
        p->device->library->free(p->memory, p->device->number);
        hd_free(p->image);
    }
    hd_enqueued_close(&p->ended);
    p->device->library->stream_destroy(p->stream, p->device->number);
    HD_FREE_ALL(p->all, p->at);
}

heddle_status hd_comm_prove_stores(heddle_comm *comm, hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    proof p = {.comm = comm, .device = device};
    offer own = {.address = 0};
    if (comm->sharers.in_process == comm->size) {
        return HEDDLE_OK; /* one device, and one process, for all */
    }
    HD_TRY(agree(&p, begin(&p, &own)));
    HD_TRY(hd_comm_gather(comm, HD_CALL_ALLGATHER, &own, p.all, sizeof own));
    st = agree(&p, map_others(&p));
    st = st == HEDDLE_OK ? agree(&p, store_to_all(&p)) : st;
    st = st == HEDDLE_OK ? agree(&p, compare(&p)) : st;
    if (!p.is_under_way) {
        const hd_sentence why = hd_sentence_keep();
        unmap_others(&p);
        const heddle_status gone = hd_comm_agree(comm, HEDDLE_OK); /* nobody has it mapped behind that */
        st = st == HEDDLE_OK ? gone : hd_sentence_say(&why, st);
    }
out:
    end(&p);
    return st;
}
