/* Communicators of NCCL that a program has already (PyTorch's, say), for the wire nccl. Needs no nccl.h: an ncclComm_t
 * is a pointer to a struct ncclComm. */
#ifndef HEDDLE_NCCL_H
#define HEDDLE_NCCL_H

#include <heddle/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ncclComm;

/* heddle_comm_attach_device with HEDDLE_WIRE_NCCL whose messages go through `borrowed`, an ncclComm_t over the same
 * ranks in the same order, on the device that `device` names ("cuda:current"). Collective: every rank lends one.
 *
 * `borrowed` stays the caller's and must live until heddle_comm_destroy: heddle neither destroys nor aborts it. While a
 * call of heddle runs nobody else may use it, and what heddle enqueues comes in its order on every rank, among all that
 * the program enqueues on it. libnccl must be one that libheddle_nccl can use (docs/gpu.md); the process has it loaded
 * once.
 *
 * After a failure, at the deadline and after an abort heddle uses it no more and says so on all ranks, but what is
 * enqueued goes on waiting until the caller ends it (ncclCommAbort, from then on, also before heddle_comm_destroy),
 * and so do streams behind it. Where it has not ended within a second heddle frees no memory of the device any more,
 * neither plans' workspace nor buffers, because that would wait for it.
 *
 * Errors of heddle_comm_attach_device, and HEDDLE_ERR_MISMATCH: `borrowed` has another number of ranks, another rank or
 * another device than comm; the sentence has both (on this rank; the others get HEDDLE_ERR_PEER), or some ranks lend
 * one and others do not. */
HEDDLE_CHECKED heddle_status heddle_comm_lend_nccl(heddle_comm *comm, const char *device, struct ncclComm *borrowed);

/* A communicator of the ranks that `borrowed` (above) has: rank, number of ranks and device are its own, the wire is
 * nccl. For a program that knows its ranks by NCCL alone. A few bytes through `borrowed` tell each where the others
 * are, and then they meet without it, so that agreements, deadlines and the watch over peers' lives do not go by
 * NCCL: ranks of one host (processes, or threads of one) as by heddle_comm_join, those of several hosts by TCP as
 * well, by which arrays in host memory go between hosts, too. For that every two ranks have one connection, at any
 * address and port that the machine called has and the calling one has not. Both ends show that they know a random key
 * that came through `borrowed`, and that they mean the same address: nobody comes in who does not know it, nor a relay.
 * What goes over the connection is neither signed nor encrypted, like MPI's and NCCL's own: who can change packets on
 * their way can read and change it. Collective. options may be NULL; its device: NULL, or one that `borrowed` is on;
 * its wire: AUTO or NCCL. heddle_comm_destroy leaves `borrowed` as it is.
 *   HEDDLE_ERR_ARG          out or borrowed is NULL, another wire
 *   HEDDLE_ERR_MISMATCH     options.device is not that of `borrowed`, the sentence has both; or ranks' options differ
 *   HEDDLE_ERR_UNSUPPORTED  no libheddle_cuda or libheddle_nccl, another NCCL, or ranks on several hosts of which one
 *                           has no address or port
 *   HEDDLE_ERR_TIMEOUT      not all ranks came; between hosts the sentence names the rank, and the address and port
 *                           where it did not answer (a firewall?). What NCCL had begun goes on waiting until the
 *                           caller ends it (ncclCommAbort). A `borrowed` whose calls wait (config.blocking) may wait
 *                           in the first one for ranks that do not come, and NCCL knows no deadline
 *   HEDDLE_ERR_TRANSPORT, HEDDLE_ERR_DEVICE  NCCL, the device or the network failed, in its words
 * and the errors of heddle_comm_join. A rank that fails before it has sent its words (the first four) is waited for by
 * the others until their deadline. */
HEDDLE_CHECKED heddle_status heddle_comm_from_nccl(heddle_comm **out, struct ncclComm *borrowed,
                                                   const heddle_comm_options *options);

#ifdef __cplusplus
}
#endif

#endif
