/* Reshard: move a tensor from one layout to another (DSP's dynamic switch, split, gather; paper arXiv 2403.10266,
 * section 3). Exact data movement for every dtype, extent, rank count and layout pair.
 *
 *   bf16[b=2 t=30 s=1590 c=1152] on [sp=4]: t@sp -> s@sp as b,s,t,c
 *
 * Who sends: where the source is replicated over an axis, a rank takes what it needs from the ranks that share its own
 * coordinate on that axis, itself included. Partial sums into a sharded layout: every rank of the group sends each peer
 * that peer's box, the receiver adds in rank order. Partial sums into a replicated layout: the same over balanced flat
 * blocks of the local array, then a gather of them. A layout with sum@axis on the *right* receives only from ranks with
 * its own coordinate on that axis and is zero elsewhere, so that the ranks' sum is the tensor (this is what the adjoint
 * of a split is). Bytes a rank sends to itself are never counted.
 */
#ifndef HEDDLE_RESHARD_H
#define HEDDLE_RESHARD_H

#include <heddle/comm.h>
#include <heddle/layout.h>
#include <heddle/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A whole reshard as one line of text. */
typedef struct heddle_reshard_line {
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout from, to;
    heddle_order from_order, to_order; /* ndim 0: the shape's */
} heddle_reshard_line;

/* The whole text must be a line; explicit block lengths and orders are kept only where they say something. Pure, any
 * thread. HEDDLE_ERR_PARSE, HEDDLE_ERR_LAYOUT: as heddle_layout_parse, with the column in the line. HEDDLE_ERR_ARG: a
 * pointer is NULL. */
HEDDLE_CHECKED heddle_status heddle_reshard_parse(heddle_reshard_line *out, const char *text);
/* The shortest text that reads back as an equal line, 0-terminated; HEDDLE_LINE_BYTES are always enough. Errors as for
 * heddle_layout_format. */
HEDDLE_CHECKED heddle_status heddle_reshard_format(char *out, size_t out_bytes, const heddle_reshard_line *line);

/* Bytes that one rank sends to one other rank. */
typedef struct heddle_peer_bytes {
    int peer;
    int64_t bytes;
    int64_t messages;
} heddle_peer_bytes;

/* What `rank` sends, ordered by peer, itself left out; without a communicator, in O(peers). *count gets the number of
 * peers; at most `capacity` entries are written (out may be NULL with capacity 0). Pure, any thread. HEDDLE_ERR_ARG: no
 * such rank, count or line NULL, capacity negative; HEDDLE_ERR_LAYOUT: the line made by hand is not valid;
 * HEDDLE_ERR_NOMEM. */
HEDDLE_CHECKED heddle_status heddle_reshard_sends(heddle_peer_bytes *out, int capacity, int *count,
                                                  const heddle_reshard_line *line, int rank);

typedef enum heddle_memory {
    HEDDLE_MEMORY_PEER = 0, /* src and dst come from heddle_buffer_alloc of this communicator (threads: any memory) */
    HEDDLE_MEMORY_ANY = 1   /* may be private memory of the process: staging is reserved, info says what it costs */
} heddle_memory;
#define HEDDLE_MEMORY_LIST(X) X(PEER, "peer") X(ANY, "any") /* name, text; in the order of the numbers */

/* RULES: kernel and direction from run length and cache sizes alone; nothing is timed. */
typedef enum heddle_tuning { HEDDLE_TUNING_TRIALS = 0, HEDDLE_TUNING_RULES = 1 } heddle_tuning;
#define HEDDLE_TUNING_LIST(X) X(TRIALS, "trials") X(RULES, "rules")

typedef struct heddle_reshard_options {
    size_t struct_bytes;
    heddle_order from_order, to_order; /* memory order of the local arrays */
    /* Per dim of the shape, in elements, of this rank's own array (ranks may differ); NULL: dense in from_order.
     * Copied. Not negative, and not beyond 2^62 bytes; those of dst must not let elements share memory
     * (heddle_box_reach). */
    const int64_t *src_stride_elems;
    const int64_t *dst_stride_elems; /* likewise, NULL: dense in to_order */
    heddle_memory memory;            /* of arrays in host memory; a device's: all the same */
    /* TRIALS: timed executions on creation choose kernel, rank that moves, how private memory is reached, whether
     * messages are packed and whether sums go past the caches. Each way runs alone, on data that is not zero, until
     * the caches are its own; another than the rule's is taken if it saves 5 % in three rounds of four, and must then
     * keep its time in a longer run, or all are compared once more. info.why has the times (medians) and what
     * decided, and says when they are not steady. That takes 0.06 to 0.9 s, touching memory for the first time
     * included (it grows with the tensor up to six shared caches); up to three times as much where times are not
     * steady; nothing below 16 KB. A question (who moves and with which kernel; how memory is reached ...) is given
     * 0.04 s, or 7 rounds if those take longer. While they run the plan holds two more buffers: src_bytes +
     * dst_bytes, at most 6/n of the shared cache for n ranks of a host, 4 MiB at least, 128 MiB at most (twice that
     * for extents that cannot be halved evenly). */
    heddle_tuning tuning;
    const char *kernel;  /* force a copy kernel by name (see heddle bench --list-kernels); NULL: choose */
    int64_t deadline_ms; /* 0: the communicator's */
    heddle_space space;  /* of the arrays; a device's: the one that is attached (heddle_comm_attach_device) */
    int device;          /* of that space, this rank's own (heddle_comm_device); 0 on the host */
    /* Wire peer: blocks of threads that a launch has at most, but for one of each piece; they stay on the device while
     * they wait for peers. Ranks may differ. 0: where peers have other devices as many as links between those are taken
     * to need, 32 and more for what stays here, else the share that this rank has of its device. */
    int device_blocks;
} heddle_reshard_options;

HEDDLE_API void heddle_reshard_options_init(heddle_reshard_options *options);

typedef struct heddle_reshard heddle_reshard;

/* Collective over all ranks of comm, which must be as many as the mesh has. The plan borrows comm; everything else is
 * copied. options may be NULL. A rank that fails by itself returns its own error, the others HEDDLE_ERR_PEER with its
 * sentence.
 *   HEDDLE_ERR_ARG          NULL; an option out of range; an unknown kernel (lists the known ones); strides that are
 *                           negative, reach beyond 2^62 bytes or, of dst, let elements share memory; options.device
 *                           is not the communicator's
 *   HEDDLE_ERR_LAYOUT       shape, mesh, layouts and communicator contradict one another
 *   HEDDLE_ERR_UNSUPPORTED  options.space is not host memory and no device is attached; wire "peer": ranks that share a
 *                           device are so many, or parts so long (beyond 2^31 times the 1 to 16 bytes that divide
 *                           their runs and strides), that their launches do not fit there together
 *   HEDDLE_ERR_MISMATCH     on every rank: they ask for different things (all but strides, deadline and device is
 *                           compared); names the first rank and field that differ, with both values
 *   HEDDLE_ERR_NOMEM        names the bytes
 * The communicator stays usable after these, and not after the other errors of waiting (heddle/comm.h). */
HEDDLE_CHECKED heddle_status heddle_reshard_create(heddle_reshard **out, heddle_comm *comm, const heddle_shape *shape,
                                                   const heddle_mesh *mesh, const heddle_layout *from,
                                                   const heddle_layout *to, const heddle_reshard_options *options);
/* The same from a line; its orders replace those of options. */
HEDDLE_CHECKED heddle_status heddle_reshard_create_line(heddle_reshard **out, heddle_comm *comm,
                                                        const heddle_reshard_line *line,
                                                        const heddle_reshard_options *options);
/* The exact transpose of the linear map of `reshard`: from and to swapped, replicated and partial swapped, the same
 * options. Collective; errors as for heddle_reshard_create. A plan of its own: either may be destroyed first. */
HEDDLE_CHECKED heddle_status heddle_reshard_create_adjoint(heddle_reshard **out, const heddle_reshard *reshard);
/* Not collective. NULL is legal. No execution may be in flight on any rank. */
HEDDLE_API void heddle_reshard_destroy(heddle_reshard *reshard);

typedef struct heddle_reshard_info {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    int nranks;
    const int64_t *bytes_to;          /* [nranks] this rank sends per execution; own entry 0. Owned by the plan */
    const int64_t *bytes_from;        /* [nranks] */
    int64_t bytes_sent;               /* sum of bytes_to */
    int64_t bytes_peer_path;          /* part of bytes_sent that goes by loads and stores */
    int64_t bytes_messages;           /* part of bytes_sent that travels as messages */
    int64_t messages;                 /* messages this rank sends */
    int64_t workspace_bytes;          /* memory the plan holds besides src and dst */
    size_t src_bytes, dst_bytes;      /* smallest buffers for this rank */
    int64_t executions;               /* finished so far; wire peer: replays included; wire nccl: enqueued so far */
    int64_t measured_bytes_sent;      /* counted while moving (wire nccl: enqueuing), all executions together */
    const int64_t *measured_bytes_to; /* [nranks] likewise, per peer */
    const char *path;   /* "local" "peer push" "peer pull" "staged" "process_vm_readv" "messages" "mixed" "device push"
                         "device messages" */
    const char *kernel; /* copy kernel of this rank's largest transfer */
    const char *why;    /* one sentence: why this path and kernel, with figures if timed */
    const char *line;   /* the reshard line */
    const char *wire;   /* between devices: "peer", "nccl", "host"; "" for arrays in host memory */
    int is_capturable;  /* 1: execute may be captured into a graph. The counters of a replayed graph: wire peer counts
                           every replay, wire nccl the capture once */
    int64_t device_ns;  /* wire peer: of the last finished execution, waiting for peers included */
    int is_captured;    /* 1: an execution has been captured into a graph, which the plan must outlive */
} heddle_reshard_info;

/* A snapshot; its pointers belong to the plan and live as long. Not collective. HEDDLE_ERR_ARG: a pointer is NULL;
 * struct_bytes (heddle/status.h). */
HEDDLE_CHECKED heddle_status heddle_reshard_get_info(heddle_reshard_info *out, const heddle_reshard *reshard);

/* Returns when dst is complete and src may be overwritten; on host memory the stream is ignored (heddle/space.h).
 * Collective over the ranks that exchange data. Never allocates; between ranks of one host nothing is held besides src,
 * dst and info.workspace_bytes.
 *
 * Arrays of a device (options.space): both lie in the memory of this rank's device, however they were allocated there.
 * What the stream has so far comes before src is read; dst is complete, and may be read, in stream order. On the wire
 * "peer" the call enqueues and returns at once; src is free in stream order, too. It may be captured into a graph,
 * where all ranks capture and replay theirs as often; executions before that must be complete, or lie in the same
 * stream. Every rank needs a stream of its own: two ranks in one stream wait for each other until the deadline.
 * Therefore, where ranks of one process share a device, the call on its default stream (HEDDLE_NO_STREAM) waits until
 * dst is complete. Executions of several plans on several streams may wait for each other likewise, where ranks come to
 * them in different orders (docs/gpu.md, room on a device): give those an order. A rank that does not come is noticed
 * by the device, at the deadline or at an abort; the next call that looks (heddle_comm_poll, test, wait, execute) says
 * so. An argument that is refused is HEDDLE_ERR_ARG on this rank, which gives up: the others get HEDDLE_ERR_PEER. On
 * the wire "host" the bytes pass through host memory, so the call *waits* until the stream has come so far and until
 * the other ranks have sent, and returns with the copy to dst enqueued; src is free then. It cannot be captured into a
 * graph. A stream that does not come so far before the deadline is HEDDLE_ERR_TIMEOUT.
 *
 * On the wire "nccl" the call only *enqueues*: it waits for no other rank but where NCCL itself does so to enqueue. src
 * is free and dst complete in stream order; wait, test and heddle_comm_poll say what went wrong meanwhile, and then,
 * or at the deadline, end what is enqueued on this rank (ncclCommAbort). It may be captured into a graph: counters then
 * count the capture once, and the caller orders replays and other executions of the plan, which share its workspace;
 * the graph is destroyed before the communicator. Replays have no deadline. The call makes a pair of events where more
 * executions of a communicator are under way than ever before, beyond eight.
 * Ranks that share a device need streams of their own: on the default stream they would wait for one another for ever.
 * A rank whose arguments are refused gives up.
 *
 * HEDDLE_ERR_ARG on every rank, before anything moves and without harm to the plan, when one rank's src and dst are not
 * in the plan's space, overlap, are NULL (unless empty), not aligned to the element, or not reachable
 * (HEDDLE_MEMORY_PEER); the sentence names the rank. Every rank: those connected by the exchange, over any number of
 * ranks. Where a transport carries part of the bytes as messages (callbacks, mpi) the rank gives up instead
 * (heddle_comm_abort): the others return HEDDLE_ERR_PEER. HEDDLE_ERR_ARG on this rank alone: reshard is NULL, or an
 * execution of it is in flight (heddle_reshard_start says until when).
 *
 * Errors of waiting (heddle/comm.h) name rank, peer and line; the plan and its communicator are then of no more use
 * until heddle_comm_reset,
 * but src and dst are the caller's again: no peer copies from or to them any more, and messages were withdrawn (which
 * may take up to two seconds). One exception: a rank was stopped in the middle of a message. Then the sentence says
 * "stopped half way", and src and dst must be left alone as long as that rank lives. Another on the wire "peer": where
 * the sentence says that the stream or the launches did not come to their end, the caller's own work before them has
 * not ended, or the device is very slow, and what is enqueued, here or by a peer, still writes dst when it comes to it;
 * device memory of the communicator is then left to the process and not freed. And a peer that replays a graph after
 * the failure may store to dst, and to memory of the plan, which stays as long as the communicator: no rank destroys
 * that before replays have ended, or all are launched by heddle_comm_replay (heddle/sys/device.h).
 * One thread at a time per communicator. */
HEDDLE_CHECKED heddle_status heddle_reshard_execute(heddle_reshard *reshard, const void *src, void *dst,
                                                    heddle_stream stream);

/* The same into a new array of a pool (heddle/pool.h), of this communicator or the one that it is an axis group of,
 * else it is staged: *out has the dims of dst in its memory order, dense, and is given back by its deleter. Errors as
 * for execute; besides, on this rank alone, those of heddle_pool_take, and
 *   HEDDLE_ERR_ARG          dst has strides (options.dst_stride_elems)
 *   HEDDLE_ERR_UNSUPPORTED  the plan is of a device's arrays
 * Where one rank gets these the others wait for it, until it gives up (heddle_comm_abort) or the deadline. */
HEDDLE_CHECKED heddle_status heddle_reshard_execute_pooled(heddle_dl_managed **out, heddle_reshard *reshard,
                                                           const void *src, heddle_pool *pool, heddle_stream stream);

/* Split-phase: start returns at once (private memory and packed messages are packed first; arrays of a device, wire
 * "host": src is copied to the host first, which waits for the stream, and dst is written in the order of the stream
 * that start was given; wire "peer": on a stream of the plan's own, behind what the stream has so far); test makes
 * progress, copies included, and says in *done whether it is (1: dst is complete); wait blocks. Between start and the
 * end src and dst belong to the plan. One execution in flight per plan, any number of plans; ranks may wait for them in
 * different orders. test and wait of a plan that nothing is in flight of are done. Errors as for execute; a refusal by
 * another rank is returned by test or wait.
 *
 * By every way and wire alike an execution is in flight, and another one of the plan HEDDLE_ERR_ARG, from start until
 * test has said that it is done, or wait or wait_on has returned; whether it has ended by then unheard of makes no
 * difference. After wait_on the next one may begin at once, and comes behind it.
 *
 * start is not captured into a graph: on wires "peer" and "nccl" a stream that is being captured is HEDDLE_ERR_ARG on
 * this rank, which gives up as for other arguments, and nothing is added to the capture. */
HEDDLE_CHECKED heddle_status heddle_reshard_start(heddle_reshard *reshard, const void *src, void *dst,
                                                  heddle_stream stream);
HEDDLE_CHECKED heddle_status heddle_reshard_test(heddle_reshard *reshard, int *done);
HEDDLE_CHECKED heddle_status heddle_reshard_wait(heddle_reshard *reshard);
/* What is put into `stream` from now on comes after the execution in flight. Host memory: `stream` is ignored, and the
 * call returns when dst is complete, as heddle_reshard_wait does. Arrays of a device, wire "host": returns when the
 * other ranks have sent; the stream waits for the copy to dst, the caller does not; wires "peer" and "nccl": returns at
 * once. wait and test say afterwards, as before, whether dst is complete. Errors as for wait; HEDDLE_ERR_ARG, which
 * changes nothing: a stream that is being captured. */
HEDDLE_CHECKED heddle_status heddle_reshard_wait_on(heddle_reshard *reshard, heddle_stream stream);

#ifdef __cplusplus
}
#endif

#endif
