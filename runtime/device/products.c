#include "runtime/device/products.h"

#include "kernels/table_device.h"
#include "runtime/base/base.h"
#include "runtime/base/hash.h"
#include "runtime/device/addon.h"

#include <stdio.h>
#include <string.h>

struct hd_products {
    const hd_device *device;
    const hd_device_kernels *own;
    const heddle_device_products *library; /* NULL: own kernels only */
    void *handle;                          /* the library's */
    char describe[400];
    hd_matmul *made;
};

static heddle_status open_library(hd_products *products, const char *name)
{
    heddle_status st = HEDDLE_OK;
    hd_module found;
    heddle_device_products_fn entry = NULL;
    const heddle_device_products *library = NULL;
    HD_TRY(hd_addon_find(&found, name, products->device->folder, products->device, HEDDLE_DEVICE_PRODUCTS_LIBRARY,
                         &entry));
    HD_TRY(entry(&library, heddle_set_error));
    const hd_addon its = {library->struct_bytes, library->name, library->device, library->describe};
    HD_TRY(hd_addon_check(products->describe, sizeof products->describe, &its, &found, name, sizeof *library,
                          products->device));
    HD_TRY(library->open(&products->handle, products->device->number));
    products->library = library;
out:
    return st;
}

static heddle_status load_own(const hd_products *products)
{
    const heddle_device *device = products->device->library;
    const int number = products->device->number;
    int before = 0;
    heddle_status st = device->enter(&before, number);
    if (st == HEDDLE_OK) {
        st = device->status(products->own->load(), number, "loading kernels");
        device->leave(before);
    }
    return st;
}

heddle_status hd_products_open(hd_products **out, const hd_device *device, const char *name)
{
    heddle_status st = HEDDLE_OK;
    hd_products *products = NULL;
    if (device->library->kernels == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s has no kernels: libheddle_%s was built without", device->name,
                       device->library->name);
    }
    HD_TRY(hd_alloc((void **)&products, 1, sizeof *products, "products on a device"));
    products->device = device;
    products->own = device->library->kernels;
    snprintf(products->describe, sizeof products->describe, "own");
    HD_TRY(load_own(products));
    if (name == NULL || strcmp(name, "own") != 0) {
        st = open_library(products, name != NULL ? name : "cublas");
        if (st == HEDDLE_ERR_UNSUPPORTED && name == NULL) {
            st = HEDDLE_OK;
            snprintf(products->describe, sizeof products->describe, "own: %s", heddle_last_error());
        }
        HD_TRY(st);
    }
    *out = products;
    products = NULL;
out:
    hd_products_close(products);
    return st;
}

void hd_products_close(hd_products *products)
{
    if (products == NULL) {
        return;
    }
    while (products->made != NULL) {
        hd_matmul *product = products->made;
        products->made = product->next;
        if (product->chosen != NULL) {
            products->library->unmake(product->chosen);
        }
        hd_free(product);
    }
    if (products->library != NULL) {
        products->library->close(products->handle);
    }
    hd_free(products);
}

const char *hd_products_describe(const hd_products *products)
{
    return products->describe;
}

static int is_same(const heddle_product *a, const heddle_product *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->dst_dtype == b->dst_dtype && a->n == b->n && a->k == b->k &&
           a->has_bias == b->has_bias;
}

static void set_own(hd_matmul *product, const char *why)
{
    snprintf(product->kernel, sizeof product->kernel, "own, %s%s%s",
             product->of.dtype == HEDDLE_F32 ? "f32" : "tiles of 128 x 128 x 32", why[0] != 0 ? ": " : "", why);
    product->chosen = NULL;
    product->workspace_bytes = 0;
}

/* By the library, or, where nothing of it will do, by heddle's kernels. */
static heddle_status choose(hd_matmul *product)
{
    const heddle_device_products *library = product->products->library;
    const char *why = "";
    if (library != NULL) {
        heddle_status st = library->make(&product->chosen, product->products->handle, &product->of,
                                         &product->workspace_bytes, product->kernel, sizeof product->kernel);
        if (st != HEDDLE_ERR_UNSUPPORTED) {
            return st;
        }
        why = heddle_last_error();
    }
    set_own(product, why);
    return HEDDLE_OK;
}

heddle_status hd_products_take(const hd_matmul **out, hd_products *products, const heddle_product *of)
{
    heddle_status st = HEDDLE_OK;
    hd_matmul *product = products->made;
    while (product != NULL && !is_same(&product->of, of)) {
        product = product->next;
    }
    if (product == NULL) {
        HD_TRY(hd_alloc((void **)&product, 1, sizeof *product, "a product"));
        product->of = *of;
        product->products = products;
        st = choose(product);
        if (st != HEDDLE_OK) {
            hd_free(product);
            goto out;
        }
        product->next = products->made;
        products->made = product;
    }
    *out = product;
out:
    return st;
}

/* Of an own one the reason does not count. */
static hd_product_way way_of(const hd_matmul *product)
{
    const heddle_product *of = &product->of;
    const char *library = product->products->describe;
    const int64_t form[] = {of->kind, of->dtype, of->dst_dtype, of->n, of->k, of->has_bias};
    hd_product_way out = {hd_hash(HD_HASH_BASIS, form, sizeof form) | 1, 1};
    if (product->chosen != NULL) {
        const uint64_t way = hd_hash(HD_HASH_BASIS, product->kernel, strlen(product->kernel));
        out.way = hd_hash(way, library, strlen(library)) | 1;
    }
    return out;
}

int hd_products_ways(hd_product_way *out, int most, const hd_products *products)
{
    int n = 0;
    for (const hd_matmul *product = products->made; product != NULL && n < most; product = product->next) {
        out[n++] = way_of(product);
    }
    return n;
}

void hd_products_use_own(hd_products *products, const char *why)
{
    for (hd_matmul *product = products->made; product != NULL; product = product->next) {
        if (product->chosen != NULL) {
            products->library->unmake(product->chosen);
            set_own(product, why);
        }
    }
    if (products->library != NULL) {
        products->library->close(products->handle);
        products->library = NULL;
        snprintf(products->describe, sizeof products->describe, "own: %s", why);
    }
}

heddle_status hd_matmul_run(const hd_matmul *product, const heddle_product_call *call, heddle_stream stream)
{
    const hd_products *products = product->products;
    const heddle_device *device = products->device->library;
    const int number = products->device->number;
    int before = 0;
    heddle_status st = device->enter(&before, number);
    if (st == HEDDLE_OK) {
        st = product->chosen != NULL
                 ? products->library->run(product->chosen, call, stream)
                 : device->status(products->own->product(&product->of, call, stream), number, "a product of matrices");
        device->leave(before);
    }
    return st;
}
