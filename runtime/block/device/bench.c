/* How long products of a block's layers take on its device, as they were chosen at commit. */
#include "runtime/block/bench.h"

#include "runtime/base/base.h"
#include "runtime/block/device/device.h"
#include "runtime/comm/comm_internal.h"

#include <string.h>

/* Twice the cache of today's largest devices: beyond, no call finds what the last one left there. */
enum { COLD_BYTES = 256 << 20, MOST_SETS = 64, ALIGNMENT = 256, PIECE_ELEMS = 1 << 20 };

typedef struct on_bench {
    hd_on_room *room;
    const hd_matmul *matmul;
    int64_t rows;
    /* Everything that a call reads or writes, and where in it. */
    char *set[MOST_SETS];
    int64_t with_at, bias_at, dst_at, set_bytes;
    int sets, next;
    void *workspace, *begin, *end; /* timers */
} on_bench;

/* --- arrays ------------------------------------------------------------------------------------------------------- */

static heddle_status add_array(int64_t *at, int64_t *end, int64_t rows, int64_t columns, heddle_dtype dtype)
{
    heddle_status st = HEDDLE_OK;
    const int64_t factor[] = {rows, columns, (int64_t)heddle_dtype_bytes(dtype)};
    int64_t bytes = 0;
    HD_TRY(hd_product(&bytes, "an array to time a product with", 3, factor));
    *at = *end;
    if (bytes > INT64_MAX / 8 - *end) {
        return hd_fail(HEDDLE_ERR_NOMEM, "arrays to time a product of %lld rows with do not fit the address space",
                       (long long)rows);
    }
    *end += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
out:
    return st;
}

static heddle_status lay_out(on_bench *b)
{
    heddle_status st = HEDDLE_OK;
    const heddle_product *of = &b->matmul->of;
    const int is_forward = of->kind == HEDDLE_PRODUCT_FORWARD, is_outer = of->kind == HEDDLE_PRODUCT_OUTER;
    int64_t src_at = 0, *end = &b->set_bytes;
    HD_TRY(add_array(&src_at, end, b->rows, is_forward ? of->k : of->n, of->dtype));
    HD_TRY(add_array(&b->with_at, end, is_outer ? b->rows : of->n, of->k, of->dtype));
    HD_TRY(add_array(&b->bias_at, end, of->has_bias, of->n, of->dst_dtype));
    HD_TRY(add_array(&b->dst_at, end, is_outer ? of->n : b->rows, is_forward ? of->n : of->k, of->dst_dtype));
    const int64_t wanted = COLD_BYTES / b->set_bytes + 1;
    b->sets = wanted < MOST_SETS ? (int)wanted : MOST_SETS;
out:
    return st;
}

/* Numbers everywhere: what a device takes for zeros, or for what is none, is not what it takes for them. */
static heddle_status fill_first(const on_bench *b)
{
    heddle_status st = HEDDLE_OK;
    const heddle_dtype dtype = b->matmul->of.dtype;
    const int64_t elem = (int64_t)heddle_dtype_bytes(dtype), all = b->set_bytes / elem;
    const int64_t elems = all < PIECE_ELEMS ? all : PIECE_ELEMS;
    char *numbers = NULL;
    HD_TRY(hd_alloc((void **)&numbers, (size_t)elems, (size_t)elem, "numbers for a device"));
    hd_bench_fill(numbers, dtype, elems);
    for (int64_t at = 0, bytes; at < b->set_bytes; at += bytes) {
        const int64_t left = b->set_bytes - at;
        bytes = left < elems * elem ? left : elems * elem;
        HD_TRY(hd_on_upload(b->room, b->set[0] + at, numbers, (size_t)bytes));
    }
out:
    hd_free(numbers);
    return st;
}

static heddle_status fill_others(const on_bench *b)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = b->room->device;
    for (int i = 1; i < b->sets && st == HEDDLE_OK; i++) {
        st = device->library->copy(b->set[i], 0, b->set[0], 0, b->set_bytes, 1, device->number, b->room->stream);
    }
    st = st == HEDDLE_OK ? hd_on_room_settle(b->room) : hd_enqueued_end(&b->room->copies, b->room->stream, st);
    return st;
}

static heddle_status make(on_bench *b)
{
    heddle_status st = HEDDLE_OK;
    hd_device *device = b->room->device;
    HD_TRY(lay_out(b));
    for (int i = 0; i < b->sets; i++) {
        HD_TRY(hd_device_alloc(device, (void **)&b->set[i], (size_t)b->set_bytes, HD_DEVICE_FOR_OWN));
    }
    if (b->matmul->workspace_bytes > 0) {
        HD_TRY(hd_device_alloc(device, &b->workspace, (size_t)b->matmul->workspace_bytes, HD_DEVICE_FOR_OWN));
    }
    HD_TRY(device->library->timer_create(&b->begin, device->number));
    HD_TRY(device->library->timer_create(&b->end, device->number));
    HD_TRY(fill_first(b));
    st = fill_others(b);
out:
    return st;
}

static void release(const on_bench *b)
{
    hd_on_room *room = b->room;
    hd_device *device = room->device;
    const hd_sentence why = hd_sentence_keep();
    if (hd_enqueued_lets_free(&room->copies, device, hd_comm_deadline_ns(room->comm, 0) + HD_DEVICE_GRACE_NS)) {
        for (int i = 0; i < b->sets; i++) {
            hd_device_release(device, b->set[i]);
        }
        hd_device_release(device, b->workspace);
    }
    device->library->event_destroy(b->begin, device->number);
    device->library->event_destroy(b->end, device->number);
    heddle_ignore(hd_sentence_say(&why, HEDDLE_OK));
}

/* --- samples ------------------------------------------------------------------------------------------------------ */

static heddle_status enqueue(on_bench *b)
{
    char *set = b->set[b->next];
    const heddle_product_call call = {.dst = set + b->dst_at,
                                      .src = set,
                                      .with = set + b->with_at,
                                      .bias = b->matmul->of.has_bias ? set + b->bias_at : NULL,
                                      .rows = b->rows,
                                      .add = b->matmul->of.kind == HEDDLE_PRODUCT_OUTER,
                                      .workspace = b->workspace};
    b->next = (b->next + 1) % b->sets;
    return hd_matmul_run(b->matmul, &call, b->room->stream);
}

static heddle_status sample(double *ms, void *ctx, int64_t repeats)
{
    on_bench *b = ctx;
    hd_on_room *room = b->room;
    const heddle_device *library = room->device->library;
    const int number = room->device->number;
    heddle_status st = library->event_record(b->begin, number, room->stream);
    for (int64_t i = 0; i < repeats && st == HEDDLE_OK; i++) {
        st = enqueue(b);
    }
    st = st == HEDDLE_OK ? library->event_record(b->end, number, room->stream) : st;
    st = st == HEDDLE_OK ? hd_on_room_settle(room) : hd_enqueued_end(&room->copies, room->stream, st);
    return st == HEDDLE_OK ? library->timer_read(ms, b->begin, b->end, number) : st;
}

/* Where there is no library to choose from it is said why. */
static void say_kernel(char *out, size_t bytes, const hd_matmul *matmul)
{
    const char *library = hd_products_describe(matmul->products), *why = strchr(library, ':');
    hd_copy_text(out, bytes, matmul->kernel);
    if (matmul->chosen == NULL && why != NULL && strchr(matmul->kernel, ':') == NULL) {
        hd_add_text(out, bytes, why);
    }
}

heddle_status hd_on_bench_product(heddle_bench_product_result *out, heddle_block *block, int layer,
                                  heddle_product_kind kind, int64_t rows, int64_t budget_ms)
{
    heddle_status st = HEDDLE_OK;
    on_bench b = {.room = block->on->room, .rows = rows * hd_on_terms(block, layer, kind)};
    out->of = hd_on_form(block, layer, kind);
    HD_TRY(hd_products_take(&b.matmul, b.room->products, &out->of));
    say_kernel(out->kernel, sizeof out->kernel, b.matmul);
    HD_TRY(make(&b));
    st = hd_bench_times(out, sample, &b, budget_ms);
out:
    release(&b);
    return st;
}
