/* Session: module-level switching inside somebody else's framework.
 *
 * The framework calls heddle_session_enter at the start of each module; the session brings the activation into the
 * layout that the schedule gives this module. Already there: nothing happens.
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
    int dry_run; /* 1: record what would be moved, touch no data (x->data may be NULL) */
} heddle_session_options;

HEDDLE_API void heddle_session_options_init(heddle_session_options *options);

/* Collective. Borrows comm and schedule. The schedule's mesh must have as many ranks as comm. */
HEDDLE_API heddle_status heddle_session_create(heddle_session **out, heddle_comm *comm, const heddle_schedule *schedule,
                                               const heddle_session_options *options);
HEDDLE_API void heddle_session_destroy(heddle_session *session);

/* Bring x into the layout of stage `stage` (the next repetition of that name; "end" is the epilogue). On return
 * x->layout, x->stride_elems, x->data and x->data_bytes describe the new local part. A switch never writes into the
 * caller's memory: x->data then points to memory of the session, valid (and free to be written) until the second next
 * switch of the same session or its destruction. Collective. */
HEDDLE_API heddle_status heddle_session_enter(heddle_session *session, const char *stage, heddle_tensor *x,
                                              heddle_stream stream);

typedef struct heddle_session_counters {
    size_t struct_bytes;
    int64_t enters;     /* calls */
    int64_t switches;   /* calls that changed the layout */
    int64_t bytes_sent; /* measured, by this rank (dry run: planned) */
    int64_t bytes_planned;
    int64_t switch_ns; /* time inside switches */
    int64_t workspace_bytes;
} heddle_session_counters;

HEDDLE_API heddle_status heddle_session_get_counters(heddle_session_counters *out, const heddle_session *session);
/* Start the next forward pass: repetitions count from 0 again. */
HEDDLE_API heddle_status heddle_session_rewind(heddle_session *session);

/* What the i-th enter did; HEDDLE_ERR_ARG past the end. The last 4096 are kept. */
typedef struct heddle_session_record {
    const char *stage; /* owned by the session, like line */
    int repetition;
    const char *line; /* reshard line, "" if nothing moved */
    const char *path;
    int64_t bytes_planned, bytes_sent, ns;
} heddle_session_record;

HEDDLE_API heddle_status heddle_session_record_at(heddle_session_record *out, const heddle_session *session, int index);

#ifdef __cplusplus
}
#endif

#endif
