/* Random problems of attention and linear attention reach what they are meant to reach: of a thousand draws each
 * feature has its share, and none is a problem that no machine has time for. */
#include "case.h"

#include "runtime/verify/attention_check.h"
#include "runtime/verify/linear_check.h"

#include <string.h>

enum { DRAWS = 1000, FEATURES = 32 };

typedef struct share {
    const char *name;
    int count, least;
} share;

static void count(share *all, const char *name, int least, int yes)
{
    int i = 0;
    while (i < FEATURES && all[i].name != NULL && strcmp(all[i].name, name) != 0) {
        i++;
    }
    assert_true(i < FEATURES);
    all[i].name = name;
    all[i].least = least;
    all[i].count += yes;
}

static void expect_shares(const char *what, const share *all)
{
    for (int i = 0; i < FEATURES && all[i].name != NULL; i++) {
        if (all[i].count < all[i].least) {
            fail_msg("%s: %s in %d of %d draws, wanted are %d", what, all[i].name, all[i].count, DRAWS, all[i].least);
        }
    }
}

/* 1 when an axis of more than one rank cuts the dim. */
static int cuts(const heddle_mesh *mesh, const heddle_layout *layout, int dim)
{
    int yes = 0;
    for (int a = 0; a < mesh->naxes; a++) {
        yes |= layout->dim_of_axis[a] == dim && mesh->axis[a].size > 1;
    }
    return yes;
}

static int has_blocks(const heddle_layout *layout, const heddle_mesh *mesh)
{
    int yes = 0;
    for (int a = 0; a < mesh->naxes; a++) {
        yes |= layout->nshards[a] > 1;
    }
    return yes;
}

HD_CASE(attention_reaches_every_feature)
{
    random_source source = {5};
    share all[FEATURES] = {{NULL, 0, 0}};
    double terms = 0;
    for (int i = 0; i < DRAWS; i++) {
        attention_case c;
        heddle_attention_traffic traffic;
        attention_draw(&c, &source, 4, HEDDLE_DTYPE_COUNT);
        const heddle_attention_options *o = &c.options;
        const heddle_dim *d = c.shape.dim;
        heddle_attention_options options = *o;
        options.key_lengths = c.has_key_lengths ? c.key_length : NULL;
        HD_OK(heddle_attention_plan_traffic(&traffic, &c.shape, &c.mesh, &c.layout, &options, 0));
        count(all, heddle_attention_method_name(o->method), 120, 1);
        count(all, heddle_dtype_name(c.shape.dtype), 180, 1);
        count(all, "threads", 150, o->threads > 1);
        count(all, "a scale", 150, o->scale != 0);
        count(all, "large scores", 50, o->scale >= 300);
        count(all, "heads sharded", 80, cuts(&c.mesh, &c.layout, 2));
        count(all, "samples sharded", 40, cuts(&c.mesh, &c.layout, 0));
        count(all, "replicas", 40, cuts(&c.mesh, &c.layout, HEDDLE_REPLICATED));
        count(all, "two axes", 200, heddle_axis_index(&c.mesh, "ring") >= 0);
        count(all, "NaN", 100, c.nan_at > 0);
        count(all, "width of 32 and more", 70, d[3].extent >= 32);
        count(all, "more than 96 rows", 60, d[1].extent > 96);
        count(all, "fewer rows than ranks", 60, d[1].extent < 4);
        count(all, "explicit blocks", 80, has_blocks(&c.layout, &c.mesh));
        count(all, "zigzag", 150, o->placement == HEDDLE_PLACEMENT_ZIGZAG);
        count(all, "causal", 300, o->causal);
        count(all, "key lengths", 200, c.has_key_lengths);
        count(all, "fewer key heads", 300, o->kv_heads < d[2].extent);
        count(all, "a projection", 20, o->projected_length > 0);
        count(all, "log-sum-exp", 300, o->log_sum_exp);
        terms += (double)(d[0].extent * d[1].extent * d[1].extent * d[2].extent * d[3].extent);
    }
    expect_shares("attention", all);
    assert_true(terms / DRAWS < 150000); /* 200 problems take a second or two */
}

HD_CASE(linear_attention_reaches_every_feature)
{
    random_source source = {5};
    share all[FEATURES] = {{NULL, 0, 0}};
    double terms = 0;
    for (int i = 0; i < DRAWS; i++) {
        linear_case c;
        heddle_attention_traffic traffic;
        linear_draw(&c, &source, 4, HEDDLE_DTYPE_COUNT);
        const heddle_dim *d = c.shape.dim;
        heddle_linear_attention_options o = c.options;
        o.decay = c.decay;
        HD_OK(heddle_linear_attention_plan_traffic(&traffic, &c.shape, &c.mesh, &c.layout, &o, 0));
        count(all, heddle_linear_method_name(o.method), 60, 1);
        count(all, heddle_dtype_name(c.shape.dtype), 180, 1);
        count(all, "threads", 150, o.threads > 1);
        count(all, "heads sharded", 100, cuts(&c.mesh, &c.layout, 2));
        count(all, "samples sharded", 100, cuts(&c.mesh, &c.layout, 0));
        count(all, "replicas", 100, cuts(&c.mesh, &c.layout, HEDDLE_REPLICATED));
        count(all, "NaN", 100, c.nan_at > 0);
        count(all, "width of 32 and more", 70, d[3].extent >= 32);
        count(all, "width of v of 32 and more", 40, o.dv >= 32);
        count(all, "more than 96 rows", 60, d[1].extent > 96);
        count(all, "fewer rows than ranks", 40, d[1].extent < 4);
        count(all, "explicit blocks", 100, has_blocks(&c.layout, &c.mesh));
        count(all, "bidirectional", 200, o.bidirectional);
        count(all, "receive-first", 20, o.receive_first);
        count(all, "chunks", 300, o.chunk_rows > 0);
        count(all, "decay", 300, c.decay[0] < 1);
        terms +=
            (double)(d[0].extent * d[1].extent * d[2].extent * d[3].extent) * (double)(o.dv > 0 ? o.dv : d[3].extent);
    }
    expect_shares("linear attention", all);
    assert_true(terms / DRAWS < 40000);
}
