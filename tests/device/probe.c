/* heddle's kernels, products and blocks as functions of plain numbers and addresses, for who times them beside
 * something else in one process (tests/device/blocks.py). One device, one thread. Functions return heddle_status, and
 * probe_error the sentence; what takes addresses and a stream enqueues. Dtypes are heddle_dtype's numbers.
 */
#include "kernels/table_device.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/device/products.h"
#include "runtime/move/device_list.h"

#include <heddle/heddle.h>
#include <heddle/linear_attention.h>
#include <heddle/train/tape.h>
#include <math.h>
#include <string.h>

#define PROBE HEDDLE_API

static heddle_comm *comm;
static hd_device *device;
static const hd_device_kernels *kernels;
static hd_products *own, *pinned; /* heddle's kernels; and those of a library where there is one */

/* What a launcher is asked, on the device; its status. */
#define LAUNCH(slot, ...)                                                                                              \
    do {                                                                                                               \
        int before = 0;                                                                                                \
        heddle_status st = device->library->enter(&before, device->number);                                            \
        if (st == HEDDLE_OK) {                                                                                         \
            st = device->library->status(kernels->slot(__VA_ARGS__), device->number, #slot);                           \
            device->library->leave(before);                                                                            \
        }                                                                                                              \
        return st;                                                                                                     \
    } while (0)

/* --- the device --------------------------------------------------------------------------------------------------- */

PROBE const char *probe_error(void)
{
    return heddle_last_error();
}

PROBE int probe_open(const char *which)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_comm_open(&comm, "self", NULL));
    HD_TRY(heddle_comm_attach_device(comm, which, HEDDLE_WIRE_AUTO));
    device = hd_comm_device(comm);
    HD_TRY(hd_device_load_kernels(device));
    kernels = device->library->kernels;
    HD_TRY(hd_products_open(&own, device, "own"));
    HD_TRY(hd_products_open(&pinned, device, NULL));
out:
    return st;
}

PROBE void probe_close(void)
{
    hd_products_close(pinned);
    hd_products_close(own);
    heddle_comm_destroy(comm);
}

/* who carries them out */
PROBE const char *probe_products(void)
{
    return hd_products_describe(pinned);
}

PROBE int probe_alloc(void **out, int64_t bytes)
{
    return heddle_buffer_alloc(out, comm, (size_t)bytes, HEDDLE_SPACE_DEVICE);
}

PROBE void probe_free(void *memory)
{
    heddle_buffer_free(comm, memory);
}

PROBE int probe_copy(void *dst, const void *src, int64_t bytes, heddle_stream stream)
{
    return device->library->copy(dst, bytes, src, bytes, bytes, 1, device->number, stream);
}

/* waits */
PROBE int probe_settle(heddle_stream stream)
{
    const heddle_device *library = device->library;
    void *event = NULL;
    int done = 0;
    heddle_status st = library->event_create(&event, device->number);
    st = st == HEDDLE_OK ? library->event_record(event, device->number, stream) : st;
    while (st == HEDDLE_OK && !done) {
        st = library->event_test(event, device->number, &done);
    }
    library->event_destroy(event, device->number);
    return st;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

static hd_device_rows rows_of(int dtype, int64_t rows, int64_t c, int64_t sample_rows)
{
    return (hd_device_rows){(heddle_dtype)dtype, rows, c, sample_rows, 6 * c};
}

PROBE int probe_norm_modulate(int dtype, int64_t rows, int64_t c, int64_t sample_rows, void *dst, const void *src,
                              const float *vector, heddle_stream stream)
{
    const hd_device_rows of = rows_of(dtype, rows, c, sample_rows);
    LAUNCH(norm_modulate, &of, dst, src, vector, vector + c, stream);
}

PROBE int probe_gate_residual(int dtype, int64_t rows, int64_t c, int64_t sample_rows, void *x, const void *y,
                              int y_dtype, const float *vector, heddle_stream stream)
{
    const hd_device_rows of = rows_of(dtype, rows, c, sample_rows);
    LAUNCH(gate_residual, &of, x, y, (heddle_dtype)y_dtype, vector + 2 * c, NULL, stream);
}

PROBE int probe_norm_back(int dtype, int64_t rows, int64_t c, int64_t sample_rows, void *dx, const void *src,
                          const void *dy, const float *vector, float *stats, heddle_stream stream)
{
    const hd_device_rows of = rows_of(dtype, rows, c, sample_rows);
    LAUNCH(norm_back, &of, dx, src, dy, (heddle_dtype)dtype, vector + c, stats, stream);
}

PROBE int probe_gelu(int dtype, int64_t elems, void *dst, const void *src, heddle_stream stream)
{
    LAUNCH(gelu, dst, (heddle_dtype)dtype, src, (heddle_dtype)dtype, elems, stream);
}

/* q and k of rows of qkv, in place: row r is at position r / inner % extent. weights: [2][d] of norms, or NULL. */
static hd_device_heads heads_of(int dtype, int64_t rows, int64_t heads, int64_t d, int64_t inner, int64_t extent,
                                const float *weights, const float *cos_sin)
{
    return (hd_device_heads){.dtype = (heddle_dtype)dtype,
                             .rows = rows,
                             .heads = weights != NULL ? heads : 2 * heads,
                             .d = d,
                             .row_stride = 3 * heads * d,
                             .weight = weights,
                             .cos_sin = cos_sin,
                             .inner = inner,
                             .extent = extent,
                             .second_at = weights != NULL ? heads * d : 0,
                             .second_weight = weights != NULL ? weights + d : NULL};
}

PROBE int probe_rotate(int dtype, int64_t rows, int64_t heads, int64_t d, int64_t inner, int64_t extent, void *qkv,
                       const float *weights, const float *cos_sin, heddle_stream stream)
{
    const hd_device_heads of = heads_of(dtype, rows, heads, d, inner, extent, weights, cos_sin);
    LAUNCH(norm_rotate, &of, qkv, qkv, stream);
}

/* Their gradients in dqkv, and those of the weights. */
PROBE int probe_rotate_back(int dtype, int64_t rows, int64_t heads, int64_t d, int64_t inner, int64_t extent,
                            void *dqkv, const void *qkv, const float *weights, const float *cos_sin, float *dweights,
                            void *scratch, int64_t scratch_bytes, heddle_stream stream)
{
    const hd_device_heads of = heads_of(dtype, rows, heads, d, inner, extent, weights, cos_sin);
    float *const sums[2] = {dweights, dweights + d};
    if (kernels->norm_rotate_back_bytes(&of) > (size_t)scratch_bytes) {
        return HEDDLE_ERR_ARG;
    }
    LAUNCH(norm_rotate_back, &of, dqkv, qkv, sums, scratch, stream);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

typedef struct probe_product {
    const hd_matmul *matmul;
    void *workspace;
} probe_product;

/* Of kind FORWARD 0, BACK 1 or OUTER 2; is_own: by heddle's kernels. It lasts until the process ends. */
PROBE int probe_product_make(probe_product **out, int is_own, int kind, int dtype, int dst_dtype, int64_t n, int64_t k,
                             int has_bias)
{
    heddle_status st = HEDDLE_OK;
    const heddle_product of = {(heddle_product_kind)kind, (heddle_dtype)dtype, (heddle_dtype)dst_dtype, n, k, has_bias};
    HD_TRY(hd_alloc((void **)out, 1, sizeof **out, "a product"));
    HD_TRY(hd_products_take(&(*out)->matmul, is_own ? own : pinned, &of));
    st =
        heddle_buffer_alloc(&(*out)->workspace, comm, (size_t)(*out)->matmul->workspace_bytes + 1, HEDDLE_SPACE_DEVICE);
out:
    return st;
}

PROBE const char *probe_product_kernel(const probe_product *product)
{
    return product->matmul->kernel;
}

PROBE int probe_product_run(const probe_product *product, void *dst, const void *src, const void *with,
                            const void *bias, int64_t rows, heddle_stream stream)
{
    const heddle_product_call call = {
        .dst = dst, .src = src, .with = with, .bias = bias, .rows = rows, .workspace = product->workspace};
    return hd_matmul_run(product->matmul, &call, stream);
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Of tokens t of fibres (o, i), rows (o * n + t) * inner + i of `width` elements. */
static hd_device_tokens tokens(void *rows, int64_t skip_bytes, int64_t n, int64_t inner, int64_t width, int64_t d)
{
    return (hd_device_tokens){(char *)rows + skip_bytes, n * inner * width, width, inner * width, d};
}

static hd_device_attention attention_of(int dtype, int64_t outer, int64_t inner, int64_t n, int64_t heads, int64_t d,
                                        void *qkv, void *o, float *stats)
{
    const int64_t c = heads * d, bytes = c * (int64_t)heddle_dtype_bytes((heddle_dtype)dtype);
    return (hd_device_attention){.dtype = (heddle_dtype)dtype,
                                 .outer = outer,
                                 .inner = inner,
                                 .heads = heads,
                                 .kv_heads = heads,
                                 .nq = n,
                                 .nk = n,
                                 .d = d,
                                 .scale = 1.0f / sqrtf((float)d),
                                 .diagonal = n,
                                 .fibres_of_length = 1,
                                 .q = tokens(qkv, 0, n, inner, 3 * c, d),
                                 .k = tokens(qkv, bytes, n, inner, 3 * c, d),
                                 .v = tokens(qkv, 2 * bytes, n, inner, 3 * c, d),
                                 .o = tokens(o, 0, n, inner, c, d),
                                 .stats = stats};
}

/* qkv [outer][n][inner][3][heads][d], o [outer][n][inner][heads][d]; stats [outer][inner][heads][n][2] or NULL. */
PROBE int probe_attention(int dtype, int64_t outer, int64_t inner, int64_t n, int64_t heads, int64_t d, void *qkv,
                          void *o, float *stats, heddle_stream stream)
{
    const hd_device_attention of = attention_of(dtype, outer, inner, n, heads, d, qkv, o, stats);
    LAUNCH(attention, &of, stream);
}

/* dqkv lies as qkv, d_o as o; delta [outer][inner][heads][n]. */
PROBE int probe_attention_back(int dtype, int64_t outer, int64_t inner, int64_t n, int64_t heads, int64_t d, void *qkv,
                               void *o, float *stats, void *d_o, void *dqkv, float *delta, heddle_stream stream)
{
    const hd_device_attention of = attention_of(dtype, outer, inner, n, heads, d, qkv, o, stats);
    const hd_device_attention to = attention_of(dtype, outer, inner, n, heads, d, dqkv, d_o, NULL);
    const hd_device_attention_back back = {.of = of, .d_o = to.o, .dq = to.q, .dk = to.k, .dv = to.v, .delta = delta};
    LAUNCH(attention_back, &back, stream);
}

/* --- linear attention --------------------------------------------------------------------------------------------- */

/* Of [b][n][heads][d], v and o as well; decay [heads]. */
PROBE int probe_linear_make(heddle_linear_attention **out, int dtype, int64_t b, int64_t n, int64_t heads, int64_t d,
                            const double *decay, int is_two_sided)
{
    heddle_status st = HEDDLE_OK;
    const heddle_shape shape = {(heddle_dtype)dtype, 4, {{"b", b}, {"s", n}, {"h", heads}, {"d", d}}};
    const heddle_layout layout = heddle_layout_replicated();
    heddle_mesh mesh;
    heddle_linear_attention_options options;
    heddle_linear_attention_options_init(&options);
    options.decay = decay;
    options.bidirectional = is_two_sided;
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = device->number;
    HD_TRY(heddle_mesh_parse(&mesh, "[sp=1]"));
    st = heddle_linear_attention_create(out, comm, &shape, &mesh, &layout, &options);
out:
    return st;
}

PROBE void probe_linear_end(heddle_linear_attention *attention)
{
    heddle_linear_attention_destroy(attention);
}

PROBE int probe_linear_forward(heddle_linear_attention *attention, void *q, void *k, void *v, void *o,
                               heddle_stream stream)
{
    const heddle_attention_array x[] = {{.data = q}, {.data = k}, {.data = v}, {.data = o}};
    return heddle_linear_attention_forward(attention, &x[0], &x[1], &x[2], &x[3], stream);
}

PROBE int probe_linear_backward(heddle_linear_attention *attention, void *q, void *k, void *v, void *d_o, void *dq,
                                void *dk, void *dv, heddle_stream stream)
{
    const heddle_attention_array x[] = {{.data = q},  {.data = k},  {.data = v}, {.data = d_o},
                                        {.data = dq}, {.data = dk}, {.data = dv}};
    return heddle_linear_attention_backward(attention, &x[0], &x[1], &x[2], &x[3], &x[4], &x[5], &x[6], stream);
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

typedef struct probe_block {
    heddle_block *block;
    heddle_tape *tape;
    heddle_tensor x;
    heddle_box box;
} probe_block;

/* Of shape [b t s c], seeded; attention over t (mixed 1) or s (2), with norms of q and k. workspace: of a block before
 * it; NULL: its own. trains: its tape is reserved, too. */
PROBE int probe_block_make(probe_block **out, int kind, int dtype, const int64_t extent[4], int mixed, int heads,
                           int64_t mlp, int64_t text, int rope, uint64_t seed, probe_block *workspace, int trains)
{
    static const char *const name[] = {"b", "t", "s", "c"};
    heddle_status st = HEDDLE_OK;
    probe_block *block = NULL;
    heddle_block_options options;
    heddle_block_options_init(&options);
    options.kind = (heddle_stage_kind)kind;
    options.shape.dtype = (heddle_dtype)dtype;
    options.shape.ndim = 4;
    HD_TRY(hd_alloc((void **)&block, 1, sizeof *block, "a block"));
    block->box.ndim = 4;
    for (int d = 0; d < 4; d++) {
        strcpy(options.shape.dim[d].name, name[d]);
        options.shape.dim[d].extent = block->box.len[d] = extent[d];
    }
    options.mixed_dim = mixed;
    options.heads = heads;
    options.mlp_channels = mlp;
    options.text_tokens = text;
    options.rope = rope;
    options.qk_norm = options.kind == HEDDLE_STAGE_ATTENTION;
    options.space = HEDDLE_SPACE_DEVICE;
    options.comm = comm;
    HD_TRY(heddle_block_create(&block->block, &options));
    HD_TRY(heddle_block_seed(block->block, seed));
    HD_TRY(workspace != NULL ? heddle_block_share_workspace(block->block, workspace->block) : HEDDLE_OK);
    HD_TRY(heddle_block_reserve(block->block, &block->box));
    HD_TRY(heddle_tape_create(&block->tape, block->block, NULL));
    HD_TRY(trains ? heddle_tape_reserve(block->tape, &block->box) : HEDDLE_OK);
    block->x.shape = options.shape;
    block->x.space = HEDDLE_SPACE_DEVICE;
    block->x.device = device->number;
    for (int64_t d = 3, stride = 1; d >= 0; stride *= extent[d--]) {
        block->x.stride_elems[d] = stride;
    }
    *out = block;
out:
    return st;
}

PROBE void probe_block_end(probe_block *block)
{
    heddle_tape_destroy(block->tape);
    heddle_block_destroy(block->block);
    hd_free(block);
}

/* Parameter `index`, f32 in host memory; *elems 0: there are no more. */
PROBE int probe_block_weights(const float **data, int64_t *elems, probe_block *block, int index)
{
    heddle_param param = HEDDLE_EMPTY(heddle_param);
    *elems = 0;
    if (index >= heddle_block_nparams(block->block)) {
        return HEDDLE_OK;
    }
    const heddle_status st = heddle_block_param(&param, block->block, index);
    *data = param.data;
    *elems = param.extent[0] * (param.ndim == 2 ? param.extent[1] : 1);
    return st;
}

/* of weights and workspace on the device */
PROBE int64_t probe_block_bytes(const probe_block *block)
{
    return heddle_block_workspace_bytes(block->block);
}

static const heddle_tensor *at(probe_block *block, void *x)
{
    block->x.data = x;
    block->x.capacity_bytes = (size_t)heddle_box_elems(&block->box) * heddle_dtype_bytes(block->x.shape.dtype);
    return &block->x;
}

/* In place on x; keeps: for a backward. vector [b][6][c] and text [b][tokens][c], f32. */
PROBE int probe_block_forward(probe_block *block, void *x, const float *vector, const float *text, int keeps,
                              heddle_stream stream)
{
    const heddle_conditioning given = {vector, text, NULL};
    return keeps ? heddle_block_forward_tape(block->block, at(block, x), &block->box, &given, block->tape, stream)
                 : heddle_block_forward(block->block, at(block, x), &block->box, &given, stream);
}

PROBE int probe_block_backward(probe_block *block, void *dx, const float *vector, const float *text,
                               heddle_stream stream)
{
    const heddle_conditioning given = {vector, text, NULL};
    return heddle_block_backward(block->block, at(block, dx), &given, NULL, block->tape, stream);
}
