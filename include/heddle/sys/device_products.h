/* Bring your own products of matrices on devices: what heddle asks of libheddle_NAME.so ("cublas":
 * libheddle_cublas.so) for the linear layers of blocks. Heddle's own kernels take the same products.
 *
 * A layer has a weight [n][k], and three products over rows:
 *
 *   HEDDLE_PRODUCT_FORWARD   dst[rows][n] = src[rows][k] weight^T + bias[n]
 *   HEDDLE_PRODUCT_BACK      dst[rows][k] = src[rows][n] weight               gradient of what forward was given
 *   HEDDLE_PRODUCT_OUTER     dst[n][k] = or += src[rows][n]^T with[rows][k]   gradient of the weight
 *
 * Arrays are dense. Sums are f32, and so is each product of two F32 (none is rounded to fewer bits before). The result
 * of a row of FORWARD and BACK is a function of that row alone: its bits depend neither on how many rows there are nor
 * on where it lies among them. Equal calls of OUTER give equal bits.
 *
 * The functions return heddle_status; on failure they say why with what their library got as `fail`. They leave the
 * calling thread's current device and context as they are.
 */
#ifndef HEDDLE_DEVICE_PRODUCTS_H
#define HEDDLE_DEVICE_PRODUCTS_H

#include <heddle/layout.h>
#include <heddle/sys/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum heddle_product_kind {
    HEDDLE_PRODUCT_FORWARD,
    HEDDLE_PRODUCT_BACK,
    HEDDLE_PRODUCT_OUTER
} heddle_product_kind;

typedef struct heddle_product {
    heddle_product_kind kind;
    heddle_dtype dtype;     /* of src, and of the weight or what OUTER goes with: BF16, F16 or F32 */
    heddle_dtype dst_dtype; /* of dst and bias: dtype or F32; of OUTER: F32 */
    int64_t n, k;           /* of the layer, whatever the kind; 1 or more */
    int has_bias;           /* of FORWARD */
} heddle_product;

typedef struct heddle_product_call {
    void *dst; /* overlaps nothing that is read */
    const void *src, *with;
    const void *bias; /* has_bias 0: NULL */
    int64_t rows;
    int add;         /* of OUTER: 1: += */
    void *workspace; /* as many bytes as make said, at a multiple of 256; free when the stream is past the call */
} heddle_product_call;

typedef struct heddle_device_products {
    size_t struct_bytes;
    const char *name;   /* "cublas" */
    const char *device; /* the kind of devices whose memory it reads: "cuda" */
    /* In a few words: which library, and its version. HEDDLE_ERR_UNSUPPORTED: it cannot be used with what this was
     * built for; the sentence has both versions. */
    heddle_status (*describe)(char *out, size_t bytes);
    heddle_status (*open)(void **out, int device);
    void (*close)(void *handle); /* NULL is legal; behind unmake of all that was made */
    /* Chooses how calls of this product are carried out, all of them, and finds out on the device whether rows keep
     * their bits; waits. kernel: gets what was chosen, in a few words. HEDDLE_ERR_UNSUPPORTED: nothing there is keeps
     * them; the sentence says what was tried. */
    heddle_status (*make)(void **out, void *handle, const heddle_product *of, int64_t *workspace_bytes, char *kernel,
                          size_t kernel_bytes);
    /* Enqueues it, and does not wait. Called with the device as the calling thread's (heddle_device.enter). */
    heddle_status (*run)(void *product, const heddle_product_call *call, heddle_stream stream);
    void (*unmake)(void *product); /* NULL is legal */
} heddle_device_products;

/* What is looked for in libheddle_NAME.so: the table, in static storage; as HEDDLE_DEVICE_LIBRARY. */
#define HEDDLE_DEVICE_PRODUCTS_LIBRARY "heddle_device_products_v1"
typedef heddle_status (*heddle_device_products_fn)(const heddle_device_products **out, heddle_device_fail_fn fail);

#ifdef __cplusplus
}
#endif

#endif
