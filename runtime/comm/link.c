/* Links: flags between ranks that share memory. A rank's inbox lies in its own memory; peers write into it.
 *
 * An inbox outlives its link: a peer may post once more after this rank has destroyed its side, so the memory is kept
 * for a later link of the same size instead of being freed. Every use of an inbox has its own generation, which stands
 * above the sequence number in the flag; late posts of an older generation never look like new ones.
 */
#include "runtime/comm/comm_private.h"

enum { GENERATION_SHIFT = 40 };

typedef struct cell {
    _Alignas(HD_LINE_PAIR_BYTES) _Atomic uint64_t sequence;
    _Atomic uint64_t word[HD_LINK_WORDS];
} cell;

/* What a cell holds already, as its writer knows. Words that stay the same are not stored again: a peer that spins on
 * the flag takes the line away between the words and the flag, and it has to come back twice. */
typedef struct known {
    int nwords;
    uint64_t word[HD_LINK_WORDS];
} known;

struct hd_link {
    heddle_comm *comm;
    hd_block *inbox;
    uint64_t in_base;   /* generation of the inbox, shifted */
    cell **in;          /* by rank: HD_LINK_SLOTS cells that it writes; NULL: not linked */
    cell **out;         /* by rank: the cells that this rank writes */
    uint64_t *out_base; /* by rank */
    hd_window *window;  /* by rank; no bytes: not linked */
    known *known;       /* by rank and slot: of the cells that this rank writes */
    int is_inner;       /* part of other calls: posts and waits do not count */
};

static heddle_status take_inbox(hd_group *group, hd_block **out, size_t bytes)
{
    int fresh = 0;
    heddle_status st = hd_group_take(group, out, bytes, &fresh);
    if (st != HEDDLE_OK) {
        return st;
    }
    for (size_t i = 0; i < bytes / sizeof(cell) && fresh; i++) {
        cell *c = (cell *)(*out)->memory + i; /* arena memory may have been used before */
        atomic_store(&c->sequence, 0);
    }
    return HEDDLE_OK;
}

static heddle_status link_parts(hd_link **out, heddle_comm *comm, int n)
{
    heddle_status st = HEDDLE_OK;
    void *p = NULL;
    HD_TRY(hd_alloc(&p, 1, sizeof(hd_link), "a link"));
    hd_link *link = p;
    link->comm = comm;
    HD_TRY(hd_alloc((void **)&link->in, (size_t)comm->size, sizeof(cell *), "a link"));
    HD_TRY(hd_alloc((void **)&link->out, (size_t)comm->size, sizeof(cell *), "a link"));
    HD_TRY(hd_alloc((void **)&link->out_base, (size_t)comm->size, sizeof(uint64_t), "a link"));
    HD_TRY(hd_alloc((void **)&link->window, (size_t)comm->size, sizeof(hd_window), "a link"));
    HD_TRY(hd_alloc((void **)&link->known, (size_t)comm->size * HD_LINK_SLOTS, sizeof(known), "a link"));
    HD_TRY(take_inbox(comm->group, &link->inbox, (size_t)n * HD_LINK_SLOTS * sizeof(cell)));
    link->in_base = link->inbox->generation << GENERATION_SHIFT;
    *out = link;
out:
    if (st != HEDDLE_OK) {
        hd_link_destroy(p);
    }
    return st;
}

/* ranks: the participants on this host, ascending; the same list on all of them. */
static heddle_status link_make(hd_link **out, heddle_comm *comm, const int *ranks, int n)
{
    heddle_status st = HEDDLE_OK;
    hd_link *link = NULL;
    int me = 0;
    while (ranks[me] != comm->rank) {
        me++;
    }
    heddle_status mine = link_parts(&link, comm, n);
    hd_record own = {.name = 0};
    if (mine == HEDDLE_OK) {
        own.name = hd_window_name(comm->group->window[comm->group->me], link->inbox->memory, link->inbox->bytes);
        own.extra = link->in_base;
    }
    HD_TRY(hd_comm_agree_with(comm, mine, &own));
    for (int i = 0; i < n; i++) {
        const hd_record *peer = &comm->records[ranks[i]];
        link->window[ranks[i]] = comm->group->window[comm->member[ranks[i]]];
        cell *theirs = hd_window_at(link->window[ranks[i]], peer->name);
        link->in[ranks[i]] = (cell *)link->inbox->memory + (size_t)i * HD_LINK_SLOTS;
        link->out[ranks[i]] = theirs + (size_t)me * HD_LINK_SLOTS;
        link->out_base[ranks[i]] = peer->extra;
    }
    *out = link;
    link = NULL;
out:
    hd_link_destroy(link);
    return st;
}

static heddle_status link_all(hd_link **out, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    int *ranks = NULL;
    st = hd_alloc((void **)&ranks, (size_t)comm->size, sizeof(int), "a link");
    HD_TRY(hd_comm_agree(comm, st));
    for (int i = 0; i < comm->size; i++) {
        ranks[i] = i;
    }
    HD_TRY(link_make(out, comm, ranks, comm->size));
out:
    hd_free(ranks);
    return st;
}

heddle_status hd_link_create(hd_link **out, heddle_comm *comm)
{
    return hd_comm_stages_messages(comm) ? link_all(out, comm) : link_make(out, comm, comm->local, comm->nlocal);
}

heddle_status hd_link_create_all(hd_link **out, heddle_comm *comm)
{
    heddle_status st = link_all(out, comm);
    if (st == HEDDLE_OK) {
        (*out)->is_inner = 1;
    }
    return st;
}

void hd_link_destroy(hd_link *link)
{
    if (link == NULL) {
        return;
    }
    hd_group_keep(link->comm->group, link->inbox);
    hd_free(link->in);
    hd_free(link->out);
    hd_free(link->out_base);
    hd_free(link->window);
    hd_free(link->known);
    hd_free(link);
}

static heddle_status count_call(const hd_link *link, const char *call)
{
    return link->is_inner ? HEDDLE_OK : hd_fault_point(link->comm, call);
}

heddle_status hd_link_post(hd_link *link, int peer, int slot, uint64_t sequence, const uint64_t *words, int nwords)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(count_call(link, "link post"));
    cell *c = &link->out[peer][slot];
    known *k = &link->known[peer * HD_LINK_SLOTS + slot];
    for (int i = 0; i < nwords; i++) {
        if (i >= k->nwords || k->word[i] != words[i]) {
            atomic_store_explicit(&c->word[i], words[i], memory_order_relaxed);
            k->word[i] = words[i];
        }
    }
    k->nwords = nwords > k->nwords ? nwords : k->nwords;
    /* A locked instruction: what was written before becomes visible before it, and `sleeping` is read after it. */
    atomic_exchange(&c->sequence, link->out_base[peer] + sequence);
    if (peer != link->comm->rank) {
        hd_group_ring(link->comm->group, link->comm->member[peer]);
    }
out:
    return st;
}

static int has_arrived(const hd_link *link, int peer, int slot, uint64_t sequence, uint64_t *words, int nwords)
{
    cell *c = &link->in[peer][slot];
    if (atomic_load(&c->sequence) < link->in_base + sequence) {
        return 0;
    }
    for (int i = 0; i < nwords && words != NULL; i++) {
        words[i] = atomic_load_explicit(&c->word[i], memory_order_relaxed);
    }
    return 1;
}

heddle_status hd_link_poll(hd_link *link, int peer, int slot, uint64_t sequence, uint64_t *words, int nwords,
                           int *arrived)
{
    const heddle_comm *comm = link->comm;
    heddle_status st = HEDDLE_OK;
    *arrived = has_arrived(link, peer, slot, sequence, words, nwords);
    if (!*arrived && __builtin_expect(hd_group_left(comm->group, comm->member[peer]), 0)) {
        *arrived = has_arrived(link, peer, slot, sequence, words, nwords); /* what it posted before it left counts */
        st = *arrived ? HEDDLE_OK : hd_group_closed(comm->group, comm->member[peer], "looking for a flag");
    }
    return st;
}

const hd_window *hd_link_windows(const hd_link *link)
{
    return link->window;
}

heddle_status hd_link_wait(hd_link *link, int peer, int slot, uint64_t sequence, uint64_t *words, int nwords,
                           int64_t deadline_ns, const char *what)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *comm = link->comm;
    hd_group *group = comm->group;
    int late = 0;
    HD_TRY(count_call(link, "link wait"));
    for (int round = 0;; round++) {
        if (has_arrived(link, peer, slot, sequence, words, nwords)) {
            st = HEDDLE_OK;
            break;
        }
        if (st != HEDDLE_OK) {
            break;
        }
        if (hd_wait_looks(group, round)) {
            st = hd_wait_look(comm, &deadline_ns, &late);
            if (late) {
                st = hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not come in time (%s)",
                             hd_comm_root_rank(comm, comm->rank), hd_comm_root_rank(comm, peer), what);
            } else if (st == HEDDLE_OK && hd_group_left(group, comm->member[peer])) {
                st = hd_group_closed(group, comm->member[peer], what);
            }
        }
        if (st == HEDDLE_OK) {
            hd_group_relax(group, round);
        }
    }
    hd_group_disarm(group);
out:
    return st;
}
