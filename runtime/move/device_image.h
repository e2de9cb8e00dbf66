/* A caller's array for a call that works in host memory: itself, or an image of what lies on the communicator's device.
 * By every wire, and for calls that are not plans: it is allocated for the call, and the host waits for the copies. */
#ifndef HD_MOVE_DEVICE_IMAGE_H
#define HD_MOVE_DEVICE_IMAGE_H

#include "runtime/comm/comm_internal.h"
#include "runtime/device/enqueued.h"

typedef struct hd_image {
    void *host; /* what the call works on */
    void *array;
    size_t bytes;
    heddle_comm *comm;
    heddle_stream stream;
    hd_enqueued copies;
    char line[40];
} hd_image;

/* *is_there: it lies on the device. HEDDLE_ERR_ARG: on another one than comm has; of other errors all are told. */
heddle_status hd_image_is_wanted(int *is_there, heddle_comm *comm, const void *array, size_t bytes, const char *what);
/* HEDDLE_ERR_ARG: `stream` of comm's device is being captured, and `what` `does` something that no graph can. */
heddle_status hd_image_need_no_capture(heddle_comm *comm, heddle_stream stream, const char *what, const char *does);
/* what: the call; the text is borrowed. reads: the array's bytes are in the image on return, which is when `stream` has
 * come so far. HEDDLE_ERR_ARG also: `stream` is being captured. However it goes it is closed afterwards. */
heddle_status hd_image_open(hd_image *out, heddle_comm *comm, const void *array, size_t bytes, int reads,
                            heddle_stream stream, const char *what);
/* The image to the array; returns when it is there. */
heddle_status hd_image_write(hd_image *image);
/* Memory that a copy may still touch stays the communicator's. */
void hd_image_close(hd_image *image);

#endif
