/* The linear layers of a rank's blocks on its device (heddle/sys/device_products.h): by a library of products, or by
 * heddle's own kernels. */
#ifndef HD_DEVICE_PRODUCTS_H
#define HD_DEVICE_PRODUCTS_H

#include "runtime/device/device.h"

#include <heddle/sys/device_products.h>

typedef struct hd_products hd_products;

typedef struct hd_matmul {
    heddle_product of;
    int64_t workspace_bytes; /* that each call brings */
    char kernel[240];        /* how it is carried out, and by whom: "own, tiles of 128 x 128 x 32" */
    const hd_products *products;
    void *chosen; /* the library's; NULL: by heddle's own kernels */
    struct hd_matmul *next;
} hd_matmul;

/* name: "own", heddle's kernels; else the library's ("cublas"), and heddle's kernels where nothing of it keeps the bits
 * of rows; NULL: cublas if it can be loaded, else own. HEDDLE_ERR_UNSUPPORTED: there is no such library, it cannot be
 * loaded or is of another version, or the device has no kernels; the sentence says which. Loads kernels: not while any
 * wait for this rank. One thread at a time. */
heddle_status hd_products_open(hd_products **out, const hd_device *device, const char *name);
void hd_products_close(hd_products *products); /* with all of them, none of them under way. NULL is legal */
const char *hd_products_describe(const hd_products *products); /* "cuBLAS 13.1.0"; "own", and why */

/* The one of that form, the same for all that ask, until close. The first time it may be chosen by trials, which
 * allocate, free and wait: not while a stream is captured, nor while kernels wait for this rank. */
heddle_status hd_products_take(const hd_matmul **out, hd_products *products, const heddle_product *of);
/* Hashes of one that was taken: of its form, and of the algorithm and library that carry it out; not 0. */
typedef struct hd_product_way {
    uint64_t form, way;
} hd_product_way;
/* The first `most` that were taken; how many. */
int hd_products_ways(hd_product_way *out, int most, const hd_products *products);
/* From now on by heddle's kernels, those that were taken, too: none of them is under way, nor in a graph. why: behind
 * "own" in hd_matmul.kernel. */
void hd_products_use_own(hd_products *products, const char *why);
/* Enqueues it. rows 0: nothing, or zeros. */
heddle_status hd_matmul_run(const hd_matmul *product, const heddle_product_call *call, heddle_stream stream);

#endif
