/* Copies as boxes of a device's kernels, lists of them that lie in its memory, and partial sums there. */
#ifndef HD_MOVE_DEVICE_LIST_H
#define HD_MOVE_DEVICE_LIST_H

#include "kernels/table_device.h"
#include "runtime/move/move.h"

/* peer 0: nobody is waited for. */
hd_device_box hd_device_box_of(const hd_copy *copy, int src_base, int dst_base);
/* Has every kernel of the device loaded, once. */
heddle_status hd_device_load_kernels(hd_device *device);

/* A strided copy within the device's memory as one launch. */
typedef struct hd_device_list {
    hd_device *device;
    void *list, *on_device; /* NULL: nothing to copy */
    int64_t bytes;
} hd_device_list;

/* Boxes whose bases are 0: the array, 1: other memory. A launch has as many blocks as its bytes are worth: most_blocks
 * where it meets those of peers; 0: nobody waits for anybody in it, so only the device limits them. Waits for that one
 * until the deadline. */
heddle_status hd_device_list_make(hd_device_list *out, hd_device *device, const hd_device_box *box, int nboxes,
                                  int most_blocks, int64_t deadline_ns);
/* Of one copy, of the array alone; NULL, or one of no bytes: nothing. */
heddle_status hd_device_list_of(hd_device_list *out, hd_device *device, const hd_copy *copy, int64_t deadline_ns);
void hd_device_list_free(hd_device_list *list);
typedef enum hd_device_act { HD_DEVICE_COPY, HD_DEVICE_CLEAR } hd_device_act;
/* `device` is the current one. Of an array to another one; memory: what bases 1 are, on both sides, or NULL. */
heddle_status hd_device_list_run(const hd_device_list *list, hd_device_act act, void *dst, const void *src,
                                 void *memory, heddle_stream stream);

/* A copy that a rank makes for itself before the first transfer of an execution, or behind the last. Zeros: none. */
typedef struct hd_local {
    int is_there;
    hd_copy copy;
    hd_copy_by by;       /* in host memory */
    hd_device_list list; /* in a device's; freed with hd_device_list_free */
} hd_local;

/* device NULL: arrays of the host. Else it waits for the device until the deadline. */
heddle_status hd_local_make(hd_local *out, const hd_copy *copy, heddle_comm *comm, hd_device *device,
                            int64_t deadline_ns);
/* On a device only enqueued. */
heddle_status hd_local_run(const hd_local *local, void *dst, const void *src, heddle_stream stream);

/* Enqueues a strided copy within the device's memory, or between it and the host's. One call of the device per outer
 * step: made for few of them. */
heddle_status hd_device_copy(const hd_device *device, const hd_copy *copy, void *dst, const void *src,
                             heddle_stream stream);

/* --- partial sums: terms lie dense in memory of a plan, and are added in rank order, as the CPU adds -------------- */

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
/* item_at: where the items lie that have arrived, in the order of the destination; memory_bytes: of the plan, more
 * behind it. HEDDLE_ERR_UNSUPPORTED: more terms than the kernels add. Freed by the caller, however it goes. */
heddle_status hd_device_sums_make(hd_device_sums *out, const hd_items *recv, const int64_t *item_at, int64_t elem_bytes,
                                  int64_t *memory_bytes);
/* `device` is the current one. */
heddle_status hd_device_sums_run(const hd_device_sums *sums, const hd_device *device, char *memory, char *dst,
                                 heddle_dtype dtype, heddle_stream stream);
void hd_device_sums_free(hd_device_sums *sums);

#endif
