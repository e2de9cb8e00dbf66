/* What an edge moves, rank by rank and peer by peer. */
#include "runtime/schedule/schedule_internal.h"

#include "runtime/base/base.h"

#include <heddle/reshard.h>
#include <string.h>

typedef struct listing {
    const hd_levels *levels;
    int nlevels;       /* at least one */
    int64_t *received; /* [ranks][nlevels] */
} listing;

static int level_of(const hd_levels *levels, int rank, int peer)
{
    int level = 0;
    while (levels != NULL && level + 1 < levels->count &&
           rank / levels->within[level] != peer / levels->within[level]) {
        level++;
    }
    return level;
}

static void add_to(int64_t *sum, int64_t bytes)
{
    *sum = hd_add_saturated(*sum, bytes);
}

static void raise_to(int64_t *most, int64_t bytes)
{
    *most = bytes > *most ? bytes : *most;
}

static void count_sent(hd_edge_cost *out, hd_link_bytes *link, const listing *l, int rank,
                       const heddle_peer_bytes *peers, int count)
{
    int64_t sent = 0, by_level[HD_LEVELS] = {0};
    for (int i = 0; i < count; i++) {
        int level = level_of(l->levels, rank, peers[i].peer);
        add_to(&sent, peers[i].bytes);
        add_to(&by_level[level], peers[i].bytes);
        add_to(&l->received[peers[i].peer * l->nlevels + level], peers[i].bytes);
        add_to(&out->messages, peers[i].messages);
    }
    add_to(&out->bytes_total, sent);
    raise_to(&out->bytes_per_rank_max, sent);
    for (int level = 0; link != NULL && level < l->nlevels; level++) {
        add_to(&link[level].total, by_level[level]);
        raise_to(&link[level].sent_max, by_level[level]);
    }
}

static void count_received(hd_edge_cost *out, hd_link_bytes *link, const listing *l, int rank)
{
    int64_t sum = 0;
    for (int level = 0; level < l->nlevels; level++) {
        int64_t bytes = l->received[rank * l->nlevels + level];
        add_to(&sum, bytes);
        if (link != NULL) {
            raise_to(&link[level].received_max, bytes);
        }
    }
    raise_to(&out->bytes_received_max, sum);
}

heddle_status hd_edge_links_listed(hd_edge_cost *out, hd_link_bytes *link, const hd_levels *levels,
                                   const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *from,
                                   const heddle_layout *to)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line = {.shape = *shape, .mesh = *mesh, .from = *from, .to = *to};
    heddle_peer_bytes *peers = NULL;
    void *memory = NULL;
    int nranks = heddle_mesh_size(mesh);
    listing l = {.levels = levels, .nlevels = levels != NULL ? levels->count : 1};
    memset(out, 0, sizeof *out);
    if (link != NULL) {
        memset(link, 0, (size_t)l.nlevels * sizeof *link);
    }
    HD_TRY(hd_alloc(&memory, (size_t)nranks, sizeof *peers, "peers of a rank"));
    peers = memory;
    HD_TRY(hd_alloc(&memory, (size_t)nranks * (size_t)l.nlevels, sizeof *l.received, "bytes of the ranks"));
    l.received = memory;
    for (int rank = 0; rank < nranks; rank++) {
        int count = 0;
        HD_TRY(heddle_reshard_sends(peers, nranks, &count, &line, rank));
        count_sent(out, link, &l, rank, peers, count);
    }
    for (int rank = 0; rank < nranks; rank++) {
        count_received(out, link, &l, rank);
    }
out:
    hd_free(peers);
    hd_free(l.received);
    return st;
}
