/* Copies as boxes of a device's kernels, and lists of them that lie in its memory. */
#ifndef HD_MOVE_DEVICE_LIST_H
#define HD_MOVE_DEVICE_LIST_H

#include "kernels/table_device.h"
#include "runtime/move/move.h"

/* peer 0: nobody is waited for. */
hd_device_box hd_device_box_of(const hd_copy *copy, int src_base, int dst_base);
/* Blocks for a launch of these boxes: by their bytes, 1 to `most`. */
int hd_device_blocks_for(const hd_device_box *box, int nboxes, int most);
/* Has every kernel of the device loaded. */
heddle_status hd_device_load_kernels(const hd_device *device);
/* The list of these boxes in host memory; the caller frees it with hd_free. */
heddle_status hd_device_list_build(void **out, size_t *bytes, const hd_device *device, const hd_device_box *box,
                                   int nboxes, int blocks);

/* A strided copy within the device's memory as one launch. */
typedef struct hd_device_list {
    hd_device *device;
    void *list, *on_device; /* NULL: nothing to copy */
    int64_t bytes;
} hd_device_list;

/* Boxes whose bases are 0: the array, 1: the staging. Waits for the device until the deadline. */
heddle_status hd_device_list_make(hd_device_list *out, hd_device *device, const hd_device_box *box, int nboxes,
                                  int64_t deadline_ns);
void hd_device_list_free(hd_device_list *list);
typedef enum hd_device_act { HD_DEVICE_COPY, HD_DEVICE_CLEAR } hd_device_act;
heddle_status hd_device_list_run(const hd_device_list *list, hd_device_act act, const void *const *src,
                                 void *const *dst, heddle_stream stream);

/* A copy that a rank makes for itself before the first transfer of an execution, or behind the last. Zeros: none. */
typedef struct hd_local {
    int is_there;
    hd_copy copy;
    hd_copy_by by;       /* in host memory */
    hd_device_list list; /* in a device's; freed with hd_device_list_free */
} hd_local;

/* device NULL: arrays of the host. Else it waits for the device until the deadline. */
heddle_status hd_local_make(hd_local *out, const hd_copy *copy, heddle_comm *comm, hd_device *device,
                            int64_t deadline_ms);
/* On a device only enqueued. */
heddle_status hd_local_run(const hd_local *local, void *dst, const void *src, heddle_stream stream);

/* Enqueues a strided copy within the device's memory, or between it and the host's. One call of the device per outer
 * step: made for few of them. */
heddle_status hd_device_copy(const hd_device *device, const hd_copy *copy, void *dst, const void *src,
                             heddle_stream stream);

#endif
