/* Session: module-level switching inside somebody else's framework (Dynamic Sequence Parallelism, arXiv 2403.10266,
 * section 3: the switch of the activation between stages).
 *
 * RESULTS LIVE WHERE THE CALLER SAYS. A switch into a tensor of the caller's (`dst`) writes there, and it is the
 * caller's to keep: what a framework wants that saves activations for its backward (autograd, checkpoints). With dst
 * NULL the result lies in memory of the session, and the second next switch, forward or backward, writes over it: to be
 * worked on and passed on, not to be kept. Who keeps the pointer sees nothing fail and gets wrong gradients.
 *
 * The framework calls heddle_session_enter at the start of each module; the session brings the activation into the
 * layout that the schedule gives this module. Already there: nothing happens.
 *
 *     heddle_session_create(&session, comm, schedule, NULL);
 *     for each forward pass {
 *         heddle_session_rewind(session);
 *         heddle_session_enter(session, "s.attn", &x, NULL, HEDDLE_NO_STREAM);   x.data, x.stride_elems: new local part
 *         my_spatial_attention(x.data, ...);                               in place, or into memory of your own
 *         heddle_session_expect(&mine, NULL, session, "t.attn");           to be kept: layout, strides, bytes
 *         mine.data = malloc(mine.capacity_bytes);
 *         heddle_session_enter(session, "t.attn", &x, &mine, HEDDLE_NO_STREAM);
 *         ...
 *         heddle_session_enter(session, "end", &x, NULL, HEDDLE_NO_STREAM);
 *     }
 *     heddle_session_destroy(session);                                      before the communicator
 *
 * examples/02_modules.c is a whole program. Threads: a session may be used by one thread at a time, the one that uses
 * its communicator.
 */
#ifndef HEDDLE_SESSION_H
#define HEDDLE_SESSION_H

#include <heddle/comm.h>
#include <heddle/schedule.h>
#include <heddle/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_session heddle_session;

typedef struct heddle_session_options {
    size_t struct_bytes;
    int backward;       /* 1: heddle_session_backward will be called: its reshards are made on creation too */
    int dry_run;        /* 1: record what would be moved, touch no data (x->data may be NULL and is left alone) */
    heddle_space space; /* of its buffers and of all tensors; a device's: heddle_comm_attach_device */
    int device;         /* of that space, this rank's own (heddle_comm_device); 0 on the host */
} heddle_session_options;

HEDDLE_API void heddle_session_options_init(heddle_session_options *options);

/* Collective. Borrows comm and schedule until heddle_session_destroy. Makes a reshard for every distinct edge of the
 * schedule and two buffers of the size of this rank's largest local part, so that a pass that follows the schedule
 * neither allocates nor exchanges metadata; with options.backward also the transpose of every edge and the cut of a
 * gradient of the whole output, "*" or in the layout of the output. options may be NULL.
 *   HEDDLE_ERR_ARG          out, comm or schedule is NULL, struct_bytes of options (heddle/status.h); the other ranks
 *                           get HEDDLE_ERR_PEER with the sentence at once, unless it is comm that is NULL
 *   HEDDLE_ERR_LAYOUT       the schedule's mesh has another number of ranks than comm
 *   HEDDLE_ERR_MISMATCH     on every rank: the ranks' schedules or options differ; names the first rank and what
 *                           differs
 *   HEDDLE_ERR_NOMEM        names the bytes; the other ranks get HEDDLE_ERR_PEER
 *   HEDDLE_ERR_UNSUPPORTED  options.space is not host memory and no device is attached
 *   errors of waiting       heddle/comm.h */
HEDDLE_CHECKED heddle_status heddle_session_create(heddle_session **out, heddle_comm *comm,
                                                   const heddle_schedule *schedule,
                                                   const heddle_session_options *options);

/* Frees the session's buffers, and with them what the last switches returned. Not collective, but every rank must have
 * returned from its last enter. NULL is legal. */
HEDDLE_API void heddle_session_destroy(heddle_session *session);

/* Bring x into the layout of stage `stage` (the next repetition of that name in this pass; "end" is the epilogue, which
 * may be entered any number of times). Returns when x is complete; host memory ignores the stream (heddle/space.h). In
 * a device's memory x is complete in the order of the stream, and the call waits for it and for the other ranks as
 * heddle_reshard_execute does. Collective: all ranks enter the same stages in the same order with x in the same layout.
 *
 * x comes in with the schedule's shape, in any layout, in any memory of the process (of the session's device, where it
 * has one) and with any non-negative strides. Another order of strides on a device costs a call of it per row.
 * When x is in the stage's layout already it is left exactly as it is, strides included, and dst is not looked at.
 * Otherwise x describes the new local part on return. The caller's source may be reused as soon as enter returns.
 *
 *   dst NULL   the session's memory: dense in the shape's order, a valid address even where the part is empty; valid
 *              (and free to be written) until the second next switch of the same session or its destruction
 *   dst        a tensor of the caller's with the shape, in the stage's layout (heddle_session_expect fills one in): any
 *              memory of the process that does not overlap x's, any strides that let no elements share memory. x
 *              becomes *dst. Ranks may differ in what they pass. Dense memory that peers reach (heddle_buffer_alloc, or
 *              any where ranks are threads) is written directly; else the result lands in a buffer of the session
 *              (allocated once) and is copied, one read and one write more
 *
 * Fast: x->data is what the previous switch returned (changed in place), or memory of heddle_buffer_alloc, or any
 * memory when ranks are threads. Otherwise, and where x is not dense, this rank first copies its part into a buffer of
 * the session (allocated once) that peers can read. A layout that the schedule does not lead to the stage from works
 * too: its reshard is made then, collectively, and kept.
 *
 *   HEDDLE_ERR_ARG          no such stage (the sentence offers the nearest name), entered more often than the schedule
 *                           repeats it, x->data NULL or too small for x's part, a negative stride or strides that
 *                           reach beyond 2^62 bytes, the same of dst, strides of dst that let elements share memory
 *                           (heddle_box_reach), or the one of them on a device and the session's buffers not. Nothing
 *                           has moved on this rank; if the others did not make the same mistake they wait until their
 *                           deadline, so tell them with heddle_comm_abort
 *   HEDDLE_ERR_LAYOUT       x's shape is not the schedule's, or its layout does not fit shape and mesh; dst is not of
 *                           that shape or in the stage's layout. As with HEDDLE_ERR_ARG nothing has moved
 *   HEDDLE_ERR_UNSUPPORTED  x or dst is not host memory and no device is attached. Nothing has moved
 *   HEDDLE_ERR_NOMEM        a buffer could not be had; the other ranks get HEDDLE_ERR_PEER
 *   HEDDLE_ERR_MISMATCH     on every rank, where a reshard is made: the ranks come with other layouts
 *   errors of waiting       as heddle_reshard_execute; name the stage
 *
 * On failure x is unchanged. */
HEDDLE_CHECKED heddle_status heddle_session_enter(heddle_session *session, const char *stage, heddle_tensor *x,
                                                  const heddle_tensor *dst, heddle_stream stream);

/* What heddle_session_enter would return for the next repetition of `stage`: *like gets shape, layout, space, dense
 * strides and, as capacity_bytes, the bytes of this rank's part; data is NULL and the caller's to fill in. box (may be
 * NULL) gets the part. Changes nothing; not collective. HEDDLE_ERR_ARG: NULL, no such stage, or entered more often than
 * the schedule repeats it. */
HEDDLE_CHECKED heddle_status heddle_session_expect(heddle_tensor *like, heddle_box *box, heddle_session *session,
                                                   const char *stage);

/* The backward of heddle_session_enter for stage `stage`: dx comes in as the gradient of what enter returned and leaves
 * as the gradient of what the schedule's edge into this stage took; the adjoint reshard in between. Call it for the
 * stages in reverse order, beginning with "end"; repetitions count down from the schedule's last.
 *
 * The gradient of a replicated activation is a sum: each rank's gradient is its own contribution. So where a stage's
 * layout is t@sp the gradient's is t@sp, and where it is replicated over an axis the gradient's layout is sum over it
 * (heddle_layout_dual). A dx that comes in replicated ("*": every rank has the same whole gradient of one common loss)
 * is taken as that and cut to what the stage wants, which is how backward of the epilogue's gather usually begins.
 *
 * The reshard is the exact transpose of the edge's (docs/architecture.md), so <dy, F x> = <dx, x> over whole passes:
 * where enter split a replicated activation, backward leaves every rank its own rows and zeros elsewhere, and where it
 * gathered, backward adds the ranks' contributions in rank order. dx may come in any layout, usually the dual of the
 * stage's or "*"; already there, it is left exactly as it is. Stages that were not entered may be left out. Repetitions
 * are counted apart from those of enter; heddle_session_rewind resets both.
 *
 * Memory, strides, dst and collectivity as for heddle_session_enter; a switch of either direction counts as one of the
 * two until which a result stays valid. Without options.backward the reshard is made on first use, collectively.
 *
 * Errors as for heddle_session_enter; their sentences begin with "leaving backward from 'STAGE'". Besides:
 *   HEDDLE_ERR_ARG          left backward more often than the schedule repeats the stage, or after a stage that comes
 *                           before it in the schedule ("end" is first, and may be repeated while no other stage was
 *                           left). As there: nothing has moved on this rank, and others that made no mistake wait */
HEDDLE_CHECKED heddle_status heddle_session_backward(heddle_session *session, const char *stage, heddle_tensor *dx,
                                                     const heddle_tensor *dst, heddle_stream stream);
/* As heddle_session_expect, for heddle_session_backward. */
HEDDLE_CHECKED heddle_status heddle_session_expect_backward(heddle_tensor *like, heddle_box *box,
                                                            heddle_session *session, const char *stage);

/* Over the session's life. */
typedef struct heddle_session_counters {
    size_t struct_bytes;     /* HEDDLE_EMPTY sets it */
    int64_t enters;          /* calls of heddle_session_enter that succeeded */
    int64_t switches;        /* calls that changed the layout, backward included, like all numbers below */
    int64_t bytes_sent;      /* by this rank to others: counted while moving (dry run: planned); on a device by the
                              * wire peer what it has got to, which is all when the stream has */
    int64_t bytes_planned;   /* the same, from the layouts alone, before anything ran */
    int64_t backward_enters; /* calls of heddle_session_backward that succeeded */
    int64_t switch_ns;       /* time inside switches, waiting for peers included */
    int64_t workspace_bytes; /* memory the session and its plans hold on this rank, outgrown buffers of a device too */
    int64_t buffer_bytes;    /* of them its buffers: as many as were wanted at once, each of the largest part that this
                                rank has in any layout of the schedule, at least 4096 */
} heddle_session_counters;

/* Not collective. HEDDLE_ERR_ARG: NULL, struct_bytes (heddle/status.h). */
HEDDLE_CHECKED heddle_status heddle_session_get_counters(heddle_session_counters *out, const heddle_session *session);

/* Start the next pass: repetitions count from 0 again, backward from the last. Records and counters go on. Not
 * collective. */
HEDDLE_CHECKED heddle_status heddle_session_rewind(heddle_session *session);

/* What one enter or backward did. */
typedef struct heddle_session_record {
    size_t struct_bytes;    /* HEDDLE_EMPTY sets it */
    int backward;           /* 1: heddle_session_backward */
    const char *stage;      /* owned by the schedule; "end" for the epilogue */
    int repetition;         /* 0.. */
    const char *line;       /* reshard line, owned by the session; "" if nothing moved */
    const char *path;       /* of this rank, as in heddle_reshard_info; "" if nothing moved, "dry run" in one */
    int64_t bytes_planned;  /* this rank sends */
    int64_t bytes_sent;     /* wire peer: planned, because the device moves them later */
    int64_t bytes_messages; /* part of bytes_planned that travels as messages; 0 in a dry run */
    int64_t ns;
} heddle_session_record;

/* Record of the call number `index`, enters and backwards counted together from 0 over the session's life. The last
 * 4096 are kept. Not collective. HEDDLE_ERR_ARG: NULL, struct_bytes; not made yet or forgotten: the sentence gives the
 * range. */
HEDDLE_CHECKED heddle_status heddle_session_record_at(heddle_session_record *out, const heddle_session *session,
                                                      int index);

#ifdef __cplusplus
}
#endif

#endif
