/* Point-to-point transfer of activations between the stages of a pipeline axis: rank (p, ...) sends its local part to
 * rank (p+1, ...) with the same coordinates elsewhere, and gradients the other way. The layout over the other axes is
 * the same on both sides, so that a local part travels as it is. One rank of a stage talks to one rank of the next:
 * what travels between two stages is the activation once, whatever the other axes are.
 *
 * Threads: a pipeline may be used by one thread at a time. Host memory only: the stream is ignored (heddle/space.h).
 */
#ifndef HEDDLE_PIPELINE_H
#define HEDDLE_PIPELINE_H

#include <heddle/comm.h>
#include <heddle/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_pipeline heddle_pipeline;

/* Collective over comm: splits it along mesh axis `axis`. Borrows comm. HEDDLE_ERR_ARG: NULL, another number of ranks
 * than the mesh has, no such axis; the other ranks then get HEDDLE_ERR_PEER. HEDDLE_ERR_MISMATCH on every rank: another
 * mesh or axis. HEDDLE_ERR_NOMEM and errors of waiting as for heddle_comm_axis_group. */
HEDDLE_CHECKED heddle_status heddle_pipeline_create(heddle_pipeline **out, heddle_comm *comm, const heddle_mesh *mesh,
                                                    int axis);
HEDDLE_API void heddle_pipeline_destroy(heddle_pipeline *pipeline); /* NULL is legal; before its communicator */
/* This rank's coordinate on the axis, and the axis's size. NULL: -1 and 0. */
HEDDLE_API int heddle_pipeline_stage(const heddle_pipeline *pipeline);
HEDDLE_API int heddle_pipeline_stages(const heddle_pipeline *pipeline);
/* Blocking; the neighbour calls the matching one. A call that would leave the pipeline (send_next on the last stage,
 * ...) is HEDDLE_ERR_ARG, nothing moves. Return when the data has arrived (recv) or may be written again (send): a send
 * to a stage that is not receiving waits, so neighbours must not both send first. Memory and errors as for
 * heddle_comm_sendrecv: HEDDLE_ERR_MISMATCH on both sides when the sizes differ, errors of waiting. */
HEDDLE_CHECKED heddle_status heddle_pipeline_send_next(heddle_pipeline *pipeline, const void *data, size_t bytes,
                                                       heddle_stream stream);
HEDDLE_CHECKED heddle_status heddle_pipeline_recv_prev(heddle_pipeline *pipeline, void *data, size_t bytes,
                                                       heddle_stream stream);
HEDDLE_CHECKED heddle_status heddle_pipeline_send_prev(heddle_pipeline *pipeline, const void *data, size_t bytes,
                                                       heddle_stream stream);
HEDDLE_CHECKED heddle_status heddle_pipeline_recv_next(heddle_pipeline *pipeline, void *data, size_t bytes,
                                                       heddle_stream stream);
/* Bytes this rank has sent, both directions. NULL: 0. */
HEDDLE_API int64_t heddle_pipeline_bytes_sent(const heddle_pipeline *pipeline);

#ifdef __cplusplus
}
#endif

#endif
