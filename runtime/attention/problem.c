/* Shape, mesh, layout and options -> what one rank of the sequence group holds and does. Pure. */
#include "runtime/attention/attention_internal.h"
#include "runtime/base/hash.h"
#include "runtime/base/threads.h"

#include <heddle/sys/index.h>

#include <math.h>
#include <string.h>

static const char *const method_names[] = {
#define METHOD_NAME(name, text) text,
    HEDDLE_ATTENTION_METHOD_LIST(METHOD_NAME)
#undef METHOD_NAME
};

const char *heddle_attention_method_name(heddle_attention_method method)
{
    return (unsigned)method < HEDDLE_ATTENTION_METHOD_COUNT ? method_names[method] : "unknown";
}

heddle_status heddle_attention_method_parse(heddle_attention_method *out, const char *text)
{
    heddle_status st;
    HD_TRY(HD_NEED(out, text));
    for (int i = 0; i < HEDDLE_ATTENTION_METHOD_COUNT; i++) {
        if (strcmp(method_names[i], text) == 0) {
            *out = (heddle_attention_method)i;
            return HEDDLE_OK;
        }
    }
#define NAME_OF(name, text) " " text
    st = hd_fail(HEDDLE_ERR_PARSE,
                 "no attention method is called '%.40s'; there are" HEDDLE_ATTENTION_METHOD_LIST(NAME_OF), text);
#undef NAME_OF
out:
    return st;
}

void heddle_attention_options_init(heddle_attention_options *options)
{
    if (options != NULL) {
        *options = (heddle_attention_options){.struct_bytes = sizeof *options};
    }
}

/* What is wrong whatever the shape is. */
static heddle_status take_options(hd_attn_problem *p, const heddle_attention_options *options)
{
    heddle_attention_options_init(&p->options);
    heddle_status st = hd_struct_take(&p->options, options, HD_STRUCT(heddle_attention_options, method));
    st = st == HEDDLE_OK ? hd_check_ms(p->options.deadline_ms, "deadline_ms") : st;
    if (st != HEDDLE_OK) {
        return st;
    }
    const heddle_attention_options *o = &p->options;
    if ((unsigned)o->method >= HEDDLE_ATTENTION_METHOD_COUNT || (unsigned)o->placement > HEDDLE_PLACEMENT_ZIGZAG ||
        o->threads < 0 || o->threads > HD_MAX_THREADS || o->kv_heads < 0 || o->projected_length < 0 ||
        !isfinite(o->scale)) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "attention options: method %d, placement %d, %lld key heads, projected length %lld, scale %g, "
                       "%d threads",
                       (int)o->method, (int)o->placement, (long long)o->kv_heads, (long long)o->projected_length,
                       o->scale, o->threads);
    }
    if ((o->rsa_all_reduce || o->projected_length > 0) && o->method != HEDDLE_ATTENTION_RSA) {
        return hd_fail(HEDDLE_ERR_ARG, "method %s has no %s; rsa has", heddle_attention_method_name(o->method),
                       o->rsa_all_reduce ? "all-reduce form" : "projected keys");
    }
    if (o->projected_length > 0 && (o->causal || o->key_lengths != NULL)) {
        return hd_fail(HEDDLE_ERR_ARG, "projected keys have no order: %s does not go with a projected length of %lld",
                       o->causal ? "a causal mask" : "key lengths", (long long)o->projected_length);
    }
    return HEDDLE_OK;
}

static heddle_status take_shape(hd_attn_problem *p, const heddle_shape *shape)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_shape_check(shape));
    if (shape->ndim != 4) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "attention wants 4 dims (batch, sequence, heads, width), the shape has %d",
                       shape->ndim);
    }
    p->shape = *shape;
    p->dtype = shape->dtype;
    p->real = shape->dtype == HEDDLE_F64 ? HEDDLE_F64 : HEDDLE_F32;
    p->elem_bytes = (int64_t)heddle_dtype_bytes(p->dtype);
    p->real_bytes = (int64_t)heddle_dtype_bytes(p->real);
    p->sequence = shape->dim[1].extent;
    p->width = shape->dim[3].extent;
    int64_t heads = shape->dim[2].extent, kv_heads = p->options.kv_heads;
    if (p->width == 0 || heads == 0) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "attention with %lld heads of width %lld", (long long)heads,
                       (long long)p->width);
    }
    kv_heads = p->options.kv_heads = kv_heads == 0 ? heads : kv_heads;
    if (heads % kv_heads != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "%lld key heads do not divide %lld query heads", (long long)kv_heads,
                       (long long)heads);
    }
    p->group = heads / kv_heads;
    p->scale = p->options.scale != 0 ? p->options.scale : 1 / sqrt((double)p->width);
out:
    return st;
}

/* Which axes shard the sequence. */
static heddle_status take_axes(hd_attn_problem *p, const heddle_mesh *mesh, const heddle_layout *layout)
{
    char reason[HD_METHOD_REASON_BYTES];
    hd_method_group *g = &p->members;
    heddle_shape shape = p->shape;
    shape.dtype = shape.dtype == HEDDLE_F16 ? HEDDLE_BF16 : shape.dtype; /* whether the space has it is asked later */
    heddle_status st = hd_method_takes_arrays(reason, &shape, mesh, layout, 1);
    g->naxes = hd_method_axes(g->axis, mesh, layout, 1U << 1, 1);
    if (st == HEDDLE_OK) {
        st = hd_method_takes_axes(reason, p->shape.dim[1].name, mesh, g->axis, g->naxes);
    }
    if (st != HEDDLE_OK) {
        return hd_fail(st, "%s", reason);
    }
    p->first_axis = g->axis[0];
    p->second_axis = g->axis[1];
    for (int i = 0; i < g->naxes; i++) {
        if (p->options.placement == HEDDLE_PLACEMENT_ZIGZAG && layout->nshards[g->axis[i]] > 0) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "zigzag placement needs balanced blocks, mesh axis %s has explicit ones",
                           mesh->axis[g->axis[i]].name);
        }
    }
    return HEDDLE_OK;
}

/* Zigzag: the sequence in 2n chunks, rank m has m and 2n - 1 - m, so causal work is the same on all. */
static void rows_of_chunk(heddle_attention_rows *out, int at, int64_t sequence, int n, int chunk)
{
    out->lo[at] = heddle_shard_start(sequence, n, chunk);
    out->len[at] = heddle_shard_len(sequence, n, chunk);
    out->rows += out->len[at];
}

/* The ranks that share this rank's heads and samples, with the rows of each; their order is that of the sequence. */
static heddle_status take_group(hd_attn_problem *p, const heddle_mesh *mesh, const heddle_layout *layout, int rank)
{
    heddle_status st = HEDDLE_OK;
    int coords[HEDDLE_MAX_AXES], size[HEDDLE_MAX_AXES];
    int a = p->first_axis, b = p->second_axis;
    int n_a = a >= 0 ? mesh->axis[a].size : 1, n_b = b >= 0 ? mesh->axis[b].size : 1;
    HD_TRY(heddle_mesh_coords(coords, mesh, rank));
    for (int i = 0; i < mesh->naxes; i++) {
        size[i] = mesh->axis[i].size;
    }
    p->nranks = n_a * n_b;
    p->rank = (a >= 0 ? coords[a] : 0) * n_b + (b >= 0 ? coords[b] : 0);
    HD_TRY(hd_alloc((void **)&p->member_rows, (size_t)p->nranks, sizeof *p->member_rows, "rows of an attention"));
    for (int m = 0; m < p->nranks; m++) {
        heddle_attention_rows *rows = &p->member_rows[m];
        if (p->options.placement == HEDDLE_PLACEMENT_ZIGZAG) {
            rows_of_chunk(rows, 0, p->sequence, 2 * p->nranks, m);
            rows_of_chunk(rows, 1, p->sequence, 2 * p->nranks, 2 * p->nranks - 1 - m);
            continue;
        }
        heddle_box box;
        if (a >= 0) {
            coords[a] = m / n_b;
        }
        if (b >= 0) {
            coords[b] = m % n_b;
        }
        HD_TRY(heddle_layout_box(&box, &p->shape, mesh, layout, heddle_mesh_rank_of(coords, size, mesh->naxes)));
        rows->lo[0] = box.lo[1];
        rows->rows = rows->len[0] = box.len[1];
    }
out:
    return st;
}

/* Heads of q, k and v, and the samples, of this rank. */
static heddle_status take_box(hd_attn_problem *p, const heddle_mesh *mesh, const heddle_layout *layout, int rank)
{
    heddle_status st = HEDDLE_OK;
    heddle_box box, kv_box;
    heddle_shape kv_shape = p->shape;
    heddle_layout kv_layout = *layout;
    HD_TRY(heddle_layout_box(&box, &p->shape, mesh, layout, rank));
    kv_shape.dim[2].extent = p->options.kv_heads;
    if (p->group > 1) { /* explicit blocks count query heads */
        for (int a = 0; a < mesh->naxes; a++) {
            if (layout->dim_of_axis[a] == 2 && layout->nshards[a] > 0) {
                return hd_fail(HEDDLE_ERR_LAYOUT,
                               "explicit blocks of %lld query heads on mesh axis %s with %lld key heads",
                               (long long)p->shape.dim[2].extent, mesh->axis[a].name, (long long)p->options.kv_heads);
            }
        }
    }
    HD_TRY(heddle_layout_box(&kv_box, &kv_shape, mesh, &kv_layout, rank));
    p->batch = box.len[0];
    p->batch_lo = box.lo[0];
    p->heads = box.len[2];
    p->head_lo = box.lo[2];
    p->kv_heads = kv_box.len[2];
    p->kv_lo = kv_box.lo[2];
    if (p->heads > 0 &&
        (p->head_lo / p->group < p->kv_lo || (p->head_lo + p->heads - 1) / p->group >= p->kv_lo + p->kv_heads)) {
        return hd_fail(
            HEDDLE_ERR_LAYOUT,
            "rank %d holds query heads %lld to %lld, which use key heads %lld to %lld, but key heads %lld to "
            "%lld",
            rank, (long long)p->head_lo, (long long)(p->head_lo + p->heads - 1), (long long)(p->head_lo / p->group),
            (long long)((p->head_lo + p->heads - 1) / p->group), (long long)p->kv_lo,
            (long long)(p->kv_lo + p->kv_heads - 1));
    }
    HD_TRY(hd_alloc((void **)&p->key_length, (size_t)p->batch, sizeof(int64_t), "key lengths"));
    for (int64_t i = 0; i < p->batch; i++) {
        p->key_length[i] = p->options.key_lengths != NULL ? p->options.key_lengths[p->batch_lo + i] : p->sequence;
    }
    for (int64_t i = 0; p->options.key_lengths != NULL && i < p->shape.dim[0].extent; i++) {
        if (p->options.key_lengths[i] < 0 || p->options.key_lengths[i] > p->sequence) {
            return hd_fail(HEDDLE_ERR_ARG, "key length of sample %lld is %lld, the sequence has %lld rows",
                           (long long)i, (long long)p->options.key_lengths[i], (long long)p->sequence);
        }
    }
out:
    return st;
}

/* The group of ranks as methods see it: over how many of them the heads are dealt, and which head is whose. */
static heddle_status deal_heads(hd_attn_problem *p, const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    hd_method_group *g = &p->members;
    for (int m = 0; m < p->nranks; m++) {
        HD_TRY(hd_method_group_add(g, p->member_rows[m].rows, 1));
    }
    hd_method_group_count(g, p->nranks, p->second_axis >= 0 ? mesh->axis[p->second_axis].size : 1);
    g->heads = p->heads;
    g->kv_heads = p->kv_heads;
    g->head_lo = p->head_lo;
    g->kv_lo = p->kv_lo;
    g->heads_a_kv_head = p->group;
    g->fibres = p->batch;
    g->width = p->width;
    g->elem_bytes = p->elem_bytes;
    g->real_bytes = p->real_bytes;
    g->log_sum_exp = p->options.log_sum_exp;
    g->all_reduce = p->options.rsa_all_reduce;
    g->forward_only = p->options.forward_only;
    g->projected_length = p->options.projected_length;
    g->shape = &p->shape;
    g->stage = (hd_method_stage){.kind = HEDDLE_STAGE_ATTENTION, .dim = 1, .heads = p->heads};
    p->method = hd_method_find(HEDDLE_STAGE_ATTENTION, heddle_attention_method_name(p->options.method));
    HD_TRY(hd_method_need(p->method, g));
    p->spread = hd_group_spread(p->method, g);
    HD_TRY(hd_alloc((void **)&p->part, (size_t)p->spread, sizeof *p->part, "heads of an attention"));
    for (int i = 0; i < p->spread; i++) {
        p->part[i] = hd_group_part(g, p->spread, i);
        p->packed_heads += p->part[i].nq + 2 * p->part[i].nkv;
    }
out:
    return st;
}

/* Segments that touch become one: fewer pairs of segments to walk. */
static void append_rows(hd_row_set *rows, const heddle_attention_rows *add)
{
    for (int i = 0; i < 2; i++) {
        hd_seg *last = rows->nsegs > 0 ? &rows->seg[rows->nsegs - 1] : NULL;
        if (last != NULL && add->len[i] > 0 && last->lo + last->len == add->lo[i]) {
            last->len += add->len[i];
        } else if (add->len[i] > 0) {
            rows->seg[rows->nsegs++] = (hd_seg){add->lo[i], add->len[i], rows->rows};
        }
        rows->rows += add->len[i];
    }
}

/* Ring member i holds the rows of `spread` ranks: those that have dealt their heads among themselves (Ulysses). */
static heddle_status gather_rows(hd_attn_problem *p)
{
    heddle_status st = HEDDLE_OK;
    p->ring = p->nranks / p->spread;
    HD_TRY(hd_alloc((void **)&p->held, (size_t)p->ring, sizeof *p->held, "rows of an attention"));
    for (int i = 0; i < p->ring; i++) {
        HD_TRY(hd_alloc((void **)&p->held[i].seg, 2 * (size_t)p->spread, sizeof(hd_seg), "rows of an attention"));
        for (int j = 0; j < p->spread; j++) {
            append_rows(&p->held[i], &p->member_rows[i * p->spread + j]);
        }
    }
out:
    return st;
}

/* Everything that is computed from the extents later is a sum of a few of these. */
static heddle_status check_sizes(const hd_attn_problem *p)
{
    heddle_status st = HEDDLE_OK;
    int64_t m = p->options.projected_length, most = m > p->sequence ? m : p->sequence, unused;
    enum { ARRAYS = 16 };
    const int64_t rows[] = {ARRAYS, p->batch, p->shape.dim[2].extent, most, p->width, p->real_bytes};
    const int64_t projection[] = {ARRAYS, m, p->sequence, p->real_bytes};
    HD_TRY(hd_product(&unused, "arrays of an attention", 6, rows));
    HD_TRY(hd_product(&unused, "projections of an attention", 4, projection));
out:
    return st;
}

heddle_status hd_attn_problem_make(hd_attn_problem *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                   const heddle_layout *layout, const heddle_attention_options *options, int rank)
{
    heddle_status st = HEDDLE_OK;
    memset(out, 0, sizeof *out);
    HD_TRY(take_options(out, options));
    HD_TRY(take_shape(out, shape));
    HD_TRY(heddle_layout_check(layout, shape, mesh));
    HD_TRY(take_axes(out, mesh, layout));
    HD_TRY(take_group(out, mesh, layout, rank));
    HD_TRY(take_box(out, mesh, layout, rank));
    HD_TRY(check_sizes(out));
    HD_TRY(deal_heads(out, mesh));
    HD_TRY(gather_rows(out));
    if (out->options.key_lengths != NULL) {
        out->key_lengths_hash =
            hd_hash(HD_HASH_BASIS, out->options.key_lengths, (size_t)out->shape.dim[0].extent * sizeof(int64_t));
        out->options.key_lengths = NULL; /* the caller's */
    }
out:
    if (st != HEDDLE_OK) {
        hd_attn_problem_free(out);
    }
    return st;
}

void hd_attn_problem_free(hd_attn_problem *problem)
{
    for (int i = 0; problem->held != NULL && i < problem->ring; i++) {
        hd_free(problem->held[i].seg);
    }
    HD_FREE_ALL(problem->held, problem->part, problem->member_rows, problem->key_length);
    hd_method_group_free(&problem->members);
    memset(problem, 0, sizeof *problem);
}
