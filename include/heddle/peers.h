/* Memory of devices that a program has mapped between its ranks itself, for the wire "peer" (PyTorch's symmetric
 * memory, cuMem and fabric handles, the heap of NVSHMEM): what CUDA IPC cannot pass on, or need not. */
#ifndef HEDDLE_PEERS_H
#define HEDDLE_PEERS_H

#include <heddle/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kernels of this rank's device find rank r's piece of `bytes` bytes at at[r] (of torch's symmetric memory:
 * buffer_ptrs); own entry: this rank's own piece, memory of its device. From then on plans store straight into arrays
 * that lie whole in such a piece, at any offset. That can be done with memory of heddle_buffer_alloc, too; any other
 * memory costs a copy (heddle_reshard_info.why). A plan that has stored elsewhere before asks when it is given another
 * dst. Collective; `at` has an entry per rank and is copied, the ranks' pieces need no common address, and several may
 * be lent. What heddle has for itself (flags, sums) it maps itself, by CUDA IPC. Between threads, which reach one
 * another's memory as it is, nothing is gained and nothing lost.
 *
 * The pieces stay the caller's. They must stay mapped on all ranks until heddle_comm_destroy has returned on all, and
 * behind that until graphs that were captured have gone. heddle does not write to them to find out whether the
 * addresses are those of the ranks: wrong ones are written to like right ones.
 *   HEDDLE_ERR_ARG          comm or at is NULL, bytes is 0, comm is an axis group or used in a fork; an entry is NULL
 *                           or not a device's memory, at either end of its bytes, or the own one is not this rank's
 *                           device's; the sentence names it
 *   HEDDLE_ERR_UNSUPPORTED  no device is attached, or the wire is not "peer" (heddle_comm_attach_device)
 *   HEDDLE_ERR_MISMATCH     on every rank: bytes differ; the sentence has both
 *   HEDDLE_ERR_NOMEM        names the bytes
 * The other ranks get HEDDLE_ERR_PEER with the sentence; comm stays usable. Errors of waiting (heddle/comm.h). */
HEDDLE_CHECKED heddle_status heddle_comm_lend_peers(heddle_comm *comm, void *const *at, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
