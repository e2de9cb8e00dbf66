/* The heads exchange of Ulysses: q, k and v of all rows for some heads instead of some rows for all heads, and back.
 * One reshard each: q, k and v of a part lie together along the packed dim of heads. */
#include "runtime/attention/attention_internal.h"

#include <heddle/sys/index.h>

#include <stdio.h>
#include <string.h>

static int is_balanced(const int64_t *block, int n, int64_t extent)
{
    int same = 1;
    for (int i = 0; i < n; i++) {
        same &= block[i] == heddle_shard_len(extent, n, i);
    }
    return same;
}

static heddle_status make_layout(heddle_layout *out, const heddle_shape *shape, int n, const hd_side_blocks *side)
{
    *out = heddle_layout_replicated();
    out->dim_of_axis[0] = side->dim;
    if (side->dim < 0 || is_balanced(side->block, n, shape->dim[side->dim].extent)) {
        return HEDDLE_OK;
    }
    if (n > HEDDLE_MAX_SHARDS) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "uneven blocks over %d ranks, layouts have at most %d", n,
                       HEDDLE_MAX_SHARDS);
    }
    out->nshards[0] = n;
    memcpy(out->shard_len, side->block, (size_t)n * sizeof out->shard_len[0]);
    return HEDDLE_OK;
}

heddle_status hd_reshard_of_heads(heddle_reshard **out, heddle_comm *comm, heddle_dtype dtype, const int64_t extent[4],
                                  const hd_side_blocks *from, const hd_side_blocks *to,
                                  const heddle_attention_options *of)
{
    heddle_status st = HEDDLE_OK;
    int n = heddle_comm_size(comm);
    heddle_mesh mesh = {.naxes = 1, .axis = {{"sp", n}}};
    heddle_shape shape = {.dtype = dtype,
                          .ndim = extent[3] > 0 ? 4 : 3,
                          .dim = {{"x", extent[0]}, {"b", extent[1]}, {"s", extent[2]}, {"d", extent[3]}}};
    heddle_layout from_layout, to_layout;
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.tuning = HEDDLE_TUNING_RULES;
    options.deadline_ms = of->deadline_ms;
    options.space = of->space;
    options.device = of->device;
    HD_TRY(make_layout(&from_layout, &shape, n, from));
    HD_TRY(make_layout(&to_layout, &shape, n, to));
    HD_TRY(heddle_reshard_create(out, comm, &shape, &mesh, &from_layout, &to_layout, &options));
out:
    return st;
}

hd_moved hd_reshard_moved(const heddle_reshard *reshard)
{
    hd_moved moved = {0, 0};
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    if (reshard != NULL && heddle_reshard_get_info(&info, reshard) == HEDDLE_OK) {
        moved.bytes = info.measured_bytes_sent;
        for (int peer = 0; peer < info.nranks; peer++) {
            moved.messages += info.measured_bytes_to[peer] > 0 ? info.executions : 0;
        }
    }
    return moved;
}

static heddle_status create_ways(hd_heads *heads, heddle_comm *comm, const hd_attn_problem *p, const int64_t *rows,
                                 const int64_t *packed, const int64_t *queries)
{
    heddle_status st = HEDDLE_OK;
    const heddle_attention_options *of = &p->options;
    int64_t total = p->held[p->rank / p->spread].rows;
    const int64_t qkv[4] = {p->packed_heads, p->batch, total, p->width};
    const int64_t o[4] = {p->heads, p->batch, total, p->width}, lse[4] = {p->heads, p->batch, total, 0};
    const hd_side_blocks by_rows = {2, rows}, by_packed = {0, packed}, by_queries = {0, queries};
    heddle_reshard **way = heads->way;
    HD_TRY(hd_reshard_of_heads(&way[HD_QKV_TO_HEADS], comm, p->dtype, qkv, &by_rows, &by_packed, of));
    HD_TRY(hd_reshard_of_heads(&way[HD_O_TO_ROWS], comm, p->dtype, o, &by_queries, &by_rows, of));
    if (p->options.log_sum_exp) {
        HD_TRY(hd_reshard_of_heads(&way[HD_LSE_TO_ROWS], comm, p->real, lse, &by_queries, &by_rows, of));
    }
    if (!p->options.forward_only) {
        HD_TRY(hd_reshard_of_heads(&way[HD_O_TO_HEADS], comm, p->dtype, o, &by_rows, &by_queries, of));
        HD_TRY(hd_reshard_of_heads(&way[HD_QKV_TO_ROWS], comm, p->dtype, qkv, &by_packed, &by_rows, of));
    }
out:
    return st;
}

heddle_status hd_heads_create(hd_heads *heads, heddle_comm *comm, const hd_attn_problem *problem)
{
    heddle_status st = HEDDLE_OK;
    int64_t *lengths = NULL;
    int n = problem->spread;
    HD_TRY(hd_comm_agree(comm, hd_alloc((void **)&lengths, 3 * (size_t)n, sizeof(int64_t), "a heads exchange")));
    for (int i = 0; i < n; i++) {
        const hd_head_part *part = &problem->part[i];
        lengths[i] = problem->member_rows[problem->rank / n * n + i].rows;
        lengths[n + i] = part->nq + 2 * part->nkv;
        lengths[2 * n + i] = part->nq;
    }
    heads->count = n;
    st = create_ways(heads, comm, problem, lengths, lengths + n, lengths + 2 * n);
out:
    hd_free(lengths);
    return st;
}

void hd_heads_destroy(hd_heads *heads)
{
    for (int i = 0; i < HD_HEADS_WAYS; i++) {
        heddle_reshard_destroy(heads->way[i]);
        heads->way[i] = NULL;
    }
}

heddle_status hd_heads_move(hd_heads *heads, hd_heads_way way, const void *src, void *dst, heddle_stream stream)
{
    return heddle_reshard_execute(heads->way[way], src, dst, stream);
}
