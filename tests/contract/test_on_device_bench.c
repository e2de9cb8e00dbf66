/* heddle_bench_product on an emulated device: what is timed are the products that the block's stage asks for, as they
 * were chosen at commit, over a fake cuBLASLt whose first algorithm does not keep the bits of rows, and own kernels. */
#include "block_on_device.h"

#include "runtime/block/device/device.h"

#include <heddle/sys/bench.h>
#include <heddle/train/tape.h>

/* ThreadSanitizer makes kernels a hundred times as slow, and there is one thread to see. */
#ifdef __SANITIZE_THREAD__
enum { PROBLEMS = 2, APART = 60 };
#else
enum { PROBLEMS = 6, APART = 3 };
#endif
enum { KINDS = 4, TYPES = 3, MOST_WAYS = 32 };

typedef struct cublas_sim {
    void (*recommend)(const char *kinds);
    int64_t (*products)(void);
} cublas_sim;

static cublas_sim with_cublas(void)
{
    static const char *const names[] = {"cublassim_recommend", "cublassim_products"};
    cublas_sim sim;
    setenv("HEDDLE_MODULE_PATH", HEDDLE_CUBLAS_SIM, 1);
    HD_OK(sim_functions(&sim, dlopen(HEDDLE_CUBLAS_SIM "/libheddle_cublas.so", RTLD_NOW | RTLD_LOCAL), names, 2));
    sim.recommend("hg");
    return sim;
}

static heddle_bench_product_result bench(const there *t, int layer, int kind, int64_t rows)
{
    heddle_bench_product_result out = HEDDLE_EMPTY(heddle_bench_product_result);
    HD_OK(heddle_bench_product(&out, t->p.block, 2 * layer, (heddle_product_kind)kind, rows, 0));
    assert_true(out.samples >= 1 && out.repeats >= 1 && out.min_ms >= 0 && out.min_ms <= out.median_ms);
    return out;
}

/* A training step, with every gradient of the conditioning. */
static void step(const there *t)
{
    const heddle_shape *shape = &t->p.options.shape;
    const heddle_box box = whole_box(shape);
    heddle_tape *tape = NULL;
    void *host = stored(t->p.x, t->p.elems, shape->dtype);
    void *memory = placed_on(t->comm, host, (size_t)t->p.elems * heddle_dtype_bytes(shape->dtype));
    const int64_t samples = shape->dim[0].extent;
    const size_t text_bytes = (size_t)(samples * t->p.options.text_tokens * t->p.c) * sizeof(float);
    float *zeros = must_alloc((int64_t)text_bytes, 1);
    const heddle_conditioning_gradient wanted = {.text = placed_on(t->comm, zeros, text_bytes)};
    const heddle_tensor x = there_tensor(t, memory, &box);
    HD_OK(heddle_tape_create(&tape, t->p.block, NULL));
    HD_OK(heddle_block_forward_tape(t->p.block, &x, &box, &t->conditioning, tape, HEDDLE_NO_STREAM));
    HD_OK(heddle_block_backward(t->p.block, &x, &t->conditioning,
                                t->p.options.kind == HEDDLE_STAGE_CROSS ? &wanted : NULL, tape, HEDDLE_NO_STREAM));
    HD_OK(device_settle(t->comm, HEDDLE_NO_STREAM));
    heddle_tape_destroy(tape);
    heddle_buffer_free(t->comm, memory);
    heddle_buffer_free(t->comm, wanted.text);
    free(zeros);
    free(host);
}

static void check_product(const there *t, const cublas_sim *sim, int layer, int kind)
{
    const int64_t rows = between(1, 70), before = sim->products();
    const heddle_bench_product_result r = bench(t, layer, kind, rows);
    const int64_t warm = sim->products() - before - r.samples * r.repeats;
    const int is_outer = kind == HEDDLE_PRODUCT_OUTER;
    assert_true(warm == 1 || warm == 2);
    assert_int_equal(r.of.kind, kind);
    assert_int_equal(r.of.n, t->p.block->param[2 * layer].extent[0]);
    assert_int_equal(r.of.k, t->p.block->param[2 * layer].extent[1]);
    assert_string_equal(r.kernel, is_outer
                                      ? "cuBLAS, algorithm 204 with tile 20 and stages 8, 1 of 2 that it recommends"
                                      : "cuBLAS, algorithm 203 with tile 20 and stages 8, 2 of 2 that it recommends");
}

/* Nothing new is chosen for them, so their forms are the stage's. */
HD_CASE(products_are_the_stages_and_as_they_were_chosen)
{
    const cublas_sim sim = with_cublas();
    heddle_comm *comm = alone();
    device_sim device;
    HD_OK(device_sim_get(&device));
    for (int i = 0; i < PROBLEMS; i++) {
        static const int64_t extent[] = {2, 3, 2, 16};
        const heddle_dtype dtype = device_dtypes[(i + i / KINDS) % TYPES];
        heddle_block_options options = options_for((heddle_stage_kind)(i % KINDS), dtype, 4, extent);
        options.mixed_dim = options.kind == HEDDLE_STAGE_LINEAR ? 1 : options.mixed_dim;
        hd_product_way ways[MOST_WAYS];
        there t;
        there_open(&t, comm, &options);
        step(&t);
        const int taken = hd_products_ways(ways, MOST_WAYS, t.p.block->on->room->products);
        const int64_t held = device.device_bytes();
        assert_true(taken > 0 && taken < MOST_WAYS);
        for (int layer = 0; layer < t.p.block->nlayers; layer++) {
            for (int kind = 0; kind < 3; kind++) {
                check_product(&t, &sim, layer, kind);
            }
        }
        assert_int_equal(hd_products_ways(ways, MOST_WAYS, t.p.block->on->room->products), taken);
        assert_int_equal(device.device_bytes(), held);
        step(&t);
        there_close(&t);
    }
    heddle_comm_destroy(comm);
}

HD_CASE(own_kernels_say_why)
{
    heddle_comm *comm = alone();
    for (int i = 0; i < 3; i++) {
        const heddle_block_options options = small_options(HEDDLE_STAGE_MLP, device_dtypes[i]);
        const char *wanted = device_dtypes[i] == HEDDLE_F32 ? "own, f32: there is no libheddle_cublas.so in "
                                                            : "own, tiles of 128 x 128 x 32: there is no "
                                                              "libheddle_cublas.so in ";
        there t;
        there_open(&t, comm, &options);
        for (int kind = 0; kind < 3; kind++) {
            const heddle_bench_product_result r = bench(&t, kind % 2, kind, 33);
            assert_int_equal(strncmp(r.kernel, wanted, strlen(wanted)), 0);
        }
        there_close(&t);
    }
    heddle_comm_destroy(comm);
}

/* A block of MLP, alone on the device. */
static void mlp_open(there *t, device_sim *device)
{
    const heddle_block_options options = small_options(HEDDLE_STAGE_MLP, HEDDLE_BF16);
    heddle_comm *comm = alone();
    HD_OK(device_sim_get(device)); /* of the library that is loaded by now */
    there_open(t, comm, &options);
}

static void mlp_close(there *t)
{
    there_close(t);
    heddle_comm_destroy(t->comm);
}

HD_CASE(rows_that_no_memory_holds_are_refused)
{
    heddle_bench_product_result out = HEDDLE_EMPTY(heddle_bench_product_result);
    device_sim device;
    there t;
    mlp_open(&t, &device);
    const int64_t held = device.device_bytes();
    for (int kind = 0; kind < 3; kind++) {
        HD_FAILS(HEDDLE_ERR_NOMEM,
                 heddle_bench_product(&out, t.p.block, 0, (heddle_product_kind)kind, (int64_t)1 << 40, 0));
        assert_true(strstr(heddle_last_error(), "bytes") != NULL);
        HD_FAILS(HEDDLE_ERR_NOMEM, heddle_bench_product(&out, t.p.block, 0, (heddle_product_kind)kind, INT64_MAX, 0));
        assert_int_equal(device.device_bytes(), held);
        (void)bench(&t, 0, kind, 3);
    }
    mlp_close(&t);
}

/* Each call of CUDA fails once, and what is timed after that is. */
HD_CASE(calls_that_fail_say_so)
{
    heddle_bench_product_result out = HEDDLE_EMPTY(heddle_bench_product_result);
    device_sim device;
    there t;
    int failed = 0;
    mlp_open(&t, &device);
    int64_t calls = device.calls();
    (void)bench(&t, 0, HEDDLE_PRODUCT_OUTER, 2);
    calls = device.calls() - calls;
    for (int64_t n = 1; n <= calls; n += APART * (int64_t)hd_call_step()) {
        device.fail_at(n, 999);
        const heddle_status st = heddle_bench_product(&out, t.p.block, 0, HEDDLE_PRODUCT_OUTER, 2, 0);
        device.fail_at(0, 0);
        if (st != HEDDLE_OK && strstr(heddle_last_error(), "failed with error 999") == NULL) {
            fail_msg("call %d: %s", (int)n, heddle_last_error());
        }
        failed += st != HEDDLE_OK;
    }
    assert_true(failed > 1);
    (void)bench(&t, 0, HEDDLE_PRODUCT_OUTER, 2);
    mlp_close(&t);
}
