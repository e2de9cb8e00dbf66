/* Partial sums on a device. */
#include "runtime/move/device_sum.h"

enum { ALIGNMENT = 256 };

int64_t hd_device_reserve(int64_t *all_bytes, int64_t bytes)
{
    int64_t at = *all_bytes;
    *all_bytes = (at + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static void make_one(hd_device_sums *out, int *nterms, const hd_parts *recv, int first, const int64_t *part_at,
                     int64_t elem_bytes, int64_t *memory_bytes)
{
    hd_device_sum *sum = &out->sum[out->nsums++];
    hd_copy copy = recv->part[first].copy;
    const int64_t bytes = hd_copy_bytes(&copy);
    *sum = (hd_device_sum){.first = *nterms, .elems = bytes / elem_bytes};
    for (int i = first; i < recv->count; i = hd_parts_alike(recv, first, i + 1)) {
        out->term_at[(*nterms)++] = part_at[i];
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

heddle_status hd_device_sums_make(hd_device_sums *out, const hd_parts *recv, const int64_t *part_at, int64_t elem_bytes,
                                  int64_t *memory_bytes)
{
    heddle_status st = HEDDLE_OK;
    const size_t n = (size_t)recv->count;
    int nterms = 0;
    HD_TRY(hd_alloc((void **)&out->sum, n, sizeof *out->sum, "sums of a device"));
    HD_TRY(hd_alloc((void **)&out->term_at, n, sizeof *out->term_at, "sums of a device"));
    HD_TRY(hd_alloc((void **)&out->unpack, n, sizeof *out->unpack, "sums of a device"));
    for (int i = 0; i < recv->count; i++) {
        if (hd_parts_alike(recv, i, 0) == i) {
            make_one(out, &nterms, recv, i, part_at, elem_bytes, memory_bytes);
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
