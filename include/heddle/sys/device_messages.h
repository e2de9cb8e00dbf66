/* Bring your own messages between devices: what heddle asks of libheddle_NAME.so for a wire that is a library of
 * messages (HEDDLE_WIRE_NCCL: libheddle_nccl.so). It sends and receives memory of devices in the order of a stream;
 * which bytes those are, who is waited for how long, and who is told of an error, is heddle's.
 *
 * The functions return heddle_status; on failure they say why with what their library got as `fail`. None of them waits
 * for other ranks. They leave the calling thread's current device and context as they are.
 */
#ifndef HEDDLE_DEVICE_MESSAGES_H
#define HEDDLE_DEVICE_MESSAGES_H

#include <heddle/sys/device.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HEDDLE_MESSAGES_ID_BYTES = 128 };

/* Of a rank that is not the own one, dense; bytes > 0. Messages between two ranks arrive in the order of the calls and,
 * in one call, in the order of the array. */
typedef struct heddle_device_message {
    void *data; /* of a send: read only */
    int64_t bytes;
    int peer;
} heddle_device_message;

typedef struct heddle_device_messages {
    size_t struct_bytes;
    const char *name;   /* "nccl" */
    const char *device; /* the kind of devices whose memory it moves: "cuda" */
    /* In a few words: which library, and its version. HEDDLE_ERR_UNSUPPORTED: it cannot be used with what this was
     * built for; the sentence has both versions. */
    heddle_status (*describe)(char *out, size_t bytes);
    /* A name under which ranks meet, made by one of them and given to all. */
    heddle_status (*make_id)(unsigned char id[HEDDLE_MESSAGES_ID_BYTES]);
    /* Begins to meet the other ranks; `test` says when that is done. *out is to be ended, also after an error of test.
     */
    heddle_status (*begin)(void **out, const unsigned char id[HEDDLE_MESSAGES_ID_BYTES], int rank, int nranks,
                           int device);
    /* What a handle of the library's own (an ncclComm_t) is: its rank, number of ranks and device. */
    heddle_status (*look)(void *handle, int *rank, int *nranks, int *device);
    /* `begin` with such a handle, which stays the caller's: it is neither ended nor aborted. HEDDLE_ERR_MISMATCH: it
     * has other ranks, another rank or device; the sentence has both numbers. */
    heddle_status (*borrow)(void **out, void *handle, int rank, int nranks, int device);
    /* done 1: what was begun is done; of an exchange: it is enqueued. Otherwise ask again, before anything else is
     * called. An error may also be one of work that was enqueued before; the handle is of no more use then. */
    heddle_status (*test)(void *handle, int *done);
    /* Begins to enqueue all of it as one. */
    heddle_status (*exchange)(void *handle, const heddle_device_message *sends, int nsends,
                              const heddle_device_message *recvs, int nrecvs, heddle_stream stream);
    /* NULL is legal. gives_up 0: nothing is under way on any rank. 1: what is enqueued ends, whether the other ranks
     * come or not, and the memory is not touched any more; of a borrowed handle: nothing is ended. */
    void (*end)(void *handle, int gives_up);
} heddle_device_messages;

/* What is looked for in libheddle_NAME.so: the table, in static storage; as HEDDLE_DEVICE_LIBRARY. */
#define HEDDLE_DEVICE_MESSAGES_LIBRARY "heddle_device_messages_v1"
typedef heddle_status (*heddle_device_messages_fn)(const heddle_device_messages **out, heddle_device_fail_fn fail);

#ifdef __cplusplus
}
#endif

#endif
