/* Life of a dense pair. */
#include "runtime/base/threads.h"
#include "runtime/device/device.h"
#include "runtime/parallel/pair_internal.h"

#include <stdio.h>
#include <string.h>

void heddle_dense_pair_options_init(heddle_dense_pair_options *options)
{
    if (options != NULL) {
        *options = (heddle_dense_pair_options){.struct_bytes = sizeof *options, .activation = HEDDLE_ACTIVATION_GELU};
    }
}

static heddle_status check_options(const heddle_dense_pair_options *o)
{
    if (o->hidden < 1 || o->hidden > INT32_MAX) {
        return hd_fail(HEDDLE_ERR_ARG, "a dense pair with %lld hidden channels, wanted 1 to %d", (long long)o->hidden,
                       INT32_MAX);
    }
    if (o->activation != HEDDLE_ACTIVATION_NONE && o->activation != HEDDLE_ACTIVATION_GELU) {
        return hd_fail(HEDDLE_ERR_ARG, "there is no activation %d", (int)o->activation);
    }
    if (o->threads < 0 || o->threads > HD_MAX_THREADS) {
        return hd_fail(HEDDLE_ERR_ARG, "a dense pair on %d threads (0 to %d)", o->threads, HD_MAX_THREADS);
    }
    return hd_check_ms(o->deadline_ms, "deadline_ms");
}

static heddle_status check_layout(const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout,
                                  int axis)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_layout_check(layout, shape, mesh));
    if (shape->dtype != HEDDLE_F32 && shape->dtype != HEDDLE_BF16) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "dense pairs work on f32 and bf16, not on %s",
                       heddle_dtype_name(shape->dtype));
    }
    int last = shape->ndim - 1;
    if (shape->ndim < 2 || shape->dim[last].extent < 1 || shape->dim[last].extent > INT32_MAX) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "a dense pair needs rows and channels: %d dims, the last of %lld",
                       shape->ndim, (long long)shape->dim[last].extent);
    }
    if (axis < 0 || axis >= mesh->naxes) {
        return hd_fail(HEDDLE_ERR_ARG, "a dense pair over axis %d of a mesh with %d axes", axis, mesh->naxes);
    }
    for (int a = 0; a < mesh->naxes; a++) {
        int dim = layout->dim_of_axis[a];
        if (dim == last || dim == HEDDLE_PARTIAL || (a == axis && dim < 0 && mesh->axis[a].size > 1)) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "a dense pair's rows: axis %s %s", mesh->axis[a].name,
                           dim == last             ? "shards the channels"
                           : dim == HEDDLE_PARTIAL ? "holds partial sums"
                                                   : "must shard a dim");
        }
    }
out:
    return st;
}

/* This rank's rows, gathered rows, and block of the hidden channels; no communication. */
static heddle_status take(heddle_dense_pair *pair, const heddle_shape *shape, const heddle_mesh *mesh,
                          const heddle_layout *layout, int axis, const heddle_dense_pair_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_box box;
    int coords[HEDDLE_MAX_AXES];
    int rank = heddle_comm_rank(pair->comm), nranks = heddle_comm_size(pair->comm);
    heddle_dense_pair_options_init(&pair->options);
    HD_TRY(hd_struct_take(&pair->options, options, HD_STRUCT(heddle_dense_pair_options, hidden)));
    HD_TRY(check_options(&pair->options));
    HD_TRY(check_layout(shape, mesh, layout, axis));
    if (heddle_mesh_size(mesh) != nranks) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "the mesh has %d ranks, the communicator %d", heddle_mesh_size(mesh), nranks);
    }
    HD_TRY(heddle_mesh_coords(coords, mesh, rank));
    int n = mesh->axis[axis].size, c = coords[axis];
    int64_t each = pair->options.hidden / n, more = pair->options.hidden % n;
    pair->first = c == 0;
    pair->hidden_lo = each * c + (c < more ? c : more);
    pair->hidden = each + (c < more);
    pair->dtype = shape->dtype;
    pair->channels = shape->dim[shape->ndim - 1].extent;
    pair->seats = pair->options.threads > 1 ? pair->options.threads : 1;
    HD_TRY(hd_kernels_cpu(&pair->kernels));
    HD_TRY(heddle_layout_box(&box, shape, mesh, layout, rank));
    pair->rows = heddle_box_elems(&box) / pair->channels;
    heddle_layout gathered = hd_layout_with(layout, axis, HEDDLE_REPLICATED);
    HD_TRY(heddle_layout_box(&box, shape, mesh, &gathered, rank));
    pair->gathered = heddle_box_elems(&box) / pair->channels;
out:
    return st;
}

static heddle_status add_param(heddle_dense_pair *pair, int index, const char *name, int64_t rows, int64_t columns)
{
    heddle_status st = HEDDLE_OK;
    heddle_param *param = &pair->param[index];
    size_t elems = (size_t)rows * (size_t)(columns > 0 ? columns : 1);
    *param = (heddle_param){.name = name, .ndim = columns > 0 ? 2 : 1, .extent = {rows, columns}};
    HD_TRY(hd_alloc((void **)&param->data, elems, sizeof(float), name));
    if (!pair->options.forward_only) {
        HD_TRY(hd_alloc((void **)&pair->gradient[index], elems, sizeof(float), name));
    }
out:
    return st;
}

static heddle_status make_params(heddle_dense_pair *pair)
{
    heddle_status st = HEDDLE_OK;
    int64_t c = pair->channels, h = pair->hidden;
    HD_TRY(add_param(pair, HD_FC1_WEIGHT, "fc1.weight", h, c));
    HD_TRY(add_param(pair, HD_FC1_BIAS, "fc1.bias", h, 0));
    HD_TRY(add_param(pair, HD_FC2_WEIGHT, "fc2.weight", c, h));
    pair->param[HD_FC2_WEIGHT].ndim = 2; /* with no hidden channels here, too */
    HD_TRY(add_param(pair, HD_FC2_BIAS, "fc2.bias", c, 0));
    if (h == 0) {
        goto out;
    }
    HD_TRY(hd_gemm_create(&pair->gemm[HD_PAIR_FC1], pair->kernels, c, h, pair->dtype, HEDDLE_F32, pair->seats));
    HD_TRY(hd_gemm_create(&pair->gemm[HD_PAIR_FC2], pair->kernels, h, c, pair->dtype, pair->dtype, pair->seats));
    if (!pair->options.forward_only) {
        HD_TRY(hd_gemm_create(&pair->gemm[HD_PAIR_BACK2], pair->kernels, c, h, HEDDLE_F32, HEDDLE_F32, pair->seats));
        HD_TRY(hd_gemm_create(&pair->gemm[HD_PAIR_BACK1], pair->kernels, h, c, HEDDLE_F32, pair->dtype, pair->seats));
    }
out:
    return st;
}

static heddle_status work(float **out, heddle_dense_pair *pair, int64_t rows, int64_t columns)
{
    heddle_status st = HEDDLE_OK;
    int64_t bytes;
    if (__builtin_mul_overflow(rows, columns, &bytes) || __builtin_mul_overflow(bytes, 4, &bytes)) {
        return hd_fail(HEDDLE_ERR_NOMEM, "%lld rows of %lld channels in a dense pair", (long long)rows,
                       (long long)columns);
    }
    HD_TRY(hd_alloc_aligned((void **)out, 64, (size_t)bytes, "rows of a dense pair"));
    pair->workspace_bytes += bytes;
out:
    return st;
}

static heddle_status make_buffers(heddle_dense_pair *pair)
{
    heddle_status st = HEDDLE_OK;
    const heddle_dense_pair_options *o = &pair->options;
    int64_t m = pair->gathered, c = pair->channels, h = pair->hidden;
    int64_t bytes = m * c * (int64_t)heddle_dtype_bytes(pair->dtype);
    int64_t piece = o->forward_only ? (int64_t)pair->seats * HD_PAIR_ROWS : m;
    HD_TRY(heddle_buffer_alloc(&pair->x, pair->comm, (size_t)(bytes > 0 ? bytes : 1), o->space));
    HD_TRY(heddle_buffer_alloc(&pair->y, pair->comm, (size_t)(bytes > 0 ? bytes : 1), o->space));
    pair->workspace_bytes += 2 * bytes;
    HD_TRY(work(&pair->before, pair, piece, h));
    HD_TRY(work(&pair->active, pair, piece, h));
    if (o->forward_only) {
        goto out;
    }
    HD_TRY(work(&pair->d_hidden, pair, m, h));
    if (pair->dtype != HEDDLE_F32) {
        HD_TRY(work(&pair->x32, pair, m, c));
        HD_TRY(work(&pair->dy32, pair, m, c));
    }
    if (o->keep_gathered) { /* part of the workspace */
        pair->saved_bytes = bytes + m * h * (int64_t)sizeof(float);
    }
out:
    return st;
}

static heddle_status make_reshards(heddle_dense_pair *pair, const heddle_shape *shape, const heddle_mesh *mesh,
                                   const heddle_layout *layout, int axis)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_options options;
    heddle_layout gathered = hd_layout_with(layout, axis, HEDDLE_REPLICATED);
    heddle_layout partial = hd_layout_with(layout, axis, HEDDLE_PARTIAL);
    heddle_reshard_options_init(&options);
    options.memory = HEDDLE_MEMORY_ANY; /* the caller's side */
    options.deadline_ms = pair->options.deadline_ms;
    options.space = pair->options.space;
    options.device = pair->options.device;
    HD_TRY(heddle_reshard_create(&pair->gather, pair->comm, shape, mesh, layout, &gathered, &options));
    HD_TRY(heddle_reshard_create(&pair->scatter, pair->comm, shape, mesh, &partial, layout, &options));
out:
    return st;
}

heddle_status heddle_dense_pair_create(heddle_dense_pair **out, heddle_comm *comm, const heddle_shape *shape,
                                       const heddle_mesh *mesh, const heddle_layout *layout, int axis,
                                       const heddle_dense_pair_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_dense_pair *pair = NULL;
    HD_TRY(HD_NEED(comm)); /* there is nobody to tell */
    st = HD_NEED(out, shape, mesh, layout);
    st = st == HEDDLE_OK ? hd_alloc((void **)&pair, 1, sizeof *pair, "a dense pair") : st;
    if (pair == NULL) {
        return hd_comm_agree(comm, st);
    }
    pair->comm = comm;
    st = take(pair, shape, mesh, layout, axis, options);
    const heddle_dense_pair_options *o = &pair->options;
    hd_fields asked = {.what = "dense pair"};
    hd_fields_add(&asked, "axis", "%d", axis);
    hd_fields_add(&asked, "number of hidden channels", "%lld", (long long)o->hidden);
    hd_fields_add(&asked, "activation", "%d", (int)o->activation);
    hd_fields_add(&asked, "keep-gathered option", "%d", o->keep_gathered != 0);
    hd_fields_add(&asked, "forward-only option", "%d", o->forward_only != 0);
    hd_fields_add(&asked, "space", "%d", (int)o->space);
    HD_TRY(hd_comm_agree_on(comm, &asked, st));
    HD_TRY(hd_comm_agree(comm, hd_device_host_only(o->space, o->device, "a dense pair")));
    HD_TRY(make_reshards(pair, shape, mesh, layout, axis)); /* compares shape, mesh and layout */
    st = make_params(pair);
    st = st == HEDDLE_OK ? make_buffers(pair) : st;
    HD_TRY(hd_creation_end(comm, st));
    *out = pair;
    pair = NULL;
out:
    heddle_dense_pair_destroy(pair);
    return st;
}

void heddle_dense_pair_destroy(heddle_dense_pair *pair)
{
    if (pair == NULL) {
        return;
    }
    heddle_reshard_destroy(pair->gather);
    heddle_reshard_destroy(pair->scatter);
    heddle_buffer_free(pair->comm, pair->x);
    heddle_buffer_free(pair->comm, pair->y);
    for (int i = 0; i < HD_PAIR_PARAMS; i++) {
        hd_free(pair->param[i].data);
        hd_free(pair->gradient[i]);
    }
    for (int i = 0; i < HD_PAIR_GEMMS; i++) {
        hd_gemm_destroy(pair->gemm[i]);
    }
    float *owned[] = {pair->before, pair->active, pair->d_hidden, pair->x32, pair->dy32};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        hd_free(owned[i]);
    }
    hd_free(pair);
}

int heddle_dense_pair_nparams(const heddle_dense_pair *pair)
{
    return pair != NULL ? HD_PAIR_PARAMS : 0;
}

heddle_status heddle_dense_pair_param(heddle_param *out, heddle_dense_pair *pair, int index)
{
    heddle_status st;
    HD_TRY(HD_NEED(out, pair));
    if (index < 0 || index >= HD_PAIR_PARAMS) {
        return hd_fail(HEDDLE_ERR_ARG, "parameter %d of a dense pair with %d", index, HD_PAIR_PARAMS);
    }
    st = hd_struct_give(out, &pair->param[index], HD_STRUCT(heddle_param, name));
out:
    return st;
}

heddle_status heddle_dense_pair_gradient(heddle_param *out, heddle_dense_pair *pair, int index)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, pair));
    if (pair->options.forward_only) {
        return hd_fail(HEDDLE_ERR_ARG, "a dense pair that is forward only has no gradients");
    }
    if (index < 0 || index >= HD_PAIR_PARAMS) {
        return hd_fail(HEDDLE_ERR_ARG, "parameter %d of a dense pair with %d", index, HD_PAIR_PARAMS);
    }
    heddle_param made = pair->param[index];
    made.data = pair->gradient[index];
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_param, name));
out:
    return st;
}

void heddle_dense_pair_zero_gradients(heddle_dense_pair *pair, heddle_stream stream)
{
    (void)stream; /* host memory: done on return */
    for (int i = 0; pair != NULL && !pair->options.forward_only && i < HD_PAIR_PARAMS; i++) {
        const heddle_param *p = &pair->param[i];
        memset(pair->gradient[i], 0, (size_t)(p->extent[0] * (p->ndim == 2 ? p->extent[1] : 1)) * sizeof(float));
    }
}

void heddle_dense_pair_rows(int64_t *lo, int64_t *len, const heddle_dense_pair *pair)
{
    if (lo != NULL) {
        *lo = pair != NULL ? pair->hidden_lo : 0;
    }
    if (len != NULL) {
        *len = pair != NULL ? pair->hidden : 0;
    }
}

heddle_status heddle_dense_pair_commit(heddle_dense_pair *pair)
{
    heddle_status st = HEDDLE_OK;
    if (pair == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_dense_pair_commit: pair is NULL");
    }
    const float *w1 = pair->param[HD_FC1_WEIGHT].data, *w2 = pair->param[HD_FC2_WEIGHT].data;
    pair->kept = 0;
    pair->committed = 0;
    int entered = hd_gemm_enter();
    if (pair->hidden > 0) {
        HD_TRY(hd_gemm_pack(pair->gemm[HD_PAIR_FC1], w1, pair->param[HD_FC1_BIAS].data));
        HD_TRY(hd_gemm_pack(pair->gemm[HD_PAIR_FC2], w2, pair->first ? pair->param[HD_FC2_BIAS].data : NULL));
        if (!pair->options.forward_only) {
            HD_TRY(hd_gemm_pack_transposed(pair->gemm[HD_PAIR_BACK2], w2));
            HD_TRY(hd_gemm_pack_transposed(pair->gemm[HD_PAIR_BACK1], w1));
        }
    }
    pair->committed = 1;
out:
    hd_gemm_leave(entered);
    return st;
}

heddle_status heddle_dense_pair_get_info(heddle_dense_pair_info *out, const heddle_dense_pair *pair)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_info gather = HEDDLE_EMPTY(heddle_reshard_info), scatter = HEDDLE_EMPTY(heddle_reshard_info);
    HD_TRY(HD_NEED(out, pair));
    HD_TRY(heddle_reshard_get_info(&gather, pair->gather));
    HD_TRY(heddle_reshard_get_info(&scatter, pair->scatter));
    int gathers = pair->options.keep_gathered ? 1 : 2;
    int64_t bytes = pair->workspace_bytes + gather.workspace_bytes + scatter.workspace_bytes;
    for (int i = 0; i < HD_PAIR_GEMMS; i++) {
        bytes += pair->gemm[i] != NULL ? hd_gemm_bytes(pair->gemm[i]) : 0;
    }
    const heddle_dense_pair_info info = {
        .planned_forward_bytes = gather.bytes_sent + scatter.bytes_sent,
        .planned_backward_bytes = pair->options.forward_only ? 0 : gathers * gather.bytes_sent + scatter.bytes_sent,
        .measured_bytes = gather.measured_bytes_sent + scatter.measured_bytes_sent,
        .forwards = pair->forwards,
        .backwards = pair->backwards,
        .saved_bytes = pair->saved_bytes,
        .workspace_bytes = bytes};
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_dense_pair_info, planned_forward_bytes));
out:
    return st;
}
