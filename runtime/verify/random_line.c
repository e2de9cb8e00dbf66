#include "runtime/verify/random_line.h"

#include <string.h>

static int percent(random_source *source, int chance)
{
    return random_between(source, 0, 99) < chance;
}

static void random_mesh(heddle_mesh *out, random_source *source, const random_limits *limits)
{
    static const char *const names[HEDDLE_MAX_AXES] = {"node", "gpu", "sp", "x"};
    memset(out, 0, sizeof *out);
    out->naxes = (int)random_between(source, 1, limits->max_axes);
    int left = limits->ranks;
    for (int a = 0; a < out->naxes; a++) {
        int size = left, last = a == out->naxes - 1, draws = 0;
        /* Any divisor, but 1 and all that is left only after some other draws. */
        while (!last && (left % (size = (int)random_between(source, 1, left)) != 0 ||
                         ((size == 1 || size == left) && draws++ < 4))) {
        }
        strcpy(out->axis[a].name, names[a]);
        out->axis[a].size = size;
        left /= size;
    }
}

/* Extents where blocks change their kind: around multiples of the rank count, below it, 1 and, rarely, 0. */
static int64_t random_extent(random_source *source, int ranks)
{
    switch (random_between(source, 0, 9)) {
    case 0:
        return percent(source, 15) ? 0 : 1;
    case 1:
        return random_between(source, 1, ranks);
    case 2:
        return ranks * random_between(source, 1, 3);
    case 3:
        return ranks * random_between(source, 1, 3) + 1;
    case 4:
        return ranks * random_between(source, 1, 3) + ranks - 1;
    default:
        return random_between(source, 1, 19);
    }
}

static void random_shape(heddle_shape *out, random_source *source, const random_limits *limits)
{
    static const char *const names[HEDDLE_MAX_DIMS] = {"b", "t", "s", "c", "h", "d", "w_1", "longest_name_15"};
    memset(out, 0, sizeof *out);
    out->dtype = (heddle_dtype)random_between(source, 0, HEDDLE_DTYPE_COUNT - 1);
    out->ndim = (int)random_between(source, 1, limits->max_dims);
    int64_t elems = 1;
    for (int d = 0; d < out->ndim; d++) {
        int64_t extent = random_extent(source, limits->ranks), room = limits->max_elems / elems;
        extent = extent > room ? room : extent;
        strcpy(out->dim[d].name, names[d]);
        out->dim[d].extent = extent;
        elems *= extent > 0 ? extent : 1;
    }
    /* The large ones were drawn first: put any dim anywhere. */
    for (int d = out->ndim - 1; d > 0; d--) {
        int other = (int)random_between(source, 0, d);
        heddle_dim dim = out->dim[d];
        out->dim[d] = out->dim[other];
        out->dim[other] = dim;
    }
}

static int is_inner(const heddle_layout *layout, int axis)
{
    for (int a = 0; a < axis; a++) {
        if (layout->dim_of_axis[a] == layout->dim_of_axis[axis]) {
            return 1;
        }
    }
    return 0;
}

/* n lengths that add up to `extent`, some of them 0. */
static void random_blocks(int64_t *block, int n, int64_t extent, random_source *source)
{
    for (int i = 0; i < n; i++) {
        block[i] = i == n - 1 ? extent : percent(source, 20) ? 0 : random_between(source, 0, extent);
        extent -= block[i];
    }
}

static void random_layout(heddle_layout *out, random_source *source, const heddle_reshard_line *line, int partial)
{
    int used = 0;
    *out = heddle_layout_replicated();
    for (int a = 0; a < line->mesh.naxes; a++) {
        if (percent(source, 75)) {
            out->dim_of_axis[a] = (int)random_between(source, 0, line->shape.ndim - 1);
        } else if (partial && percent(source, 60)) {
            out->dim_of_axis[a] = HEDDLE_PARTIAL;
        }
        int d = out->dim_of_axis[a], n = line->mesh.axis[a].size;
        if (d >= 0 && !is_inner(out, a) && used + n <= HEDDLE_MAX_SHARDS && percent(source, 25)) {
            random_blocks(out->shard_len + used, n, line->shape.dim[d].extent, source);
            out->nshards[a] = n;
            used += n;
        }
    }
}

static void random_order(heddle_order *out, random_source *source, int ndim)
{
    memset(out, 0, sizeof *out);
    if (percent(source, 60)) {
        return;
    }
    out->ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        int k = (int)random_between(source, 0, i);
        out->dim[i] = out->dim[k];
        out->dim[k] = i;
    }
}

void random_side(heddle_layout *layout, heddle_order *order, random_source *source, const heddle_reshard_line *line,
                 int partial)
{
    random_layout(layout, source, line, partial);
    random_order(order, source, line->shape.ndim);
}

void random_line(heddle_reshard_line *out, random_source *source, const random_limits *limits)
{
    memset(out, 0, sizeof *out);
    random_mesh(&out->mesh, source, limits);
    random_shape(&out->shape, source, limits);
    random_side(&out->from, &out->from_order, source, out, limits->partial > 0);
    random_side(&out->to, &out->to_order, source, out, limits->partial > 1);
}
