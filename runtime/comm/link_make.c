/* Links, made: flags between ranks that share memory. A rank's inbox lies in its own memory; peers write into it.
 *
 * An inbox outlives its link: a peer may post once more after this rank has destroyed its side, so the memory is kept
 * for a later link of the same size instead of being freed. Every use of an inbox has its own generation, which stands
 * above the sequence number in the flag; late posts of an older generation never look like new ones.
 */
#include "runtime/comm/link.h"

enum { GENERATION_SHIFT = 40 };

static heddle_status take_inbox(hd_group *group, hd_block **out, size_t bytes)
{
    int fresh = 0;
    heddle_status st = hd_group_take(group, out, bytes, &fresh);
    if (st != HEDDLE_OK) {
        return st;
    }
    for (size_t i = 0; i < bytes / sizeof(hd_cell) && fresh; i++) {
        hd_cell *c = (hd_cell *)(*out)->memory + i; /* arena memory may have been used before */
        atomic_store(&c->sequence, 0);
    }
    return HEDDLE_OK;
}

/* Flags of numbers that come again; nobody posts meanwhile. What cells hold besides is as it was. */
static void renew(void *arg)
{
    hd_link *link = arg;
    for (size_t i = 0; i < link->inbox->bytes / sizeof(hd_cell); i++) {
        atomic_store(&((hd_cell *)link->inbox->memory + i)->sequence, link->in_base);
    }
}

static heddle_status link_parts(hd_link **out, heddle_comm *comm, int n)
{
    heddle_status st = HEDDLE_OK;
    void *p = NULL;
    HD_TRY(hd_alloc(&p, 1, sizeof(hd_link), "a link"));
    hd_link *link = p;
    link->comm = comm;
    link->breaker = comm->breaker;
    link->call = "a wait for flags";
    HD_TRY(hd_alloc((void **)&link->in, (size_t)comm->size, sizeof(hd_cell *), "a link"));
    HD_TRY(hd_alloc((void **)&link->out, (size_t)comm->size, sizeof(hd_cell *), "a link"));
    HD_TRY(hd_alloc((void **)&link->out_base, (size_t)comm->size, sizeof(uint64_t), "a link"));
    HD_TRY(hd_alloc((void **)&link->window, (size_t)comm->size, sizeof(hd_window), "a link"));
    HD_TRY(hd_alloc((void **)&link->known, (size_t)comm->size * HD_LINK_SLOTS, sizeof(hd_known), "a link"));
    HD_TRY(take_inbox(comm->group, &link->inbox, (size_t)n * HD_LINK_SLOTS * sizeof(hd_cell)));
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
        hd_cell *theirs = hd_window_at(link->window[ranks[i]], peer->name);
        link->in[ranks[i]] = (hd_cell *)link->inbox->memory + (size_t)i * HD_LINK_SLOTS;
        link->out[ranks[i]] = theirs + (size_t)me * HD_LINK_SLOTS;
        link->out_base[ranks[i]] = peer->extra;
    }
    link->renewal = (hd_renewal){.renew = renew, .arg = link};
    hd_comm_renewal_add(comm, &link->renewal);
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
    return hd_comm_links_all(comm) ? link_all(out, comm) : link_make(out, comm, comm->local, comm->nlocal);
}

heddle_status hd_link_create_all(hd_link **out, heddle_comm *comm)
{
    heddle_status st = link_all(out, comm);
    if (st == HEDDLE_OK) {
        (*out)->breaker = NULL;
        hd_link_serves(*out, "a sendrecv", NULL);
    }
    return st;
}

void hd_link_serves(hd_link *link, const char *call, const char *line)
{
    link->call = call;
    link->line = line;
}

void hd_link_destroy(hd_link *link)
{
    if (link == NULL) {
        return;
    }
    hd_comm_renewal_remove(&link->renewal);
    hd_group_keep(link->comm->group, link->inbox);
    HD_FREE_ALL(link->in, link->out, link->out_base, link->window, link->known, link);
}
