/* Rings on a device: a route for each step, from each rank to the next. */
#include "runtime/attention/on.h"

#include <string.h>

static int64_t row_bytes(const struct hd_attn_on *on, int kind)
{
    const hd_attn_problem *p = on->problem;
    const int64_t elem = kind != HD_ON_SUMS ? p->elem_bytes : (int64_t)sizeof(float);
    return 2 * on->kv_heads * p->batch * p->width * elem;
}

static int are_even(const struct hd_attn_on *on)
{
    int even = 1;
    for (int m = 1; m < on->members; m++) {
        even &= on->row_counts[m] == on->row_counts[0];
    }
    return even;
}

/* Step i: the block of member me - i leaves; sums of one that was worked on, a step later. */
static heddle_status make_route(hd_route **out, const struct hd_attn_on *on, int kind, int step)
{
    const int n = on->members, member = (on->me - step - (kind == HD_ON_SUMS) + 2 * n) % n;
    const int64_t send = on->row_counts[member] * row_bytes(on, kind);
    const int64_t recv = on->row_counts[(member + n - 1) % n] * row_bytes(on, kind);
    hd_item items[2] = {{.peer = (on->me + 1) % n, .copy = {.run_bytes = send}},
                        {.peer = (on->me + n - 1) % n, .copy = {.run_bytes = recv}}};
    const hd_route_spec spec = {
        .options = {.deadline_ms = on->problem->options.deadline_ms, .what = "step of a ring", .line = ""},
        .space = HEDDLE_SPACE_DEVICE,
        .phase = {{.transfer = {.send = {&items[0], send > 0},
                                .recv = {&items[1], recv > 0},
                                .src_bytes = (size_t)send,
                                .dst_bytes = (size_t)recv,
                                .space = HEDDLE_SPACE_DEVICE,
                                .footprint_bytes = send + recv},
                   .src = {.in = HD_IN_SRC},
                   .dst = {.in = HD_IN_DST}}},
        .nphases = 1,
        .whole_src = {.run_bytes = send},
        .whole_dst = {.run_bytes = recv},
        .src_bytes = send,
        .dst_bytes = recv,
        .dtype = kind != HD_ON_SUMS ? on->problem->dtype : HEDDLE_F32,
        .elem_bytes = kind != HD_ON_SUMS ? on->problem->elem_bytes : (int64_t)sizeof(float)};
    return hd_route_create(out, on->ring, &spec, HEDDLE_OK);
}

static heddle_status make_hop(struct hd_attn_on *on, int kind)
{
    heddle_status st = HEDDLE_OK;
    hd_on_hops *hop = &on->hop[kind];
    const int steps = are_even(on) ? 1 : on->members - 1;
    HD_TRY(hd_comm_agree(on->ring, hd_alloc((void **)&hop->route, (size_t)steps, sizeof(hd_route *), "a ring")));
    for (; hop->nroutes < steps; hop->nroutes++) {
        HD_TRY(make_route(&hop->route[hop->nroutes], on, kind, hop->nroutes));
    }
out:
    return st;
}

static heddle_status make_gather(struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = on->problem;
    const int64_t extent[4] = {2 * on->kv_heads, p->batch, on->joined.rows, p->width};
    const hd_side_blocks by_rows = {2, on->row_counts}, whole = {HEDDLE_REPLICATED, NULL},
                         partial = {HEDDLE_PARTIAL, NULL};
    HD_TRY(hd_reshard_of_heads(&on->gather, on->ring, p->dtype, extent, &by_rows, &whole, &p->options));
    if (!p->options.forward_only) {
        HD_TRY(hd_reshard_of_heads(&on->home, on->ring, HEDDLE_F32, extent, &partial, &by_rows, &p->options));
    }
out:
    return st;
}

heddle_status hd_attn_on_hops_make(struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    if (on->ring == NULL) {
        return HEDDLE_OK;
    }
    if (on->problem->options.method == HEDDLE_ATTENTION_GATHER_KV) {
        return make_gather(on);
    }
    HD_TRY(make_hop(on, HD_ON_KEYS));
    if (!on->problem->options.forward_only) {
        HD_TRY(make_hop(on, HD_ON_KEYS_BACK));
        HD_TRY(make_hop(on, HD_ON_SUMS));
    }
out:
    return st;
}

void hd_attn_on_hops_free(struct hd_attn_on *on)
{
    for (int kind = 0; kind < HD_ON_HOPS; kind++) {
        for (int i = 0; i < on->hop[kind].nroutes; i++) {
            hd_route_destroy(on->hop[kind].route[i]);
        }
        hd_free(on->hop[kind].route);
    }
    heddle_reshard_destroy(on->gather);
    heddle_reshard_destroy(on->home);
}

heddle_status hd_attn_on_hop(struct hd_attn_on *on, int kind, int step, const void *src, void *dst)
{
    const hd_on_hops *hop = &on->hop[kind];
    hd_route *route = hop->route[hop->nroutes == 1 ? 0 : step];
    return route->carrier->run(route, src, dst, on->stream);
}

static void add_moved(hd_moved *out, const hd_route *route)
{
    const int64_t *sent = route->carrier->sent(route);
    hd_route_info info;
    hd_route_get_info(&info, route);
    for (int r = 0; r < route->nranks; r++) {
        out->bytes += sent[r];
        out->messages += sent[r] > 0 ? info.executions : 0;
    }
}

hd_moved hd_attn_on_moved(const struct hd_attn_on *on, int is_back)
{
    hd_moved moved = hd_reshard_moved(is_back ? on->home : on->gather);
    const int first = is_back ? HD_ON_KEYS_BACK : HD_ON_KEYS, end = is_back ? HD_ON_HOPS : HD_ON_KEYS_BACK;
    for (int kind = first; kind < end; kind++) {
        for (int i = 0; i < on->hop[kind].nroutes; i++) {
            add_moved(&moved, on->hop[kind].route[i]);
        }
    }
    return moved;
}
