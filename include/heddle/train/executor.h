/* Executor: the stages of a schedule as blocks, run one after the other, forward and back. What `heddle run` runs.
 *
 *     heddle_executor_create(&executor, comm, schedule, stages, NULL);
 *     heddle_executor_forward(executor, &x, &conditioning, HEDDLE_NO_STREAM);
 *     heddle_executor_backward(executor, &dx, &conditioning, NULL, HEDDLE_NO_STREAM);   with options.backward
 *     heddle_executor_destroy(executor);                                                before schedule and comm
 *
 * It is a session (heddle/session.h) and blocks (heddle/block.h), tapes with them: for every stage the activation is
 * switched into the schedule's layout, then the stage's block works on the local part, by the schedule's method. Sums
 * of gradients over ranks are the caller's: heddle/train/bucket.h. Threads: one at a time, the one that uses the
 * communicator.
 */
#ifndef HEDDLE_EXECUTOR_H
#define HEDDLE_EXECUTOR_H

#include <heddle/block.h>
#include <heddle/comm.h>
#include <heddle/schedule.h>
#include <heddle/tensor.h>
#include <heddle/train/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_executor heddle_executor;

typedef struct heddle_executor_options {
    size_t struct_bytes;
    int backward;  /* 1: every repetition of a stage has a block and a tape of its own. 0: one block serves all
                      repetitions of a stage that run alike, and gets their weights one after the other */
    int recompute; /* of the tapes */
    int timed;     /* 1: barriers around every repetition, so that times are not those of waiting for another rank's
                      weights, and the host waits for a device behind every step (heddle_executor_set_timed) */
    uint64_t seed; /* of the weights, where `weights` is NULL */
    /* Writes the parameters of stage 0 .. period-1 in repetition 0 .. repeat-1 and commits the block. Called before the
     * repetition runs, in every forward; with `backward` or `keeps_weights` in the first one only. The status is passed
     * on. */
    heddle_status (*weights)(void *ctx, heddle_block *block, int stage, int repetition);
    /* NULL, or told of every step before it is begun: 0 .. nstages, the last is the way to the end. As `weights`, it
     * may not begin a pass of this executor, nor, on a device, run or reserve blocks, or give them another workspace:
     * there lies what the stage before leaves to the switch. Such a call is HEDDLE_ERR_ARG on every rank, whatever this
     * one's stage has left, and the pass goes on. On a device it may refresh blocks (heddle_block_refresh), in any
     * stream; where the pass is captured, in one that is captured, too, in the order that the caller gives them. */
    void (*before)(void *ctx, int step, int backward);
    void *ctx;
    /* Where switches are done. With the space of a device (heddle_comm_attach_device) and blocks in host memory what a
     * stage has made is copied to it, switched there and copied back, for every switch. */
    heddle_space space;
    int device; /* of that space, this rank's own (heddle_comm_device); 0 on the host */
    /* Where blocks compute. DEVICE, with that space only: on that device, and nothing is copied. Conditioning, its
     * gradients and those of parameters are on it, too; stages, and what they may not be: docs/gpu.md. */
    heddle_space blocks;
    /* 1: without `backward`, too, every repetition has blocks of its own, and their weights are made in the first pass
     * alone. Where blocks are on the device, and `timed` is 0, a pass behind the first one may be captured into a graph
     * then, its switches with it. */
    int keeps_weights;
    /* 1: a stage on a device stores its result, and the switch behind it reads that. 0: where devices store to one
     * another's memory (the wire peer) and the switch moves all of it once, the stage's last kernel, gate and residual,
     * stores it where the switch would (heddle_executor_step.path: "fused push"). Bits and bytes are the same. */
    int unfused;
} heddle_executor_options;

HEDDLE_API void heddle_executor_options_init(heddle_executor_options *options);

/* Collective. stages: one for every stage of a repetition of the schedule, copied; kind, shape and mixed_dim must be
 * the schedule's. comm and schedule are borrowed. options may be NULL.
 *   HEDDLE_ERR_ARG       NULL; an option out of its range; the other ranks get HEDDLE_ERR_PEER
 *   HEDDLE_ERR_MISMATCH  a stage's kind, shape or dim is not the schedule's; or as heddle_session_create
 *   HEDDLE_ERR_UNSUPPORTED a stage is planned alone (refusal in heddle_schedule_stage)
 *   others               those of heddle_block_create, heddle_block_shard_attention, heddle_tape_create and
 *                        heddle_session_create
 * A rank that fails here or in a pass for a reason of its own aborts the communicator, because only that ends what the
 * others wait in, kernels on a device among it. They all go on by heddle_comm_reset, with the same executor where it
 * was the pass; where that is HEDDLE_ERR_UNSUPPORTED, as with a device by the wire peer or nccl, by destroying executor
 * and communicator and opening others. */
HEDDLE_CHECKED heddle_status heddle_executor_create(heddle_executor **out, heddle_comm *comm,
                                                    const heddle_schedule *schedule, const heddle_block_options *stages,
                                                    const heddle_executor_options *options);
HEDDLE_API void heddle_executor_destroy(heddle_executor *executor); /* NULL is legal; not collective */

/* Through all stages to the schedule's end. x comes in any layout and memory, as in heddle_session_enter, and leaves in
 * the epilogue's layout in memory of the executor, which the next pass writes over. Where switches are done on a device
 * and blocks are not, x comes in dense memory of the host, where it leaves too, `stream` is theirs (one that the ranks
 * of a device do not share), and the call returns when all is done. With blocks on the device x is there, and the call
 * enqueues; but with options.timed it waits for every step. Collective. Sentences name stage and
 * repetition. HEDDLE_ERR_ARG: NULL,
 * conditioning that a stage wants is missing. Else errors of heddle_session_enter, heddle_block_forward and of
 * options.weights, and on a device those of heddle_comm_poll. */
HEDDLE_CHECKED heddle_status heddle_executor_forward(heddle_executor *executor, heddle_tensor *x,
                                                     const heddle_conditioning *conditioning, heddle_stream stream);

/* The way back of the last forward: dx comes as the gradient of its result, whole ("*") or in its layout, and leaves as
 * that of the input in the layout it had. Gradients of parameters are added to those of the blocks, those of the
 * conditioning to dconditioning (NULL: not wanted). Collective. HEDDLE_ERR_ARG: NULL, options.backward was 0, there was
 * no forward. Else errors of heddle_session_backward and heddle_block_backward. */
HEDDLE_CHECKED heddle_status heddle_executor_backward(heddle_executor *executor, heddle_tensor *dx,
                                                      const heddle_conditioning *conditioning,
                                                      const heddle_conditioning_gradient *dconditioning,
                                                      heddle_stream stream);

/* options.timed of the passes from now on: 0, and nobody waits between their steps. The same on all ranks. What a step
 * told of waiting, its times and on a device its bytes, is then of no use. HEDDLE_ERR_ARG: NULL, called from
 * options.before or options.weights. */
HEDDLE_CHECKED heddle_status heddle_executor_set_timed(heddle_executor *executor, int timed);

/* The block of step 0 .. nstages-1, for its parameters and gradients; borrowed. NULL: there is none. */
HEDDLE_API heddle_block *heddle_executor_block(const heddle_executor *executor, int step);

typedef struct heddle_executor_info {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    int nsteps;          /* stages of all repetitions, and the end */
    int64_t forward_ns;  /* of the last forward, without making weights */
    int64_t backward_ns; /* of the last backward */
    const char *wire;    /* of the switches, as in heddle_reshard_info; "" for those in host memory */
} heddle_executor_info;

/* HEDDLE_ERR_ARG: NULL, struct_bytes (heddle/status.h). */
HEDDLE_CHECKED heddle_status heddle_executor_get_info(heddle_executor_info *out, const heddle_executor *executor);

/* Host memory that this rank holds now, by what it is for, in bytes that were asked for: no rounding to pages, no
 * tables and no names. What blocks have on a device is not among it. */
typedef struct heddle_executor_memory {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    int64_t parameters;  /* f32; of all repetitions with `backward` or `keeps_weights`, else of one */
    int64_t gradients;   /* of the parameters, f32 */
    int64_t products;    /* weights as products want them, on the way back transposed, too, and scratch of products */
    int64_t kept;     /* by tapes and methods for the way back of the last forward: heddle_executor_step.kept_bytes */
    int64_t methods;  /* in which attention over sharded dims works; without a way back, or with `recompute`, what it
                            saves, too. All blocks have one such memory, as large as the one that wants most needs it */
    int64_t lent;     /* more would be in `methods` if ranks did not read one another's blocks where they lie */
    int64_t blocks;   /* in which blocks work, of a box's rows; likewise one for all */
    int64_t threads;  /* in which threads work, whatever the box: rows that go through a stage together */
    int64_t switches; /* buffers of the session (heddle_session_counters.buffer_bytes) */
    int64_t messages; /* what its plans hold to pack and to stage in */
} heddle_executor_memory;

/* HEDDLE_ERR_ARG: NULL, struct_bytes (heddle/status.h). */
HEDDLE_CHECKED heddle_status heddle_executor_get_memory(heddle_executor_memory *out, const heddle_executor *executor);

/* What the last pass did in a step on this rank: the switch into the stage (or back out of it) and its block. */
typedef struct heddle_executor_step {
    size_t struct_bytes;         /* HEDDLE_EMPTY sets it */
    const char *path;            /* of the switch, as in heddle_session_record */
    int64_t planned, sent;       /* bytes, of switch and method, also those that a device has counted (with blocks on
                                    the device: where the pass was timed) */
    int64_t messages;            /* bytes of the switch that went as messages */
    int64_t switch_ns, block_ns; /* time; of a switch on a device with the copies */
    int64_t kept_bytes;          /* for the way back, by the tape of the step (heddle_tape_bytes) */
    int64_t copied_bytes;        /* to and from the device that the switch was done on; 0 in host memory, and where
                                    blocks are on the device, too */
} heddle_executor_step;

/* HEDDLE_ERR_ARG: NULL, no such step, backward 1 without options.backward, struct_bytes. */
HEDDLE_CHECKED heddle_status heddle_executor_step_at(heddle_executor_step *out, const heddle_executor *executor,
                                                     int step, int backward);

#ifdef __cplusplus
}
#endif

#endif
