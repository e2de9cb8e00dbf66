/* Preloaded, spoils what reshards, sessions and buckets give back, so that a test sees whether a judge notices.
 *
 * HEDDLE_DAMAGE=WHAT, on one rank (HEDDLE_DAMAGE_RANK; default the last), in every call:
 *   reshard-first reshard-last   one bit of the first or last byte of the destination after a blocking execute
 *   reshard-split                ... of the last byte after one in two phases
 *   reshard-nan                  the first element (f32) is NaN
 *   reshard-source reshard-behind   one bit of the source's last byte, of the byte behind the destination
 *   reshard-planned reshard-bytes reshard-path   one byte more planned for a peer, measured, by peer path
 *   run-output run-nan           the last element of what a session's stage "end" gives: one bit, NaN (f32)
 *   run-dx run-dx-nan            ... of the gradient of a session's input
 *   run-bytes run-both           a byte more sent into every stage, or sent and planned; run-back-bytes, run-back-both
 *   run-gradient run-gradient-nan   the last gradient of a bucket after its reduction: 1 more, NaN
 *   run-reduce                   a byte more sent in every reduction
 */
#include "damage.h"

#include <heddle/heddle.h>
#include <heddle/train/bucket.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 64 };

/* Of this thread, which is one rank. */
typedef struct place {
    int chosen;                          /* its latest reshard, session or bucket is on a rank to be damaged */
    const heddle_bucket_part *last_part; /* of its bucket */
    int64_t reduces;
    char first_stage[128]; /* of its session */
    const void *src;       /* of the split-phase execution in flight */
    void *dst;
} place;

static _Thread_local place own;

static int asked(const char *what)
{
    const char *damage = getenv("HEDDLE_DAMAGE");
    return own.chosen && damage != NULL && strcmp(damage, what) == 0;
}

/* A communicator of one rank is the judge's own. */
static void note(heddle_comm *comm)
{
    const char *rank = getenv("HEDDLE_DAMAGE_RANK");
    const int size = heddle_comm_size(comm);
    own.chosen = size > 1 && heddle_comm_rank(comm) == (rank != NULL ? atoi(rank) : size - 1);
}

static void flip(const void *array, size_t at)
{
    ((unsigned char *)array)[at] ^= 1; /* sources too are in writable memory */
}

static void set_nan(void *element)
{
    memcpy(element, &(float){NAN}, sizeof(float));
}

/* --- reshards ----------------------------------------------------------------------------------------------------- */

HEDDLE_API heddle_status heddle_reshard_create_line(heddle_reshard **out, heddle_comm *comm,
                                                    const heddle_reshard_line *line,
                                                    const heddle_reshard_options *options)
{
    NEXT(heddle_reshard_create_line)
    note(comm);
    return real(out, comm, line, options);
}

static void spoil_moved(const heddle_reshard *reshard, const void *src, void *dst, int split)
{
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    if (!own.chosen || heddle_reshard_get_info(&info, reshard) != HEDDLE_OK || info.dst_bytes == 0) {
        return;
    }
    if (asked(split ? "reshard-split" : "reshard-last")) {
        flip(dst, info.dst_bytes - 1);
    }
    if (asked("reshard-first")) {
        flip(dst, 0);
    }
    if (asked("reshard-nan")) {
        set_nan(dst);
    }
    if (asked("reshard-source") && info.src_bytes > 0) {
        flip(src, info.src_bytes - 1);
    }
    if (asked("reshard-behind")) {
        flip(dst, info.dst_bytes);
    }
}

HEDDLE_API heddle_status heddle_reshard_execute(heddle_reshard *reshard, const void *src, void *dst,
                                                heddle_stream stream)
{
    NEXT(heddle_reshard_execute)
    heddle_status st = real(reshard, src, dst, stream);
    spoil_moved(reshard, src, dst, 0);
    return st;
}

HEDDLE_API heddle_status heddle_reshard_start(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream)
{
    NEXT(heddle_reshard_start)
    own.src = src;
    own.dst = dst;
    return real(reshard, src, dst, stream);
}

HEDDLE_API heddle_status heddle_reshard_test(heddle_reshard *reshard, int *done)
{
    NEXT(heddle_reshard_test)
    heddle_status st = real(reshard, done);
    if (*done) {
        spoil_moved(reshard, own.src, own.dst, 1);
    }
    return st;
}

HEDDLE_API heddle_status heddle_reshard_wait(heddle_reshard *reshard)
{
    NEXT(heddle_reshard_wait)
    heddle_status st = real(reshard);
    spoil_moved(reshard, own.src, own.dst, 1);
    return st;
}

HEDDLE_API heddle_status heddle_reshard_get_info(heddle_reshard_info *out, const heddle_reshard *reshard)
{
    static _Thread_local int64_t planned[MAX_RANKS], measured[MAX_RANKS];
    NEXT(heddle_reshard_get_info)
    heddle_status st = real(out, reshard);
    if (st == HEDDLE_OK && own.chosen && out->nranks <= MAX_RANKS) {
        memcpy(planned, out->bytes_to, (size_t)out->nranks * sizeof *planned);
        memcpy(measured, out->measured_bytes_to, (size_t)out->nranks * sizeof *measured);
        planned[0] += asked("reshard-planned");
        measured[0] += asked("reshard-bytes");
        out->bytes_to = planned;
        out->measured_bytes_to = measured;
        out->bytes_peer_path += asked("reshard-path");
    }
    return st;
}

/* --- sessions ----------------------------------------------------------------------------------------------------- */

HEDDLE_API heddle_status heddle_session_create(heddle_session **out, heddle_comm *comm, const heddle_schedule *schedule,
                                               const heddle_session_options *options)
{
    NEXT(heddle_session_create)
    heddle_status st = real(out, comm, schedule, options);
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    if (heddle_schedule_stage_at(&stage, schedule, 0) == HEDDLE_OK) {
        strncpy(own.first_stage, stage.name, sizeof own.first_stage - 1);
    }
    note(comm);
    return st;
}

static void spoil_tensor(const heddle_tensor *x, int bit, int with_nan)
{
    const size_t elem_bytes = heddle_dtype_bytes(x->shape.dtype);
    if (x->capacity_bytes >= elem_bytes && bit) {
        flip(x->data, x->capacity_bytes - elem_bytes);
    }
    if (x->capacity_bytes >= elem_bytes && with_nan) {
        set_nan((char *)x->data + x->capacity_bytes - elem_bytes);
    }
}

HEDDLE_API heddle_status heddle_session_enter(heddle_session *session, const char *stage, heddle_tensor *x,
                                              const heddle_tensor *dst, heddle_stream stream)
{
    NEXT(heddle_session_enter)
    heddle_status st = real(session, stage, x, dst, stream);
    if (st == HEDDLE_OK && strcmp(stage, "end") == 0) {
        spoil_tensor(x, asked("run-output"), asked("run-nan"));
    }
    return st;
}

HEDDLE_API heddle_status heddle_session_backward(heddle_session *session, const char *stage, heddle_tensor *dx,
                                                 const heddle_tensor *dst, heddle_stream stream)
{
    NEXT(heddle_session_backward)
    heddle_status st = real(session, stage, dx, dst, stream);
    if (st == HEDDLE_OK && strcmp(stage, own.first_stage) == 0) {
        spoil_tensor(dx, asked("run-dx"), asked("run-dx-nan"));
    }
    return st;
}

HEDDLE_API heddle_status heddle_session_record_at(heddle_session_record *out, const heddle_session *session, int index)
{
    NEXT(heddle_session_record_at)
    heddle_status st = real(out, session, index);
    if (st == HEDDLE_OK) {
        const int both = asked(out->backward ? "run-back-both" : "run-both");
        out->bytes_sent += both + asked(out->backward ? "run-back-bytes" : "run-bytes");
        out->bytes_planned += both;
    }
    return st;
}

/* --- sums of gradients -------------------------------------------------------------------------------------------- */

HEDDLE_API heddle_status heddle_bucket_create(heddle_bucket **out, heddle_comm *comm, const heddle_mesh *mesh,
                                              const heddle_bucket_part *parts, int nparts,
                                              const heddle_bucket_options *options)
{
    NEXT(heddle_bucket_create)
    heddle_status st = real(out, comm, mesh, parts, nparts, options);
    own.last_part = NULL;
    for (int i = 0; i < nparts; i++) {
        own.last_part = parts[i].elems > 0 ? &parts[i] : own.last_part;
    }
    note(comm);
    return st;
}

HEDDLE_API heddle_status heddle_bucket_reduce(heddle_bucket *bucket, heddle_stream stream)
{
    NEXT(heddle_bucket_reduce)
    heddle_status st = real(bucket, stream);
    own.reduces++;
    if (own.last_part != NULL && (asked("run-gradient") || asked("run-gradient-nan"))) {
        float *last = own.last_part->grad + own.last_part->elems - 1;
        *last = asked("run-gradient-nan") ? NAN : *last + 1;
    }
    return st;
}

HEDDLE_API heddle_status heddle_bucket_get_info(heddle_bucket_info *out, const heddle_bucket *bucket)
{
    NEXT(heddle_bucket_get_info)
    heddle_status st = real(out, bucket);
    out->measured_bytes += asked("run-reduce") * own.reduces;
    return st;
}
