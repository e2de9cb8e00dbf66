/* Random one-line problems: what hd_compile and hd_piece_copy say, against the oracle and against algebra. */
#include "case.h"
#include "random_problem.h"
#include "runtime/layout/algebra.h"

#include <stdlib.h>
#include <string.h>

/* Small worlds mostly, some up to 64 ranks, where the oracle takes its time. */
static int random_ranks(random_source *source, int round)
{
    static const int small[] = {1, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 8};
    static const int large[] = {9, 12, 12, 16, 16, 18, 24, 36, 48, 60, 63, 64};
    return (round % 16 == 15 ? large : small)[random_between(source, 0, 11)];
}

static void random_problem(heddle_reshard_line *out, random_source *source, int round, int partial)
{
    int ranks = random_ranks(source, round);
    hd_random_line(out, source, ranks, round % 10 == 9 ? 8 : 5, ranks > 8 ? 300 : 1500, partial);
}

HD_CASE(equals_oracle)
{
    random_source source = {1};
    for (int round = 0; round < hd_rounds(1500); round++) {
        heddle_reshard_line line;
        random_problem(&line, &source, round, 2);
        all_parts src, got, wanted;
        all_parts_make(&src, &line, 0);
        all_parts_make(&got, &line, 1);
        all_parts_make(&wanted, &line, 1);
        all_parts_fill_random(&src, &source, line.shape.dtype);
        hd_simulate(&line, &src, &got);
        hd_simulate_oracle(&line, &src, &wanted);
        all_parts_equal(&got, &wanted, &line);
        all_parts_free(&src);
        all_parts_free(&got);
        all_parts_free(&wanted);
    }
}

/* Counts how often each element of a rank's box arrives. */
static void check_coverage(const hd_problem *problem, int phase, int rank, const hd_pieces *pieces)
{
    heddle_box to;
    HD_OK(hd_phase_box(&to, problem, phase, 1, rank));
    int64_t elems = heddle_box_elems(&to);
    int *seen = calloc((size_t)elems + 1, sizeof *seen);
    for (int i = 0; i < pieces->count; i++) {
        const heddle_box *box = &pieces->piece[i].box;
        assert_true(i == 0 || pieces->piece[i - 1].peer < pieces->piece[i].peer);
        assert_true(heddle_box_elems(box) > 0);
        for (int64_t e = 0; e < heddle_box_elems(box); e++) {
            int64_t at[HEDDLE_MAX_DIMS];
            heddle_index_unravel(at, box->len, box->ndim, e);
            for (int d = 0; d < box->ndim; d++) {
                at[d] += box->lo[d] - to.lo[d];
                assert_in_range((uintmax_t)at[d], 0, (uintmax_t)to.len[d] - 1);
            }
            seen[heddle_index_ravel(at, to.len, to.ndim)]++;
        }
    }
    int64_t group = 1, holes = 0;
    const hd_phase *p = &problem->phase[phase];
    for (int a = 0; a < problem->line.mesh.naxes; a++) {
        int summed = p->kind == HD_PHASE_BOXES
                         ? p->from.dim_of_axis[a] == HEDDLE_PARTIAL && p->to.dim_of_axis[a] != HEDDLE_PARTIAL
                         : p->kind == HD_PHASE_FLAT_REDUCE && (p->flat_axes >> a & 1);
        group *= summed ? problem->line.mesh.axis[a].size : 1;
    }
    for (int64_t e = 0; e < elems; e++) {
        if (seen[e] != group) {
            assert_int_equal(seen[e], 0);
            holes++;
        }
    }
    if (pieces->zero_fill != (holes > 0) || pieces->sums != (group > 1 && pieces->count > 0)) {
        fail_msg("%s: phase %d rank %d: zero_fill %d with %lld holes, sums %d with a group of %lld",
                 hd_line_text(&problem->line), phase, rank, pieces->zero_fill, (long long)holes, pieces->sums,
                 (long long)group);
    }
    free(seen);
}

static const hd_piece *find(const hd_pieces *pieces, int peer)
{
    for (int i = 0; i < pieces->count; i++) {
        if (pieces->piece[i].peer == peer) {
            return &pieces->piece[i];
        }
    }
    return NULL;
}

static void check_mirror(const hd_problem *problem, int phase)
{
    int n = heddle_mesh_size(&problem->line.mesh);
    hd_pieces *send = calloc((size_t)n, sizeof *send), *recv = calloc((size_t)n, sizeof *recv);
    int nsent = 0, nreceived = 0;
    for (int r = 0; r < n; r++) {
        HD_OK(hd_compile(&send[r], problem, phase, r, HD_SEND));
        HD_OK(hd_compile(&recv[r], problem, phase, r, HD_RECV));
        check_coverage(problem, phase, r, &recv[r]);
        nsent += send[r].count;
        nreceived += recv[r].count;
    }
    assert_int_equal(nsent, nreceived);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < recv[r].count; i++) {
            const hd_piece *piece = &recv[r].piece[i], *mirror = find(&send[piece->peer], r);
            if (mirror == NULL || memcmp(&mirror->box, &piece->box, sizeof piece->box) != 0) {
                fail_msg("%s: phase %d: rank %d expects a box of rank %d, which sends %s", hd_line_text(&problem->line),
                         phase, r, piece->peer, mirror ? "another" : "none");
            }
        }
    }
    for (int r = 0; r < n; r++) {
        hd_pieces_free(&send[r]);
        hd_pieces_free(&recv[r]);
    }
    free(send);
    free(recv);
}

HD_CASE(sends_mirror_receives)
{
    random_source source = {2};
    for (int round = 0; round < hd_rounds(1500); round++) {
        heddle_reshard_line line;
        hd_problem problem;
        random_problem(&line, &source, round, 2);
        HD_OK(hd_problem_make(&problem, &line));
        for (int p = 0; p < problem.nphases; p++) {
            check_mirror(&problem, p);
        }
    }
}

/* heddle_reshard_sends adds up the phases' pieces and leaves the rank itself out. */
HD_CASE(sends_add_up)
{
    random_source source = {3};
    for (int round = 0; round < hd_rounds(500); round++) {
        heddle_reshard_line line;
        hd_problem problem;
        random_problem(&line, &source, round, 2);
        HD_OK(hd_problem_make(&problem, &line));
        int n = heddle_mesh_size(&line.mesh), count = 0;
        for (int r = 0; r < n; r++) {
            heddle_peer_bytes sends[64];
            int64_t bytes[64] = {0}, messages[64] = {0};
            HD_OK(heddle_reshard_sends(sends, 64, &count, &line, r));
            for (int p = 0; p < problem.nphases; p++) {
                hd_pieces pieces;
                HD_OK(hd_compile(&pieces, &problem, p, r, HD_SEND));
                for (int i = 0; i < pieces.count; i++) {
                    bytes[pieces.piece[i].peer] +=
                        heddle_box_elems(&pieces.piece[i].box) * (int64_t)heddle_dtype_bytes(line.shape.dtype);
                    messages[pieces.piece[i].peer]++;
                }
                hd_pieces_free(&pieces);
            }
            bytes[r] = messages[r] = 0;
            for (int i = 0; i < count; i++) {
                assert_true(i == 0 || sends[i - 1].peer < sends[i].peer);
                assert_int_equal(sends[i].bytes, bytes[sends[i].peer]);
                assert_int_equal(sends[i].messages, messages[sends[i].peer]);
                bytes[sends[i].peer] = 0;
            }
            for (int q = 0; q < n; q++) {
                assert_int_equal(bytes[q], 0);
            }
        }
    }
}

HD_CASE(there_and_back)
{
    random_source source = {4};
    for (int round = 0; round < hd_rounds(800); round++) {
        heddle_reshard_line line, back;
        random_problem(&line, &source, round, 0);
        back = line;
        back.from = line.to;
        back.from_order = line.to_order;
        back.to = line.from;
        back.to_order = line.from_order;
        all_parts src, dst, again;
        all_parts_make(&src, &line, 0);
        all_parts_make(&dst, &line, 1);
        all_parts_make(&again, &line, 0);
        all_parts_fill_global(&src, &line, 0, (uint64_t)round);
        hd_simulate(&line, &src, &dst);
        hd_simulate(&back, &dst, &again);
        all_parts_equal(&again, &src, &line);
        all_parts_fill_global(&again, &back, 1, (uint64_t)round);
        all_parts_equal(&again, &src, &line);
        all_parts_free(&src);
        all_parts_free(&dst);
        all_parts_free(&again);
    }
}

/* A -> B -> C is A -> C, and both are C's part of the global array. Partial sums on the way, too: only one rank of a
 * group holds values in A, so that sums are exact. */
HD_CASE(composition)
{
    random_source source = {5};
    for (int round = 0; round < hd_rounds(800); round++) {
        heddle_reshard_line ab, bc, ac;
        random_problem(&ab, &source, round, round % 2 ? 2 : 0);
        bc = ac = ab;
        bc.from = ab.to;
        bc.from_order = ab.to_order;
        random_side(&bc.to, &bc.to_order, &source, &ab, 0);
        ac.to = bc.to;
        ac.to_order = bc.to_order;
        all_parts a, b, c, direct, wanted;
        all_parts_make(&a, &ab, 0);
        all_parts_make(&b, &ab, 1);
        all_parts_make(&c, &bc, 1);
        all_parts_make(&direct, &ac, 1);
        all_parts_make(&wanted, &ac, 1);
        all_parts_fill_global(&a, &ab, 0, (uint64_t)round);
        hd_simulate(&ab, &a, &b);
        hd_simulate(&bc, &b, &c);
        hd_simulate(&ac, &a, &direct);
        all_parts_fill_global(&wanted, &ac, 1, (uint64_t)round);
        all_parts_equal(&direct, &wanted, &ac);
        all_parts_equal(&c, &wanted, &bc);
        all_parts_free(&a);
        all_parts_free(&b);
        all_parts_free(&c);
        all_parts_free(&direct);
        all_parts_free(&wanted);
    }
}

static uint64_t dot(const all_parts *a, const all_parts *b)
{
    uint64_t sum = 0, x, y;
    for (int r = 0; r < a->nranks; r++) {
        for (size_t at = 0; at < a->bytes[r]; at += 8) {
            memcpy(&x, (const char *)a->part[r] + at, 8);
            memcpy(&y, (const char *)b->part[r] + at, 8);
            sum += x * y;
        }
    }
    return sum;
}

/* <y, F x> = <F* y, x> over all ranks' stacked arrays, exact in integers modulo 2^64. */
HD_CASE(adjoint_is_transpose)
{
    random_source source = {6};
    for (int round = 0; round < hd_rounds(800); round++) {
        heddle_reshard_line line, adjoint;
        random_problem(&line, &source, round, 2);
        line.shape.dtype = HEDDLE_I64;
        hd_adjoint_line(&adjoint, &line);
        all_parts x, fx, y, fty;
        all_parts_make(&x, &line, 0);
        all_parts_make(&fx, &line, 1);
        all_parts_make(&y, &adjoint, 0);
        all_parts_make(&fty, &adjoint, 1);
        all_parts_fill_random(&x, &source, HEDDLE_I64);
        all_parts_fill_random(&y, &source, HEDDLE_I64);
        hd_simulate_oracle(&line, &x, &fx);
        hd_simulate(&adjoint, &y, &fty);
        if (dot(&y, &fx) != dot(&fty, &x)) {
            fail_msg("%s: <y, F x> and <F* y, x> differ", hd_line_text(&line));
        }
        all_parts_free(&x);
        all_parts_free(&fx);
        all_parts_free(&y);
        all_parts_free(&fty);
    }
}
