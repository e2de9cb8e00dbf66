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
 * enqueued goes on waiting until the caller ends it (ncclCommAbort), and so do streams behind it. Plans that are
 * destroyed meanwhile leave their workspace on the device alone.
 *
 * Errors of heddle_comm_attach_device, and HEDDLE_ERR_MISMATCH: `borrowed` has another number of ranks, another rank or
 * another device than comm; the sentence has both (on this rank; the others get HEDDLE_ERR_PEER), or some ranks lend
 * one and others do not. */
HEDDLE_API heddle_status heddle_comm_lend_nccl(heddle_comm *comm, const char *device, struct ncclComm *borrowed);

#ifdef __cplusplus
}
#endif

#endif
