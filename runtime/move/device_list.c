/* Copies within a device's memory as lists of boxes, each carried out by one launch; or as calls of its library, which
 * takes rows of one run. And partial sums. */
#include "runtime/move/device_list.h"
#include "runtime/device/enqueued.h"

#include <string.h>

enum { BYTES_OF_A_BLOCK = 32768 /* at the least */, ALIGNMENT = 256 };

hd_device_box hd_device_box_of(const hd_copy *copy, int src_base, int dst_base)
{
    hd_device_box box = {.src_base = src_base,
                         .dst_base = dst_base,
                         .src_offset_bytes = copy->src_offset_bytes,
                         .dst_offset_bytes = copy->dst_offset_bytes,
                         .run_bytes = copy->run_bytes,
                         .nloops = copy->nloops};
    memcpy(box.count, copy->count, sizeof copy->count);
    memcpy(box.src_stride_bytes, copy->src_stride_bytes, sizeof copy->src_stride_bytes);
    memcpy(box.dst_stride_bytes, copy->dst_stride_bytes, sizeof copy->dst_stride_bytes);
    return box;
}

/* By their bytes, 1 to `most`. */
static int blocks_for(const hd_device_box *box, int nboxes, int most)
{
    double blocks = 1;
    for (int i = 0; i < nboxes; i++) {
        double bytes = (double)box[i].run_bytes;
        for (int k = 0; k < box[i].nloops; k++) {
            bytes *= (double)box[i].count[k];
        }
        blocks += bytes / BYTES_OF_A_BLOCK;
    }
    most = most > 0 ? most : 1;
    return blocks < most ? (int)blocks : most;
}

heddle_status hd_device_load_kernels(hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    const hd_device_kernels *kernels = device->library->kernels;
    int before = 0;
    if (device->is_loaded) {
        return HEDDLE_OK;
    }
    HD_TRY(device->library->enter(&before, device->number));
    st = device->library->status(kernels->load(), device->number, "loading the kernels");
    device->library->leave(before);
    device->is_loaded = st == HEDDLE_OK;
out:
    return st;
}

static heddle_status build(void **out, size_t *bytes, const hd_device *device, const hd_device_box *box, int nboxes,
                           int blocks)
{
    const hd_device_kernels *kernels = device->library->kernels;
    *bytes = kernels->list_bytes(box, nboxes, blocks);
    if (*bytes == 0) {
        return hd_fail(HEDDLE_ERR_INTERNAL, "the kernels take no list of these %d boxes", nboxes);
    }
    heddle_status st = hd_alloc(out, 1, *bytes, "boxes of a device");
    if (st == HEDDLE_OK) {
        kernels->list_make(*out, box, nboxes, blocks);
    }
    return st;
}

/* The list's copy on the device, on a stream that nobody else's work is on. */
static heddle_status upload(hd_device_list *list, int64_t deadline_ns)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = list->device->library;
    int device = list->device->number, done = 0;
    heddle_stream stream = NULL;
    hd_enqueued copied = {0};
    HD_TRY(library->stream_create(&stream, device));
    HD_TRY(hd_enqueued_open(&copied, list->device));
    HD_TRY(library->copy(list->on_device, 0, list->list, 0, list->bytes, 1, device, stream));
    HD_TRY(hd_enqueued_end(&copied, stream, HEDDLE_OK));
    HD_TRY(hd_enqueued_await(&done, &copied, deadline_ns, NULL, NULL));
    if (!done) {
        st = hd_fail(HEDDLE_ERR_TIMEOUT, "device %s did not come to a copy of %lld bytes before the deadline",
                     list->device->name, (long long)list->bytes);
    }
out:
    hd_enqueued_close(&copied);
    library->stream_destroy(stream, device);
    return st;
}

heddle_status hd_device_list_make(hd_device_list *out, hd_device *device, const hd_device_box *box, int nboxes,
                                  int most_blocks, int64_t deadline_ns)
{
    heddle_status st = HEDDLE_OK;
    int all = 0, blocks;
    size_t bytes = 0;
    *out = (hd_device_list){.device = device};
    if (nboxes == 0 && most_blocks == 0) {
        return HEDDLE_OK;
    }
    HD_TRY(device->library->blocks(&all, device->number));
    blocks = blocks_for(box, nboxes, most_blocks > 0 ? most_blocks : all);
    HD_TRY(build(&out->list, &bytes, device, box, nboxes, most_blocks > 0 || blocks > nboxes ? blocks : nboxes));
    out->bytes = (int64_t)bytes;
    HD_TRY(hd_device_alloc(device, &out->on_device, bytes, HD_DEVICE_FOR_OWN));
    st = upload(out, deadline_ns);
out:
    if (st != HEDDLE_OK) {
        hd_device_list_free(out);
    }
    return st;
}

heddle_status hd_device_list_of(hd_device_list *out, hd_device *device, const hd_copy *copy, int64_t deadline_ns)
{
    if (copy == NULL || hd_copy_bytes(copy) == 0) {
        return HEDDLE_OK;
    }
    const hd_device_box box = hd_device_box_of(copy, 0, 0);
    return hd_device_list_make(out, device, &box, 1, 0, deadline_ns);
}

void hd_device_list_free(hd_device_list *list)
{
    if (list->device != NULL) {
        hd_device_release(list->device, list->on_device);
    }
    hd_free(list->list);
    *list = (hd_device_list){0};
}

heddle_status hd_device_list_run(const hd_device_list *list, hd_device_act act, void *dst, const void *src,
                                 void *memory, heddle_stream stream)
{
    if (list->list == NULL) {
        return HEDDLE_OK;
    }
    const hd_device_kernels *kernels = list->device->library->kernels;
    const void *const from[] = {src, memory};
    void *const to[] = {dst, memory};
    const hd_device_move move = {
        .list = list->list, .list_on_device = list->on_device, .nsrc = 2, .ndst = 2, .src = from, .dst = to};
    int code = act == HD_DEVICE_COPY ? kernels->push(&move, stream) : kernels->clear(&move, stream);
    return list->device->library->status(code, list->device->number, "a launch of copies");
}

heddle_status hd_local_make(hd_local *out, const hd_copy *copy, heddle_comm *comm, hd_device *device,
                            int64_t deadline_ns)
{
    heddle_status st = HEDDLE_OK;
    *out = (hd_local){.is_there = 1, .copy = *copy};
    if (device != NULL) {
        HD_TRY(hd_device_load_kernels(device));
        st = hd_device_list_of(&out->list, device, copy, deadline_ns);
    } else {
        out->by = hd_copy_choose(copy, (int64_t)heddle_comm_shared_cache_bytes(comm));
    }
out:
    return st;
}

heddle_status hd_local_run(const hd_local *local, void *dst, const void *src, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const hd_device_list *list = &local->list;
    int before = 0;
    if (local->is_there && list->list == NULL) {
        hd_copy_execute(&local->copy, &local->by, dst, src);
    } else if (local->is_there) {
        HD_TRY(list->device->library->enter(&before, list->device->number));
        st = hd_device_list_run(list, HD_DEVICE_COPY, dst, src, NULL, stream);
        list->device->library->leave(before);
    }
out:
    return st;
}

/* --- by calls of the library -------------------------------------------------------------------------------------- */

/* The innermost loop is one call, where its rows do not overlap. */
static int takes_rows(const hd_copy *copy)
{
    int last = copy->nloops - 1;
    return last >= 0 && copy->src_stride_bytes[last] >= copy->run_bytes &&
           copy->dst_stride_bytes[last] >= copy->run_bytes;
}

heddle_status hd_device_copy(const hd_device *device, const hd_copy *copy, void *dst, const void *src,
                             heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_copy c = *copy;
    hd_copy_walk(&c, HD_SIDE_DST);
    int rows = takes_rows(&c), outer = c.nloops - rows, last = c.nloops - 1;
    int64_t steps = hd_copy_bytes(&c) > 0 ? 1 : 0;
    for (int i = 0; i < outer; i++) {
        steps *= c.count[i];
    }
    for (int64_t step = 0; step < steps; step++) {
        int64_t from = c.src_offset_bytes, to = c.dst_offset_bytes, left = step;
        for (int i = outer - 1; i >= 0; i--) {
            from += left % c.count[i] * c.src_stride_bytes[i];
            to += left % c.count[i] * c.dst_stride_bytes[i];
            left /= c.count[i];
        }
        HD_TRY(device->library->copy((char *)dst + to, rows ? c.dst_stride_bytes[last] : 0, (const char *)src + from,
                                     rows ? c.src_stride_bytes[last] : 0, c.run_bytes, rows ? c.count[last] : 1,
                                     device->number, stream));
    }
out:
    return st;
}

/* --- partial sums ------------------------------------------------------------------------------------------------- */

int64_t hd_device_reserve(int64_t *all_bytes, int64_t bytes)
{
    int64_t at = *all_bytes;
    *all_bytes = (at + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static void make_one(hd_device_sums *out, int *nterms, const hd_items *recv, int first, const int64_t *item_at,
                     int64_t elem_bytes, int64_t *memory_bytes)
{
    hd_device_sum *sum = &out->sum[out->nsums++];
    hd_copy copy = recv->item[first].copy;
    const int64_t bytes = hd_copy_bytes(&copy);
    *sum = (hd_device_sum){.first = *nterms, .elems = bytes / elem_bytes};
    for (int i = first; i < recv->count; i = hd_items_alike(recv, first, i + 1)) {
        out->term_at[(*nterms)++] = item_at[i];
        sum->nterms++;
    }
    hd_copy_walk(&copy, HD_SIDE_DST);
    hd_copy_make_dense(&copy, HD_SIDE_SRC, 0);
    sum->is_direct = copy.nloops == 0;
    sum->result_at = sum->is_direct ? copy.dst_offset_bytes : hd_device_reserve(memory_bytes, bytes);
    if (!sum->is_direct) {
        copy.src_offset_bytes = sum->result_at;
        out->unpack[out->nunpacks++] = hd_device_box_of(&copy, 0, 0);
        out->unpacked_bytes += bytes;
    }
}

heddle_status hd_device_sums_make(hd_device_sums *out, const hd_items *recv, const int64_t *item_at, int64_t elem_bytes,
                                  int64_t *memory_bytes)
{
    heddle_status st = HEDDLE_OK;
    const size_t n = (size_t)recv->count;
    int nterms = 0;
    HD_TRY(hd_alloc((void **)&out->sum, n, sizeof *out->sum, "sums of a device"));
    HD_TRY(hd_alloc((void **)&out->term_at, n, sizeof *out->term_at, "sums of a device"));
    HD_TRY(hd_alloc((void **)&out->unpack, n, sizeof *out->unpack, "sums of a device"));
    for (int i = 0; i < recv->count; i++) {
        if (hd_items_alike(recv, i, 0) == i) {
            make_one(out, &nterms, recv, i, item_at, elem_bytes, memory_bytes);
        }
    }
    for (int i = 0; i < out->nsums; i++) {
        if (out->sum[i].nterms > HD_DEVICE_MAX_PEERS) {
            return hd_fail(HEDDLE_ERR_UNSUPPORTED, "partial sums of %d ranks, a device's kernels add at most %d",
                           out->sum[i].nterms, HD_DEVICE_MAX_PEERS);
        }
    }
out:
    return st;
}

heddle_status hd_device_sums_run(const hd_device_sums *sums, const hd_device *device, char *memory, char *dst,
                                 heddle_dtype dtype, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const hd_device_kernels *kernels = device->library->kernels;
    for (int i = 0; i < sums->nsums; i++) {
        const hd_device_sum *sum = &sums->sum[i];
        const void *term[HD_DEVICE_MAX_PEERS];
        for (int k = 0; k < sum->nterms; k++) {
            term[k] = memory + sums->term_at[sum->first + k];
        }
        char *result = (sum->is_direct ? dst : memory) + sum->result_at;
        int code = kernels->sum(result, term, sum->nterms, sum->elems, dtype, stream);
        HD_TRY(device->library->status(code, device->number, "a launch of sums"));
    }
out:
    return st;
}

void hd_device_sums_free(hd_device_sums *sums)
{
    HD_FREE_ALL(sums->sum, sums->term_at, sums->unpack);
    *sums = (hd_device_sums){0};
}
