/* Linear layers by libheddle_cublas over a fake cuBLASLt whose first algorithms do not keep the bits of rows: which one
 * is taken, what it comes to, and what goes wrong. */
#include "cublas_products.h"

static const heddle_dtype types[] = {HEDDLE_BF16, HEDDLE_F16, HEDDLE_F32};

HD_CASE(the_first_that_keeps_bits_is_taken)
{
    fixture f = begin("xhrspfg");
    assert_string_equal(hd_products_describe(f.products), "cuBLAS 13.1.0");
    for (int i = 0; i < 9; i++) {
        const int is_outer = i / 3 == HEDDLE_PRODUCT_OUTER;
        const heddle_product of = {
            (heddle_product_kind)(i / 3), types[i % 3], is_outer || i % 2 ? HEDDLE_F32 : types[i % 3], 24, 41,
            i < 3 && i % 2 == 0};
        const hd_matmul *made = NULL;
        HD_OK(hd_products_take(&made, f.products, &of));
        assert_string_equal(made->kernel,
                            is_outer ? "cuBLAS, algorithm 204 with tile 20 and stages 8, 2 of 7 that it recommends"
                                     : "cuBLAS, algorithm 203 with tile 20 and stages 8, 7 of 7 that it recommends");
        for (int round = 0; round < 4; round++) {
            const int64_t rows = round == 0 ? 0 : between(1, 150);
            problem p = problem_of(&f, &of, rows);
            char *got = run(&f, &p, made, is_outer && round % 2);
            check(&p, got, is_outer && round % 2);
            free(got);
            problem_end(&f, &p);
        }
    }
    end(&f);
}

/* "o" keeps bits as well, but other ones. */
HD_CASE(few_rows_go_by_what_is_recommended_for_few_and_has_the_same_bits)
{
    static const char *const few[] = {"osG", "o", "pgG"};
    static const char *const also[] = {("; up to 384 rows algorithm 171 with tile 20 and stages 8; up to 1536 rows "
                                        "algorithm 171 with tile 20 and stages 8"),
                                       "", ""};
    fixture f = begin("g");
    for (int i = 0; i < 3; i++) {
        for (int kind = 0; kind < 3; kind++) {
            const heddle_product of = {(heddle_product_kind)kind, HEDDLE_BF16, HEDDLE_F32, 24 + i, 40, kind == 0};
            const hd_matmul *made = NULL;
            char wanted[240];
            f.sim.recommend_few(few[i]);
            HD_OK(hd_products_take(&made, f.products, &of));
            snprintf(wanted, sizeof wanted,
                     "cuBLAS, algorithm 203 with tile 20 and stages 8, 1 of 1 that it recommends%s",
                     kind == HEDDLE_PRODUCT_OUTER ? "" : also[i]);
            assert_string_equal(made->kernel, wanted);
        }
    }
    end(&f);
}

static void check_bits(const char *few)
{
    fixture f = begin("xhrspfg");
    f.sim.recommend_few(few);
    for (int i = 0; i < 4; i++) {
        const heddle_product of = {(heddle_product_kind)(i / 2), types[i % 2], types[i % 2], 48, 40, i == 0};
        const hd_matmul *made = NULL;
        HD_OK(hd_products_take(&made, f.products, &of));
        problem alone = problem_of(&f, &of, 3);
        char *wanted = run(&f, &alone, made, 0);
        for (int place = 0; place < 40; place++) {
            problem p = problem_of(&f, &of, between(3, below(8) ? 300 : 1500));
            const int64_t at = between(0, p.rows - 3);
            const size_t before = (size_t)(at * p.in) * type_bytes(of.dtype);
            copy(&f, p.device[0] + before, alone.host[0], alone.bytes[0]);
            copy(&f, p.device[1], alone.host[1], alone.bytes[1]);
            copy(&f, p.device[2], alone.host[2], alone.bytes[2]);
            char *got = run(&f, &p, made, 0);
            assert_memory_equal(got + (size_t)(at * p.out) * type_bytes(of.dtype), wanted, alone.bytes[3]);
            free(got);
            problem_end(&f, &p);
        }
        free(wanted);
        problem_end(&f, &alone);
    }
    end(&f);
}

HD_CASE(rows_keep_their_bits_at_any_height_and_place)
{
    check_bits(NULL);
    check_bits("ohG");
}

HD_CASE(where_none_keeps_bits_kernels_are_own)
{
    fixture f = begin("xhrsp");
    const heddle_product of = {HEDDLE_PRODUCT_FORWARD, HEDDLE_BF16, HEDDLE_BF16, 24, 40, 1};
    const hd_matmul *made = NULL;
    HD_OK(hd_products_take(&made, f.products, &of));
    assert_string_equal(made->kernel,
                        "own, tiles of 128 x 128 x 32: cuBLAS recommends 5 algorithms, of which 1 split sums, 1 "
                        "refuse some heights, and 3 give a row other bits");
    const int64_t before = f.sim.products();
    problem p = problem_of(&f, &of, 70);
    char *got = run(&f, &p, made, 0);
    check(&p, got, 0);
    assert_int_equal(f.sim.products(), before);
    free(got);
    problem_end(&f, &p);
    f.sim.recommend("");
    const heddle_product other = {HEDDLE_PRODUCT_BACK, HEDDLE_BF16, HEDDLE_BF16, 24, 40, 0};
    HD_OK(hd_products_take(&made, f.products, &other));
    assert_non_null(strstr(made->kernel, "cuBLAS recommends 0 algorithms"));
    end(&f);
}

/* Opens, chooses and closes; the n-th call of cuBLAS, or of CUDA, fails (0: none). */
static heddle_status choose_with(const fixture *f, const heddle_product *of, int64_t n, int is_cuda)
{
    hd_products *products = NULL;
    const hd_matmul *made = NULL;
    if (is_cuda) {
        f->device_sim.fail_at(n, 2);
    } else {
        f->sim.fail_at(n, 14);
    }
    heddle_status st = hd_products_open(&products, f->device, "cublas");
    st = st == HEDDLE_OK ? hd_products_take(&made, products, of) : st;
    f->device_sim.fail_at(0, 0);
    f->sim.fail_at(0, 0);
    hd_products_close(products);
    assert_int_equal(f->sim.objects(), 1); /* the fixture's handle */
    return st;
}

/* ThreadSanitizer makes kernels a hundred times as slow, and there is one thread to see: the other builds try all. */
#ifdef __SANITIZE_THREAD__
enum { APART = 15 };
#else
enum { APART = 1 };
#endif

static void every_call_may_fail_of(int is_cuda)
{
    fixture f = begin("rg");
    for (int kind = 0; kind < 3; kind++) {
        const heddle_product of = {(heddle_product_kind)kind, HEDDLE_F16, HEDDLE_F32, 16, 8, 0};
        int64_t calls = f.device_sim.calls(), failed = 0;
        HD_OK(choose_with(&f, &of, 0, is_cuda));
        calls = is_cuda ? f.device_sim.calls() - calls : 90;
        assert_true(calls > 20 && calls < 1000);
        for (int64_t n = 1; n <= calls; n += is_cuda && APART == 1 ? 1 + 4 * (kind > 0) : APART) {
            const int64_t before = f.device_sim.device_bytes(); /* of those that could not be freed */
            heddle_status st = choose_with(&f, &of, n, is_cuda);
            assert_true(st == HEDDLE_OK || says("failed with error 2") || says("cuBLAS: cublasLt"));
            failed += st != HEDDLE_OK;
            assert_true(st == HEDDLE_OK || f.device_sim.device_bytes() == before);
        }
        assert_true(failed > (APART > 1 ? 0 : is_cuda ? calls / 10 : 60));
    }
    hd_products_close(f.products);
    hd_device_close(f.device);
}

HD_CASE(every_call_of_cublas_may_fail)
{
    every_call_may_fail_of(0);
}

HD_CASE(every_call_of_cuda_may_fail)
{
    every_call_may_fail_of(1);
}

HD_CASE(a_call_that_fails_is_told)
{
    fixture f = begin("g");
    const heddle_product of = {HEDDLE_PRODUCT_FORWARD, HEDDLE_BF16, HEDDLE_BF16, 24, 40, 1};
    const hd_matmul *made = NULL;
    HD_OK(hd_products_take(&made, f.products, &of));
    problem p = problem_of(&f, &of, 70);
    heddle_product_call call = call_of(&f, &p, made, 0);
    f.sim.fail_at(1, 13);
    assert_int_equal(hd_matmul_run(made, &call, HEDDLE_NO_STREAM), HEDDLE_ERR_DEVICE);
    assert_true(says("cuBLAS: cublasLt") && says("failed with 13, the GPU program failed to execute"));
    call.src = p.device[0] + 2;
    assert_int_equal(hd_matmul_run(made, &call, HEDDLE_NO_STREAM), HEDDLE_ERR_ARG);
    assert_true(says("a product by cuBLAS: src lies at ") && says("wanted a multiple of 16 bytes"));
    char *got = run(&f, &p, made, 0);
    check(&p, got, 0);
    free(got);
    problem_end(&f, &p);
    end(&f);
}

HD_CASE(calls_are_captured_and_replayed)
{
    fixture f = begin("xhrspfg");
    const heddle_product of = {HEDDLE_PRODUCT_OUTER, HEDDLE_BF16, HEDDLE_F32, 24, 40, 0};
    const hd_matmul *made = NULL;
    void *stream = NULL, *graph = NULL;
    HD_OK(hd_products_take(&made, f.products, &of));
    problem p = problem_of(&f, &of, 1000);
    const heddle_product_call call = call_of(&f, &p, made, 0);
    char *eager = run(&f, &p, made, 0);
    HD_OK(f.device_sim.stream_create(&stream));
    HD_OK(f.device_sim.capture(stream, 1));
    HD_OK(hd_matmul_run(made, &call, stream));
    HD_OK(f.device_sim.record(stream, &graph));
    for (int replay = 0; replay < 20; replay++) {
        char *got = malloc(p.bytes[3]);
        assert_non_null(got);
        copy(&f, p.device[3], p.host[3], p.bytes[3]);
        HD_OK(f.device_sim.replay(graph, stream));
        HD_OK(f.device->library->copy(got, (int64_t)p.bytes[3], p.device[3], (int64_t)p.bytes[3], (int64_t)p.bytes[3],
                                      1, f.device->number, stream));
        f.device_sim.stream_destroy(stream);
        HD_OK(f.device_sim.stream_create(&stream));
        assert_memory_equal(got, eager, p.bytes[3]);
        free(got);
    }
    f.device_sim.graph_free(graph);
    f.device_sim.stream_destroy(stream);
    free(eager);
    problem_end(&f, &p);
    end(&f);
}

HD_CASE(another_version_is_refused)
{
    static const struct {
        const char *version, *sentence;
    } cases[] = {
        {"120805", "cuBLAS 12.8.5 was found, heddle is built for 13.1.0: wanted 13.1 or a later one of version 13"},
        {"130005", "cuBLAS 13.0.5 was found, heddle is built for 13.1.0"},
        {"140000", "cuBLAS 14.0.0 was found, heddle is built for 13.1.0"}};
    hd_device *device = NULL;
    hd_products *products = NULL;
    HD_OK(hd_device_open(&device, "cuda", HEDDLE_CUBLAS_SIM, 0));
    for (int i = 0; i < 3; i++) {
        setenv("HEDDLE_CUBLASSIM_VERSION", cases[i].version, 1);
        assert_int_equal(hd_products_open(&products, device, "cublas"), HEDDLE_ERR_UNSUPPORTED);
        assert_true(says(cases[i].sentence));
        HD_OK(hd_products_open(&products, device, NULL)); /* then kernels are own */
        assert_int_equal(strncmp(hd_products_describe(products), "own: cuBLAS 1", 13), 0);
        hd_products_close(products);
    }
    setenv("HEDDLE_CUBLASSIM_VERSION", "130402", 1);
    HD_OK(hd_products_open(&products, device, "cublas"));
    assert_string_equal(hd_products_describe(products), "cuBLAS 13.4.2, built for 13.1.0");
    hd_products_close(products);
    unsetenv("HEDDLE_CUBLASSIM_VERSION");
    hd_device_close(device);
}
