/* Messages between devices by a library of their own (libheddle_nccl), which is loaded when the first rank asks. */
#ifndef HD_DEVICE_MESSAGES_H
#define HD_DEVICE_MESSAGES_H

#include "runtime/device/device.h"

#include <heddle/sys/device_messages.h>

typedef struct hd_messages {
    const heddle_device_messages *table; /* of its functions */
    void *handle;                        /* NULL: none yet, or ended */
    char describe[120];                  /* the library, its version */
} hd_messages;

/* name: of the wire; folder: of libheddle_NAME.so, as for hd_module_load. HEDDLE_ERR_UNSUPPORTED: no such library, it
 * cannot be loaded, its versions do not fit, or it is for another kind of device; the sentence says which. */
heddle_status hd_messages_load(hd_messages *out, const char *name, const char *folder, const hd_device *device);
/* Once; gives_up as in heddle_device_messages.end. */
void hd_messages_end(hd_messages *messages, int gives_up);

#endif
