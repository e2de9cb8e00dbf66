/* What comes out: files, and the two comparisons of --check. */
#include "planner/report/text.h"
#include "run.h"
#include "runtime/files/output.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the largest value, where sums are in another order than one rank's. bf16 rounds every stage's result to 2^-9 of
 * it, and a last bit that falls the other way grows through the layers behind. */
#define TOLERANCE_F32 2e-5
#define TOLERANCE_BF16 0.03

static int64_t elems_of(const heddle_shape *shape)
{
    int64_t elems = 1;
    for (int d = 0; d < shape->ndim; d++) {
        elems *= shape->dim[d].extent;
    }
    return elems;
}

static heddle_status write_npy(const run_job *job, const char *path, const void *output)
{
    const heddle_shape *shape = &job->info.shape;
    const int64_t elems = elems_of(shape);
    int64_t extent[HEDDLE_MAX_DIMS];
    for (int d = 0; d < shape->ndim; d++) {
        extent[d] = shape->dim[d].extent;
    }
    if (shape->dtype == HEDDLE_F32) {
        return npy_write(path, "<f4", shape->ndim, extent, output);
    }
    float *values = malloc((size_t)elems * sizeof(float) + 1);
    if (values == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %" PRId64 " bytes of output",
                                elems * (int64_t)sizeof(float));
    }
    for (int64_t i = 0; i < elems; i++) {
        values[i] = run_load(output, i, shape->dtype);
    }
    heddle_status st = npy_write(path, "<f4", shape->ndim, extent, values);
    free(values);
    return st;
}

static uint8_t to_sample(float value)
{
    const float scaled = (value + 1.0F) * 127.5F + 0.5F;
    return scaled >= 255.0F ? 255 : scaled > 0.0F ? (uint8_t)scaled : 0; /* NaN gives 0 */
}

/* Tokens of one time step through the last layer, and every patch to its place in the frames. */
static heddle_status unpatch(uint8_t *frames, float *tokens, float *patches, const run_job *job, const void *output,
                             int64_t t)
{
    const run_patches *p = &job->patches;
    const int64_t channels = job->info.shape.dim[job->info.channel_dim].extent, count = p->y * p->x;
    const int64_t width = p->x * p->width, height = p->y * p->height;
    for (int64_t i = 0; i < count * channels; i++) { /* the first sample; dims b t s c or b t h w c */
        tokens[i] = run_load(output, t * count * channels + i, job->info.shape.dtype);
    }
    heddle_status st = heddle_dense_forward(patches, tokens, count, channels, job->final_weight, job->final_bias,
                                            p->values, (int)job->options->threads, HEDDLE_NO_STREAM);
    for (int64_t i = 0; i < count * p->values && st == HEDDLE_OK; i++) {
        int64_t rest = i % p->values;
        const int64_t x = rest % p->width, y = rest / p->width % p->height;
        rest /= p->width * p->height;
        const int64_t frame = rest % p->frames, plane = rest / p->frames, token = i / p->values;
        frames[((frame * Y4M_PLANES + plane) * height + token / p->x * p->height + y) * width +
               token % p->x * p->width + x] = to_sample(patches[i]);
    }
    return st;
}

static heddle_status write_frames(FILE *file, const run_job *job, const void *output)
{
    const run_patches *p = &job->patches;
    const int64_t channels = job->info.shape.dim[job->info.channel_dim].extent, count = p->y * p->x;
    const int64_t width = p->x * p->width, height = p->y * p->height;
    uint8_t *frames = malloc((size_t)(p->frames * Y4M_PLANES * width * height));
    float *tokens = malloc((size_t)(count * channels) * sizeof(float));
    float *patches = malloc((size_t)(count * p->values) * sizeof(float));
    heddle_status st = HEDDLE_OK;
    int bad = y4m_write_header(file, width, height, job->clip.rate_num, job->clip.rate_den);
    if (frames == NULL || tokens == NULL || patches == NULL) {
        st = heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for frames of %" PRId64 " x %" PRId64, width, height);
    }
    for (int64_t t = 0; t < p->t && st == HEDDLE_OK && bad == 0; t++) {
        st = unpatch(frames, tokens, patches, job, output, t);
        for (int64_t f = 0; f < p->frames && st == HEDDLE_OK && bad == 0; f++) {
            bad = y4m_write_frame(file, frames + f * Y4M_PLANES * width * height, width, height);
        }
    }
    free(frames);
    free(tokens);
    free(patches);
    return st; /* bytes that were lost are seen when the file is closed */
}

static heddle_status write_y4m(const run_job *job, const char *path, const void *output)
{
    file_output file;
    heddle_status st = file_output_open(&file, path);
    return st != HEDDLE_OK ? st : file_output_close(&file, write_frames(file.file, job, output));
}

int run_write_output(const run_job *job, const void *output)
{
    const char *path = job->options->output;
    const size_t length = strlen(path);
    const int is_clip = length > 4 && strcmp(path + length - 4, ".y4m") == 0;
    return cli_report_written(is_clip ? write_y4m(job, path, output) : write_npy(job, path, output));
}

/* --- the checks --- */

void run_step_name(char *out, size_t out_bytes, const run_job *job, int step)
{
    heddle_schedule_stage stage = {.struct_bytes = sizeof stage};
    const int nsteps = job->info.nstages * job->info.repeat + 1;
    const char *back = step >= nsteps ? "backward of " : "";
    if (step >= 2 * nsteps) {
        snprintf(out, out_bytes, "the sum of the gradients");
    } else if (heddle_schedule_stage_at(&stage, job->schedule, step % nsteps) == HEDDLE_OK) {
        snprintf(out, out_bytes, "%sstage '%s' of layer %d", back, stage.name, stage.repetition);
    } else {
        snprintf(out, out_bytes, "%sthe epilogue", back);
    }
}

int run_check_bytes(char *sentence, size_t sentence_bytes, const run_job *job, int nranks, int nsteps,
                    const run_step *steps)
{
    char name[128];
    int64_t moved = 0;
    for (int i = 0; i < nsteps; i++) {
        heddle_schedule_edge edge = {.struct_bytes = sizeof edge};
        heddle_schedule_stage stage = {.struct_bytes = sizeof stage};
        int64_t total = 0;
        int64_t inside =
            heddle_schedule_stage_at(&stage, job->schedule, i) == HEDDLE_OK ? stage.forward_bytes_total : 0;
        run_step_name(name, sizeof(name), job, i);
        for (int rank = 0; rank < nranks; rank++) {
            const run_step *s = &steps[rank * nsteps + i];
            total += s->sent;
            if (s->sent != s->planned) {
                snprintf(sentence, sentence_bytes,
                         "rank %d sent %" PRId64 " bytes into %s and inside, planned were %" PRId64, rank, s->sent,
                         name, s->planned);
                return CLI_MISMATCH;
            }
        }
        if (heddle_schedule_edge_at(&edge, job->schedule, i) != HEDDLE_OK || edge.bytes_total + inside != total) {
            snprintf(sentence, sentence_bytes, "the ranks sent %" PRId64 " bytes into %s, the schedule says %" PRId64,
                     total, name, edge.bytes_total + inside);
            return CLI_MISMATCH;
        }
        moved += total;
    }
    snprintf(sentence, sentence_bytes, "bytes sent = bytes planned for %d rank%s x %d edge%s (%" PRId64 " bytes)",
             nranks, report_s(nranks), nsteps, report_s(nsteps), moved);
    return CLI_OK;
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
            return CLI_MISMATCH;
        }
    }
    return CLI_OK;
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
static int count_methods(const run_job *job)
{
    heddle_schedule_stage stage = {.struct_bytes = sizeof stage};
    int count = 0;
    for (int i = 0; heddle_schedule_stage_at(&stage, job->schedule, i) == HEDDLE_OK; i++) {
        count += strcmp(stage.method, "local") != 0;
    }
    return count;
}

/* Largest difference against the largest value of one rank. A NaN must stand where one rank has one. */
static int check_within(char *sentence, size_t sentence_bytes, const run_job *job, const void *output,
                        const void *reference, int methods)
{
    const heddle_shape *shape = &job->info.shape;
    const int64_t elems = elems_of(shape);
    double largest = 0, worst = 0;
    int64_t at = 0;
    char place[256];
    for (int64_t i = 0; i < elems; i++) {
        const double mine = (double)run_load(output, i, shape->dtype);
        const double theirs = (double)run_load(reference, i, shape->dtype);
        const double difference = mine == theirs || (isnan(mine) && isnan(theirs)) ? 0
                                  : isfinite(mine) && isfinite(theirs)             ? fabs(mine - theirs)
                                                                                   : (double)INFINITY;
        largest = isfinite(theirs) && fabs(theirs) > largest ? fabs(theirs) : largest;
        if (difference > worst) {
            worst = difference;
            at = i;
        }
    }
    const double tolerance = (shape->dtype == HEDDLE_F32 ? TOLERANCE_F32 : TOLERANCE_BF16) * largest;
    const int within = worst <= tolerance;
    place_of(place, sizeof(place), shape, at);
    snprintf(sentence, sentence_bytes,
             "%s one rank: the largest difference of %" PRId64 " values is %.3g at [%s], the tolerance %.3g (%g of the "
             "largest value; %d stage%s by a method)",
             within ? "equal within the tolerance to" : "differs from", elems, worst, place, tolerance,
             shape->dtype == HEDDLE_F32 ? TOLERANCE_F32 : TOLERANCE_BF16, methods, methods == 1 ? " runs" : "s run");
    return within ? CLI_OK : CLI_MISMATCH;
}

int run_check_values(char *sentence, size_t sentence_bytes, const run_job *job, const void *output,
                     const void *reference)
{
    const heddle_shape *shape = &job->info.shape;
    const size_t bytes = heddle_dtype_bytes(shape->dtype);
    const int64_t elems = elems_of(shape);
    int64_t differ = 0, first = 0;
    const int methods = count_methods(job);
    if (memcmp(output, reference, (size_t)elems * bytes) == 0) {
        snprintf(sentence, sentence_bytes, "bitwise equal to one rank (%" PRId64 " values)", elems);
        return CLI_OK;
    }
    if (methods > 0) {
        return check_within(sentence, sentence_bytes, job, output, reference, methods);
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
             differ, elems, place, (double)run_load(output, first, shape->dtype),
             (double)run_load(reference, first, shape->dtype));
    return CLI_MISMATCH;
}
