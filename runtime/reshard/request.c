/* This rank's arguments, checked before the others are asked. */
#include "runtime/layout/algebra.h"
#include "runtime/reshard/plan.h"

#include <stdio.h>
#include <string.h>

void heddle_reshard_options_init(heddle_reshard_options *options)
{
    if (options != NULL) {
        *options = (heddle_reshard_options){.struct_bytes = sizeof *options};
    }
}

heddle_status hd_reshard_options_take(heddle_reshard_options *out, const heddle_reshard_options *options)
{
    heddle_reshard_options_init(out);
    return hd_struct_take(out, options, HD_STRUCT(heddle_reshard_options, to_order));
}

static heddle_status take_options(hd_request *out, const heddle_reshard_options *options)
{
    heddle_status st = hd_reshard_options_take(&out->options, options);
    st = st == HEDDLE_OK ? hd_check_ms(out->options.deadline_ms, "deadline_ms") : st;
    if (st != HEDDLE_OK) {
        return st;
    }
    const heddle_reshard_options *o = &out->options;
    if ((o->memory != HEDDLE_MEMORY_PEER && o->memory != HEDDLE_MEMORY_ANY) ||
        (o->tuning != HEDDLE_TUNING_TRIALS && o->tuning != HEDDLE_TUNING_RULES)) {
        return hd_fail(HEDDLE_ERR_ARG, "reshard options: memory %d, tuning %d", (int)o->memory, (int)o->tuning);
    }
    if (o->device_blocks < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "device_blocks is %d, wanted 0 or more", o->device_blocks);
    }
    if (o->kernel == NULL) {
        return HEDDLE_OK;
    }
    out->kernel = hd_copy_kernel_named(o->kernel);
    if (out->kernel != NULL) {
        return HEDDLE_OK;
    }
    char names[512];
    int n;
    size_t at = 0;
    const hd_copy_kernel *all = hd_copy_kernels(&n);
    for (int i = 0; i < n && at < sizeof names; i++) {
        at += (size_t)snprintf(names + at, sizeof names - at, " %s", all[i].name);
    }
    return hd_fail(HEDDLE_ERR_ARG, "no copy kernel is called '%.40s'; this CPU has:%s", o->kernel, names);
}

/* Strides of one side, checked; *bytes gets the smallest buffer. */
static heddle_status take_strides(int64_t *stride, int64_t *bytes, const int64_t *given, const heddle_box *box,
                                  const heddle_order *order, const heddle_shape *shape, int is_dst)
{
    heddle_box_strides(stride, box, order->ndim > 0 ? order : NULL);
    for (int d = 0; given != NULL && heddle_box_elems(box) > 0 && d < box->ndim; d++) {
        stride[d] = given[d];
    }
    heddle_status st = hd_box_reach(bytes, box, stride, shape, is_dst);
    return st == HEDDLE_OK ? st : hd_fail_prefix(st, "%s", is_dst ? "dst" : "src");
}

static void take_dst(hd_request *out, const heddle_box *dst)
{
    const heddle_order *order = &out->line.to_order;
    out->is_dst_dense = out->options.dst_stride_elems == NULL;
    for (int d = 0; d < dst->ndim; d++) {
        out->dst_len[d] = dst->len[order->ndim > 0 ? order->dim[d] : d];
    }
}

static heddle_status take_line(hd_request *out, const heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    const heddle_reshard_line *line = &out->line;
    heddle_box src, dst;
    hd_problem problem;
    int nranks = heddle_comm_size(comm), rank = heddle_comm_rank(comm);
    HD_TRY(hd_problem_make(&problem, line));
    if (heddle_mesh_size(&line->mesh) != nranks) {
        st = hd_fail(HEDDLE_ERR_LAYOUT, "the mesh has %d ranks, the communicator %d", heddle_mesh_size(&line->mesh),
                     nranks);
        goto out;
    }
    HD_TRY(heddle_layout_box(&src, &line->shape, &line->mesh, &line->from, rank));
    HD_TRY(heddle_layout_box(&dst, &line->shape, &line->mesh, &line->to, rank));
    HD_TRY(take_strides(out->src_stride_elems, &out->src_bytes, out->options.src_stride_elems, &src, &line->from_order,
                        &line->shape, 0));
    HD_TRY(take_strides(out->dst_stride_elems, &out->dst_bytes, out->options.dst_stride_elems, &dst, &line->to_order,
                        &line->shape, 1));
    take_dst(out, &dst);
out:
    return st;
}

heddle_status hd_request_take(hd_request *out, const heddle_comm *comm, const heddle_reshard_line *line,
                              const heddle_reshard_options *options)
{
    heddle_status st = HEDDLE_OK;
    memset(out, 0, sizeof *out);
    out->line = *line;
    HD_TRY(hd_kernels_cpu(&out->kernels));
    HD_TRY(take_options(out, options));
    HD_TRY(take_line(out, comm));
out:
    out->options.src_stride_elems = out->options.dst_stride_elems = NULL; /* the caller's; copied above */
    out->options.kernel = NULL;
    return st;
}
