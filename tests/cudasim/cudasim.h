/* What the emulated CUDA runtime does on request, and the real one has not.
 *
 * How it works. A stream is a host thread with a queue; a launch puts a grid into the queue; the threads of a block are
 * fibres of the stream's thread, and blocks run one after another. Kernels of different streams run at the same time,
 * blocks of one kernel do not: a block must not wait for another one of its grid, and on a GPU it must not either.
 * Where it is asked for, streams share the device's connections if there are more than that: what waits in one stream
 * for its predecessor keeps back what came later to the same connection by another stream.
 *
 * Memory of a device has two views. Its address, which cudaMalloc returns, cannot be touched (PROT_NONE): host code
 * that loads or stores there ends with SIGSEGV in every build. Kernels (kernels/cuda/lang.h) and copies go through the
 * second view. Behind the end of each piece is poison for AddressSanitizer, and pages that are not allocated cannot be
 * touched in the second view either. A kernel that touches host memory which was neither allocated nor registered as
 * mapped ends the program with a sentence.
 *
 * Environment, read at the first call: HEDDLE_CUDASIM_DEVICES (default 2; 0: "no device", -1: "no driver"),
 * HEDDLE_CUDASIM_MEMORY (MiB of each device, default 4096), HEDDLE_CUDASIM_FAIL (N or N:ERROR, as hd_sim_fail_at),
 * HEDDLE_CUDASIM_CONNECTIONS (1: as many as CUDA_DEVICE_MAX_CONNECTIONS says, 8 where it does not),
 * HEDDLE_CUDASIM_ALLOC_WAITS (1: who allocates, pins or frees waits until all devices have done what they were given to
 * do, and threads that would enqueue more wait for that one: the most that CUDA's guide allows it),
 * HEDDLE_CUDASIM_LOSES (a device's number: HD_SIM_LINK_LOSES from the beginning).
 */
#ifndef HD_CUDASIM_H
#define HD_CUDASIM_H

#include <stdint.h>

/* Found by dlsym, wherever it was linked into. */
#define HD_SIM_EXPORT __attribute__((visibility("default")))

/* The n-th call from now on (1: the next one) of any thread fails with `error` and does nothing; 0: none. A launch is a
 * call, too; GetLastError, PeekAtLastError, GetErrorName and GetErrorString are none. */
HD_SIM_EXPORT void hd_sim_fail_at(int64_t n, int error);
/* From now on what asks whether an event is over is no call of these two: whoever waits asks as often as there is time.
 * That is cudaEventQuery, and what forbids it nothing in a capture (cudaThreadExchangeStreamCaptureMode). */
HD_SIM_EXPORT void hd_sim_spare_looks(int are_spared);
/* Calls since the program's start. */
HD_SIM_EXPORT int64_t hd_sim_calls(void);
/* Those of the calling thread by name, `at` 0, 1, ...; NULL: there are no more. Also what is no call above, and what
 * the fake cuBLAS is asked. */
HD_SIM_EXPORT const char *hd_sim_calls_by_name(int at, int64_t *calls);
HD_SIM_EXPORT void hd_sim_count_call(const char *name);
/* The n-th piece of device memory from now on that any thread asks for is not there; 0: none. And how many were asked
 * for since the program's start. */
HD_SIM_EXPORT void hd_sim_refuse_at(int64_t n);
HD_SIM_EXPORT int64_t hd_sim_asked(void);
/* Bytes that programs have asked to copy between host and devices, either way, since the program's start. */
HD_SIM_EXPORT int64_t hd_sim_copied(void);
/* Bytes of device memory that are out, all devices together. */
HD_SIM_EXPORT int64_t hd_sim_device_bytes(void);
/* Contexts of a device in this process, some 500 MB of it each where it is real. */
HD_SIM_EXPORT int hd_sim_contexts(int device);
/* One beside the primary one, pushed on the calling thread's stack as by cuCtxCreate, whose form depends on CUDA's
 * version; the end of it, where it is current or nowhere on a stack. NULL: no memory. */
HD_SIM_EXPORT void *hd_sim_context_create(int device);
HD_SIM_EXPORT void hd_sim_context_destroy(void *context);
/* From now on devices have registered host memory so many bytes behind the host's address, as those have that cannot
 * use the host's (0: there). */
HD_SIM_EXPORT void hd_sim_set_host_offset(int64_t bytes);
/* From now on memory of devices is as that of cudaMallocAsync: peers do not reach it, as it says when asked. */
HD_SIM_EXPORT void hd_sim_set_pooled(int is_pooled);
/* What becomes from now on of what kernels of a device store in memory of other devices and of other processes: it
 * arrives, is lost, or does not end until the link is another one again. */
typedef enum hd_sim_link { HD_SIM_LINK_WORKS, HD_SIM_LINK_LOSES, HD_SIM_LINK_STALLS } hd_sim_link;
HD_SIM_EXPORT void hd_sim_set_link(int device, hd_sim_link link);
/* Kernels that ran. */
HD_SIM_EXPORT int64_t hd_sim_kernels(void);
/* Processors of every device from now on (132), with room for two blocks of any kernel each. Blocks run all the same.
 */
HD_SIM_EXPORT void hd_sim_set_processors(int n);
/* Memory that a block may have on every device from now on (227 KiB). */
HD_SIM_EXPORT void hd_sim_set_shared(int bytes);
/* From now on one kernel runs at a time, of all streams and devices, as under tools that look into kernels. */
HD_SIM_EXPORT void hd_sim_set_serial(int is_serial);
/* From now on the blocks of a launch run from the last one to the first, and the threads of each likewise: what depends
 * on their order comes out otherwise. */
HD_SIM_EXPORT void hd_sim_set_reversed(int is_reversed);
/* Does the race detector see what kernels load and store that begin from now on? Where ranks give up, kernels fall
 * through their waits: they load what peers may still store that had been told to. Nobody looks at what comes of it. So
 * they may be unseen, all of them, or those that begin behind the call that fails by hd_sim_fail_at. */
typedef enum hd_sim_sight { HD_SIM_SEEN, HD_SIM_UNSEEN, HD_SIM_UNSEEN_BEHIND_FAILURE } hd_sim_sight;
HD_SIM_EXPORT void hd_sim_set_unseen(hd_sim_sight sight);
/* From now on a kernel whose blocks have more threads is one thread to the race detector, which takes most of its time
 * for their barriers: it sees what kernels of other streams and the host do beside it, not what its threads do beside
 * one another. A report may name functions that others of these threads were in. */
HD_SIM_EXPORT void hd_sim_tell_apart(unsigned most_threads);
/* What a kernel that ran read and wrote of devices' memory, in bytes; however often it did, each counts once. */
typedef struct hd_sim_traffic {
    char name[64];
    int64_t read_bytes, written_bytes;
    int64_t loads, stores; /* how often, each of up to 16 bytes */
} hd_sim_traffic;
/* From now on kernels run one at a time and that is counted, or no longer. */
HD_SIM_EXPORT void hd_sim_set_counted(int is_counted);
/* Of the kernel that ended as number 0, 1, ... since then, when nothing runs. NULL: there is none. */
HD_SIM_EXPORT const hd_sim_traffic *hd_sim_counted(int kernel);
/* Of the launch that had most since this was asked last. */
HD_SIM_EXPORT int hd_sim_most_blocks(void);
/* Kernels that were launched without having been loaded (cudaFuncGetAttributes): a GPU loads them then, and waits for
 * what runs on it. */
HD_SIM_EXPORT int hd_sim_unloaded(void);
/* Into the graph that `stream` is captured into: when that one is gone, gone(user) is called, which must not call CUDA
 * (cudaGraphRetainUserObject in short). 0: nothing is captured there. */
HD_SIM_EXPORT int hd_sim_when_gone(void *stream, void (*gone)(void *user), void *user);
/* The address through which host code may look at device memory: tests only. */
HD_SIM_EXPORT void *hd_sim_view(const void *device_memory, uint64_t bytes);

#endif
