/* Who the ranks are, memory that peers can reach, and the group operations that the rest of heddle needs.
 *
 * Ranks are threads of one process ("threads"), processes of one host ("shm") or of several ("tcp", "mpi"), or whatever
 * a host application brings (heddle_comm_from_callbacks).
 *
 * Every wait for other ranks has a deadline. Whatever waits for them, here and in all headers, may return one of the
 * *errors of waiting*:
 *   HEDDLE_ERR_PEER         a rank gave up (heddle_comm_abort), died, or closed its communicator; names it and why
 *   HEDDLE_ERR_TIMEOUT      a rank did not come before the deadline; names who waited for whom, and with what
 *   HEDDLE_ERR_TRANSPORT    the transport failed, in its words
 *   HEDDLE_ERR_INTERRUPTED  options.interrupt of this rank asked for the end; the others get HEDDLE_ERR_PEER
 *   HEDDLE_ERR_MISMATCH     ranks are in different calls and wait for one another; names two, and both calls with their
 *                           lines. All ranks of the host are told at once, and the first time that they begin anything
 * Afterwards the communicator can only be reset or destroyed, unless the call says otherwise (creations do of
 * HEDDLE_ERR_PEER and HEDDLE_ERR_MISMATCH).
 *
 * Ranks of one host find out that they wait for one another, within a tenth of a second or so, two where messages go by
 * a transport. Who asks by heddle_reshard_test, or waits for kernels of a device or for ranks of other hosts, is not
 * taken for one that waits: then it is HEDDLE_ERR_TIMEOUT, which says in what the late rank was, as far as that is
 * known.
 *
 * Threads: a communicator, with the plans and sessions made with it, may be used by one thread at a time, except
 * heddle_comm_abort, which any thread may call. 64 KiB of stack are enough to open one and to make and execute
 * reshards; callbacks of the program come on top.
 *
 * Memory of HEDDLE_ERR_NOMEM is also what the machine or a control group of this process (a container, a batch job) has
 * not left: the kernel would promise it, and end somebody when it is used.
 */
#ifndef HEDDLE_COMM_H
#define HEDDLE_COMM_H

#include <heddle/layout.h>
#include <heddle/space.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_comm heddle_comm;

typedef enum heddle_bind { HEDDLE_BIND_AUTO = 0, HEDDLE_BIND_NONE = 1, HEDDLE_BIND_CORE = 2 } heddle_bind;

/* How bytes travel between the memories of the ranks' devices. */
typedef enum heddle_wire {
    HEDDLE_WIRE_AUTO = 0, /* the fastest that is there; heddle_comm_describe says which and why */
    HEDDLE_WIRE_PEER = 1, /* kernels store to the peers' device memory: ranks of one host */
    HEDDLE_WIRE_NCCL = 2, /* messages from device to device by NCCL (libheddle_nccl); calls only enqueue */
    HEDDLE_WIRE_HOST = 3  /* through host memory, with what the communicator has; calls wait for their bytes */
} heddle_wire;

/* name, text in sentences and on the command line; in the order of the numbers */
#define HEDDLE_WIRE_LIST(X) X(AUTO, "auto") X(PEER, "peer") X(NCCL, "nccl") X(HOST, "host")

typedef struct heddle_comm_options {
    size_t struct_bytes;
    /* Every blocking wait; 0, the default: 60000, and 600000 once a device is attached, where the others' kernels wait
     * for a rank that is only slow, too. Here and in all options 146 years at most. A rank that gives up returns later
     * than that while a peer is in the middle of a copy to or from its memory, which may not be freed yet: 60 s later
     * between threads, 2 s between processes of one host, at most. */
    int64_t deadline_ms;
    heddle_bind bind;   /* AUTO: an equal share of the cores per rank when they are enough for one each; CORE: one */
    int force_messages; /* 1: boxes travel as messages even between ranks of one host (tcp, mpi, callbacks) */
    int pretend_hosts;  /* k > 0: treat the ranks as sitting on k hosts (blocks of ranks), for tests */
    /* Address space that each rank reserves for memory its peers reach (processes; every rank maps all ranks').
     * Default: the machine's memory, but no more than RLIMIT_FSIZE and, for all ranks together, half of what RLIMIT_AS
     * leaves. More than these limits allow is HEDDLE_ERR_NOMEM, which names them. Pages are taken when a buffer is. */
    int64_t arena_bytes;
    /* heddle_comm_open of a plug-in: the folder of libheddle_NAME.so, an absolute path; asked before libheddle's own
     * folder. NULL: what HEDDLE_MODULE_PATH says. Only read while opening. */
    const char *module_folder;
    /* Asked in every wait for other ranks, by the thread that waits, at most every 10 ms or so; so that Ctrl-C works in
     * a host language. Not 0: the wait returns HEDDLE_ERR_INTERRUPTED and this rank gives up as by heddle_comm_abort,
     * so that the others return HEDDLE_ERR_PEER; while a communicator is opened those that this one has met by then,
     * the others wait for it until their deadline. It must not call heddle. NULL: waits end by themselves. MPI's own
     * start does not ask; a plug-in asks as its author says. */
    int (*interrupt)(void *interrupt_arg);
    void *interrupt_arg;
    /* Not NULL: the communicator opens with this device attached, as by heddle_comm_attach_device, whose errors opening
     * it then returns; equal on all ranks. Looked for in module_folder first. Only read while opening. */
    const char *device;
    heddle_wire wire;
} heddle_comm_options;

HEDDLE_API void heddle_comm_options_init(heddle_comm_options *options);

/* What the environment of this process says about the job that it is part of: the launcher that started it, its rank,
 * the number of ranks. Opens nothing; "auto" goes by it. *launcher: "heddle" (HEDDLE_RANK, HEDDLE_SIZE, HEDDLE_KEY),
 * "torchrun" (RANK, WORLD_SIZE), "srun" (SLURM_PROCID, SLURM_STEP_NUM_TASKS, within a step), "mpirun"
 * (OMPI_COMM_WORLD_RANK and _SIZE, PMI_RANK and PMI_SIZE, or PMIX_RANK), or NULL: none, rank 0 of 1. They count in this
 * order, because each may have started the one before it; but a process of mpirun is not a rank of the srun that
 * mpirun's daemons came by. RANK and WORLD_SIZE without TORCHELASTIC_RUN_ID and LOCAL_WORLD_SIZE were set by hand: they
 * must agree with srun or mpirun, which then count. *size 0: only MPI knows. Any pointer may be NULL.
 * HEDDLE_ERR_ARG, with the variables and their values: two launchers contradict one another, a rank is not below its
 * size, one of a pair is missing, or a value is no number. */
HEDDLE_CHECKED heddle_status heddle_comm_launcher(const char **launcher, int *rank, int *size);

/* Open the communicator this process belongs to. `where`:
 *   "shm"     processes of one host and one user, from the environment: HEDDLE_RANK, HEDDLE_SIZE and HEDDLE_KEY (a
 *             word that only these ranks share), or what torchrun-like launchers set (RANK, WORLD_SIZE,
 *             LOCAL_WORLD_SIZE, MASTER_PORT). Nobody else is let in: processes of another user by what the kernel says
 *             of them, those of this user unless they show that they know the key. It is told to nobody; but the name
 *             of the socket where ranks meet, which all users can read (/proc/net/unix), is a hash of it, so a key that
 *             is easy to guess can be guessed
 *   "tcp"     processes of any hosts, each two of which have one connection; those of one host share memory. Who they
 *             are as with "shm"; MASTER_ADDR (a name, or an address of either version) is where rank 0 is, HEDDLE_PORT,
 *             else MASTER_PORT + 1, the port that it listens at while ranks meet; the other ports are the kernel's
 *             choice, so every port must be open between the hosts, and addresses not translated on the way. HEDDLE_KEY
 *             is needed with torchrun's variables, too: at least 16 characters, the same on all ranks; nobody is let in
 *             who does not show that he knows it, and it is told to nobody. Bytes behind that are neither signed nor
 *             encrypted
 *   "mpi"     MPI_COMM_WORLD; initialises MPI if nobody has (loads the adapter library libheddle_mpi)
 *   "auto"    what heddle_comm_launcher finds: mpi for ranks of srun and mpirun, else shm where all ranks are on this
 *             host, else (LOCAL_WORLD_SIZE is below WORLD_SIZE) tcp; without a launcher a single rank;
 *             heddle_comm_describe says which and why
 *   "self"    one rank
 *   "NAME"    any other word: a plug-in, libheddle_NAME.so from options->module_folder or from libheddle's own folder
 *             (the program's, which a static libheddle is part of), never from the current folder or the loader's
 *             search path; docs/extending.md writes one
 *   "fault(SPEC):WHERE"  wraps another one for tests; docs/testing.md has the SPEC
 * Collective. options may be NULL. May bind the calling thread to cores (options->bind); heddle_comm_destroy undoes it.
 *   HEDDLE_ERR_ARG, _PARSE  where, options or the environment are not understood
 *   HEDDLE_ERR_UNSUPPORTED  transport not available (the sentence says why and what to install), or MPI found another
 *                           number of ranks than the environment says
 *   HEDDLE_ERR_MISMATCH     a process came that says another number of ranks, or two say the same rank (all who came
 *                           are told which)
 *   HEDDLE_ERR_NOMEM        names the bytes
 *   HEDDLE_ERR_TIMEOUT      not all ranks came (the sentence names a process that came and did not say who it is), or
 *                           another process holds the name they meet under (the sentence says which; where it lets
 *                           nobody in, of which user)
 *   HEDDLE_ERR_PEER         a rank ended or was interrupted meanwhile
 *   HEDDLE_ERR_TRANSPORT    no sockets, too few file descriptors (three per rank of the host while opening, with tcp
 *                           one more per rank), another program has the port, MPI failed
 *   HEDDLE_ERR_INTERRUPTED  options->interrupt of this rank asked for the end */
HEDDLE_CHECKED heddle_status heddle_comm_open(heddle_comm **out, const char *where, const heddle_comm_options *options);

/* The processes of one host that name the same key are the ranks 0..size-1 of a communicator ("shm"): for a program
 * that knows its ranks otherwise, by a process group of its own say, and has told them a word that nobody else has. The
 * environment is not asked. Collective; options may be NULL. HEDDLE_ERR_ARG: out or key is NULL, key is empty, size
 * below 1 or above HEDDLE_COMM_MAX_RANKS, or rank not in 0..size-1. Else as heddle_comm_open("shm"). */
HEDDLE_CHECKED heddle_status heddle_comm_join(heddle_comm **out, const char *key, int rank, int size,
                                              const heddle_comm_options *options);

/* Leaves, and frees the communicator. Not collective, but where processes have mapped one another's device memory it
 * waits up to a second until they let go of this rank's; NULL is legal. Plans and sessions made with it must be
 * destroyed before. Buffers that are still out stay as they are: then `comm` stays a name for heddle_buffer_free and
 * nothing else (HEDDLE_ERR_ARG), until the last of them is freed. So a tensor that lives in one may outlive its
 * communicator.
 *
 * Wire "nccl": graphs that executions were captured into must be destroyed before. NCCL ends only when they are gone,
 * and perhaps with other ranks of the host: the call waits for that until the deadline, and a thread goes on waiting.
 *
 * A fork of a process that has a communicator cannot use it: calls fail with HEDDLE_ERR_ARG and name both processes
 * (those on links, plans and sessions do not look: leave them alone). Destroying it there frees that process's handle;
 * neither the parent nor its peers notice. */
HEDDLE_API void heddle_comm_destroy(heddle_comm *comm);

typedef heddle_status (*heddle_rank_main)(heddle_comm *comm, void *arg);

/* Start nranks ranks (1 to 1024), run fn on each, wait for all. transport: "threads", "shm", "tcp" (of this host
 * alone) or "fault(SPEC):threads|shm|tcp". Returns HEDDLE_OK when every rank returned it; otherwise the status of the
 * rank that failed first, and heddle_last_error() names it ("rank 2: its sentence"; HEDDLE_ERR_PEER "rank 2 was killed
 * by signal 9"). The others are told: their waits return HEDDLE_ERR_PEER. The communicator is destroyed when fn
 * returns, with buffers that are still out. With "shm" and "tcp" each rank is a forked process: arg is its own copy,
 * and memory written by ranks is not seen by the caller. A rank that goes on for two seconds after another has failed
 * is killed; all ranks end with the calling process. Do not fork from a process whose libraries already run threads of
 * their own (OpenMP). How a rank ended is not known where the program waits for all its children itself, or ignores
 * SIGCHLD. Nothing is left behind on return. Of the call itself: HEDDLE_ERR_ARG (NULL, number of ranks, no transport
 * that ranks are started on), HEDDLE_ERR_PARSE (the SPEC), HEDDLE_ERR_NOMEM (memory, or a process or thread cannot be
 * started), HEDDLE_ERR_TRANSPORT (no socket). */
HEDDLE_CHECKED heddle_status heddle_run_ranks(int nranks, const char *transport, heddle_rank_main fn, void *arg);
/* The same with options for every rank's communicator; NULL: the defaults. Every rank asks options->interrupt. */
HEDDLE_CHECKED heddle_status heddle_run_ranks_with(int nranks, const char *transport,
                                                   const heddle_comm_options *options, heddle_rank_main fn, void *arg);

HEDDLE_API int heddle_comm_rank(const heddle_comm *comm); /* NULL: -1 */
HEDDLE_API int heddle_comm_size(const heddle_comm *comm); /* NULL: 0 */
/* One line: transport, ranks, hosts, binding, why. Valid as long as the communicator. NULL: "". */
HEDDLE_API const char *heddle_comm_describe(const heddle_comm *comm);
/* 1 if `rank` can be reached by loads and stores (peer path), 0 if only by messages, for no such rank and for NULL.
 * heddle_comm_get_peer says why. */
HEDDLE_API int heddle_comm_reaches(const heddle_comm *comm, int rank);

/* The way between this rank and another, as its transport describes it. */
typedef enum heddle_link_class {
    HEDDLE_LINK_UNKNOWN = 0, /* the transport does not say */
    HEDDLE_LINK_SELF = 1,    /* it is this rank */
    HEDDLE_LINK_MEMORY = 2,  /* the memory of one host */
    HEDDLE_LINK_NETWORK = 3  /* cables */
} heddle_link_class;

typedef struct heddle_peer {
    size_t struct_bytes;
    int reaches; /* heddle_comm_reaches */
    heddle_link_class link;
    unsigned spaces;     /* bit 1 << heddle_space: where what moves may lie */
    int stream_ordered;  /* 1: moves in the order of a device's stream, 0: when the host gets to it */
    int64_t latency_ns;  /* 0: not known; heddle measures neither, a transport may say them (heddle/sys/transport.h) */
    int64_t bytes_per_s; /* likewise; `heddle bench` times whole reshards */
    char why[160];       /* why it is reached, or why only by messages */
} heddle_peer;

/* Not collective. HEDDLE_ERR_ARG: a pointer is NULL, no such rank, or struct_bytes is wrong (heddle/status.h). */
HEDDLE_CHECKED heddle_status heddle_comm_get_peer(heddle_peer *out, const heddle_comm *comm, int rank);

/* Bytes of the largest cache that the ranks of this host share (hwloc). NULL is legal: the machine is the same. */
HEDDLE_API size_t heddle_comm_shared_cache_bytes(const heddle_comm *comm);

/* HEDDLE_SPACE_HOST: memory that peers of this host can reach, 4096-byte aligned, touched before it is returned. With
 * "threads" any memory is reachable and this is plain aligned memory. HEDDLE_SPACE_DEVICE: memory of this rank's
 * device, 256-byte aligned; plans take any other memory of that device, too, but between processes (HEDDLE_WIRE_PEER)
 * a dst that was not there from here when a plan was last made costs a copy. Not collective. HEDDLE_ERR_NOMEM names the
 * bytes.
 * HEDDLE_ERR_UNSUPPORTED: of a device, and none is attached. HEDDLE_ERR_ARG: NULL, no such space, in a fork. */
HEDDLE_CHECKED heddle_status heddle_buffer_alloc(void **out, heddle_comm *comm, size_t bytes, heddle_space space);
/* A buffer that is NULL is legal; without a communicator nothing is done. The buffer must not be in use by any peer,
 * and what is enqueued on a device's must be done: where ranks of one process share a device and its kernels wait for
 * one another (HEDDLE_WIRE_PEER) its memory is kept for the next heddle_buffer_alloc, because freeing it would wait for
 * all of them, and so is what other processes have mapped. `comm` is the one it was allocated with, or the one that was
 * made a group of; it may be destroyed already (heddle_comm_destroy). Any thread, where no device is attached, but not
 * during heddle_comm_destroy. */
HEDDLE_API void heddle_buffer_free(heddle_comm *comm, void *buffer);

/* Attach a device to this rank, so that plans and sessions can be asked for arrays in its memory (options.space,
 * options.device) and heddle_buffer_alloc for some. Collective, once, in the process that uses it (a device does not
 * survive a fork: with heddle_run_ranks("shm") in the ranks). It stays as long as the communicator; its axis groups
 * have it too. device:
 *   "KIND"          libheddle_KIND.so's device number (this rank's place among the ranks of its host), beginning again
 *                   behind the last one
 *   "KIND:1"        that number
 *   "KIND:current"  the one that is current for the calling thread (cudaSetDevice)
 * KIND is "cuda", or what a library of your own serves (heddle/sys/device.h); the library is looked for as plug-ins are
 * (heddle_comm_open). Ranks may differ in the number.
 *   HEDDLE_ERR_PARSE        device has another form
 *   HEDDLE_ERR_ARG          NULL, no such wire, comm has a device, is an axis group, or is used in a fork
 *   HEDDLE_ERR_UNSUPPORTED  no library, no driver or too old a one, no such device, the wire is not available here; the
 *                           sentence says what is missing
 *   HEDDLE_ERR_MISMATCH     on every rank: they name different kinds of devices or wires
 *   HEDDLE_ERR_NOMEM        names the bytes
 *   HEDDLE_ERR_DEVICE       a call of the device failed; names it
 * The other ranks get HEDDLE_ERR_PEER with the sentence; comm stays usable, without device. Errors of waiting. */
HEDDLE_CHECKED heddle_status heddle_comm_attach_device(heddle_comm *comm, const char *device, heddle_wire wire);
/* The number of this rank's device, which options.device and heddle_tensor.device name; -1: none, or comm is NULL. */
HEDDLE_API int heddle_comm_device(const heddle_comm *comm);
/* Has anything gone wrong meanwhile, on the device or in another rank? Never waits; not collective. HEDDLE_OK: nothing
 * is known of. HEDDLE_ERR_DEVICE: work that was enqueued on the device failed; it is of no more use, nor is comm.
 * Errors of waiting, of what another rank did. HEDDLE_ERR_ARG: comm is NULL or used in a fork. */
HEDDLE_CHECKED heddle_status heddle_comm_poll(heddle_comm *comm);

/* Group operations on small host data; collective, same order on every rank. They return when this rank's part is done.
 * Errors of waiting (above); after an abort every operation that is begun fails. HEDDLE_ERR_MISMATCH on every rank: the
 * ranks do not all call the same operation with as many bytes and the same dtype; the sentence names two that differ.
 * Nothing was moved, and the communicator stays usable, unless some came with a barrier and some with something else.
 * HEDDLE_ERR_ARG: a pointer is NULL, or the call comes from a fork; nothing was sent, so the other ranks wait. */
HEDDLE_CHECKED heddle_status heddle_comm_barrier(heddle_comm *comm);
/* recv gets size * bytes, ordered by rank. */
HEDDLE_CHECKED heddle_status heddle_comm_allgather(heddle_comm *comm, const void *send, void *recv, size_t bytes);
/* Element-wise sum in rank order; the result is the same bits on every rank. dtype F64, F32 or I64 (wraps); in place.
 * data may lie on comm's device, on some ranks or on all: what is enqueued there has to be done, and the sum goes by
 * way of the host, whatever the wire. HEDDLE_ERR_ARG also: another dtype, elems negative, data on another device. */
HEDDLE_CHECKED heddle_status heddle_comm_allreduce_sum(heddle_comm *comm, void *data, int64_t elems,
                                                       heddle_dtype dtype);
/* Send to `to` and receive from `from` at the same time (a ring step when to = rank+1, from = rank-1); -1: neither.
 * Returns when the message has arrived and `send` may be written again; any size. Memory of heddle_buffer_alloc (any
 * memory with "threads") is read where it lies, other memory is staged. Either array may lie on comm's device: it goes
 * by way of host memory, whatever the wire, behind what `stream` has so far, and has arrived on return. For host memory
 * the stream is ignored (heddle/space.h). Collective between the ranks that name each other. HEDDLE_ERR_MISMATCH, on
 * both sides: the sizes differ. HEDDLE_ERR_ARG: no such rank, only one of the two is this rank itself, NULL with bytes
 * to move, memory of another device, a stream that is being captured. Errors of waiting; all ranks are told of those,
 * as by heddle_comm_abort. */
HEDDLE_CHECKED heddle_status heddle_comm_sendrecv(heddle_comm *comm, const void *send, size_t send_bytes, int to,
                                                  void *recv, size_t recv_bytes, int from, heddle_stream stream);
/* The ranks that differ from this one only in their coordinate on mesh axis `axis`, numbered by it. Collective over all
 * of comm. The new communicator must be destroyed before its parent. HEDDLE_ERR_ARG: NULL, the mesh has another number
 * of ranks, or no such axis; the other ranks get HEDDLE_ERR_PEER with the sentence, unless it is comm that is NULL.
 * HEDDLE_ERR_MISMATCH on every rank: another mesh or other axes; the sentence has both. HEDDLE_ERR_NOMEM on this rank,
 * HEDDLE_ERR_PEER on the others. comm stays usable after these. Other errors of waiting. */
HEDDLE_CHECKED heddle_status heddle_comm_axis_group(heddle_comm **out, heddle_comm *comm, const heddle_mesh *mesh,
                                                    int axis);

/* The same for several axes: bit a of `axes` means that the ranks may differ in their coordinate on axis a; they are
 * numbered like a mesh of these axes, the first one major. axes 0 gives a group of one. HEDDLE_ERR_ARG also: a bit of
 * an axis that the mesh has not. */
HEDDLE_CHECKED heddle_status heddle_comm_axes_group(heddle_comm **out, heddle_comm *comm, const heddle_mesh *mesh,
                                                    unsigned axes);

/* Give up: every waiting rank returns HEDDLE_ERR_PEER with this rank and `why` (NULL: "no reason given"), and so does
 * whatever a rank begins afterwards, this one included (ranks of other hosts: once the news is there, a few operations
 * later). The first reason stays. Axis groups share the fate of the communicator they belong to. Any thread.
 * HEDDLE_ERR_ARG: comm is NULL. */
HEDDLE_CHECKED heddle_status heddle_comm_abort(heddle_comm *comm, const char *why);

/* All ranks go on after a failure, whatever it was: an error of waiting, an abort, an error of the program's own that
 * one of them has caught in the middle of what the others wait in. Collective: every rank calls it, the one that
 * failed as well; those that wait in another call are told (HEDDLE_ERR_PEER "rank 1 gave up: it resets the
 * communicator ..."), and so are those that begin one, so that they come, too. Returns when all are there and nobody
 * reads or writes another's memory any more. Of axis groups, plans and all that was made of them on every rank
 * executions begin anew: what was in flight has failed (waits for it return HEDDLE_ERR_PEER), results are of no use,
 * sessions want heddle_session_rewind, and attention a forward before its backward. What was made on some ranks only,
 * because making it failed on others, must be destroyed. Memory that was kept because peers may have been copying is
 * freed.
 *   HEDDLE_ERR_PEER         a rank died or has closed its communicator: no reset brings it back, the communicator can
 *                           only be destroyed
 *   HEDDLE_ERR_TIMEOUT      a rank did not come; call it again, or destroy the communicator. Likewise
 *                           HEDDLE_ERR_INTERRUPTED
 *   HEDDLE_ERR_UNSUPPORTED  messages go by a transport (mpi, callbacks, several hosts), or a device is attached with
 *                           another wire than "host": destroy it and open another one
 *   HEDDLE_ERR_ARG          comm is NULL, an axis group, or used in a fork */
HEDDLE_CHECKED heddle_status heddle_comm_reset(heddle_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
