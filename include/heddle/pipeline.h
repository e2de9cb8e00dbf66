/* Point-to-point transfer of activations between the stages of a pipeline axis: rank (p, ...) sends its local part to
 * rank (p+1, ...) with the same coordinates elsewhere, and gradients the other way. The layout over the other axes is
 * the same on both sides, so that a local part travels as it is.
 */
#ifndef HEDDLE_PIPELINE_H
#define HEDDLE_PIPELINE_H

#include <heddle/comm.h>
#include <heddle/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_pipeline heddle_pipeline;

/* Collective over comm: splits it along mesh axis `axis`. */
HEDDLE_API heddle_status heddle_pipeline_create(heddle_pipeline **out, heddle_comm *comm, const heddle_mesh *mesh,
                                                int axis);
HEDDLE_API void heddle_pipeline_destroy(heddle_pipeline *pipeline);
HEDDLE_API int heddle_pipeline_stage(const heddle_pipeline *pipeline);
HEDDLE_API int heddle_pipeline_stages(const heddle_pipeline *pipeline);
/* Blocking; the neighbour calls the matching one. A call that would leave the pipeline (send_next on the last stage,
 * ...) is HEDDLE_ERR_ARG. Return when the data has arrived (recv) or may be written again (send). */
HEDDLE_API heddle_status heddle_pipeline_send_next(heddle_pipeline *pipeline, const void *data, size_t bytes);
HEDDLE_API heddle_status heddle_pipeline_recv_prev(heddle_pipeline *pipeline, void *data, size_t bytes);
HEDDLE_API heddle_status heddle_pipeline_send_prev(heddle_pipeline *pipeline, const void *data, size_t bytes);
HEDDLE_API heddle_status heddle_pipeline_recv_next(heddle_pipeline *pipeline, void *data, size_t bytes);
/* Bytes this rank has sent. */
HEDDLE_API int64_t heddle_pipeline_bytes_sent(const heddle_pipeline *pipeline);

#ifdef __cplusplus
}
#endif

#endif
