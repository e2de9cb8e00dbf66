/* Sums of outer products of rows: what gradients of weights are. */
#include "kernels/gemm.h"
#include "runtime/base/base.h"

#include <dnnl.h>
#include <string.h>

enum { SET = 0, ADD = 1, WAYS = 2, EXEC_ARGS = 3 };

/* One primitive of run-time sizes serves every weight; it works on the caller's arrays as they lie. */
struct hd_gemm_outer {
    dnnl_engine_t engine;
    dnnl_primitive_t primitive[WAYS];
    int seats;
    dnnl_stream_t *stream;
};

static heddle_status check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success) {
        return HEDDLE_OK;
    }
    return hd_fail(status == dnnl_out_of_memory ? HEDDLE_ERR_NOMEM : HEDDLE_ERR_INTERNAL,
                   "oneDNN failed with status %d: %s of a weight's gradient in bf16", (int)status, what);
}

void hd_gemm_outer_destroy(hd_gemm_outer *outer)
{
    if (outer == NULL) {
        return;
    }
    for (int i = 0; outer->stream != NULL && i < outer->seats; i++) {
        dnnl_stream_destroy(outer->stream[i]);
    }
    for (int i = 0; i < WAYS; i++) {
        dnnl_primitive_destroy(outer->primitive[i]);
    }
    dnnl_engine_destroy(outer->engine);
    hd_free(outer->stream);
    hd_free(outer);
}

static dnnl_status_t describe(dnnl_primitive_desc_t *descriptor, const hd_gemm_outer *outer,
                              dnnl_primitive_attr_t attributes)
{
    const dnnl_dim_t open = DNNL_RUNTIME_DIM_VAL;
    const dnnl_dims_t dims = {open, open}, across = {1, open}, along = {open, 1};
    dnnl_memory_desc_t dy, x, dw;
    dnnl_matmul_desc_t matmul;
    dnnl_status_t status = dnnl_memory_desc_init_by_strides(&dy, 2, dims, dnnl_bf16, across);
    if (status == dnnl_success) {
        status = dnnl_memory_desc_init_by_strides(&x, 2, dims, dnnl_bf16, along);
    }
    if (status == dnnl_success) {
        status = dnnl_memory_desc_init_by_strides(&dw, 2, dims, dnnl_f32, along);
    }
    if (status == dnnl_success) {
        status = dnnl_matmul_desc_init(&matmul, &dy, &x, NULL, &dw);
    }
    return status == dnnl_success ? dnnl_primitive_desc_create(descriptor, &matmul, attributes, outer->engine, NULL)
                                  : status;
}

/* Only oneDNN's matrix multiply adds into dw itself and needs no scratchpad; its plain loops would be far too slow. */
static int usable(dnnl_primitive_desc_t descriptor)
{
    const char *name = "";
    const dnnl_memory_desc_t *scratchpad = dnnl_primitive_desc_query_md(descriptor, dnnl_query_scratchpad_md, 0);
    dnnl_primitive_desc_query(descriptor, dnnl_query_impl_info_str, 0, &name);
    return strncmp(name, "gemm", 4) == 0 && (scratchpad == NULL || dnnl_memory_desc_get_size(scratchpad) == 0);
}

static heddle_status make(int *there, hd_gemm_outer *outer, int way)
{
    heddle_status st = HEDDLE_OK;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t after = NULL;
    dnnl_primitive_desc_t descriptor = NULL;
    *there = 0;
    HD_TRY(check(dnnl_primitive_attr_create(&attributes), "attributes"));
    HD_TRY(check(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), "scratchpad mode"));
    if (way == ADD) {
        HD_TRY(check(dnnl_post_ops_create(&after), "sum"));
        HD_TRY(check(dnnl_post_ops_append_sum(after, 1), "sum"));
        HD_TRY(check(dnnl_primitive_attr_set_post_ops(attributes, after), "sum"));
    }
    dnnl_status_t status = describe(&descriptor, outer, attributes);
    if (status == dnnl_success && usable(descriptor)) {
        HD_TRY(check(dnnl_primitive_create(&outer->primitive[way], descriptor), "kernel"));
        *there = 1;
    } else if (status != dnnl_success && status != dnnl_unimplemented) {
        st = check(status, "kernel choice");
    }
out:
    dnnl_primitive_desc_destroy(descriptor);
    dnnl_post_ops_destroy(after);
    dnnl_primitive_attr_destroy(attributes);
    return st;
}

heddle_status hd_gemm_outer_create(hd_gemm_outer **out, int seats)
{
    heddle_status st = HEDDLE_OK;
    hd_gemm_outer *outer = NULL;
    int there = 1, entered = hd_gemm_enter(); /* a primitive keeps the number of threads it was made under */
    *out = NULL;
    HD_TRY(hd_alloc((void **)&outer, 1, sizeof *outer, "gradients of weights in bf16"));
    outer->seats = seats;
    HD_TRY(hd_alloc((void **)&outer->stream, (size_t)seats, sizeof *outer->stream, "gradients of weights in bf16"));
    HD_TRY(check(dnnl_engine_create(&outer->engine, dnnl_cpu, 0), "engine"));
    for (int i = 0; i < seats; i++) {
        HD_TRY(check(dnnl_stream_create(&outer->stream[i], outer->engine, dnnl_stream_default_flags), "stream"));
    }
    for (int way = 0; way < WAYS && there; way++) {
        HD_TRY(make(&there, outer, way));
    }
    if (there) {
        *out = outer;
        outer = NULL;
    }
out:
    hd_gemm_leave(entered);
    hd_gemm_outer_destroy(outer);
    return st;
}

static heddle_status view_of(dnnl_memory_t *out, const hd_gemm_outer *outer, const dnnl_dims_t dims,
                             const dnnl_dims_t strides, dnnl_data_type_t type, const void *data)
{
    heddle_status st = HEDDLE_OK;
    dnnl_memory_desc_t descriptor;
    HD_TRY(check(dnnl_memory_desc_init_by_strides(&descriptor, 2, dims, type, strides), "array"));
    HD_TRY(check(dnnl_memory_create(out, &descriptor, outer->engine, (void *)(uintptr_t)data), "array"));
out:
    return st;
}

heddle_status hd_gemm_outer_f32(const hd_outer_product *p)
{
    dnnl_status_t status =
        dnnl_sgemm('T', 'N', p->n, p->k, p->rows, 1, p->dy, p->dy_stride, p->x, p->k, p->add ? 1 : 0, p->dw, p->k);
    if (status == dnnl_success) {
        return HEDDLE_OK;
    }
    return hd_fail(status == dnnl_out_of_memory ? HEDDLE_ERR_NOMEM : HEDDLE_ERR_INTERNAL,
                   "oneDNN failed with status %d: gradient of a %lld x %lld weight over %lld rows", (int)status,
                   (long long)p->n, (long long)p->k, (long long)p->rows);
}

heddle_status hd_gemm_outer_run(hd_gemm_outer *outer, int seat, const hd_outer_product *p)
{
    heddle_status st = HEDDLE_OK;
    dnnl_memory_t dy = NULL, x = NULL, dw = NULL;
    const dnnl_dims_t dy_dims = {p->n, p->rows}, dy_strides = {1, p->dy_stride};
    const dnnl_dims_t x_dims = {p->rows, p->k}, dw_dims = {p->n, p->k}, dense = {p->k, 1};
    HD_TRY(view_of(&dy, outer, dy_dims, dy_strides, dnnl_bf16, p->dy));
    HD_TRY(view_of(&x, outer, x_dims, dense, dnnl_bf16, p->x));
    HD_TRY(view_of(&dw, outer, dw_dims, dense, dnnl_f32, p->dw));
    const dnnl_exec_arg_t arguments[EXEC_ARGS] = {{DNNL_ARG_SRC, dy}, {DNNL_ARG_WEIGHTS, x}, {DNNL_ARG_DST, dw}};
    HD_TRY(
        check(dnnl_primitive_execute(outer->primitive[p->add ? ADD : SET], outer->stream[seat], EXEC_ARGS, arguments),
              "run"));
    HD_TRY(check(dnnl_stream_wait(outer->stream[seat]), "run"));
out:
    dnnl_memory_destroy(dy);
    dnnl_memory_destroy(x);
    dnnl_memory_destroy(dw);
    return st;
}
