/* Prices of stages, edges and ends. */
#include "planner/price/price_internal.h"

#include "runtime/base/base.h"

#include <string.h>

static void add_moved(hd_edge_cost *sum, const hd_edge_cost *one)
{
    sum->bytes_per_rank_max = hd_add_saturated(sum->bytes_per_rank_max, one->bytes_per_rank_max);
    sum->bytes_total = hd_add_saturated(sum->bytes_total, one->bytes_total);
    sum->messages = hd_add_saturated(sum->messages, one->messages);
    sum->bytes_received_max = hd_add_saturated(sum->bytes_received_max, one->bytes_received_max);
}

static void set_time(hd_price *out)
{
    out->time_ps = hd_add_saturated(out->compute_ps, out->transfer_ps) - out->hidden_ps;
}

/* Every rank sends `bytes` to each of the others. Most leave a set of ranks where that is the smallest one. */
static void send_to_all(hd_link_bytes *link, const hd_levels *levels, int ranks, int64_t bytes)
{
    for (int l = 0; l < levels->count; l++) {
        int inner = l > 0 ? levels->within[l - 1] : 1;
        int rest = levels->within[l] % inner;
        int peers = levels->within[l] - (rest > 0 ? rest : inner);
        link[l].sent_max = link[l].received_max = hd_saturated((__int128)bytes * peers);
        link[l].total = hd_saturated((__int128)link[l].sent_max * ranks);
    }
}

/* Sharded weights: a rank sends its part of them to all others, with gradients once more and these home. They are
 * fetched while the stage before works: behind as much work as this one has. */
static void gather_weights(hd_price *out, const hd_pricer *p, int k)
{
    const hd_levels levels = hd_price_levels(p->machine, p->mesh);
    int ranks = heddle_mesh_size(p->mesh);
    int64_t part = (p->model->stage[k].nweights + ranks - 1) / ranks;
    int64_t elem = (int64_t)heddle_dtype_bytes(p->model->dtype);
    hd_link_bytes weights[HEDDLE_MACHINE_LINKS] = {{0, 0, 0}};
    if (!p->model->weights_sharded || ranks == 1 || p->machine == NULL) {
        return;
    }
    send_to_all(weights, &levels, ranks, hd_saturated((__int128)part * elem));
    for (int again = 0; again <= (p->backward ? 2 : 0); again++) {
        hd_exchange op = again == 2 ? HD_EXCHANGE_REDUCE_SCATTER : HD_EXCHANGE_ALL_GATHER;
        int64_t ps = hd_price_exchange(p, op, ranks, weights, again == 2 ? 4.0 / (double)elem : 1);
        out->transfer_ps = hd_add_saturated(out->transfer_ps, ps);
        out->hidden_ps =
            hd_add_saturated(out->hidden_ps, hd_price_hidden(p->machine, out->compute_ps / (p->backward ? 3 : 1), ps));
        hd_price_add_links(out, weights, levels.count);
    }
}

/* Every rank adds up the gradients of its copy of the weights with all others'. */
int64_t hd_price_gradients_ps(const hd_pricer *p)
{
    const hd_levels levels = hd_price_levels(p->machine, p->mesh);
    int ranks = heddle_mesh_size(p->mesh);
    hd_link_bytes link[HEDDLE_MACHINE_LINKS] = {{0, 0, 0}};
    int64_t part = (p->model->nweights + ranks - 1) / ranks;
    if (!p->backward || ranks == 1 || p->model->weights_sharded || p->machine == NULL) {
        return 0;
    }
    send_to_all(link, &levels, ranks, hd_saturated((__int128)part * 4));
    return hd_add_saturated(hd_price_exchange(p, HD_EXCHANGE_REDUCE_SCATTER, ranks, link, 1),
                            hd_price_exchange(p, HD_EXCHANGE_ALL_GATHER, ranks, link, 1));
}

heddle_status hd_price_stage(hd_price *out, const hd_pricer *p, int k, const heddle_layout *layout,
                             const hd_method *method)
{
    heddle_status st = HEDDLE_OK;
    hd_share share = {0};
    hd_method_cost cost = {0};
    memset(out, 0, sizeof *out);
    HD_TRY(hd_share_make(&share, p, k, layout, method));
    if (share.group.n > 1 && method != &hd_method_local) {
        hd_method_price(&cost, method, &share.group);
        add_moved(&out->moved, &cost.forward);
        if (p->backward) {
            add_moved(&out->moved, &cost.backward);
        }
        if (p->backward && p->recompute) {
            add_moved(&out->moved, &cost.forward);
        }
    }
    hd_share_memory(out, &share, p, &cost);
    const hd_work_done work = hd_share_work(&share, p);
    out->compute_ps = hd_add_saturated(work.all_ps, hd_add_saturated(work.back_ps, work.again_ps));
    hd_price_method(out, &share, p, layout, 0, work.attention_ps);
    if (p->backward) {
        hd_price_method(out, &share, p, layout, 1, work.attention_back_ps);
    }
    if (p->backward && p->recompute) {
        hd_price_method(out, &share, p, layout, 0, work.attention_again_ps);
    }
    gather_weights(out, p, k);
    set_time(out);
out:
    hd_share_free(&share);
    return st;
}

/* Ranks that exchange along the axes that change, and what that is called. */
static hd_exchange kind_of(int *group, const heddle_mesh *mesh, const heddle_layout *from, const heddle_layout *to)
{
    int gathers = 1, completes = 0;
    *group = 1;
    for (int a = 0; a < mesh->naxes; a++) {
        int f = from->dim_of_axis[a], t = to->dim_of_axis[a];
        if (f != t && mesh->axis[a].size > 1) {
            *group *= mesh->axis[a].size;
            gathers &= f >= 0 && t == HEDDLE_REPLICATED;
            completes |= f == HEDDLE_PARTIAL;
        }
    }
    *group = *group > 1 ? *group : 2;
    return completes ? HD_EXCHANGE_REDUCE_SCATTER : gathers ? HD_EXCHANGE_ALL_GATHER : HD_EXCHANGE_ALL_TO_ALL;
}

static heddle_status add_move(hd_price *out, const hd_pricer *p, const heddle_shape *shape, const heddle_layout *from,
                              const heddle_layout *to)
{
    heddle_status st = HEDDLE_OK;
    const hd_levels levels = hd_price_levels(p->machine, p->mesh);
    hd_link_bytes link[HEDDLE_MACHINE_LINKS] = {{0, 0, 0}};
    hd_edge_cost moved;
    int group = 0;
    if (heddle_layout_equal(from, to, p->mesh)) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_edge_links_by(&moved, levels.count > 0 ? link : NULL, levels.count > 0 ? &levels : NULL, shape, p->mesh,
                            from, to, p->parts, p->of_few));
    add_moved(&out->moved, &moved);
    if (p->machine != NULL) {
        hd_exchange op = kind_of(&group, p->mesh, from, to);
        hd_price_add_links(out, link, levels.count);
        out->transfer_ps = hd_add_saturated(out->transfer_ps, hd_price_exchange(p, op, group, link, 1));
    }
out:
    return st;
}

static int64_t part_bytes(const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout)
{
    __int128 row = (__int128)shape->dim[shape->ndim - 1].extent * (__int128)heddle_dtype_bytes(shape->dtype);
    return hd_saturated(row * hd_price_rows(shape, mesh, layout));
}

static heddle_shape with_channels(const hd_pricer *p, int64_t channels)
{
    heddle_shape shape = p->model->shape;
    if (channels > 0) {
        shape.dim[p->model->channel_dim].extent = channels;
    }
    return shape;
}

heddle_status hd_pricer_keep(hd_pricer *p)
{
    const hd_levels levels = hd_price_levels(p->machine, p->mesh);
    return hd_edge_parts_new(&p->parts, p->mesh, levels.count > 0 ? &levels : NULL);
}

int hd_pricer_nests(const hd_pricer *p)
{
    const hd_levels levels = hd_price_levels(p->machine, p->mesh);
    return levels.count == 0 || hd_levels_nest(&levels, p->mesh);
}

heddle_status hd_price_edge(hd_price *out, const hd_pricer *p, const heddle_layout *from, const heddle_layout *to,
                            int is_last)
{
    heddle_status st = HEDDLE_OK;
    const heddle_shape shape = with_channels(p, p->channels);
    heddle_layout behind, before;
    memset(out, 0, sizeof *out);
    HD_TRY(add_move(out, p, &shape, from, to));
    if (p->backward) {
        hd_edge_backward(&behind, &before, p->mesh, from, to, is_last);
        HD_TRY(add_move(out, p, &shape, &behind, &before));
    }
    if (!p->of_few) {
        out->input_bytes = part_bytes(&shape, p->mesh, from);
        out->workspace_bytes = heddle_layout_equal(from, to, p->mesh) ? 0 : part_bytes(&shape, p->mesh, to);
    }
    set_time(out);
out:
    return st;
}

/* Tokens are made where they are wanted; behind the last stage every rank narrows its own, and these are gathered. */
heddle_status hd_price_ends(hd_price *out, const hd_pricer *p, const heddle_layout *first, const heddle_layout *last)
{
    heddle_status st = HEDDLE_OK;
    const heddle_model *m = p->model;
    const heddle_layout whole = heddle_layout_replicated();
    const hd_pricer forward = {.model = m, .machine = p->machine, .mesh = p->mesh};
    double channels = (double)m->shape.dim[m->channel_dim].extent;
    memset(out, 0, sizeof *out);
    if (m->final_channels > 0) {
        const heddle_shape narrow = with_channels(p, m->final_channels);
        HD_TRY(add_move(out, &forward, &narrow, last, &whole));
    }
    if (p->machine != NULL) {
        double rows = (double)hd_price_rows(&m->shape, p->mesh, first);
        double in = 2 * rows * (double)m->patch_channels * channels;
        double end = (double)hd_price_rows(&m->shape, p->mesh, last);
        out->compute_ps = hd_price_ps(hd_price_work_s(p, HD_WORK_PRODUCT, m->dtype, in, rows));
        out->compute_ps = hd_add_saturated(
            out->compute_ps, hd_price_ps(hd_price_work_s(p, HD_WORK_PRODUCT, m->dtype,
                                                         2 * end * (double)m->final_channels * channels, end)));
    }
    set_time(out);
out:
    return st;
}
