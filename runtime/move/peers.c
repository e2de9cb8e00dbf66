/* Loads and stores between ranks that reach one another, made: who moves, whom it tells and hears, in which order. */
#include "runtime/move/transfer.h"

#include <string.h>

enum { SHORT_RUN_BYTES = 2048, LITTLE_BYTES = 1 << 20 };

/* --- who moves ---------------------------------------------------------------------------------------------------- */

/* The owner of the interleaved side moves, walking its own memory in row order; where both sides are cut (the order is
 * permuted), reading in order and scattering is the faster way. The same on every rank. */
void hd_peer_choose(hd_transfer *t, const hd_geometry *all, size_t step)
{
    const hd_geometry *top = all;
    int must_pull = t->any_src || t->any_dst || t->lends;
    for (int r = 0; r < t->channel->nranks; r++) {
        const hd_geometry *g = (const hd_geometry *)(const void *)((const char *)all + (size_t)r * step);
        t->any_adds |= g->adds;
        t->any_mail |= g->mail > 0;
        t->any_staged |= g->staged > 0;
        t->any_near |= g->near > 0;
        must_pull |= g->adds | g->clears | g->staged;
        top = g->largest_bytes > top->largest_bytes ? g : top;
        t->hint.footprint_bytes += hd_channel_near(t->channel, r) ? g->footprint_bytes : 0;
    }
    int64_t src = top->src_stretch_bytes, dst = top->dst_stretch_bytes, run = top->run_bytes;
    int permuted = src > run && dst > run && run < top->largest_bytes;
    t->walk_src = permuted || (run < top->largest_bytes && src <= dst);
    t->push = t->walk_src && !must_pull;
    t->is_open = !must_pull && (permuted || (src >= HD_LONG_RUN_BYTES && dst >= HD_LONG_RUN_BYTES));
}

static int add_rank(int *list, int n, int rank)
{
    for (int i = 0; i < n; i++) {
        if (list[i] == rank) {
            return n;
        }
    }
    list[n] = rank;
    return n + 1;
}

static int add_linked(int *list, int n, const hd_channel *c, const hd_items *items)
{
    for (int i = 0; i < items->count; i++) {
        int peer = items->item[i].peer;
        n = peer != c->rank && hd_channel_linked(c, peer) ? add_rank(list, n, peer) : n;
    }
    return n;
}

static int add_connected(int *list, int n, const hd_transfer *t)
{
    for (int r = 0; t->is_guard && r < t->channel->nranks; r++) {
        n = t->channel->component[r] ? add_rank(list, n, r) : n;
    }
    return n;
}

static heddle_status list_peers(hd_transfer *t)
{
    heddle_status st = HEDDLE_OK;
    const hd_channel *c = t->channel;
    hd_peers *p = &t->peers;
    const hd_items *served = t->push ? &t->send : &t->recv, *movers = t->push ? &t->recv : &t->send;
    size_t n = (size_t)c->nranks;
    HD_TRY(hd_alloc((void **)&p->served, n, sizeof(int), "peers of a transfer"));
    HD_TRY(hd_alloc((void **)&p->movers, n, sizeof(int), "peers of a transfer"));
    HD_TRY(hd_alloc((void **)&p->tell, n, sizeof(int), "peers of a transfer"));
    HD_TRY(hd_alloc((void **)&p->hear, n, sizeof(int), "peers of a transfer"));
    HD_TRY(hd_alloc((void **)&p->uses, n, 1, "peers of a transfer"));
    p->nserved = add_linked(p->served, 0, c, served);
    p->nmovers = add_linked(p->movers, 0, c, movers);
    p->ntell = add_connected(p->tell, add_linked(p->tell, 0, c, movers), t);
    p->nhear = add_connected(p->hear, add_linked(p->hear, 0, c, served), t);
    memset(p->uses, 1, (size_t)p->nserved); /* they come first */
    for (int i = 0; i < p->nmovers; i++) {
        p->is_touched |= hd_channel_near(c, p->movers[i]);
    }
out:
    return st;
}

static void free_peers(hd_peers *p)
{
    HD_FREE_ALL(p->served, p->movers, p->tell, p->hear, p->uses);
    memset(p, 0, sizeof *p);
}

/* Own items always; the near ones of the side that this rank moves. */
static heddle_status build_lanes(hd_transfer *t)
{
    heddle_status st = HEDDLE_OK;
    const hd_channel *c = t->channel;
    const hd_items *items = t->push ? &t->send : &t->recv;
    /* Of little the order of rows is worth less than copying the own item while the peers' flags travel. */
    int64_t fuse_bytes = t->hint.footprint_bytes <= LITTLE_BYTES ? SHORT_RUN_BYTES : HD_LONG_RUN_BYTES;
    void *copies = NULL, *peers = NULL;
    int n = 0;
    HD_TRY(hd_alloc(&copies, (size_t)items->count, sizeof(hd_copy), "copies of a transfer"));
    HD_TRY(hd_alloc(&peers, (size_t)items->count, sizeof(int), "copies of a transfer"));
    for (int i = 0; i < items->count; i++) {
        if (hd_channel_near(c, items->item[i].peer)) {
            ((int *)peers)[n] = items->item[i].peer;
            ((hd_copy *)copies)[n++] = items->item[i].copy;
        }
    }
    HD_TRY(hd_lanes_build(&t->lanes, copies, peers, n, t->walk_src ? HD_SIDE_SRC : HD_SIDE_DST, c->rank, c->nranks,
                          fuse_bytes));
    hd_lanes_at_peers(&t->lanes, t->push ? HD_SIDE_DST : HD_SIDE_SRC);
    hd_lanes_choose(&t->lanes, t->kernel, &t->hint);
    t->own_groups = hd_lanes_own(&t->lanes, c->rank);
out:
    hd_free(copies);
    hd_free(peers);
    return st;
}

heddle_status hd_peer_build(hd_transfer *t)
{
    heddle_status st = list_peers(t);
    return st == HEDDLE_OK && !t->adds && !t->lends ? build_lanes(t) : st;
}

void hd_peer_free(hd_transfer *t)
{
    free_peers(&t->peers);
    hd_lanes_free(&t->lanes);
}

heddle_status hd_transfer_use_direction(hd_transfer *t, int push, int walk_src)
{
    hd_peer_free(t);
    t->push = push;
    t->walk_src = walk_src;
    return hd_peer_build(t);
}
