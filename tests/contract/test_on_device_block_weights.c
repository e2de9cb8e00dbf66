/* Parameters of a block on a device that are a framework's arrays: read where they lie, with the bits of copies. */
#include "block_on_device.h"

#include <heddle/train/tape.h>

enum { MOST_PARAMS = 6 };

static int64_t elems_of(const heddle_param *param)
{
    return param->extent[0] * (param->ndim == 2 ? param->extent[1] : 1);
}

/* Parameters that are numbers of the activation's type, so that nothing is lost where a framework has them in it. */
static void round_params(const there *t)
{
    for (int i = 0; i < heddle_block_nparams(t->p.block); i++) {
        heddle_param param = HEDDLE_EMPTY(heddle_param);
        HD_OK(heddle_block_param(&param, t->p.block, i));
        rounded(param.data, elems_of(&param), t->p.options.shape.dtype);
    }
    HD_OK(heddle_block_commit(t->p.block));
}

/* A copy of the parameter on the device, times `factor`. */
static void *framework_array(const there *t, int index, heddle_dtype dtype, float factor)
{
    heddle_param param = HEDDLE_EMPTY(heddle_param);
    HD_OK(heddle_block_param(&param, t->p.block, index));
    const int64_t elems = elems_of(&param);
    float *values = must_alloc(elems, sizeof *values);
    for (int64_t i = 0; i < elems; i++) {
        values[i] = param.data[i] * factor;
    }
    void *host = stored(values, elems, dtype);
    void *array = placed_on(t->comm, host, (size_t)elems * heddle_dtype_bytes(dtype));
    free(values);
    free(host);
    return array;
}

typedef struct results {
    void *x, *dx, *gradient[MOST_PARAMS];
} results;

static results results_of(there *t)
{
    results r;
    heddle_tape *tape = NULL;
    const heddle_dtype dtype = t->p.options.shape.dtype;
    const heddle_box box = whole_box(&t->p.options.shape);
    const size_t bytes = (size_t)t->p.elems * heddle_dtype_bytes(dtype);
    void *host = stored(t->p.x, t->p.elems, dtype);
    void *x = placed_on(t->comm, host, bytes), *dx = placed_on(t->comm, host, bytes);
    const heddle_tensor x_tensor = there_tensor(t, x, &box), dx_tensor = there_tensor(t, dx, &box);
    HD_OK(heddle_tape_create(&tape, t->p.block, NULL));
    heddle_block_zero_gradients(t->p.block, HEDDLE_NO_STREAM);
    HD_OK(heddle_block_forward_tape(t->p.block, &x_tensor, &box, &t->conditioning, tape, HEDDLE_NO_STREAM));
    HD_OK(heddle_block_backward(t->p.block, &dx_tensor, &t->conditioning, NULL, tape, HEDDLE_NO_STREAM));
    r.x = brought_back(t->comm, x, bytes);
    r.dx = brought_back(t->comm, dx, bytes);
    for (int i = 0; i < heddle_block_nparams(t->p.block); i++) {
        heddle_param gradient = HEDDLE_EMPTY(heddle_param);
        HD_OK(heddle_block_gradient(&gradient, t->p.block, i));
        r.gradient[i] = brought_back(t->comm, gradient.data, (size_t)elems_of(&gradient) * sizeof(float));
    }
    heddle_tape_destroy(tape);
    heddle_buffer_free(t->comm, x);
    heddle_buffer_free(t->comm, dx);
    free(host);
    return r;
}

static int are_equal(const there *t, const results *a, const results *b)
{
    const size_t bytes = (size_t)t->p.elems * heddle_dtype_bytes(t->p.options.shape.dtype);
    int equal = memcmp(a->x, b->x, bytes) == 0 && memcmp(a->dx, b->dx, bytes) == 0;
    for (int i = 0; i < heddle_block_nparams(t->p.block); i++) {
        heddle_param param = HEDDLE_EMPTY(heddle_param);
        HD_OK(heddle_block_param(&param, t->p.block, i));
        equal = equal && memcmp(a->gradient[i], b->gradient[i], (size_t)elems_of(&param) * sizeof(float)) == 0;
    }
    return equal;
}

static void free_results(const there *t, results *r)
{
    for (int i = 0; i < heddle_block_nparams(t->p.block); i++) {
        free(r->gradient[i]);
    }
    free(r->x);
    free(r->dx);
}

static void lend_all(const there *t, void **array, heddle_dtype dtype)
{
    for (int i = 0; i < heddle_block_nparams(t->p.block); i++) {
        HD_OK(heddle_block_lend_param(t->p.block, i, array[i], dtype));
    }
}

static void check_lent(heddle_comm *comm, const heddle_block_options *options)
{
    there t;
    void *array[MOST_PARAMS] = {NULL};
    const heddle_dtype dtype = options->shape.dtype;
    there_open(&t, comm, options);
    const heddle_box box = whole_box(&options->shape);
    round_params(&t);
    results copied = results_of(&t);
    const int64_t with_copies = heddle_block_workspace_bytes(t.p.block);
    int64_t weights = 0;
    for (int i = 0; i < heddle_block_nparams(t.p.block); i++) {
        heddle_param param = HEDDLE_EMPTY(heddle_param);
        HD_OK(heddle_block_param(&param, t.p.block, i));
        weights += param.ndim == 2 ? elems_of(&param) * (int64_t)heddle_dtype_bytes(dtype) : 0;
        array[i] = framework_array(&t, i, dtype, 1);
        memset(param.data, 0x7f, (size_t)elems_of(&param) * sizeof(float)); /* nobody reads them any more */
    }
    lend_all(&t, array, dtype);
    heddle_tensor x = there_tensor(&t, array[0], &box);
    x.capacity_bytes = (size_t)t.p.elems * heddle_dtype_bytes(dtype);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(t.p.block, &x, &box, &t.conditioning, HEDDLE_NO_STREAM));
    assert_true(says("heddle_block_commit"));
    HD_OK(heddle_block_commit(t.p.block));
    results lent = results_of(&t);
    assert_true(are_equal(&t, &copied, &lent));
    assert_true(heddle_block_workspace_bytes(t.p.block) <= with_copies - weights);
    lend_all(&t, (void *[MOST_PARAMS]){NULL}, dtype); /* the block's own again, which were spoilt */
    HD_OK(heddle_block_seed(t.p.block, 7));
    round_params(&t);
    results again = results_of(&t);
    assert_true(are_equal(&t, &copied, &again));
    assert_int_equal(heddle_block_workspace_bytes(t.p.block), with_copies);
    free_results(&t, &copied);
    free_results(&t, &lent);
    free_results(&t, &again);
    for (int i = 0; i < MOST_PARAMS; i++) {
        heddle_buffer_free(comm, array[i]);
    }
    there_close(&t);
}

HD_CASE(lent_weights_are_read_where_they_lie)
{
    heddle_comm *comm = alone();
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < 3; i++) {
            heddle_block_options options = small_options((heddle_stage_kind)kind, device_dtypes[i]);
            options.modulate = kind != HEDDLE_STAGE_CROSS;
            options.qk_norm = options.rope = kind == HEDDLE_STAGE_ATTENTION;
            check_lent(comm, &options);
        }
    }
    heddle_comm_destroy(comm);
}

/* What a framework changes there counts from commit on. */
HD_CASE(lent_weights_that_change_are_committed_again)
{
    heddle_comm *comm = alone();
    const heddle_block_options options = small_options(HEDDLE_STAGE_MLP, HEDDLE_BF16);
    there t;
    void *array[MOST_PARAMS] = {NULL}, *doubled[MOST_PARAMS] = {NULL};
    there_open(&t, comm, &options);
    const int nparams = heddle_block_nparams(t.p.block);
    for (int i = 0; i < nparams; i++) {
        array[i] = framework_array(&t, i, HEDDLE_BF16, 1);
        doubled[i] = framework_array(&t, i, HEDDLE_BF16, 2);
    }
    lend_all(&t, doubled, HEDDLE_BF16);
    HD_OK(heddle_block_commit(t.p.block));
    results wanted = results_of(&t);
    lend_all(&t, array, HEDDLE_BF16);
    HD_OK(heddle_block_commit(t.p.block));
    results before = results_of(&t);
    assert_false(are_equal(&t, &wanted, &before));
    for (int i = 0; i < nparams; i++) {
        heddle_param param = HEDDLE_EMPTY(heddle_param);
        HD_OK(heddle_block_param(&param, t.p.block, i));
        void *values = brought_back(comm, doubled[i], (size_t)elems_of(&param) * 2);
        HD_OK(device_copy_now(comm, array[i], values, (size_t)elems_of(&param) * 2));
        free(values);
    }
    HD_OK(heddle_block_commit(t.p.block));
    results after = results_of(&t);
    assert_true(are_equal(&t, &wanted, &after));
    free_results(&t, &wanted);
    free_results(&t, &before);
    free_results(&t, &after);
    for (int i = 0; i < nparams; i++) {
        heddle_buffer_free(comm, array[i]);
        heddle_buffer_free(comm, doubled[i]);
    }
    there_close(&t);
    heddle_comm_destroy(comm);
}

HD_CASE(what_cannot_be_lent_is_refused)
{
    heddle_comm *comm = alone(), *other = NULL;
    const heddle_comm_options of_other = device_options("cuda:0", HEDDLE_WIRE_HOST);
    const heddle_block_options options = small_options(HEDDLE_STAGE_MLP, HEDDLE_BF16);
    there t;
    problem p;
    there_open(&t, comm, &options);
    open_problem(&p, &options);
    HD_OK(heddle_comm_open(&other, "self", &of_other));
    char *here = framework_array(&t, 0, HEDDLE_BF16, 1), *elsewhere = placed_on(other, t.p.x, 64);
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_block_lend_param(p.block, 0, here, HEDDLE_BF16));
    assert_true(says("fc1.weight is not taken where it lies"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_lend_param(t.p.block, 4, here, HEDDLE_BF16));
    assert_true(says("parameter 4: the block has 4"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_lend_param(t.p.block, 0, here, HEDDLE_F16));
    assert_true(says("fc1.weight is of f16, wanted f32 or bf16"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_lend_param(t.p.block, 1, here, HEDDLE_F16));
    assert_true(says("fc1.bias is of f16, wanted f32 or bf16"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_lend_param(t.p.block, 0, here + 2, HEDDLE_BF16));
    assert_true(says("a multiple of 16 bytes"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_lend_param(t.p.block, 0, t.p.x, HEDDLE_BF16));
    assert_true(says("in host memory; the block works on device cuda:1"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_lend_param(t.p.block, 0, elsewhere, HEDDLE_BF16));
    assert_true(says("in the memory of another device"));
    results r = results_of(&t); /* as it was, and committed */
    free_results(&t, &r);
    heddle_buffer_free(comm, here);
    heddle_buffer_free(other, elsewhere);
    close_problem(&p);
    there_close(&t);
    heddle_comm_destroy(other);
    heddle_comm_destroy(comm);
}
