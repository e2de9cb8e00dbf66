/* Partial sums on a device: terms lie dense in memory of a plan, and are added in rank order, as the CPU adds. */
#ifndef HD_MOVE_DEVICE_SUM_H
#define HD_MOVE_DEVICE_SUM_H

#include "runtime/move/device_list.h"

/* Where it goes: straight into the destination where it lies together there, else by way of the plan's memory. */
typedef struct hd_device_sum {
    int first, nterms; /* in hd_device_sums.term_at */
    int64_t elems, result_at;
    int is_direct; /* result_at is in the destination */
} hd_device_sum;

typedef struct hd_device_sums {
    hd_device_sum *sum;
    int64_t *term_at; /* in the plan's memory */
    int nsums;
    hd_device_box *unpack; /* sums that are not direct, from the plan's memory (base 0) to their places (base 0) */
    int nunpacks;
    int64_t unpacked_bytes;
} hd_device_sums;

/* Room for more in memory of a device, of which `all_bytes` are taken: where it begins. */
int64_t hd_device_reserve(int64_t *all_bytes, int64_t bytes);
/* part_at: where the parts lie that have arrived, in the order of the destination; memory_bytes: of the plan, more
 * behind it. HEDDLE_ERR_UNSUPPORTED: more terms than the kernels add. Freed by the caller, however it goes. */
heddle_status hd_device_sums_make(hd_device_sums *out, const hd_parts *recv, const int64_t *part_at, int64_t elem_bytes,
                                  int64_t *memory_bytes);
/* `device` is the current one. */
heddle_status hd_device_sums_run(const hd_device_sums *sums, const hd_device *device, char *memory, char *dst,
                                 heddle_dtype dtype, heddle_stream stream);
void hd_device_sums_free(hd_device_sums *sums);

#endif
