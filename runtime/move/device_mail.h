/* Arrays of devices by messages between devices (the wire "nccl"): one phase of a plan. Only what does not lie together
 * is packed before and unpacked after, by one launch each; everything is enqueued on the caller's stream. Partial sums
 * come as messages and are added in rank order. */
#ifndef HD_MOVE_DEVICE_MAIL_H
#define HD_MOVE_DEVICE_MAIL_H

#include "kernels/table_device.h"
#include "runtime/move/move.h"

typedef struct hd_mail_spec {
    const hd_transfer_spec *phase; /* its parts, adds, clear */
    int any_adds;                  /* on any rank */
    heddle_dtype dtype;
    size_t elem_bytes;
    int64_t deadline_ms; /* 0: the communicator's */
} hd_mail_spec;

typedef struct hd_device_mail hd_device_mail;

/* Not collective; waits for the device. The communicator's wire is nccl. HEDDLE_ERR_UNSUPPORTED: more terms of a sum
 * than the kernels add. */
heddle_status hd_device_mail_create(hd_device_mail **out, heddle_comm *comm, const hd_mail_spec *spec);
/* What it has enqueued has ended. NULL is legal. */
void hd_device_mail_destroy(hd_device_mail *mail);

/* Enqueues it. sent: [nranks], to which the bytes sent are added. After a failure the communicator is of no more use.
 */
heddle_status hd_device_mail_run(hd_device_mail *mail, const void *src, void *dst, heddle_stream stream,
                                 int is_captured, int64_t *sent);

typedef struct hd_device_mail_info {
    int64_t bytes, messages, packed_bytes, memory_bytes; /* sent; copied before that or after; of the device */
} hd_device_mail_info;
void hd_device_mail_get_info(hd_device_mail_info *out, const hd_device_mail *mail);

/* A strided copy within the device's memory as one launch. */
typedef struct hd_device_list {
    const hd_device *device;
    void *list, *on_device; /* NULL: nothing to copy */
    int64_t bytes;
} hd_device_list;

/* Boxes whose bases are 0: the array, 1: the staging. Waits for the device. */
heddle_status hd_device_list_make(hd_device_list *out, const hd_device *device, const hd_device_box *box, int nboxes);
void hd_device_list_free(hd_device_list *list);
hd_device_box hd_device_box_of(const hd_copy *copy, int src_base, int dst_base);
typedef enum hd_device_act { HD_DEVICE_COPY, HD_DEVICE_CLEAR } hd_device_act;
heddle_status hd_device_list_run(const hd_device_list *list, hd_device_act act, const void *const *src,
                                 void *const *dst, heddle_stream stream);

#endif
