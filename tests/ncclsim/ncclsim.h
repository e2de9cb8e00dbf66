/* What the fake NCCL does on request, and the real one has not.
 *
 * How it works. Ranks are threads or processes of one host. Two ranks of a communicator share a socket; a group becomes
 * one function on its stream (cudaLaunchHostFunc), which sends and receives everything at once and ends when all of it
 * is done, or the communicator is aborted. So it is captured into graphs as other work is. Each message says its bytes:
 * a receiver that wants another number fails with ncclInvalidUsage, where the real one would hang or lie. A rank that
 * failed, aborted or died closes its sockets, and the others' work fails with ncclRemoteError.
 *
 * A communicator that is destroyed or aborted waits for the end of all graphs that have work of it, as the real one
 * does.
 *
 * With config.blocking 0 nothing waits, as with the real one: what was asked for is in progress until
 * ncclCommGetAsyncError has been asked often enough, and a group is in no stream before that.
 *
 * Environment, read at the first call: HEDDLE_NCCLSIM_VERSION (what ncclGetVersion says), HEDDLE_NCCLSIM_SILENT (1: who
 * dies or aborts is not noticed, and others wait until they abort, as some of the real one's ways do).
 */
#ifndef HD_NCCLSIM_H
#define HD_NCCLSIM_H

#include <nccl.h>
#include <stdint.h>

/* The n-th call from now on (1: the next one) of any thread fails with `result` and does nothing; 0: none. Questions
 * about errors, CommDestroy and CommAbort are no calls. CommInitRank and its like are two: where the second one fails
 * there is a communicator, which is to be aborted. */
NCCLSIM_EXPORT void ncclsim_fail_at(int64_t n, int result);
/* The n-th group from now on fails while its stream carries it out. */
NCCLSIM_EXPORT void ncclsim_fail_group_at(int64_t n, int result);
NCCLSIM_EXPORT int64_t ncclsim_calls(void); /* since the program's start */
NCCLSIM_EXPORT int ncclsim_comms(void);     /* communicators that have not ended */
NCCLSIM_EXPORT int64_t ncclsim_aborts(void);
/* From now on a communicator that is destroyed or aborted waits until nranks of them are, as the real one may for those
 * of its host; 0: none waits. */
NCCLSIM_EXPORT void ncclsim_end_together(int nranks);

#endif
