/* Bytes per peer of a reshard, without a communicator. */
#include "runtime/layout/algebra.h"
#include "runtime/reshard/compile.h"

/* Pieces of several phases, each ascending by peer, read as one ascending list. */
static int next_peer(const hd_pieces *pieces, const int *at, int nphases)
{
    int peer = -1;
    for (int p = 0; p < nphases; p++) {
        if (at[p] < pieces[p].count && (peer < 0 || pieces[p].piece[at[p]].peer < peer)) {
            peer = pieces[p].piece[at[p]].peer;
        }
    }
    return peer;
}

heddle_status heddle_reshard_sends(heddle_peer_bytes *out, int capacity, int *count, const heddle_reshard_line *line,
                                   int rank)
{
    heddle_status st = HEDDLE_OK;
    hd_pieces pieces[3] = {{0}, {0}, {0}};
    hd_problem problem;
    int at[3] = {0, 0, 0}, npeers = 0;
    HD_TRY(HD_NEED(count, line));
    if (capacity < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_reshard_sends: capacity is %d", capacity);
    }
    if (capacity > 0) {
        HD_TRY(HD_NEED(out));
    }
    HD_TRY(hd_problem_make(&problem, line));
    int nranks = heddle_mesh_size(&line->mesh);
    if (rank < 0 || rank >= nranks) {
        return hd_fail(HEDDLE_ERR_ARG, "rank %d on a mesh of %d ranks", rank, nranks);
    }
    for (int p = 0; p < problem.nphases; p++) {
        HD_TRY(hd_compile(&pieces[p], &problem, p, rank, HD_SEND));
    }
    int64_t elem_bytes = (int64_t)heddle_dtype_bytes(line->shape.dtype);
    for (int peer; (peer = next_peer(pieces, at, problem.nphases)) >= 0;) {
        heddle_peer_bytes entry = {peer, 0, 0};
        for (int p = 0; p < problem.nphases; p++) {
            if (at[p] < pieces[p].count && pieces[p].piece[at[p]].peer == peer) {
                entry.bytes += heddle_box_elems(&pieces[p].piece[at[p]++].box) * elem_bytes;
                entry.messages++;
            }
        }
        if (peer == rank) {
            continue;
        }
        if (npeers < capacity) {
            out[npeers] = entry;
        }
        npeers++;
    }
    *count = npeers;
out:
    for (int p = 0; p < 3; p++) {
        hd_pieces_free(&pieces[p]);
    }
    return st;
}
