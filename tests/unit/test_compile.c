/* Phases, pieces and copies of single reshards, worked out by hand. */
#include "case.h"
#include "draw.h"
#include "runtime/base/base.h"
#include "runtime/reshard/compile.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static void problem_of(hd_problem *out, const char *text)
{
    heddle_reshard_line line;
    HD_OK(heddle_reshard_parse(&line, text));
    HD_OK(hd_problem_make(out, &line));
}

/* Peers of the pieces, as text: "0 1 3". */
static void peers_are(const char *text, int phase, int rank, hd_direction direction, const char *wanted)
{
    hd_problem problem;
    hd_pieces pieces;
    char got[256] = "";
    problem_of(&problem, text);
    HD_OK(hd_compile(&pieces, &problem, phase, rank, direction));
    for (int i = 0, n = 0; i < pieces.count; i++) {
        n += snprintf(got + n, sizeof got - (size_t)n, "%s%d", i > 0 ? " " : "", pieces.piece[i].peer);
    }
    hd_pieces_free(&pieces);
    assert_string_equal(got, wanted);
}

HD_CASE(who_talks_to_whom)
{
    /* switch: everybody; keep and split: oneself */
    peers_are("u8[t=9 s=9] on [x=3]: t@x -> s@x", 0, 1, HD_SEND, "0 1 2");
    peers_are("u8[t=9 s=9] on [x=3]: t@x -> t@x", 0, 1, HD_SEND, "1");
    peers_are("u8[t=9 s=9] on [x=3]: * -> t@x", 0, 1, HD_RECV, "1");
    /* fewer elements than ranks: empty ranks take no part */
    peers_are("u8[t=2 s=9] on [x=4]: t@x -> s@x", 0, 3, HD_RECV, "0 1");
    peers_are("u8[t=2 s=9] on [x=4]: t@x -> s@x", 0, 3, HD_SEND, "");
    /* another cut of the same dim: only blocks that meet */
    peers_are("u8[t=12] on [x=4]: t@x -> t@x(0 1 1 10)", 0, 3, HD_RECV, "0 1 2 3");
    peers_are("u8[t=12] on [x=4]: t@x -> t@x(0 1 1 10)", 0, 0, HD_SEND, "1 2 3");
    /* a move along one axis stays in its groups */
    peers_are("u8[t=12 s=12] on [n=2 g=3]: t@n,s@g -> t@n,t@g", 0, 4, HD_SEND, "3 4 5");
    peers_are("u8[t=12 s=12] on [n=2 g=3]: t@n,t@g -> t@n", 0, 1, HD_RECV, "0 1 2");
    /* replicated source: ranks of the same coordinate */
    peers_are("u8[t=12 s=12] on [n=2 g=3]: t@g -> s@g", 0, 4, HD_RECV, "3 4 5");
    peers_are("u8[t=12 s=12] on [n=2 g=3]: t@g -> t@n", 0, 4, HD_RECV, "4 5");
    /* partial sums on the right: own coordinate, and of replicas only the first */
    peers_are("u8[t=12 s=12] on [x=3]: t@x -> sum@x", 0, 1, HD_RECV, "1");
    peers_are("u8[t=12 s=12] on [x=3]: * -> sum@x", 0, 0, HD_RECV, "0");
    peers_are("u8[t=12 s=12] on [x=3]: * -> sum@x", 0, 1, HD_RECV, "");
    peers_are("u8[t=12 s=12] on [x=3]: * -> sum@x", 0, 1, HD_SEND, "");
    /* partial sums on the left */
    peers_are("u8[t=12 s=12] on [x=3]: sum@x -> s@x", 0, 2, HD_RECV, "0 1 2");
    peers_are("u8[t=12 s=12] on [x=3]: sum@x -> *", 0, 2, HD_SEND, "0 1 2");
    peers_are("u8[t=2] on [x=3]: sum@x -> *", 0, 0, HD_SEND, "0 1");
    peers_are("u8[t=2] on [x=3]: sum@x -> *", 1, 2, HD_SEND, "");
    peers_are("u8[t=2] on [x=3]: sum@x -> *", 1, 2, HD_RECV, "0 1");
}

HD_CASE(phases)
{
    hd_problem p;
    problem_of(&p, "f32[t=9] on [x=3]: t@x -> *");
    assert_int_equal(p.nphases, 1);
    assert_int_equal(p.phase[0].src, HD_PLACE_SRC);
    assert_int_equal(p.phase[0].dst, HD_PLACE_DST);
    problem_of(&p, "f32[t=9] on [x=3]: sum@x -> *");
    assert_int_equal(p.nphases, 2);
    assert_int_equal(p.phase[0].kind, HD_PHASE_FLAT_REDUCE);
    assert_int_equal(p.phase[0].dst, HD_PLACE_WORK0);
    assert_int_equal(p.phase[1].kind, HD_PHASE_FLAT_GATHER);
    assert_int_equal(p.phase[1].src, HD_PLACE_WORK0);
    assert_int_equal(p.phase[1].dst, HD_PLACE_DST);
    problem_of(&p, "f32[t=9 s=2] on [x=3 y=2]: sum@x,t@y -> s@y");
    assert_int_equal(p.nphases, 3);
    assert_int_equal(p.phase[1].dst, HD_PLACE_WORK1);
    assert_int_equal(p.phase[2].kind, HD_PHASE_BOXES);
    assert_int_equal(p.phase[2].src, HD_PLACE_WORK1);
    assert_int_equal(p.phase[2].dst, HD_PLACE_DST);
    assert_int_equal(p.phase[2].from.dim_of_axis[0], HEDDLE_REPLICATED);
    problem_of(&p, "f32[t=9 s=2] on [x=3]: sum@x -> * as s,t");
    assert_int_equal(p.nphases, 3);
    problem_of(&p, "f32[t=9 s=2] on [x=3]: sum@x as s,t -> * as s,t");
    assert_int_equal(p.nphases, 2);
    problem_of(&p, "f32[t=9] on [x=1]: sum@x -> *");
    assert_int_equal(p.nphases, 1);
    problem_of(&p, "f32[t=9] on [x=3]: sum@x -> t@x");
    assert_int_equal(p.nphases, 1);
}

/* What moves has to fit 64 bits; a tensor of up to 2^62 bytes may stay, or be cut, or change hands once. */
HD_CASE(too_much_to_count)
{
    static const struct {
        const char *line;
        int fits;
    } row[] = {
        {"u8[t=4611686018427387904] on [x=65536]: t@x -> *", 0},
        {"u8[t=2305843009213693952] on [x=2]: t@x -> *", 1},
        {"u8[t=2305843009213693953] on [x=2]: t@x -> *", 0},
        {"i8[b=4611686018427387903] on [sp=1]: * -> b@sp", 1},
        {"u8[b=4611686018427387904] on [sp=1]: sum@sp -> *", 1},
        {"u8[b=4611686018427387904] on [sp=2]: * -> b@sp", 1},
        {"u8[b=4611686018427387904] on [sp=65536]: * -> *", 1},
        {"u8[b=4611686018427387904] on [sp=2]: * -> sum@sp", 1},
        {"u8[b=2305843009213693952 t=2] on [sp=2]: b@sp -> t@sp", 1},
        {"u8[b=2305843009213693952 t=2] on [sp=2 dp=2]: b@sp -> t@sp", 0}, /* twice */
        {"u8[b=1152921504606846976 t=2] on [sp=2 dp=2]: b@sp -> t@sp", 1},
        {"u8[b=2305843009213693952 t=2] on [x=2 y=2]: b@x -> b@x,b@y", 1},
        {"u8[b=2305843009213693952 t=2] on [x=2 y=2]: b@y -> b@x,b@y", 1}, /* moves, but once */
        {"u8[b=2305843009213693952 t=2] on [x=2]: t@x(1 1) -> t@x(0 2)", 1},
        {"u8[b=2305843009213693952 t=2] on [x=2]: sum@x -> t@x", 0},
        {"u8[b=1152921504606846976 t=2] on [x=2]: sum@x -> t@x", 1},
        {"u8[b=1152921504606846976 t=2] on [x=2]: sum@x -> *", 0}, /* a sum and a gather */
        {"u8[b=1152921504606846976] on [x=2]: sum@x -> *", 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        heddle_reshard_line line;
        hd_problem problem;
        HD_OK(heddle_reshard_parse(&line, row[i].line));
        HD_FAILS(row[i].fits ? HEDDLE_OK : HEDDLE_ERR_LAYOUT, hd_problem_make(&problem, &line));
        assert_true(row[i].fits || strstr(heddle_last_error(), "more than 2^62 bytes could move") != NULL);
    }
}

/* Bytes of all ranks to others. */
static int64_t sent_by_all(const heddle_reshard_line *line)
{
    heddle_peer_bytes sends[24];
    int64_t total = 0;
    for (int r = 0; r < heddle_mesh_size(&line->mesh); r++) {
        int count = 0;
        HD_OK(heddle_reshard_sends(sends, 24, &count, line, r));
        for (int i = 0; i < count; i++) {
            assert_false(__builtin_add_overflow(total, sends[i].bytes, &total));
        }
    }
    return total;
}

/* Drawn layouts of 2^61 bytes: what is taken moves 2^62 bytes at most, what is refused moves something. */
HD_CASE(what_moves_of_drawn_layouts)
{
    int refused = 0, lines = 1000;
    for (int n = 0; n < lines; n++) {
        heddle_reshard_line line;
        hd_problem problem;
        HD_OK(heddle_reshard_parse(&line, "i8[a=536870912 b=536870912 c=8] on [x=2 y=3 z=4]: * -> *"));
        for (int a = 0; a < 3; a++) {
            line.from.dim_of_axis[a] = below(5) - 2;
            line.to.dim_of_axis[a] = below(3) == 0 ? line.from.dim_of_axis[a] : below(5) - 2;
        }
        if (hd_problem_make(&problem, &line) == HEDDLE_OK) {
            assert_true(sent_by_all(&line) <= (int64_t)1 << 62);
        } else {
            refused++;
            line.shape.dim[0].extent = line.shape.dim[1].extent = 512;
            char text[HEDDLE_LINE_BYTES];
            HD_OK(heddle_reshard_format(text, sizeof text, &line));
            if (sent_by_all(&line) == 0) {
                fail_msg("%s: refused, although nothing moves", text);
            }
        }
    }
    assert_in_range(refused, lines / 4, lines * 3 / 4);
}

HD_CASE(golden_bytes)
{
    /* STDiT3 at 720p, S -> T on 8 ranks: 450 * (60 - T_p) * 2304 bytes sent, at most 58060800 received */
    heddle_reshard_line line;
    heddle_peer_bytes sends[8];
    int64_t received[8] = {0};
    HD_OK(heddle_reshard_parse(&line, "bf16[t=60 s=3600 c=1152] on [sp=8]: s@sp -> t@sp"));
    for (int r = 0; r < 8; r++) {
        int count = 0;
        int64_t sum = 0;
        HD_OK(heddle_reshard_sends(sends, 8, &count, &line, r));
        assert_int_equal(count, 7);
        for (int i = 0; i < count; i++) {
            sum += sends[i].bytes;
            received[sends[i].peer] += sends[i].bytes;
            assert_int_equal(sends[i].messages, 1);
        }
        assert_int_equal(sum, r < 4 ? 53913600 : 54950400);
    }
    assert_int_equal(received[0], 58060800);
    assert_int_equal(received[7], 50803200);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_reshard_sends(sends, 8, &(int){0}, &line, 8));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_reshard_sends(NULL, 8, &(int){0}, &line, 0));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_reshard_sends(sends, -1, &(int){0}, &line, 0));
    assert_non_null(strstr(heddle_last_error(), "heddle_reshard_sends: capacity is -1"));
    /* An all-reduce of 10 elements on 4 ranks: blocks 3 3 2 2 */
    int count = 0;
    HD_OK(heddle_reshard_parse(&line, "u8[t=10] on [x=4]: sum@x -> *"));
    HD_OK(heddle_reshard_sends(sends, 1, &count, &line, 1)); /* room for one of three */
    assert_int_equal(count, 3);
    assert_int_equal(sends[0].peer, 0);
    assert_int_equal(sends[0].bytes, 3 + 3);
    assert_int_equal(sends[0].messages, 2);
}

/* The copy of rank `from` to rank `to`. */
static void copy_of(hd_copy *out, const char *text, int from, int to)
{
    hd_problem p;
    hd_pieces pieces;
    hd_array src, dst;
    problem_of(&p, text);
    HD_OK(hd_phase_box(&src.box, &p, 0, 0, from));
    HD_OK(hd_phase_box(&dst.box, &p, 0, 1, to));
    heddle_box_strides(src.stride_elems, &src.box, &p.phase[0].from_order);
    heddle_box_strides(dst.stride_elems, &dst.box, &p.phase[0].to_order);
    HD_OK(hd_compile(&pieces, &p, 0, to, HD_RECV));
    memset(out, 0xff, sizeof *out);
    for (int i = 0; i < pieces.count; i++) {
        if (pieces.piece[i].peer == from) {
            hd_piece_copy(out, &pieces.piece[i], &src, &dst, heddle_dtype_bytes(p.line.shape.dtype));
        }
    }
    hd_pieces_free(&pieces);
}

HD_CASE(copies_merge_dims)
{
    hd_copy c;
    /* [4, 8, 3] on the source, [16, 2, 3] on the destination: rows of 2*3 elements, one per t */
    copy_of(&c, "f32[t=16 s=8 c=3] on [x=4]: t@x -> s@x", 1, 2);
    assert_int_equal(c.nloops, 1);
    assert_int_equal(c.count[0], 4);
    assert_int_equal(c.run_bytes, 2 * 3 * 4);
    assert_int_equal(c.src_stride_bytes[0], 8 * 3 * 4);
    assert_int_equal(c.dst_stride_bytes[0], 2 * 3 * 4);
    assert_int_equal(c.src_offset_bytes, 4 * 3 * 4);
    assert_int_equal(c.dst_offset_bytes, 4 * 2 * 3 * 4);
    /* keep: one run */
    copy_of(&c, "f32[t=16 s=8 c=3] on [x=4]: t@x -> t@x", 1, 1);
    assert_int_equal(c.nloops, 0);
    assert_int_equal(c.run_bytes, 4 * 8 * 3 * 4);
    /* extents of 1 leave no loop; b and t merge on neither side */
    copy_of(&c, "u8[b=1 t=4 h=1 s=4 c=1] on [x=2]: t@x -> s@x", 0, 1);
    assert_int_equal(c.nloops, 1);
    assert_int_equal(c.run_bytes, 2);
    copy_of(&c, "u8[b=5 t=4 s=4] on [x=2]: t@x -> s@x", 0, 1);
    assert_int_equal(c.nloops, 2);
    assert_int_equal(c.count[0], 5);
    assert_int_equal(c.count[1], 2);
    /* a permuted destination still has runs of c, and the loops follow the interleaved source */
    copy_of(&c, "u8[t=4 s=4 c=7] on [x=2]: t@x -> s@x as s,t,c", 0, 1);
    assert_int_equal(c.run_bytes, 7);
    assert_int_equal(c.nloops, 2);
    assert_true(c.dst_stride_bytes[0] > c.dst_stride_bytes[1]); /* both are interleaved: the written side */
    /* a transpose of the last dim has runs of one element */
    copy_of(&c, "f64[t=4 s=4] on [x=2]: t@x -> s@x as s,t", 0, 0);
    assert_int_equal(c.run_bytes, 8);
    assert_int_equal(c.nloops, 2);
}

/* Pushing: the source is interleaved, its rows in order; pulling: the destination. */
HD_CASE(loops_follow_the_interleaved_side)
{
    hd_copy c;
    copy_of(&c, "u8[b=3 t=4 s=4 c=8] on [x=2]: s@x as b,t,s,c -> t@x as b,t,s,c", 0, 1);
    assert_true(c.nloops == 2 && c.dst_stride_bytes[0] > c.dst_stride_bytes[1]);
    copy_of(&c, "u8[s=4 t=4 c=8] on [x=2]: * -> s@x as t,s,c", 0, 0);
    assert_int_equal(c.nloops, 2);
    assert_true(c.dst_stride_bytes[0] > c.dst_stride_bytes[1]);
    copy_of(&c, "u8[s=4 t=4 c=8] on [x=2]: s@x as t,s,c -> *", 0, 0);
    assert_int_equal(c.nloops, 2);
    assert_true(c.dst_stride_bytes[0] > c.dst_stride_bytes[1]);
}

/* 65536 ranks with 256 peers each: a scan over all ranks would take minutes. */
HD_CASE(cost_is_per_peer)
{
    heddle_reshard_line line;
    int count = 0;
    struct timespec a, b;
    HD_OK(heddle_reshard_parse(&line, "u8[t=65536 s=65536] on [x=256 y=256]: t@x,s@y -> t@x,t@y"));
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int r = 0; r < 65536; r += 16) {
        HD_OK(heddle_reshard_sends(NULL, 0, &count, &line, r));
        assert_int_equal(count, 255);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_true((double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9 < 5);
}

HD_CASE(allocations_may_fail)
{
    hd_problem problem;
    hd_pieces pieces;
    heddle_peer_bytes sends[64];
    problem_of(&problem, "u8[t=640 s=640] on [x=64]: t@x -> s@x");
    for (long n = 1; n <= 2; n++) {
        int count = 0;
        hd_alloc_fail_at(n);
        HD_FAILS(HEDDLE_ERR_NOMEM, hd_compile(&pieces, &problem, 0, 3, HD_RECV));
        assert_null(pieces.piece);
        hd_alloc_fail_at(n);
        HD_FAILS(HEDDLE_ERR_NOMEM, heddle_reshard_sends(sends, 64, &count, &problem.line, 0));
    }
    hd_alloc_fail_at(0);
}
