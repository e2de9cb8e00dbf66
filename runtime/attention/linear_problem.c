/* What one rank has to do with a linear attention: options, shape and layout put together. */
#include "runtime/attention/linear_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CHUNK = 1024, MAX_THREADS = 256 };

static const char *const method_name[] = {
#define NAME(name, text) text,
    HEDDLE_LINEAR_METHOD_LIST(NAME)
#undef NAME
};

const char *heddle_linear_method_name(heddle_linear_method method)
{
    return (int)method >= 0 && method < HEDDLE_LINEAR_METHOD_COUNT ? method_name[method] : "unknown";
}

heddle_status heddle_linear_method_parse(heddle_linear_method *out, const char *text)
{
    heddle_status st;
    HD_TRY(HD_NEED(out));
    HD_TRY(HD_NEED(text));
    for (int i = 0; i < HEDDLE_LINEAR_METHOD_COUNT; i++) {
        if (strcmp(text, method_name[i]) == 0) {
            *out = (heddle_linear_method)i;
            return HEDDLE_OK;
        }
    }
#define NAME_OF(name, text) " " text
    st = hd_fail(HEDDLE_ERR_PARSE,
                 "no linear attention method is called '%.40s'; there are" HEDDLE_LINEAR_METHOD_LIST(NAME_OF), text);
#undef NAME_OF
out:
    return st;
}

void heddle_linear_attention_options_init(heddle_linear_attention_options *options)
{
    if (options != NULL) {
        *options = (heddle_linear_attention_options){.struct_bytes = sizeof *options};
    }
}

heddle_status heddle_linear_attention_slopes(double *out, int64_t heads)
{
    heddle_status st = HD_NEED(out);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (heads < 1) {
        return hd_fail(HEDDLE_ERR_ARG, "slopes for %lld heads", (long long)heads);
    }
    int64_t power = 1;
    while (power * 2 <= heads) {
        power *= 2;
    }
    for (int64_t h = 0; h < heads; h++) {
        double exponent = h < power ? 8.0 * (double)(h + 1) / (double)power
                                    : 8.0 * (double)(2 * (h - power) + 1) / (double)(2 * power);
        out[h] = exp(-pow(2, -exponent));
    }
    return HEDDLE_OK;
}

static heddle_status check_range(const char *what, int64_t value, int64_t high)
{
    return value >= 0 && value <= high ? HEDDLE_OK
                                       : hd_fail(HEDDLE_ERR_ARG, "linear attention: %s is %lld, not within 0 to %lld",
                                                 what, (long long)value, (long long)high);
}

static heddle_status take_options(hd_linear_problem *p, const heddle_linear_attention_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_linear_attention_options *o = &p->options;
    heddle_linear_attention_options_init(o);
    HD_TRY(hd_struct_take(o, options, HD_STRUCT(heddle_linear_attention_options, method)));
    if ((int)o->method < 0 || o->method >= HEDDLE_LINEAR_METHOD_COUNT) {
        return hd_fail(HEDDLE_ERR_ARG, "linear attention: there is no method %d", (int)o->method);
    }
    HD_TRY(check_range("dv", o->dv, HD_LINEAR_WIDTH_MAX));
    HD_TRY(check_range("chunk_rows", o->chunk_rows, MAX_CHUNK));
    HD_TRY(check_range("threads", o->threads, MAX_THREADS));
    HD_TRY(hd_check_ms(o->deadline_ms, "deadline_ms"));
    if (o->receive_first && (o->method != HEDDLE_LINEAR_LASP || o->bidirectional)) {
        return hd_fail(HEDDLE_ERR_ARG, "receive_first is an order of causal lasp, not of %s%s",
                       o->bidirectional ? "bidirectional " : "", heddle_linear_method_name(o->method));
    }
    o->threads = o->threads == 0 ? 1 : o->threads;
out:
    return st;
}

static heddle_status take_shape(hd_linear_problem *p, const heddle_shape *shape)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_shape_check(shape));
    if (shape->ndim != 4) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "linear attention wants 4 dims (batch, sequence, heads, width), not %d",
                       shape->ndim);
    }
    p->dk = shape->dim[3].extent;
    p->options.dv = p->options.dv == 0 ? p->dk : p->options.dv;
    p->dv = p->options.dv;
    if (p->dk < 1 || p->dk > HD_LINEAR_WIDTH_MAX) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "linear attention with heads of width %lld, not within 1 to %d",
                       (long long)p->dk, HD_LINEAR_WIDTH_MAX);
    }
    p->shape = *shape;
    heddle_shape values = *shape, states = *shape;
    values.dim[3].extent = p->dv;
    states.dim[1].extent = p->dk;
    states.dim[3].extent = p->dv;
    HD_TRY(heddle_shape_check(&values));
    HD_TRY(heddle_shape_check(&states));
    p->real = shape->dtype == HEDDLE_F64 ? HEDDLE_F64 : HEDDLE_F32;
out:
    return st;
}

static heddle_status take_decay(hd_linear_problem *p, const double *decay)
{
    heddle_status st = HEDDLE_OK;
    int64_t heads = p->shape.dim[2].extent;
    HD_TRY(hd_alloc((void **)&p->decay, (size_t)heads + 1, sizeof(double), "decays of a linear attention"));
    p->all_ones = 1;
    for (int64_t h = 0; h < heads; h++) {
        p->decay[h] = decay != NULL ? decay[h] : 1;
        if (!(p->decay[h] > 0 && p->decay[h] <= 1)) {
            return hd_fail(HEDDLE_ERR_ARG, "linear attention: decay of head %lld is %g, not above 0 and at most 1",
                           (long long)h, p->decay[h]);
        }
        p->all_ones &= p->decay[h] == 1;
    }
out:
    return st;
}

/* The ranks that hold the other parts of the same sequences, in the sequence's order: axes of the mesh from the major
 * one on. */
static heddle_status take_group(hd_linear_problem *p, const heddle_mesh *mesh, const heddle_layout *layout, int rank)
{
    heddle_status st = HEDDLE_OK;
    int coords[HEDDLE_MAX_AXES];
    char reason[HD_METHOD_REASON_BYTES];
    heddle_shape stored = p->shape;
    stored.dtype =
        stored.dtype == HEDDLE_F16 ? HEDDLE_BF16 : stored.dtype; /* whether the space has it is asked later */
    st = hd_method_takes_arrays(reason, &stored, mesh, layout, 1);
    if (st != HEDDLE_OK) {
        return hd_fail(st, "linear %s", reason);
    }
    HD_TRY(heddle_mesh_coords(coords, mesh, rank));
    p->nranks = 1;
    for (int a = 0; a < mesh->naxes; a++) {
        if (layout->dim_of_axis[a] == 1) {
            p->me = p->me * mesh->axis[a].size + coords[a];
            p->nranks *= mesh->axis[a].size;
        }
    }
    HD_TRY(hd_alloc((void **)&p->rank, (size_t)p->nranks, sizeof(int), "ranks of a linear attention"));
    HD_TRY(hd_alloc((void **)&p->member_rows, (size_t)p->nranks, sizeof(int64_t), "rows of a linear attention"));
    for (int m = 0; m < p->nranks; m++) {
        heddle_box box;
        int left = m, at = 0;
        for (int a = mesh->naxes - 1; a >= 0; a--) {
            if (layout->dim_of_axis[a] == 1) {
                coords[a] = left % mesh->axis[a].size;
                left /= mesh->axis[a].size;
            }
        }
        for (int a = 0; a < mesh->naxes; a++) {
            at = at * mesh->axis[a].size + coords[a];
        }
        p->rank[m] = at;
        HD_TRY(heddle_layout_box(&box, &p->shape, mesh, layout, at));
        p->member_rows[m] = box.len[1];
    }
out:
    return st;
}

/* The same ranks as methods see them, and whether the method may run. */
static heddle_status take_members(hd_linear_problem *p)
{
    heddle_status st = HEDDLE_OK;
    hd_method_group *g = &p->members;
    for (int m = 0; m < p->nranks; m++) {
        HD_TRY(hd_method_group_add(g, p->member_rows[m], 1));
    }
    hd_method_group_count(g, p->nranks, 1);
    g->shape = &p->shape;
    g->stage = (hd_method_stage){.kind = HEDDLE_STAGE_LINEAR,
                                 .dim = 1,
                                 .heads = p->heads,
                                 .causal = !p->options.bidirectional,
                                 .decays = !p->all_ones};
    g->fibres = p->batch;
    g->heads = p->heads;
    g->width = p->dk;
    g->width_v = g->padded_width_v = p->dv;
    g->chunk_rows = p->options.chunk_rows;
    g->elem_bytes = (int64_t)heddle_dtype_bytes(p->shape.dtype);
    g->real_bytes = (int64_t)heddle_dtype_bytes(p->real);
    p->method = hd_method_find(HEDDLE_STAGE_LINEAR, heddle_linear_method_name(p->options.method));
    HD_TRY(hd_method_need(p->method, g));
out:
    return st;
}

heddle_status hd_linear_problem_make(hd_linear_problem *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                     const heddle_layout *layout, const heddle_linear_attention_options *options,
                                     int rank)
{
    heddle_status st = HEDDLE_OK;
    heddle_box box;
    hd_linear_problem *p = out;
    memset(p, 0, sizeof *p);
    HD_TRY(take_options(p, options));
    HD_TRY(take_shape(p, shape));
    HD_TRY(heddle_layout_check(layout, shape, mesh));
    HD_TRY(take_decay(p, p->options.decay));
    HD_TRY(take_group(p, mesh, layout, rank));
    HD_TRY(heddle_layout_box(&box, shape, mesh, layout, rank));
    p->batch = box.len[0];
    p->rows = box.len[1];
    p->heads = box.len[2];
    p->head_lo = box.lo[2];
    HD_TRY(take_members(p));
    p->chunk_rows = hd_group_chunk_rows(&p->members, p->rows);
    p->nchunks = p->rows / p->chunk_rows + (p->rows % p->chunk_rows != 0);
    /* a state per chunk; rows of vectors may be padded to 16 */
    const int64_t states[] = {8, p->batch, p->heads, p->nchunks + 1, p->dk, p->dv + 16, 8};
    const int64_t rows[] = {8, p->batch, p->heads, p->rows, p->dk > p->dv ? p->dk : p->dv, 8};
    int64_t unused;
    HD_TRY(hd_product(&unused, "states of a linear attention", 7, states));
    HD_TRY(hd_product(&unused, "arrays of a linear attention", 6, rows));
    p->state_elems = p->batch * p->heads * p->dk * p->dv;
    p->state_bytes = p->state_elems * (int64_t)heddle_dtype_bytes(p->real);
    p->options.decay = NULL; /* the caller's */
out:
    if (st != HEDDLE_OK) {
        hd_linear_problem_free(p);
    }
    return st;
}

void hd_linear_problem_free(hd_linear_problem *problem)
{
    hd_free(problem->decay);
    hd_free(problem->rank);
    hd_free(problem->member_rows);
    hd_method_group_free(&problem->members);
    memset(problem, 0, sizeof *problem);
}
