/* A run against one rank: bytes, copies, values. */
#include "runtime/verify/judge.h"
#include "runtime/verify/run_pass.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the largest value, where sums are in another order than one rank's. bf16 rounds every stage's result to 2^-9 of
 * it, and a last bit that falls the other way grows through the layers behind. */
#define TOLERANCE_F32 2e-5
/* The norm behind linear attention divides by what may be little: 3.8e-5 was seen of three layers behind a ring. */
#define TOLERANCE_F32_LINEAR 2e-4
#define TOLERANCE_BF16 0.03

void run_step_name(char *out, size_t out_bytes, const run_task *task, int step)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    const int nsteps = run_steps(task);
    const char *back = step >= nsteps ? "backward of " : "";
    if (step == RUN_REPLAYS - 1) {
        snprintf(out, out_bytes, "a graph of all stages");
    } else if (step >= 2 * nsteps) {
        snprintf(out, out_bytes, "the sum of the gradients");
    } else if (heddle_schedule_stage_at(&stage, task->schedule, step % nsteps) == HEDDLE_OK) {
        snprintf(out, out_bytes, "%sstage '%s' of layer %d", back, stage.name, stage.repetition);
    } else {
        snprintf(out, out_bytes, "%sthe epilogue", back);
    }
}

int run_check_bytes(char *sentence, size_t sentence_bytes, const run_task *task, int nranks, int nsteps,
                    const run_step *steps)
{
    char name[128];
    int64_t moved = 0;
    for (int i = 0; i < nsteps; i++) {
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        int64_t total = 0;
        int64_t inside =
            heddle_schedule_stage_at(&stage, task->schedule, i) == HEDDLE_OK ? stage.forward_bytes_total : 0;
        run_step_name(name, sizeof(name), task, i);
        for (int rank = 0; rank < nranks; rank++) {
            const run_step *s = &steps[rank * nsteps + i];
            total += s->sent;
            if (s->sent != s->planned) {
                snprintf(sentence, sentence_bytes,
                         "rank %d sent %" PRId64 " bytes into %s and inside, planned were %" PRId64, rank, s->sent,
                         name, s->planned);
                return 1;
            }
        }
        if (heddle_schedule_edge_at(&edge, task->schedule, i) != HEDDLE_OK || edge.bytes_total + inside != total) {
            snprintf(sentence, sentence_bytes, "the ranks sent %" PRId64 " bytes into %s, the schedule says %" PRId64,
                     total, name, edge.bytes_total + inside);
            return 1;
        }
        moved += total;
    }
    snprintf(sentence, sentence_bytes, "bytes sent = bytes planned for %d rank%s x %d edge%s (%" PRId64 " bytes)",
             nranks, judge_s(nranks), nsteps, judge_s(nsteps), moved);
    return 0;
}

uint64_t run_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    hash ^= 0xcbf29ce484222325U; /* FNV-1a, which would stay 0 */
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ byte[i]) * 0x100000001b3U;
    }
    return hash;
}

int run_check_copies(char *sentence, size_t sentence_bytes, const run_report *r, int whole)
{
    static const char *const names[RUN_WHOLES] = {"output", "gradient of the input", "gradients of the parameters"};
    const int64_t *own = r->totals + RUN_TOTAL_HASH + whole;
    for (int rank = 1; rank < r->nranks; rank++) {
        if (own[rank * RUN_TOTALS] != own[0]) {
            snprintf(sentence, sentence_bytes, "rank %d has other bytes than rank 0 of the %s, of which both have all",
                     rank, names[whole]);
            return 1;
        }
    }
    return 0;
}

/* "t=3 s=0 c=7" of element `index`. */
static void place_of(char *out, size_t out_bytes, const heddle_shape *shape, int64_t index)
{
    int64_t coords[HEDDLE_MAX_DIMS];
    size_t at = 0;
    for (int d = shape->ndim - 1; d >= 0; d--) {
        coords[d] = index % shape->dim[d].extent;
        index /= shape->dim[d].extent;
    }
    out[0] = '\0';
    for (int d = 0; d < shape->ndim && at < out_bytes; d++) {
        at += (size_t)snprintf(out + at, out_bytes - at, "%s%s=%" PRId64, d > 0 ? " " : "", shape->dim[d].name,
                               coords[d]);
    }
}

/* Stages of the schedule that run by a method, whose sums are in another order than one rank's. */
static int count_methods(const run_task *task)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    int count = 0;
    for (int i = 0; heddle_schedule_stage_at(&stage, task->schedule, i) == HEDDLE_OK; i++) {
        count += strcmp(stage.method, "local") != 0;
    }
    return count;
}

void run_span_take(run_span *s, double mine, double theirs, int64_t at)
{
    const double difference = mine == theirs || (isnan(mine) && isnan(theirs)) ? 0
                              : isfinite(mine) && isfinite(theirs)             ? fabs(mine - theirs)
                                                                               : (double)INFINITY;
    s->largest = isfinite(theirs) && fabs(theirs) > s->largest ? fabs(theirs) : s->largest;
    if (difference > s->worst) {
        s->worst = difference;
        s->at = at;
    }
}

int run_has_linear(const run_task *task)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    int is_linear = 0;
    for (int i = 0; heddle_schedule_stage_at(&stage, task->schedule, i) == HEDDLE_OK; i++) {
        is_linear |= stage.kind == HEDDLE_STAGE_LINEAR;
    }
    return is_linear;
}

/* Largest difference against the largest value of one rank. */
static int check_within(char *sentence, size_t sentence_bytes, const run_task *task, const void *output,
                        const void *reference, int methods)
{
    const heddle_shape *shape = &task->info.shape;
    const int64_t elems = judge_elems(shape);
    run_span s = {0};
    char place[256];
    for (int64_t i = 0; i < elems; i++) {
        run_span_take(&s, (double)feed_load(output, i, shape->dtype), (double)feed_load(reference, i, shape->dtype), i);
    }
    const double part = shape->dtype != HEDDLE_F32 ? TOLERANCE_BF16
                        : run_has_linear(task)     ? TOLERANCE_F32_LINEAR
                                                   : TOLERANCE_F32;
    const int within = s.worst <= part * s.largest;
    place_of(place, sizeof(place), shape, s.at);
    snprintf(sentence, sentence_bytes,
             "%s one rank: the largest difference of %" PRId64 " values is %.3g at [%s], the tolerance %.3g (%g of the "
             "largest value; %d stage%s by a method)",
             within ? "equal within the tolerance to" : "differs from", elems, s.worst, place, part * s.largest, part,
             methods, methods == 1 ? " runs" : "s run");
    return within ? 0 : 1;
}

int run_check_values(char *sentence, size_t sentence_bytes, const run_task *task, const void *output,
                     const void *reference)
{
    const heddle_shape *shape = &task->info.shape;
    const size_t bytes = heddle_dtype_bytes(shape->dtype);
    const int64_t elems = judge_elems(shape);
    int64_t differ = 0, first = 0;
    const int methods = count_methods(task);
    if (memcmp(output, reference, (size_t)elems * bytes) == 0) {
        snprintf(sentence, sentence_bytes, "bitwise equal to one rank (%" PRId64 " values)", elems);
        return 0;
    }
    if (methods > 0) {
        return check_within(sentence, sentence_bytes, task, output, reference, methods);
    }
    for (int64_t i = elems - 1; i >= 0; i--) {
        if (memcmp((const char *)output + (size_t)i * bytes, (const char *)reference + (size_t)i * bytes, bytes) != 0) {
            differ++;
            first = i;
        }
    }
    char place[256];
    place_of(place, sizeof(place), shape, first);
    snprintf(sentence, sentence_bytes,
             "%" PRId64 " of %" PRId64 " values differ from one rank, the first at [%s]: %.9g, one rank has %.9g",
             differ, elems, place, (double)feed_load(output, first, shape->dtype),
             (double)feed_load(reference, first, shape->dtype));
    return 1;
}
