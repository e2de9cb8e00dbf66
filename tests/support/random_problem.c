#include "random_problem.h"

#include "case.h"
#include "kernels/table.h"
#include "runtime/verify/oracle.h"

#include <stdlib.h>
#include <string.h>

const char *hd_line_text(const heddle_reshard_line *line)
{
    static char text[HEDDLE_LINE_BYTES];
    HD_OK(heddle_reshard_format(text, sizeof text, line));
    return text;
}

void hd_random_line(heddle_reshard_line *out, random_source *source, int ranks, int max_dims, int64_t max_elems,
                    int partial)
{
    heddle_reshard_line drawn;
    const random_limits limits = {ranks, 3, max_dims, max_elems, partial};
    random_line(&drawn, source, &limits);
    char first[HEDDLE_LINE_BYTES];
    strcpy(first, hd_line_text(&drawn));
    HD_OK(heddle_reshard_parse(out, first));
    assert_string_equal(first, hd_line_text(out));
    assert_true(heddle_layout_equal(&out->from, &drawn.from, &out->mesh));
    assert_true(heddle_layout_equal(&out->to, &drawn.to, &out->mesh));
}

void hd_adjoint_line(heddle_reshard_line *out, const heddle_reshard_line *line)
{
    *out = *line;
    out->from = line->to;
    out->to = line->from;
    out->from_order = line->to_order;
    out->to_order = line->from_order;
    for (int a = 0; a < line->mesh.naxes; a++) {
        int *sides[2] = {&out->from.dim_of_axis[a], &out->to.dim_of_axis[a]};
        for (int i = 0; i < 2; i++) {
            if (*sides[i] < 0) {
                *sides[i] = *sides[i] == HEDDLE_PARTIAL ? HEDDLE_REPLICATED : HEDDLE_PARTIAL;
            }
        }
    }
}

static void *exactly(size_t bytes)
{
    void *memory = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(memory);
    memset(memory, 0xa5, bytes);
    return memory;
}

void all_parts_make(all_parts *out, const heddle_reshard_line *line, int is_to)
{
    out->nranks = heddle_mesh_size(&line->mesh);
    out->part = calloc((size_t)out->nranks, sizeof *out->part);
    out->bytes = calloc((size_t)out->nranks, sizeof *out->bytes);
    for (int r = 0; r < out->nranks; r++) {
        heddle_box box;
        HD_OK(heddle_layout_box(&box, &line->shape, &line->mesh, is_to ? &line->to : &line->from, r));
        out->bytes[r] = (size_t)heddle_box_elems(&box) * heddle_dtype_bytes(line->shape.dtype);
        out->part[r] = exactly(out->bytes[r]);
    }
}

void all_parts_free(all_parts *parts)
{
    for (int r = 0; r < parts->nranks; r++) {
        free(parts->part[r]);
    }
    free(parts->part);
    free(parts->bytes);
}

/* Exponents near the middle, so that no sum of 64 overflows. */
static uint64_t finite_bits(uint64_t bits, heddle_dtype dtype)
{
    float f = (float)((int64_t)(bits >> 40) - (1 << 23)) / (float)(1 << 21);
    double d = (double)((int64_t)(bits >> 20) - ((int64_t)1 << 43)) / (double)((int64_t)1 << 41);
    uint64_t out = bits;
    switch (dtype) {
    case HEDDLE_F64:
        memcpy(&out, &d, sizeof d);
        break;
    case HEDDLE_F32:
        memcpy(&out, &f, sizeof f);
        break;
    case HEDDLE_F16:
        out = (bits & 0x83ffu) | (10 + bits % 8) << 10;
        break;
    case HEDDLE_BF16:
        out = (bits & 0x807fu) | (120 + bits % 12) << 7;
        break;
    case HEDDLE_F8E4M3:
        out = (bits & 0x87u) | (3 + (bits >> 8) % 5) << 3;
        break;
    case HEDDLE_F8E5M2:
        out = (bits & 0x83u) | (11 + (bits >> 8) % 6) << 2;
        break;
    case HEDDLE_BOOL:
        out = bits >> 9 & 1;
        break;
    default:
        break;
    }
    return out;
}

void all_parts_fill_random(all_parts *parts, random_source *source, heddle_dtype dtype)
{
    size_t bytes = heddle_dtype_bytes(dtype);
    for (int r = 0; r < parts->nranks; r++) {
        for (size_t at = 0; at < parts->bytes[r]; at += bytes) {
            uint64_t value = finite_bits(random_bits(source), dtype);
            memcpy((char *)parts->part[r] + at, &value, bytes);
        }
    }
}

/* 1 when a rank is not the one that holds the values of its partial sums. */
static int holds_zero(const heddle_reshard_line *line, const heddle_layout *layout, int rank)
{
    int coords[HEDDLE_MAX_AXES];
    HD_OK(heddle_mesh_coords(coords, &line->mesh, rank));
    for (int a = 0; a < line->mesh.naxes; a++) {
        if (layout->dim_of_axis[a] == HEDDLE_PARTIAL && coords[a] != 0) {
            return 1;
        }
    }
    return 0;
}

static uint64_t global_value(const heddle_shape *shape, const int64_t *at, uint64_t seed)
{
    uint64_t index = 0;
    for (int d = 0; d < shape->ndim; d++) {
        index = index * (uint64_t)shape->dim[d].extent + (uint64_t)at[d];
    }
    return finite_bits(random_at(seed, index, 0), shape->dtype);
}

void all_parts_fill_global(all_parts *parts, const heddle_reshard_line *line, int is_to, uint64_t seed)
{
    const heddle_layout *layout = is_to ? &line->to : &line->from;
    const heddle_order *order = is_to ? &line->to_order : &line->from_order;
    size_t bytes = heddle_dtype_bytes(line->shape.dtype);
    for (int r = 0; r < parts->nranks; r++) {
        heddle_box box;
        HD_OK(heddle_layout_box(&box, &line->shape, &line->mesh, layout, r));
        char *to = parts->part[r];
        for (int64_t i = 0, n = heddle_box_elems(&box); i < n; i++, to += bytes) {
            int64_t at[HEDDLE_MAX_DIMS], left = i;
            for (int k = box.ndim - 1; k >= 0; k--) {
                int d = order->ndim > 0 ? order->dim[k] : k;
                at[d] = box.lo[d] + left % box.len[d];
                left /= box.len[d];
            }
            uint64_t value = holds_zero(line, layout, r) ? 0 : global_value(&line->shape, at, seed);
            memcpy(to, &value, bytes);
        }
    }
}

void all_parts_equal(const all_parts *got, const all_parts *wanted, const heddle_reshard_line *line)
{
    for (int r = 0; r < wanted->nranks; r++) {
        const unsigned char *a = got->part[r], *b = wanted->part[r];
        for (size_t i = 0; i < wanted->bytes[r]; i++) {
            if (a[i] != b[i]) {
                fail_msg("%s\nrank %d, byte %zu: got 0x%02x, wanted 0x%02x", hd_line_text(line), r, i, a[i], b[i]);
            }
        }
    }
}

/* --- running a problem in one process ----------------------------------------------------------------------------- */

static void array_of(hd_array *out, const hd_problem *problem, int phase, int is_dst, int rank)
{
    const hd_phase *p = &problem->phase[phase];
    HD_OK(hd_phase_box(&out->box, problem, phase, is_dst, rank));
    heddle_box_strides(out->stride_elems, &out->box,
                       p->kind != HD_PHASE_BOXES ? NULL
                       : is_dst                  ? &p->to_order
                                                 : &p->from_order);
}

static void copy_loops(const hd_copy *copy, int loop, const char *src, char *dst)
{
    if (loop == copy->nloops) {
        memcpy(dst, src, (size_t)copy->run_bytes);
        return;
    }
    for (int64_t i = 0; i < copy->count[loop]; i++) {
        copy_loops(copy, loop + 1, src + i * copy->src_stride_bytes[loop], dst + i * copy->dst_stride_bytes[loop]);
    }
}

static void copy_piece(const hd_piece *piece, const hd_array *src_array, const void *src, const hd_array *dst_array,
                       void *dst, size_t elem_bytes)
{
    hd_copy copy;
    hd_piece_copy(&copy, piece, src_array, dst_array, elem_bytes);
    if (copy.run_bytes > 0) {
        copy_loops(&copy, 0, (const char *)src + copy.src_offset_bytes, (char *)dst + copy.dst_offset_bytes);
    }
}

/* Adds pieces of one and the same box, packed, in the order of peers. */
static void sum_pieces(const hd_problem *problem, int phase, const hd_pieces *pieces, void *const *src, void *dst,
                       const hd_array *dst_array)
{
    heddle_dtype dtype = problem->line.shape.dtype;
    size_t elem_bytes = heddle_dtype_bytes(dtype);
    const void **rows = calloc((size_t)pieces->count, sizeof *rows);
    char *done = calloc((size_t)pieces->count, 1);
    for (int i = 0; i < pieces->count; i++) {
        int n = 0;
        hd_array packed = {pieces->piece[i].box, {0}};
        heddle_box_strides(packed.stride_elems, &packed.box, NULL);
        int64_t elems = heddle_box_elems(&packed.box);
        for (int k = i; k < pieces->count && !done[i]; k++) {
            if (memcmp(&pieces->piece[k].box, &packed.box, sizeof packed.box) == 0) {
                hd_array from;
                array_of(&from, problem, phase, 0, pieces->piece[k].peer);
                void *row = exactly((size_t)elems * elem_bytes);
                copy_piece(&pieces->piece[k], &from, src[pieces->piece[k].peer], &packed, row, elem_bytes);
                rows[n++] = row;
                done[k] = k > i;
            }
        }
        if (n > 0) {
            void *sum = exactly((size_t)elems * elem_bytes);
            hd_kernels_named("generic")->sum[dtype](sum, rows, n, elems);
            copy_piece(&pieces->piece[i], &packed, sum, dst_array, dst, elem_bytes);
            free(sum);
        }
        while (n > 0) {
            free((void *)rows[--n]);
        }
    }
    free(rows);
    free(done);
}

static void run_phase(const hd_problem *problem, int phase, int rank, void *const *src, void *dst)
{
    size_t elem_bytes = heddle_dtype_bytes(problem->line.shape.dtype);
    hd_pieces pieces;
    hd_array to;
    array_of(&to, problem, phase, 1, rank);
    HD_OK(hd_compile(&pieces, problem, phase, rank, HD_RECV));
    if (pieces.zero_fill) {
        memset(dst, 0, (size_t)heddle_box_elems(&to.box) * elem_bytes);
    }
    if (pieces.sums) {
        sum_pieces(problem, phase, &pieces, src, dst, &to);
    }
    for (int i = 0; i < pieces.count && !pieces.sums; i++) {
        hd_array from;
        array_of(&from, problem, phase, 0, pieces.piece[i].peer);
        copy_piece(&pieces.piece[i], &from, src[pieces.piece[i].peer], &to, dst, elem_bytes);
    }
    hd_pieces_free(&pieces);
}

void hd_simulate(const heddle_reshard_line *line, const all_parts *src, const all_parts *dst)
{
    hd_problem problem;
    HD_OK(hd_problem_make(&problem, line));
    void **place[4] = {src->part, NULL, NULL, dst->part}; /* by hd_place */
    for (int p = 0; p < problem.nphases; p++) {
        hd_place to = problem.phase[p].dst;
        if (place[to] == NULL) {
            place[to] = calloc((size_t)src->nranks, sizeof(void *));
            for (int r = 0; r < src->nranks; r++) {
                hd_array array;
                array_of(&array, &problem, p, 1, r);
                place[to][r] = exactly((size_t)heddle_box_elems(&array.box) * heddle_dtype_bytes(line->shape.dtype));
            }
        }
        for (int r = 0; r < src->nranks; r++) {
            run_phase(&problem, p, r, place[problem.phase[p].src], place[to][r]);
        }
    }
    for (int w = HD_PLACE_WORK0; w <= HD_PLACE_WORK1; w++) {
        for (int r = 0; place[w] != NULL && r < src->nranks; r++) {
            free(place[w][r]);
        }
        free(place[w]);
    }
}

void hd_simulate_oracle(const heddle_reshard_line *line, const all_parts *src, const all_parts *dst)
{
    HD_OK(oracle_reshard(line, (const void *const *)src->part, dst->part));
}
