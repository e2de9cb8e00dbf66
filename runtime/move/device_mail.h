/* Arrays of devices by messages between devices (the wire "nccl"): one phase of a plan. Only what does not lie together
 * is packed before and unpacked after, by one launch each; everything is enqueued on the caller's stream. Partial sums
 * come as messages and are added in rank order. */
#ifndef HD_MOVE_DEVICE_MAIL_H
#define HD_MOVE_DEVICE_MAIL_H

#include "runtime/move/device_list.h"

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
/* What it has enqueued has ended, or the device is left (hd_device_leave). NULL is legal. */
void hd_device_mail_destroy(hd_device_mail *mail);

/* Enqueues it. sent: [nranks], to which the bytes sent are added. After a failure the communicator is of no more use.
 */
heddle_status hd_device_mail_run(hd_device_mail *mail, const void *src, void *dst, heddle_stream stream,
                                 int is_captured, int64_t *sent);

typedef struct hd_device_mail_info {
    int64_t bytes, messages, packed_bytes, memory_bytes; /* sent; copied before that or after; of the device */
} hd_device_mail_info;
void hd_device_mail_get_info(hd_device_mail_info *out, const hd_device_mail *mail);

#endif
