/* What an executor holds. executor.c is the life cycle, pass.c runs it forward and back, on_device.c takes its switches
 * to a device. */
#ifndef HD_EXECUTOR_INTERNAL_H
#define HD_EXECUTOR_INTERNAL_H

#include "kernels/device_rows.h"

#include <heddle/session.h>
#include <heddle/train/executor.h>

enum { HD_EXECUTOR_PATH_BYTES = 24 };

typedef struct hd_executor_step {
    int64_t planned, sent, messages; /* bytes */
    int64_t switch_ns, block_ns;
    int64_t kept_bytes, copied_bytes;
    char path[HD_EXECUTOR_PATH_BYTES];
} hd_executor_step;

typedef struct hd_executor_device hd_executor_device;

struct heddle_executor {
    heddle_executor_options options;
    heddle_comm *comm;
    const heddle_schedule *schedule;
    heddle_schedule_info info;
    heddle_session *session;
    hd_executor_device *device;    /* where switches are; NULL: in host memory, where the blocks are */
    heddle_block **block;          /* [nstages] */
    char *is_shared;               /* [nstages] the block of an earlier repetition */
    char *joins;                   /* [nstages] it communicates: ranks without rows call it, too */
    heddle_tape **tape;            /* [nstages], NULL without the way back */
    hd_executor_step *step, *back; /* [nsteps] of the last pass */
    int entered;                   /* over all passes: the number of the next session record */
    int has_weights;               /* every block has its own, and they were made */
    int has_forward;
    int is_held;         /* options.before or options.weights is being called */
    hd_device_gate left; /* by the last stage to the switch that comes; y NULL: nothing */
    int64_t forward_ns, backward_ns;
};

/* Something failed on this rank alone: the others must not wait for it. */
heddle_status hd_executor_tell(const heddle_executor *e, heddle_status st);
/* The sentence says where it happened. */
heddle_status hd_executor_at(heddle_status st, const char *stage, int repetition);

/* Every step has a block of its own, whose weights are made once. */
int hd_executor_keeps_weights(const heddle_executor *e);

/* on_device.c */
/* The communicator has a device, and the session is on it. What was made of it is e->device, also after a failure. */
heddle_status hd_executor_device_make(heddle_executor *e);
void hd_executor_device_free(hd_executor_device *device); /* NULL is legal */
/* Timed blocks on a device have done what they were asked for, if it is asked for that. */
heddle_status hd_executor_settle(heddle_executor *e, heddle_stream stream);
/* The block of this step leaves its last kernel to the switch behind it, where that takes it. */
void hd_executor_leave(heddle_executor *e, int step, const heddle_tensor *x);
/* heddle_session_enter, or _backward, of x where the blocks work, wherever the session's is; *copied: bytes, to and
 * from a device. Told to the others where it failed. */
heddle_status hd_executor_switch(heddle_executor *e, const char *stage, heddle_tensor *x, int backward, int64_t *copied,
                                 heddle_stream stream);

#endif
