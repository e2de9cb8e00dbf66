/* What stages, edges and schedules cost on a machine. Bytes against a plain count, seconds against what they may be. */
#include "case.h"
#include "draw.h"
#include "plan_maker.h"

#include "planner/price/price_internal.h"

#include <heddle/forecast.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct bench {
    heddle_model *model;
    heddle_machine *machine;
    heddle_mesh mesh;
    hd_pricer pricer;
} bench;

static void make(bench *b, const char *model, const char *machine, const char *mesh)
{
    HD_OK(heddle_model_load(&b->model, model));
    HD_OK(heddle_machine_load(&b->machine, machine));
    HD_OK(heddle_mesh_parse(&b->mesh, mesh));
    b->pricer = (hd_pricer){.model = b->model, .machine = b->machine, .mesh = &b->mesh};
}

static void unmake(bench *b)
{
    heddle_model_destroy(b->model);
    heddle_machine_destroy(b->machine);
}

static hd_price stage_of(bench *b, int k, const char *layout, const hd_method *method)
{
    heddle_layout in;
    hd_price price;
    HD_OK(heddle_layout_parse(&in, layout, &b->model->shape, &b->mesh));
    HD_OK(hd_price_stage(&price, &b->pricer, k, &in, method));
    assert_int_equal(price.time_ps, price.compute_ps + price.transfer_ps - price.hidden_ps);
    assert_in_range(price.hidden_ps, 0, price.transfer_ps);
    return price;
}

/* 60 layers of HunyuanVideo on two hosts: the ring belongs between them. */
HD_CASE(hunyuanvideo_on_two_hosts)
{
    bench b, other;
    make(&b, "hunyuanvideo", "2x8xh100-nvlink+ib400", "[r=2 u=8]");
    make(&other, "hunyuanvideo", "2x8xh100-nvlink+ib400", "[u=8 r=2]");
    const hd_price good = stage_of(&b, 0, "s@r,s@u", &hd_method_usp);
    const hd_price bad = stage_of(&other, 0, "s@u,s@r", &hd_method_usp);
    /* m of (118800 + 256) tokens: 4 m 7 / 8 of heads inside, 2 m between; the other way round 4 m / 2 and 14 m */
    const int64_t m = INT64_C(7441) * 3072 * 2;
    assert_int_equal(good.link[0].sent_max, 4 * m * 7 / 8);
    assert_int_equal(good.link[1].sent_max, 2 * m);
    assert_in_range(good.moved.bytes_per_rank_max * 60, INT64_C(15000000000), INT64_C(15100000000));
    assert_in_range(bad.moved.bytes_per_rank_max * 60, INT64_C(43700000000), INT64_C(44000000000));
    assert_true(good.time_ps < bad.time_ps);
    unmake(&b);
    unmake(&other);
}

/* Without a machine the bytes are those that schedules have, and there are no seconds. */
HD_CASE(bytes_are_those_of_schedules)
{
    bench b;
    hd_price price;
    hd_method_cost cost;
    hd_method_group group;
    heddle_layout t, s;
    make(&b, HEDDLE_SOURCE "/examples/models/stdit3-xl2.yaml", "cpu", "[sp=8]");
    HD_OK(heddle_layout_parse(&t, "t@sp", &b.model->shape, &b.mesh));
    HD_OK(heddle_layout_parse(&s, "s@sp", &b.model->shape, &b.mesh));
    for (int k = 0; k < b.model->nstages; k++) {
        const hd_model_stage *stage = &b.model->stage[k];
        if (stage->kind == HEDDLE_STAGE_ATTENTION) {
            const hd_method_stage mixes = {.kind = stage->kind, .dim = stage->mixed_dim, .heads = stage->heads};
            const heddle_layout *cut = stage->mixed_dim == 1 ? &t : &s;
            HD_OK(hd_method_group_make(&group, &b.model->shape, &b.mesh, cut, &mixes));
            for (int i = 1; i <= 3; i += 2) { /* ulysses, ring */
                const hd_method *method = hd_method_at(stage->kind, i);
                b.pricer.machine = NULL;
                hd_method_price(&cost, method, &group);
                HD_OK(hd_price_stage(&price, &b.pricer, k, cut, method));
                assert_memory_equal(&price.moved, &cost.forward, sizeof price.moved);
                assert_int_equal(price.time_ps, 0);
                b.pricer.machine = b.machine;
                HD_OK(hd_price_stage(&price, &b.pricer, k, cut, method));
                assert_int_equal(price.link[0].total, cost.forward.bytes_total);
                assert_true(price.time_ps > 0);
            }
            hd_method_group_free(&group);
        }
    }
    hd_edge_cost edge;
    HD_OK(hd_edge_cost_of(&edge, &b.model->shape, &b.mesh, &t, &s));
    HD_OK(hd_price_edge(&price, &b.pricer, &t, &s, 0));
    assert_memory_equal(&price.moved, &edge, sizeof edge);
    assert_int_equal(price.link[0].received_max, edge.bytes_received_max);
    unmake(&b);
}

/* A stage is never faster than an even share of it, a ring whose hops hide costs at most its work slowed down, and what
 * the way back adds is more than the way there. */
HD_CASE(seconds_are_within_bounds)
{
    bench b, alone;
    make(&b, "hunyuanvideo", "8xh100-nvlink", "[sp=8]");
    make(&alone, "hunyuanvideo", "8xh100-nvlink", "[sp=1]");
    const hd_price one = stage_of(&alone, 0, "*", &hd_method_local);
    const hd_price ring = stage_of(&b, 0, "s@sp", &hd_method_ring);
    const hd_price ulysses = stage_of(&b, 0, "s@sp", &hd_method_ulysses);
    assert_true(ring.compute_ps >= one.compute_ps / 8 && ulysses.compute_ps >= one.compute_ps / 8);
    assert_true(ring.hidden_ps > 0 && ulysses.hidden_ps == 0);
    assert_true((double)ring.time_ps <= (double)ring.compute_ps * b.machine->overlap_slowdown);
    b.pricer.backward = 1;
    const hd_price both = stage_of(&b, 0, "s@sp", &hd_method_ring);
    assert_true(both.time_ps > 3 * ring.time_ps && both.kept_bytes > both.input_bytes);
    b.pricer.recompute = 1;
    const hd_price again = stage_of(&b, 0, "s@sp", &hd_method_ring);
    assert_true(again.compute_ps > both.compute_ps && again.kept_bytes == again.input_bytes);
    unmake(&b);
    unmake(&alone);
}

/* Heads that do not divide: the fullest rank's seconds count. 24 heads on 16 ranks are 2 on some. */
HD_CASE(idle_heads_are_priced)
{
    bench b, even;
    make(&b, "hunyuanvideo", "2x8xh100-nvlink+ib400", "[sp=16]");
    make(&even, "hunyuanvideo", "2x8xh100-nvlink+ib400", "[r=2 u=8]");
    const hd_price idle = stage_of(&b, 0, "s@sp", &hd_method_ulysses);
    const hd_price full = stage_of(&even, 0, "s@r,s@u", &hd_method_usp);
    assert_true((double)idle.compute_ps > 1.2 * (double)full.compute_ps);
    unmake(&b);
    unmake(&even);
}

/* One head on three ranks: its owner gets q, k and v of the other two's rows, then sends their results. One exchange
 * follows the other, so the busiest rank of each counts, not the one that is busiest in both. */
HD_CASE(uneven_heads_take_two_exchanges)
{
    bench b = {.model = make_model("bf16", "b: {size: 1, role: batch}, s: 300, c: {size: 64, role: channel}", "b, s, c",
                                   "s", 1, 1, "")};
    HD_OK(heddle_machine_load(&b.machine, "8xh100-nvlink"));
    HD_OK(heddle_mesh_parse(&b.mesh, "[sp=3]"));
    b.pricer = (hd_pricer){.model = b.model, .machine = b.machine, .mesh = &b.mesh};
    const hd_price price = stage_of(&b, 0, "s@sp", &hd_method_ulysses);
    const double rows = 2 * 100 * 64 * 2; /* the others', in bytes */
    const double packed_s = hd_machine_exchange_s(b.machine, 0, HD_EXCHANGE_ALL_TO_ALL, 3, 3 * rows);
    const double results_s = hd_machine_exchange_s(b.machine, 0, HD_EXCHANGE_ALL_TO_ALL, 3, rows);
    assert_int_equal(price.transfer_ps, hd_price_ps(packed_s) + hd_price_ps(results_s));
    unmake(&b);
}

/* An edge's seconds do not fall when a dim grows. */
HD_CASE(more_bytes_take_no_less)
{
    bench b;
    hd_price small, large;
    make(&b, HEDDLE_SOURCE "/examples/models/stdit3-xl2.yaml", "2x8xh100-nvlink+ib400", "[node=2 gpu=8]");
    for (int trial = 0; trial < 300; trial++) {
        static const char *const layouts[] = {"t@node,t@gpu", "s@node,s@gpu", "b@node,t@gpu", "s@gpu", "*"};
        char sizes[64];
        heddle_layout from, to;
        const char *a = layouts[below(5)], *c = layouts[below(5)];
        int t = 1 + below(60);
        snprintf(sizes, sizeof sizes, "t=%d", t);
        HD_OK(heddle_model_resize(b.model, sizes, 0));
        HD_OK(heddle_layout_parse(&from, a, &b.model->shape, &b.mesh));
        HD_OK(heddle_layout_parse(&to, c, &b.model->shape, &b.mesh));
        HD_OK(hd_price_edge(&small, &b.pricer, &from, &to, 0));
        snprintf(sizes, sizeof sizes, "t=%d", 16 * t);
        HD_OK(heddle_model_resize(b.model, sizes, 0));
        HD_OK(hd_price_edge(&large, &b.pricer, &from, &to, 0));
        assert_true(large.time_ps >= small.time_ps && large.input_bytes >= small.input_bytes);
        assert_true((small.moved.bytes_total > 0) == (small.time_ps > 0));
    }
    unmake(&b);
}

/* A parameter takes 2 bytes of bf16, 18 with gradients and Adam, and with sharded weights a rank's part of that. */
HD_CASE(weights_are_counted)
{
    bench b;
    int64_t bytes = 0;
    make(&b, "hunyuanvideo", "8xh100-nvlink", "[sp=8]");
    HD_OK(hd_price_resident(&bytes, &b.pricer));
    assert_int_equal(bytes, 2 * b.model->nweights);
    b.pricer.backward = 1;
    HD_OK(hd_price_resident(&bytes, &b.pricer));
    assert_int_equal(bytes, 18 * b.model->nweights);
    b.model->weights_sharded = 1;
    HD_OK(hd_price_resident(&bytes, &b.pricer));
    assert_int_equal(bytes, 18 * ((b.model->nweights + 7) / 8));
    unmake(&b);
}

/* A forecast is the sum of its steps, and refuses what is not the model's. */
HD_CASE(a_forecast_adds_up)
{
    bench b;
    heddle_schedule *schedule = NULL;
    heddle_forecast *forecast = NULL;
    heddle_forecast_info info = HEDDLE_EMPTY(heddle_forecast_info);
    heddle_forecast_step step = HEDDLE_EMPTY(heddle_forecast_step);
    heddle_forecast_link link = HEDDLE_EMPTY(heddle_forecast_link);
    heddle_schedule_info known = HEDDLE_EMPTY(heddle_schedule_info);
    double time_s = 0;
    int64_t total = 0, peak = 0;
    make(&b, HEDDLE_SOURCE "/examples/models/stdit3-xl2.yaml", "2x8xh100-nvlink+ib400", "[node=2 gpu=8]");
    HD_OK(heddle_plan(&schedule, b.model, &b.mesh, NULL));
    HD_OK(heddle_forecast_create(&forecast, b.model, schedule, b.machine, NULL));
    HD_OK(heddle_forecast_get_info(&info, forecast));
    HD_OK(heddle_schedule_get_info(&known, schedule));
    for (int i = 0; i < known.nedges; i++) {
        HD_OK(heddle_forecast_edge(&step, forecast, i));
        time_s += step.time_s;
        peak = step.memory_bytes > peak ? step.memory_bytes : peak;
        if (i < known.nstages) {
            HD_OK(heddle_forecast_stage(&step, forecast, i));
            time_s += step.time_s;
            peak = step.memory_bytes > peak ? step.memory_bytes : peak;
        }
    }
    assert_true(info.time_s > 0 && time_s > info.time_s * 0.999999 && time_s < info.time_s * 1.000001);
    assert_int_equal(peak, info.memory.total);
    assert_int_equal(info.nlinks, 2);
    for (int l = 0; l < info.nlinks; l++) {
        HD_OK(heddle_forecast_link_at(&link, forecast, l));
        total += link.total;
    }
    assert_int_equal(total, known.bytes_total);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_forecast_stage(&step, forecast, known.nstages));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_forecast_edge(&step, forecast, -1));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_forecast_link_at(&link, forecast, info.nlinks));
    heddle_forecast *none = NULL;
    HD_OK(heddle_machine_resize(b.machine, 8));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_forecast_create(&none, b.model, schedule, b.machine, NULL));
    HD_OK(heddle_machine_resize(b.machine, 16));
    HD_OK(heddle_model_resize(b.model, "t=17", 0));
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_forecast_create(&none, b.model, schedule, b.machine, NULL));
    heddle_forecast_destroy(forecast);
    heddle_schedule_destroy(schedule);
    unmake(&b);
}

/* A machine may say what attention takes in the kernels of methods; whole fibres have those of blocks. */
HD_CASE(attention_over_a_sharded_dim_has_figures_of_its_own)
{
    static const hd_method *const methods[] = {&hd_method_ring, &hd_method_ulysses, &hd_method_gather_kv};
    static const double slower = 3;
    bench b;
    make(&b, "stdit3-xl2", "8xh100-nvlink", "[sp=8]");
    const hd_price whole = stage_of(&b, 0, "t@sp", &hd_method_local);
    int64_t before[3];
    for (int i = 0; i < 3; i++) {
        before[i] = stage_of(&b, 0, "s@sp", methods[i]).compute_ps;
    }
    hd_work_rate *of = &b.machine->work[HD_WORK_SHARDED][HEDDLE_BF16];
    *of = b.machine->work[HD_WORK_ATTENTION][HEDDLE_BF16];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(stage_of(&b, 0, "s@sp", methods[i]).compute_ps, before[i]);
    }
    of->start_s *= slower;
    for (int i = 0; i < of->rate.npoints; i++) {
        of->rate.per_second[i] /= slower;
    }
    assert_int_equal(stage_of(&b, 0, "t@sp", &hd_method_local).compute_ps, whole.compute_ps);
    for (int i = 0; i < 3; i++) {
        heddle_layout in;
        hd_share share;
        HD_OK(heddle_layout_parse(&in, "s@sp", &b.model->shape, &b.mesh));
        HD_OK(hd_share_make(&share, &b.pricer, 0, &in, methods[i]));
        const hd_work_done done = hd_share_work(&share, &b.pricer);
        hd_share_free(&share);
        const double more = (double)(done.all_ps - before[i]), attention = (double)done.attention_ps;
        assert_true(more > 0 && fabs(more / attention - (slower - 1) / slower) < 1e-3);
    }
    unmake(&b);
}

/* --- what a query sees, counted token by token -------------------------------------------------------------------- */

static heddle_model *model_of_windows(const int64_t *extent, const int64_t *window, int is_one, const char *more)
{
    char text[1024], wide[64];
    heddle_model *model = NULL;
    if (is_one) {
        snprintf(wide, sizeof wide, "%lld", (long long)window[0]);
    } else {
        snprintf(wide, sizeof wide, "[%lld, %lld]", (long long)window[0], (long long)window[1]);
    }
    snprintf(text, sizeof text,
             "model: m\ndtype: bf16\ndims: {t: %lld, s: %lld, c: {size: 8, role: channel}}\n"
             "tensors: {x: [t, s, c]}\nstages:\n"
             "  - {name: a, kind: attention, over: %s, heads: 4, window: %s%s}\n",
             (long long)extent[0], (long long)extent[1], is_one ? "t" : "[t, s]", wide, more);
    HD_OK(heddle_model_parse(&model, text, strlen(text), "text"));
    return model;
}

static int is_near(int64_t q, int64_t k, int64_t window, int causal)
{
    return (window == 0 || (k <= q + window && q <= k + window)) && (!causal || k <= q);
}

/* Queries and keys that meet on the rank at `lo`, `len`; the dims that are not mixed count once. */
static int64_t meetings(const int64_t *extent, const int64_t *window, const heddle_box *box, int dims, int causal)
{
    int64_t all = 1;
    for (int d = 0; d < dims; d++) {
        int64_t along = 0;
        for (int64_t q = box->lo[d]; q < box->lo[d] + box->len[d]; q++) {
            for (int64_t k = 0; k < extent[d]; k++) {
                along += is_near(q, k, window[d], causal);
            }
        }
        all *= along;
    }
    return all;
}

HD_CASE(windows_end_at_the_borders)
{
    int by_ring = 0;
    for (int trial = 0; trial < 400; trial++) {
        const int is_one = below(2), causal = is_one && below(2), placed = causal && below(3) == 0;
        const int64_t extent[2] = {1 + below(30), 1 + below(12)};
        const int64_t window[2] = {below(10), below(5)};
        heddle_mesh mesh;
        heddle_layout layout = heddle_layout_replicated();
        heddle_box box;
        hd_share share;
        int64_t most = 0, whole = 1;
        HD_OK(heddle_mesh_parse(&mesh, trial % 2 ? "[a=3]" : "[a=2 b=2]"));
        const int dim = below(2);
        for (int a = 0; a < mesh.naxes; a++) {
            layout.dim_of_axis[a] = dim;
        }
        heddle_model *model = model_of_windows(extent, window, is_one,
                                               placed   ? ", causal: true, placement: zigzag"
                                               : causal ? ", causal: true"
                                                        : "");
        const int is_local = is_one && dim == 1;
        const hd_method *method = is_local ? &hd_method_local : below(2) ? &hd_method_ring : &hd_method_ulysses;
        const hd_pricer pricer = {.model = model, .mesh = &mesh};
        HD_OK(hd_share_make(&share, &pricer, 0, &layout, method));
        heddle_layout own = method == &hd_method_ulysses || placed ? heddle_layout_replicated() : layout;
        for (int r = 0; r < heddle_mesh_size(&mesh); r++) {
            HD_OK(heddle_layout_box(&box, &model->shape, &mesh, &own, r));
            const int64_t found = meetings(extent, window, &box, is_one ? 1 : 2, causal);
            most = found > most ? found : most;
        }
        HD_OK(heddle_layout_box(&box, &model->shape, &mesh, &own, 0));
        for (int d = 0; d < (is_one ? 1 : 2); d++) {
            whole *= box.len[d];
        }
        by_ring += method == &hd_method_ring;
        assert_true(share.keys * (double)whole > (double)most - 1e-6 &&
                    share.keys * (double)whole < (double)most + 1e-6);
        hd_share_free(&share);
        heddle_model_destroy(model);
    }
    assert_true(by_ring > 50);
}

/* Contiguous rows leave the last of 8 ranks 15/16 of all keys for each of its queries, zigzag a half. */
HD_CASE(causal_placement_is_priced)
{
    static const char *const placed[] = {"", ", placement: zigzag"};
    int64_t ps[2];
    for (int i = 0; i < 2; i++) {
        char text[512];
        bench b = {.model = NULL};
        heddle_schedule *s = NULL;
        heddle_plan_options o;
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        HD_OK(heddle_machine_load(&b.machine, "8xh100-nvlink"));
        HD_OK(heddle_mesh_parse(&b.mesh, "[sp=8]"));
        snprintf(text, sizeof text,
                 "model: m\ndtype: bf16\ndims: {s: 262144, c: {size: 1024, role: channel}}\ntensors: {x: [s, c]}\n"
                 "stages: [{name: a, kind: attention, over: s, heads: 8, causal: true%s}]\n",
                 placed[i]);
        HD_OK(heddle_model_parse(&b.model, text, strlen(text), "text"));
        b.pricer = (hd_pricer){.model = b.model, .machine = b.machine, .mesh = &b.mesh};
        ps[i] = stage_of(&b, 0, "s@sp", &hd_method_ring).compute_ps;
        /* A schedule knows why nobody runs it, so that blocks of a caller's own are refused, too. */
        heddle_plan_options_init(&o);
        o.methods = "*=ring";
        HD_OK(heddle_plan(&s, b.model, &b.mesh, &o));
        HD_OK(heddle_schedule_stage_at(&stage, s, 0));
        assert_true(stage.causal);
        assert_non_null(strstr(stage.refusal, "causal"));
        heddle_schedule_destroy(s);
        unmake(&b);
    }
    assert_true((double)ps[0] / (double)ps[1] > 1.75 && (double)ps[0] / (double)ps[1] < 1.88);
}
