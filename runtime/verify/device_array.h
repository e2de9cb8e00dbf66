/* Arrays in the memory of a communicator's device, as judges need them: filled and read on the host. */
#ifndef HD_VERIFY_DEVICE_ARRAY_H
#define HD_VERIFY_DEVICE_ARRAY_H

#include "runtime/verify/judge_array.h"

#include <heddle/comm.h>

/* A stream of this rank's own: ranks that share a device would wait for one another on its default stream for ever.
 * HEDDLE_NO_STREAM where comm has no device, or one that knows of no streams. */
heddle_status judge_stream_create(heddle_stream *out, const heddle_comm *comm);
void judge_stream_destroy(const heddle_comm *comm, heddle_stream stream);
/* Between memory of the host and of comm's device, either way, or within the device. Done on return. */
heddle_status judge_device_copy(const heddle_comm *comm, void *dst, const void *src, size_t bytes,
                                heddle_stream stream);
/* Done is all that the stream was given so far. HEDDLE_ERR_TIMEOUT: not within a minute. */
heddle_status judge_device_settle(const heddle_comm *comm, heddle_stream stream);

/* Arrays of a judge whose memory, with what lies around their elements, is on comm's device as well. */
typedef struct judge_there {
    const heddle_comm *comm;
    heddle_stream stream; /* this rank's own */
    judge_array *array;   /* [n] */
    int n, is_used;
    void *memory[16]; /* NULL: it is the host's that is given */
} judge_there;
/* is_used 0: nothing is on a device, and all of the following does nothing. The arrays have been made. */
heddle_status judge_there_make(judge_there *out, heddle_comm *comm, judge_array *array, int n, int is_used);
void judge_there_free(judge_there *there, heddle_comm *comm);
/* What the library is given of an array. */
heddle_attention_array judge_there_array(const judge_there *there, int which);
/* All arrays to the device; or those from `first` on back, which settles the stream. */
heddle_status judge_there_bring(const judge_there *there);
heddle_status judge_there_fetch(const judge_there *there, int first);

#endif
