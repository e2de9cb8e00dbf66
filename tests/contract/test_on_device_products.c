/* Linear layers on an emulated device: who carries them out, and what they come to. */
#include "case.h"
#include "device_sim.h"
#include "runtime/device/device.h"
#include "runtime/device/products.h"

#include <heddle/heddle.h>

enum { ROWS = 5, N = 3, K = 4 };

static int says(const char *wanted)
{
    return strstr(heddle_last_error(), wanted) != NULL;
}

static hd_device *open_device(const char *folder)
{
    hd_device *device = NULL;
    HD_OK(hd_device_open(&device, "cuda", folder, 0));
    return device;
}

static void *on_device(hd_device *device, const void *from, size_t bytes)
{
    void *to = NULL;
    HD_OK(hd_device_alloc(device, &to, bytes, HD_DEVICE_FOR_OWN));
    HD_OK(device->library->copy(to, (int64_t)bytes, from, (int64_t)bytes, (int64_t)bytes, 1, device->number,
                                HEDDLE_NO_STREAM));
    return to;
}

/* dst = src weight^T + bias of small whole numbers, which are exact. */
static void check_forward(hd_device *device, hd_products *products)
{
    const heddle_product of = {HEDDLE_PRODUCT_FORWARD, HEDDLE_F32, HEDDLE_F32, N, K, 1};
    const hd_matmul *product = NULL, *again = NULL;
    float src[ROWS][K], weight[N][K], bias[N], got[ROWS][N] = {{0}};
    for (int i = 0; i < ROWS * K; i++) {
        src[i / K][i % K] = (float)(i % 7 - 3);
    }
    for (int i = 0; i < N * K; i++) {
        weight[i / K][i % K] = (float)(i % 5 - 2);
        bias[i / K] = (float)i;
    }
    HD_OK(hd_products_take(&product, products, &of));
    HD_OK(hd_products_take(&again, products, &of));
    assert_ptr_equal(product, again);
    void *there[4] = {on_device(device, src, sizeof src), on_device(device, weight, sizeof weight),
                      on_device(device, bias, sizeof bias), on_device(device, got, sizeof got)};
    const heddle_product_call call = {there[3], there[0], there[1], there[2], ROWS, 0, NULL};
    HD_OK(hd_matmul_run(product, &call, HEDDLE_NO_STREAM));
    HD_OK(
        device->library->copy(got, sizeof got, there[3], sizeof got, sizeof got, 1, device->number, HEDDLE_NO_STREAM));
    HD_OK(device->library->check(device->number));
    for (int i = 0; i < ROWS * N; i++) {
        float wanted = bias[i % N];
        for (int k = 0; k < K; k++) {
            wanted += src[i / N][k] * weight[i % N][k];
        }
        assert_true(got[i / N][i % N] == wanted);
    }
    for (int i = 0; i < 4; i++) {
        hd_device_release(device, there[i]);
    }
}

HD_CASE(without_a_library_kernels_are_own)
{
    const char *const names[] = {"own", NULL};
    hd_device *device = open_device(HEDDLE_DEVICE_SIM);
    for (int i = 0; i < 2; i++) {
        hd_products *products = NULL;
        HD_OK(hd_products_open(&products, device, names[i]));
        const char *wanted = i == 0 ? "own" : "own: there is no libheddle_cublas.so in " HEDDLE_DEVICE_SIM;
        assert_int_equal(strncmp(hd_products_describe(products), wanted, strlen(wanted)), 0);
        check_forward(device, products);
        hd_products_close(products);
    }
    hd_device_close(device);
}

HD_CASE(a_library_that_is_missing_is_refused_by_name)
{
    hd_products *products = NULL;
    hd_device *device = open_device(HEDDLE_DEVICE_SIM);
    assert_int_equal(hd_products_open(&products, device, "cublas"), HEDDLE_ERR_UNSUPPORTED);
    assert_true(says("there is no libheddle_cublas.so in " HEDDLE_DEVICE_SIM));
    assert_int_equal(hd_products_open(&products, device, "cuda"), HEDDLE_ERR_UNSUPPORTED);
    assert_true(says("libheddle_cuda.so is a library of devices"));
    hd_device_close(device);
    device = open_device(HEDDLE_NCCL_SIM);
    assert_int_equal(hd_products_open(&products, device, "nccl"), HEDDLE_ERR_UNSUPPORTED);
    assert_true(says("libheddle_nccl.so is a library of "));
    hd_device_close(device);
}
