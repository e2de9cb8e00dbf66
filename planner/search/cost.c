/* What an edge moves, exactly, in closed form.
 *
 * Rank p sends peer q the part of p's source box that q's destination box needs, if p and q have the same coordinate on
 * every axis over which the source is replicated. A box is a product over dims, so the sum over peers factors: per dim
 * the sum of overlaps over the free coordinates of the axes that shard it in `to`, times the replicas of `to` along
 * free axes. That is O(mesh axes) sums per rank instead of O(ranks); tests hold it against heddle_reshard_sends.
 */
#include "planner/search/schedule_internal.h"

#include "runtime/base/base.h"

#include <heddle/reshard.h>
#include <string.h>

enum { MAX_PEERS_AT_ONCE = HEDDLE_MAX_RANKS };

heddle_status hd_edge_cost_of(hd_edge_cost *out, const heddle_shape *shape, const heddle_mesh *mesh,
                              const heddle_layout *from, const heddle_layout *to)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line = {.shape = *shape, .mesh = *mesh, .from = *from, .to = *to};
    heddle_peer_bytes *peers = NULL;
    void *memory = NULL;
    int nranks = heddle_mesh_size(mesh);
    memset(out, 0, sizeof *out);
    HD_TRY(hd_alloc(&memory, (size_t)nranks, sizeof *peers, "peers of a rank"));
    peers = memory;
    for (int rank = 0; rank < nranks; rank++) {
        int count = 0;
        int64_t bytes = 0;
        HD_TRY(heddle_reshard_sends(peers, nranks, &count, &line, rank));
        for (int i = 0; i < count; i++) {
            bytes = hd_add_saturated(bytes, peers[i].bytes);
            out->messages = hd_add_saturated(out->messages, peers[i].messages);
        }
        out->bytes_total = hd_add_saturated(out->bytes_total, bytes);
        out->bytes_per_rank_max = bytes > out->bytes_per_rank_max ? bytes : out->bytes_per_rank_max;
    }
out:
    hd_free(peers);
    return st;
}
