/* Random linear attention problems, how they read, what they send and take. */
#include "runtime/verify/linear_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 40, LONG_ROWS = 160, MAX_WIDTH = 20, WIDE = 70 };

static int pick(random_source *source, int n)
{
    return (int)random_between(source, 0, n - 1);
}

static void draw_mesh(linear_case *c, random_source *source, int ranks)
{
    int outer = ranks;
    while (outer > 1 && (ranks % outer != 0 || pick(source, 3) > 0)) {
        outer--;
    }
    c->mesh.naxes = 2;
    c->mesh.axis[0] = (heddle_axis){"x", outer};
    c->mesh.axis[1] = (heddle_axis){"y", ranks / outer};
    c->layout = heddle_layout_replicated();
    for (int a = 0; a < 2; a++) {
        static const int dims[] = {1, 1, 1, 0, 2, HEDDLE_REPLICATED};
        c->layout.dim_of_axis[a] = dims[pick(source, 6)];
    }
}

/* Explicit lengths, some of them 0, of the outermost axis that cuts the rows. */
static void draw_blocks(linear_case *c, random_source *source)
{
    int axis = c->layout.dim_of_axis[0] == 1 ? 0 : 1, n = c->mesh.axis[axis].size;
    int64_t left = c->shape.dim[1].extent;
    if (c->layout.dim_of_axis[axis] != 1 || pick(source, 3) > 0) {
        return;
    }
    c->layout.nshards[axis] = n;
    for (int i = 0; i < n; i++) {
        c->layout.shard_len[i] = i == n - 1 ? left : pick(source, 5) == 0 ? 0 : random_between(source, 0, left);
        left -= c->layout.shard_len[i];
    }
}

static int64_t draw_width(random_source *source)
{
    return pick(source, 8) == 0 ? random_between(source, 32, WIDE) : random_between(source, 1, MAX_WIDTH);
}

static void draw_decay(linear_case *c, random_source *source)
{
    static const double all[] = {1, 0.99, 0.5};
    int kind = pick(source, 5);
    for (int h = 0; h < LINEAR_MAX_HEADS; h++) {
        c->decay[h] = kind < 3 ? all[kind] : 1.0 / (double)(1 + h % 7);
    }
    if (kind == 4) {
        heddle_ignore(heddle_linear_attention_slopes(c->decay, c->shape.dim[2].extent));
    }
}

void linear_draw(linear_case *out, random_source *source, int ranks, heddle_dtype dtype)
{
    static const heddle_dtype dtypes[] = {HEDDLE_F64, HEDDLE_F64, HEDDLE_F32, HEDDLE_BF16};
    static const char *const name[] = {"b", "s", "h", "d"};
    linear_case *c = out;
    memset(c, 0, sizeof *c);
    c->shape.dtype = dtype == HEDDLE_DTYPE_COUNT ? dtypes[pick(source, 4)] : dtype;
    c->shape.ndim = 4;
    const int64_t extent[4] = {random_between(source, 1, 2),
                               pick(source, 12) == 0 ? random_between(source, 97, LONG_ROWS)
                                                     : random_between(source, 0, MAX_ROWS),
                               random_between(source, 1, 3), draw_width(source)};
    for (int d = 0; d < 4; d++) {
        snprintf(c->shape.dim[d].name, HEDDLE_NAME_BYTES, "%s", name[d]);
        c->shape.dim[d].extent = extent[d];
    }
    draw_mesh(c, source, ranks);
    draw_blocks(c, source);
    draw_decay(c, source);
    heddle_linear_attention_options_init(&c->options);
    int sharded = 0;
    for (int a = 0; a < 2; a++) {
        sharded |= c->layout.dim_of_axis[a] == 1 && c->mesh.axis[a].size > 1;
    }
    c->options.method = (heddle_linear_method)(sharded ? 1 + pick(source, HEDDLE_LINEAR_METHOD_COUNT - 1)
                                                       : pick(source, HEDDLE_LINEAR_METHOD_COUNT));
    c->options.dv = pick(source, 2) * draw_width(source);
    c->options.bidirectional = pick(source, 3) == 0;
    c->options.receive_first =
        c->options.method == HEDDLE_LINEAR_LASP && !c->options.bidirectional && pick(source, 4) == 0;
    c->options.chunk_rows = pick(source, 2) * random_between(source, 1, 17);
    c->options.threads = pick(source, 4) == 0 ? (int)random_between(source, 2, 4) : 0;
    c->storage = pick(source, JUDGE_STORAGES);
    c->nan_at = pick(source, 6) == 0 ? random_between(source, 1, 1000) : 0;
    c->seed = random_bits(source) >> 8;
}

void linear_describe(char *out, size_t bytes, const linear_case *c)
{
    char shape[HEDDLE_LINE_BYTES] = "", mesh[256] = "", layout[1024] = "";
    heddle_ignore(heddle_shape_format(shape, sizeof shape, &c->shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &c->mesh));
    heddle_ignore(heddle_layout_format(layout, sizeof layout, &c->layout, &c->shape, &c->mesh));
    snprintf(out, bytes,
             "%.300s on %s: %s, dv %lld, method %s, %s%s, decay %g.., chunk %lld, seed %llu, storage %d%s%s", shape,
             mesh, layout, (long long)(c->options.dv > 0 ? c->options.dv : c->shape.dim[3].extent),
             heddle_linear_method_name(c->options.method), c->options.bidirectional ? "bidirectional" : "causal",
             c->options.receive_first ? " receive-first" : "", c->decay[0], (long long)c->options.chunk_rows,
             (unsigned long long)c->seed, c->storage, c->nan_at > 0 ? ", with NaN" : "",
             c->options.threads > 1 ? ", threads" : "");
}

static void add_up(int64_t *most, int64_t *all, int64_t value)
{
    *most = value > *most ? value : *most;
    *all += value;
}

heddle_status linear_traffic(heddle_attention_traffic *most, heddle_attention_traffic *all, const linear_case *c)
{
    heddle_status st = HEDDLE_OK;
    heddle_linear_attention_options options = c->options;
    options.decay = c->decay;
    memset(most, 0, sizeof *most);
    memset(all, 0, sizeof *all);
    for (int rank = 0; rank < heddle_mesh_size(&c->mesh) && st == HEDDLE_OK; rank++) {
        heddle_attention_traffic one;
        st = heddle_linear_attention_plan_traffic(&one, &c->shape, &c->mesh, &c->layout, &options, rank);
        if (st == HEDDLE_OK) {
            add_up(&most->forward_bytes, &all->forward_bytes, one.forward_bytes);
            add_up(&most->forward_messages, &all->forward_messages, one.forward_messages);
            add_up(&most->backward_bytes, &all->backward_bytes, one.backward_bytes);
            add_up(&most->backward_messages, &all->backward_messages, one.backward_messages);
        }
    }
    return st;
}

void linear_free(linear_arrays *arrays)
{
    double *all[] = {arrays->q, arrays->k, arrays->v, arrays->d_o, arrays->o, arrays->dq, arrays->dk, arrays->dv};
    for (int w = 0; w < 8; w++) {
        free(all[w]);
    }
    memset(arrays, 0, sizeof *arrays);
}

heddle_status linear_check_memory(const linear_case *c)
{
    const heddle_dim *dim = c->shape.dim;
    const double b = (double)dim[0].extent, s = (double)dim[1].extent, h = (double)dim[2].extent;
    const double dk = (double)dim[3].extent, dv = c->options.dv > 0 ? (double)c->options.dv : dk;
    const double arrays = 4 * (dk + dv), elems = 2 * b * h * (s * arrays + dk * dv) + s * arrays;
    char problem[256];
    snprintf(problem, sizeof problem, "the reference of %.0f rows, %.0f heads of %.0f and %.0f", b * s, h, dk, dv);
    const int ranks = heddle_mesh_size(&c->mesh);
    return judge_check_memory(problem, ranks * elems * sizeof(double), ranks);
}
