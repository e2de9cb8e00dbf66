/* Where an array lies, and in which order work on it happens. */
#ifndef HEDDLE_SPACE_H
#define HEDDLE_SPACE_H

typedef enum heddle_space {
    HEDDLE_SPACE_HOST = 0,  /* memory of the process */
    HEDDLE_SPACE_DEVICE = 1 /* memory of an accelerator */
} heddle_space;

/* A queue of a device (a cudaStream_t). Every call that touches data takes one. Data on the host: the stream is
 * ignored and the call returns when it is done. Data on a device: the call is enqueued on the stream and returns at
 * once; arguments on the host may be reused then, arrays on the device in the order of the stream. HEDDLE_NO_STREAM is
 * the device's default stream. */
typedef void *heddle_stream;
#define HEDDLE_NO_STREAM ((heddle_stream)0)

#endif
