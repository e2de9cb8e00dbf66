/* What ranks exchange and how long that takes: levels, and the shape of every method's traffic. */
#include "planner/price/price_internal.h"

#include <string.h>

/* Ranks beyond the machine's are taken as more of its outermost level. */
hd_levels hd_price_levels(const heddle_machine *machine, const heddle_mesh *mesh)
{
    hd_levels levels = {0, {0}};
    int64_t within = 1;
    int ranks = heddle_mesh_size(mesh);
    for (int l = 0; machine != NULL && l < machine->nlevels; l++) {
        within *= machine->level[l].size;
        int is_last = l == machine->nlevels - 1 || within >= ranks;
        levels.within[levels.count++] = is_last ? ranks : (int)within;
        if (is_last) {
            break;
        }
    }
    return levels;
}

int64_t hd_price_exchange(const hd_pricer *p, hd_exchange exchange, int group, const hd_link_bytes *link, double part)
{
    const hd_levels levels = hd_price_levels(p->machine, p->mesh);
    double slowest = 0;
    for (int l = 0; l < levels.count; l++) {
        int64_t most = link[l].sent_max > link[l].received_max ? link[l].sent_max : link[l].received_max;
        double s = hd_machine_exchange_s(p->machine, p->machine->level[l].link, exchange, group, (double)most * part);
        slowest = s > slowest ? s : slowest;
    }
    return hd_price_ps(slowest);
}

/* While both run each is slower; where that gains nothing they run one after the other. */
int64_t hd_price_hidden(const heddle_machine *machine, int64_t work_ps, int64_t transfer_ps)
{
    int64_t both = work_ps < transfer_ps ? work_ps : transfer_ps;
    double gain = 2 - (machine->overlap_slowdown >= 1 ? machine->overlap_slowdown : 1);
    return gain > 0 ? (int64_t)((double)both * gain) : 0;
}

void hd_price_add_links(hd_price *out, const hd_link_bytes *link, int nlevels)
{
    for (int l = 0; l < nlevels; l++) {
        out->link[l].sent_max = hd_add_saturated(out->link[l].sent_max, link[l].sent_max);
        out->link[l].received_max = hd_add_saturated(out->link[l].received_max, link[l].received_max);
        out->link[l].total = hd_add_saturated(out->link[l].total, link[l].total);
    }
}

static void usp_ring(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    hd_sends_ring(out, group, member, among, group->inner, 1);
}

static int64_t times(int64_t ps, int64_t count)
{
    return hd_saturated((__int128)ps * count);
}

static void take(hd_price *out, int64_t transfer_ps, int64_t hidden_ps)
{
    out->transfer_ps = hd_add_saturated(out->transfer_ps, transfer_ps);
    out->hidden_ps = hd_add_saturated(out->hidden_ps, hidden_ps);
}

/* Every hop but the last block's work has a hop beside it. */
static void take_ring(hd_price *out, const hd_pricer *p, int ring, int turns, const hd_link_bytes *link,
                      int64_t attention_ps)
{
    int hops = turns * (ring - 1);
    if (hops < 1) {
        return;
    }
    int64_t hop = hd_price_exchange(p, HD_EXCHANGE_RING, ring, link, 1.0 / hops);
    int64_t hidden = hd_price_hidden(p->machine, attention_ps / (turns * ring), hop);
    take(out, times(hop, hops), times(hidden, hops));
}

/* One state by the slowest links that the way has. */
static int64_t state_hop(const hd_share *share, const hd_pricer *p, const hd_link_bytes *link)
{
    const hd_method_group *g = &share->group;
    __int128 state = (__int128)g->heads * g->width * g->width_v * g->real_bytes * g->fibres_max;
    hd_link_bytes one[HEDDLE_MACHINE_LINKS] = {{0, 0, 0}};
    for (int l = 0; l < HEDDLE_MACHINE_LINKS; l++) {
        one[l].sent_max = link[l].sent_max > 0 ? hd_saturated(state) : 0;
    }
    return hd_price_exchange(p, HD_EXCHANGE_RING, 2, one, 1);
}

/* A chain's last rank waits for all hops, beside its own part of the work. */
static void take_states(hd_price *out, const hd_share *share, const hd_pricer *p, const hd_link_bytes *link,
                        int64_t attention_ps)
{
    int n = share->group.n, steps = 0;
    if (share->method == &hd_method_lasp2) {
        take(out, hd_price_exchange(p, HD_EXCHANGE_ALL_GATHER, n, link, 1), 0);
        return;
    }
    for (int64_t reach = 1; reach < n; reach *= 2) {
        steps++;
    }
    int64_t hops = share->method == &hd_method_scan ? steps : n - 1;
    int64_t transfer = times(state_hop(share, p, link), hops);
    int64_t own = share->method == &hd_method_scan ? 0 : attention_ps;
    take(out, transfer, hd_price_hidden(p->machine, own, transfer));
}

static const hd_link_bytes *links_of(hd_link_bytes *link, const hd_method *method, const hd_share *share,
                                     const hd_pricer *p, const heddle_layout *layout, int backward)
{
    const hd_levels levels = hd_price_levels(p->machine, p->mesh);
    hd_link_bytes other[HEDDLE_MACHINE_LINKS];
    memset(link, 0, HEDDLE_MACHINE_LINKS * sizeof *link);
    hd_method_links(backward ? other : link, backward ? link : other, method, &share->group, p->mesh, layout, &levels);
    return link;
}

static void packed(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    hd_sends_packed(out, group, member, among, group->n);
}

static void results(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    hd_sends_results(out, group, member, among, group->n);
}

static void packed_inside(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    hd_sends_packed(out, group, member, among, group->inner);
}

static void results_inside(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    hd_sends_results(out, group, member, among, group->inner);
}

/* Queries, keys and values go together, results come by themselves, each at the pace of its own busiest rank; the way
 * back turns both round. */
static void take_heads(hd_price *out, const hd_share *share, const hd_pricer *p, const heddle_layout *layout,
                       int backward)
{
    const int is_inside = share->method == &hd_method_usp, spread = hd_group_spread(share->method, &share->group);
    hd_link_bytes link[HEDDLE_MACHINE_LINKS];
    void (*const sends[2][2])(hd_sends *, const hd_method_group *, int, hd_members) = {{packed, results},
                                                                                       {packed_inside, results_inside}};
    hd_method one = *share->method;
    for (int i = 0; i < 2; i++) {
        one.sends = sends[is_inside][i];
        links_of(link, &one, share, p, layout, backward);
        take(out, hd_price_exchange(p, HD_EXCHANGE_ALL_TO_ALL, spread, link, 1), 0);
    }
}

void hd_price_method(hd_price *out, const hd_share *share, const hd_pricer *p, const heddle_layout *layout,
                     int backward, int64_t attention_ps)
{
    const hd_method *m = share->method;
    const hd_method_group *g = &share->group;
    hd_link_bytes link[HEDDLE_MACHINE_LINKS], part[HEDDLE_MACHINE_LINKS];
    if (m == &hd_method_local || g->n == 1 || p->machine == NULL) {
        return;
    }
    links_of(link, m, share, p, layout, backward);
    hd_price_add_links(out, link, hd_price_levels(p->machine, p->mesh).count);
    if (m == &hd_method_ulysses) {
        take_heads(out, share, p, layout, backward);
    } else if (m == &hd_method_usp) {
        hd_method one = hd_method_usp;
        take_heads(out, share, p, layout, backward);
        one.sends = usp_ring;
        take_ring(out, p, g->n / g->inner, 1, links_of(part, &one, share, p, layout, backward), attention_ps);
    } else if (m == &hd_method_ring || m == &hd_method_rsa) {
        take_ring(out, p, g->n, m == &hd_method_rsa ? 2 : 1, link, attention_ps);
    } else if (m == &hd_method_gather_kv || m->is_near) {
        int is_halo = m != &hd_method_sums && g->halo.count > 0; /* between neighbours, as a hop of a ring is */
        hd_exchange op = is_halo ? HD_EXCHANGE_RING : backward ? HD_EXCHANGE_REDUCE_SCATTER : HD_EXCHANGE_ALL_GATHER;
        take(out, hd_price_exchange(p, op, is_halo ? 2 : g->n, link, 1), 0);
    } else {
        take_states(out, share, p, link, attention_ps);
    }
}
