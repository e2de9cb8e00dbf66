#include "case.h"
#include "draw.h"
#include "kernels/table.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM_BYTES = 6 << 20, MAX_LANES = 70, CANARY = 0xa5, BASES = 3 };

/* Lanes, and where they begin in the room: the bases are found from that. */
typedef struct geometry {
    int nlanes, nloops;
    int64_t count[HD_MAX_LOOPS];
    hd_lane lane[MAX_LANES];
    int64_t src_at[MAX_LANES], dst_at[MAX_LANES];
} geometry;

typedef enum side_kind { SIDE_PADDED, SIDE_DENSE, SIDE_INTERLEAVED, SIDE_KINDS } side_kind;

/* Strides and offsets of one side: every lane alone with random gaps, alone without gaps, or all lanes' runs of a step
 * back to back. Returns the bytes spanned. */
static int64_t place_side(geometry *g, side_kind kind, int is_dst, int64_t unit)
{
    int64_t all_bytes = 0;
    for (int l = 0; l < g->nlanes; l++) {
        all_bytes += g->lane[l].run_bytes;
    }
    int64_t end = unit * below(70);
    for (int l = 0; l < g->nlanes; l++) {
        int64_t *stride = is_dst ? g->lane[l].dst_stride_bytes : g->lane[l].src_stride_bytes;
        *(is_dst ? &g->dst_at[l] : &g->src_at[l]) = end;
        int64_t span = kind == SIDE_INTERLEAVED ? all_bytes : g->lane[l].run_bytes;
        for (int k = g->nloops - 1; k >= 0; k--) {
            stride[k] = span + (kind == SIDE_PADDED ? unit * below(100) : 0);
            span = stride[k] * g->count[k];
        }
        end += kind == SIDE_INTERLEAVED ? g->lane[l].run_bytes : span + (kind == SIDE_PADDED ? unit * below(100) : 0);
    }
    int64_t steps = 1;
    for (int k = 0; k < g->nloops; k++) {
        steps *= g->count[k];
    }
    return end + (kind == SIDE_INTERLEAVED ? all_bytes * steps : 0);
}

/* 0: does not fit the room. */
static int make_geometry(geometry *g, int64_t min_run, int64_t max_run, int64_t unit)
{
    memset(g, 0, sizeof(*g));
    g->nlanes = below(20) == 0 ? MAX_LANES : 1 + below(8);
    g->nloops = below(4);
    for (int k = 0; k < g->nloops; k++) {
        g->count[k] = below(30) == 0 ? 0 : 1 + below(k == g->nloops - 1 ? 12 : 4);
    }
    int64_t common = min_run + below(max_run - min_run + 1);
    int same = below(2);
    for (int l = 0; l < g->nlanes; l++) {
        int64_t run = same ? common : min_run + below(max_run - min_run + 1);
        g->lane[l].run_bytes = below(25) == 0 ? 0 : (run + unit - 1) / unit * unit;
    }
    int64_t src = place_side(g, (side_kind)below(SIDE_KINDS), 0, unit);
    int64_t dst = place_side(g, (side_kind)below(SIDE_KINDS), 1, unit);
    return src <= ROOM_BYTES && dst <= ROOM_BYTES;
}

/* Byte by byte. */
static void copy_bytes(const geometry *g, char *dst, const char *src)
{
    int64_t steps = 1;
    for (int k = 0; k < g->nloops; k++) {
        steps *= g->count[k];
    }
    for (int64_t step = 0; step < steps; step++) {
        for (int l = 0; l < g->nlanes; l++) {
            const char *from = src + g->src_at[l];
            char *to = dst + g->dst_at[l];
            int64_t rest = step;
            for (int k = g->nloops - 1; k >= 0; k--) {
                from += rest % g->count[k] * g->lane[l].src_stride_bytes[k];
                to += rest % g->count[k] * g->lane[l].dst_stride_bytes[k];
                rest /= g->count[k];
            }
            for (int64_t i = 0; i < g->lane[l].run_bytes; i++) {
                to[i] = from[i];
            }
        }
    }
}

typedef struct room {
    char *src, *dst, *wanted;
} room;

static void open_room(room *r)
{
    r->src = aligned_alloc(4096, ROOM_BYTES);
    r->dst = aligned_alloc(4096, ROOM_BYTES);
    r->wanted = aligned_alloc(4096, ROOM_BYTES);
    assert_true(r->src && r->dst && r->wanted);
    for (int64_t i = 0; i < ROOM_BYTES; i++) {
        r->src[i] = (char)(i * 131 + (i >> 8) * 29 + (i >> 16));
    }
}

static void close_room(room *r)
{
    free(r->src);
    free(r->dst);
    free(r->wanted);
}

static void check_kernel(const hd_copy_kernel *kernel, geometry *g, room *r)
{
    const int64_t shift[BASES] = {0, 77, 4096};
    const void *src[BASES];
    void *dst[BASES];
    for (int i = 0; i < BASES; i++) {
        src[i] = r->src + shift[i];
        dst[i] = r->dst + shift[i];
    }
    for (int l = 0; l < g->nlanes; l++) {
        hd_lane *lane = &g->lane[l];
        lane->src_base = l % BASES;
        lane->dst_base = (l + 1) % BASES;
        lane->src_offset_bytes = g->src_at[l] - shift[lane->src_base];
        lane->dst_offset_bytes = g->dst_at[l] - shift[lane->dst_base];
    }
    memset(r->dst, CANARY, ROOM_BYTES);
    kernel->copy(g->lane, g->nlanes, g->nloops, g->count, src, dst);
    if (memcmp(r->dst, r->wanted, ROOM_BYTES) != 0) {
        int64_t at = 0;
        while (r->dst[at] == r->wanted[at]) {
            at++;
        }
        fail_msg("%s: byte %lld is %d, wanted %d; %d lanes, %d loops, run %lld", kernel->name, (long long)at,
                 r->dst[at], r->wanted[at], g->nlanes, g->nloops, (long long)g->lane[0].run_bytes);
    }
}

static void check_all(int rounds, int64_t min_run, int64_t max_run, int64_t unit)
{
    room r;
    open_room(&r);
    geometry g;
    int nkernels;
    const hd_copy_kernel *kernel = hd_copy_kernels(&nkernels);
    int done = 0;
    while (done < rounds) {
        if (!make_geometry(&g, min_run, max_run, unit)) {
            continue;
        }
        memset(r.wanted, CANARY, ROOM_BYTES);
        copy_bytes(&g, r.wanted, r.src);
        for (int i = 0; i < nkernels; i++) {
            if (min_run >= kernel[i].min_run_bytes) {
                check_kernel(&kernel[i], &g, &r);
            }
        }
        done++;
    }
    close_room(&r);
}

HD_CASE(any_run)
{
    check_all(60, 1, 5000, 1);
}

HD_CASE(shorter_than_a_line)
{
    check_all(40, 1, 130, 1);
}

HD_CASE(even_elements)
{
    check_all(40, 2, 700, 4);
}

HD_CASE(whole_lines)
{
    check_all(50, 64, 20 * 64, 64);
}

/* Two lanes of rows of whole lines, everything a multiple of a line but for one thing of what is written: kernels that
 * stream whole lines must see each. */
HD_CASE(whole_lines_but_for_one_thing)
{
    enum { NOTHING, BEGIN, BEGIN_OF_SECOND, OUTER_STRIDE, INNER_STRIDE, RUN, RUN_OF_SECOND, THINGS };
    room r;
    int nkernels;
    const hd_copy_kernel *kernel = hd_copy_kernels(&nkernels);
    open_room(&r);
    for (int i = 0; i < 20 * THINGS; i++) {
        const int thing = i % THINGS, lines = 1 + i / THINGS, off = 8 << below(3);
        const int64_t line = 64, run = lines * line;
        geometry g = {.nlanes = 2, .nloops = 2, .count = {3, 5}};
        for (int l = 0; l < 2; l++) {
            hd_lane *lane = &g.lane[l];
            lane->run_bytes = run + (thing == RUN || (thing == RUN_OF_SECOND && l == 1) ? off : 0);
            lane->dst_stride_bytes[1] = 2 * run + line * below(3) + (thing == INNER_STRIDE ? off : 0);
            lane->dst_stride_bytes[0] = 16 * run + line * below(3) + (thing == OUTER_STRIDE ? off : 0);
            lane->dst_stride_bytes[0] += 8 * line;
            lane->src_stride_bytes[1] = lane->run_bytes + 8 * below(9);
            lane->src_stride_bytes[0] = 5 * lane->src_stride_bytes[1] + 8 * below(9);
            g.src_at[l] = l * 100000 + 8 * below(9);
            g.dst_at[l] = l * 100032 + (thing == BEGIN || (thing == BEGIN_OF_SECOND && l == 1) ? off : 0);
        }
        memset(r.wanted, CANARY, ROOM_BYTES);
        copy_bytes(&g, r.wanted, r.src);
        for (int k = 0; k < nkernels; k++) {
            if (run >= kernel[k].min_run_bytes) {
                check_kernel(&kernel[k], &g, &r);
            }
        }
    }
    close_room(&r);
}

HD_CASE(long_runs)
{
    check_all(40, 32768, 140000, 1);
}

HD_CASE(names_find_their_kernel)
{
    int count;
    const hd_copy_kernel *kernel = hd_copy_kernels(&count);
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        assert_ptr_equal(hd_copy_kernel_named(kernel[i].name), &kernel[i]);
    }
    assert_null(hd_copy_kernel_named("no_such_kernel"));
    if (hd_kernels_named("avx2") == NULL) {
        hd_not_here("avx2", "this CPU has no avx2");
    }
    if (hd_kernels_named("avx512") == NULL) {
        hd_not_here("avx512", "this CPU has no avx512");
    }
}

HD_CASE(candidates_fit_the_lanes)
{
    geometry g;
    for (int round = 0; round < hd_rounds(300); round++) {
        make_geometry(&g, 0, below(2) ? 5000 : 100000, below(2) ? 1 : 64);
        hd_copy_hint hint = {below(1 << 27), 1 << 25};
        const hd_copy_kernel *pick[16];
        int capacity = 1 + below(16);
        int count = hd_copy_candidates(pick, capacity, g.lane, g.nlanes, g.nloops, &hint);
        assert_in_range(count, 1, capacity);
        for (int i = 0; i < count; i++) {
            assert_non_null(pick[i]);
            for (int j = 0; j < i; j++) {
                assert_ptr_not_equal(pick[i], pick[j]);
            }
            for (int l = 0; l < g.nlanes; l++) {
                int64_t run = g.lane[l].run_bytes;
                assert_true(run == 0 || run >= pick[i]->min_run_bytes);
            }
        }
    }
}
