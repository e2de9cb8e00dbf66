/* Random attention problems, and their description. */
#include "runtime/verify/attention_check.h"

#include <stdio.h>
#include <string.h>

static void name_dim(heddle_dim *dim, const char *name, int64_t extent)
{
    snprintf(dim->name, sizeof dim->name, "%s", name);
    dim->extent = extent;
}

static void add_axis(attention_case *c, const char *name, int size, int dim)
{
    int a = c->mesh.naxes++;
    snprintf(c->mesh.axis[a].name, sizeof c->mesh.axis[a].name, "%s", name);
    c->mesh.axis[a].size = size;
    c->layout.dim_of_axis[a] = dim;
}

/* A divisor of n. */
static int draw_divisor(random_source *source, int n)
{
    int divisor = (int)random_between(source, 1, n);
    while (n % divisor != 0) {
        divisor--;
    }
    return divisor;
}

static int one_in(random_source *source, int n)
{
    return random_between(source, 0, n - 1) == 0;
}

static void draw_mesh(attention_case *c, random_source *source, int ranks)
{
    int rest = ranks;
    c->mesh.naxes = 0;
    c->layout = heddle_layout_replicated();
    if (one_in(source, 4)) { /* samples on another axis, or replicas */
        int size = draw_divisor(source, rest);
        add_axis(c, "dp", size, random_between(source, 0, 1) ? 0 : HEDDLE_REPLICATED);
        rest /= size;
    }
    if (one_in(source, 4)) { /* heads: as many key heads on every rank, so that each has its queries with it */
        int size = draw_divisor(source, rest);
        add_axis(c, "tp", size, 2);
        c->options.kv_heads = size * random_between(source, 1, size > 2 ? 1 : 2);
        rest /= size;
    }
    if (c->options.method == HEDDLE_ATTENTION_USP || one_in(source, 3)) {
        int major = draw_divisor(source, rest);
        add_axis(c, "ring", major, 1);
        add_axis(c, "sp", rest / major, 1);
    } else {
        add_axis(c, "sp", rest, 1);
    }
}

static void draw_blocks(attention_case *c, random_source *source)
{
    int axis = heddle_axis_index(&c->mesh, "sp");
    int n = c->mesh.axis[axis].size;
    int64_t left = c->shape.dim[1].extent;
    if (c->options.placement != HEDDLE_PLACEMENT_CONTIGUOUS || heddle_axis_index(&c->mesh, "ring") >= 0 ||
        random_between(source, 0, 2) != 0) {
        return;
    }
    c->layout.nshards[axis] = n;
    for (int i = 0; i < n; i++) {
        c->layout.shard_len[i] = i == n - 1 ? left : random_between(source, 0, left);
        left -= c->layout.shard_len[i];
    }
}

static void draw_method(attention_case *c, random_source *source, int ranks)
{
    heddle_attention_options *o = &c->options;
    heddle_attention_options_init(o);
    do {
        o->method = (heddle_attention_method)random_between(source, 0, HEDDLE_ATTENTION_METHOD_COUNT - 1);
    } while (o->method == HEDDLE_ATTENTION_LOCAL && ranks > 1);
    o->causal = random_between(source, 0, 1) == 0;
    o->placement = one_in(source, 4) ? HEDDLE_PLACEMENT_ZIGZAG : HEDDLE_PLACEMENT_CONTIGUOUS;
    o->log_sum_exp = random_between(source, 0, 1) == 0;
    if (o->method == HEDDLE_ATTENTION_RSA) {
        o->rsa_all_reduce = random_between(source, 0, 2) == 0;
        if (random_between(source, 0, 3) == 0) {
            o->projected_length = random_between(source, 1, 9);
            o->causal = 0;
        }
    }
}

/* Mostly small, so that many problems take little time; the few that are long or wide have few heads. */
static void draw_extents(attention_case *c, random_source *source)
{
    int is_long = one_in(source, 12), is_wide = one_in(source, 8), few = is_long || is_wide;
    int64_t kv_heads = c->options.kv_heads > 0 ? c->options.kv_heads : random_between(source, 1, few ? 2 : 3);
    c->options.kv_heads = kv_heads;
    c->shape.ndim = 4;
    name_dim(&c->shape.dim[0], "b", one_in(source, 10) ? 0 : random_between(source, 1, few ? 1 : 3));
    name_dim(&c->shape.dim[1], "s",
             is_long             ? random_between(source, 97, 150)
             : one_in(source, 4) ? random_between(source, 0, 6)
                                 : random_between(source, 5, is_wide ? 40 : 60));
    name_dim(&c->shape.dim[2], "h", kv_heads * random_between(source, 1, few ? 2 : 3));
    name_dim(&c->shape.dim[3], "d", is_wide ? random_between(source, 32, 80) : random_between(source, 1, 20));
}

void attention_draw(attention_case *out, random_source *source, int ranks, heddle_dtype dtype)
{
    static const heddle_dtype dtypes[] = {HEDDLE_F64, HEDDLE_F64, HEDDLE_F32, HEDDLE_BF16};
    static const double scales[] = {0.03, 0.4, 2.5, 40, 300, 1e4};
    memset(out, 0, sizeof *out);
    draw_method(out, source, ranks);
    out->shape.dtype = dtype != HEDDLE_DTYPE_COUNT ? dtype : dtypes[random_between(source, 0, 3)];
    draw_mesh(out, source, ranks);
    draw_extents(out, source);
    draw_blocks(out, source);
    out->has_key_lengths = out->options.projected_length == 0 && one_in(source, 3);
    for (int i = 0; i < ATTENTION_MAX_BATCH; i++) {
        out->key_length[i] = random_between(source, 0, out->shape.dim[1].extent);
    }
    out->options.scale = one_in(source, 4) ? scales[random_between(source, 0, 5)] : 0;
    out->options.threads = one_in(source, 4) ? (int)random_between(source, 2, 4) : 0;
    out->nan_at = one_in(source, 6) ? random_between(source, 1, 1000) : 0;
    out->seed = random_bits(source);
    out->storage = (int)random_between(source, 0, JUDGE_STORAGES - 1);
}

void attention_describe(char *out, size_t bytes, const attention_case *c)
{
    char shape[256] = "", mesh[128] = "", layout[512] = "";
    const heddle_attention_options *o = &c->options;
    heddle_ignore(heddle_shape_format(shape, sizeof shape, &c->shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &c->mesh));
    heddle_ignore(heddle_layout_format(layout, sizeof layout, &c->layout, &c->shape, &c->mesh));
    int at = snprintf(out, bytes, "%s on %s: %s, method %s, %lld key heads, %s%s%s%s, storage %d, seed %llu", shape,
                      mesh, layout, heddle_attention_method_name(o->method),
                      (long long)(o->kv_heads > 0 ? o->kv_heads : c->shape.dim[2].extent),
                      o->causal ? "causal" : "bidirectional", o->placement == HEDDLE_PLACEMENT_ZIGZAG ? ", zigzag" : "",
                      o->rsa_all_reduce ? ", all-reduce" : "", o->log_sum_exp ? ", lse" : "", c->storage,
                      (unsigned long long)c->seed);
    if (at > 0 && (size_t)at < bytes) {
        at += snprintf(out + at, bytes - (size_t)at, "%s", c->nan_at > 0 ? ", with NaN" : "");
    }
    if (o->scale != 0 && at > 0 && (size_t)at < bytes) {
        at += snprintf(out + at, bytes - (size_t)at, ", scale %g", o->scale);
    }
    if (o->threads > 1 && at > 0 && (size_t)at < bytes) {
        at += snprintf(out + at, bytes - (size_t)at, ", %d threads", o->threads);
    }
    if (o->projected_length > 0 && at > 0 && (size_t)at < bytes) {
        at += snprintf(out + at, bytes - (size_t)at, ", projected to %lld", (long long)o->projected_length);
    }
    for (int64_t i = 0; c->has_key_lengths && i < c->shape.dim[0].extent && at > 0 && (size_t)at < bytes; i++) {
        at += snprintf(out + at, bytes - (size_t)at, "%s%lld", i == 0 ? ", key lengths " : ",",
                       (long long)c->key_length[i]);
    }
}
