/* On a device: memory, caches as a pass leaves them, and the device's clock. */
#include "runtime/verify/calibrate.h"
#include "runtime/verify/device_array.h"
#include "runtime/verify/judge.h"
#include "runtime/verify/judge_array.h"
#include "runtime/verify/samples.h"

#include <heddle/sys/bench.h>
#include <heddle/sys/device.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* The numbers repeat. */
static void fill(char *to, heddle_dtype dtype, size_t elems)
{
    enum { PERIOD = 1999 };
    const size_t elem = heddle_dtype_bytes(dtype), period = elems < PERIOD ? elems : PERIOD;
    for (size_t i = 0; i < period; i++) {
        judge_store(to + i * elem, dtype, (double)(i * 7919 % PERIOD) / 1000 - 1);
    }
    for (size_t done = period, more; done < elems; done += more) { /* whole periods, until the last */
        more = done < elems - done ? done : elems - done;
        memcpy(to + done * elem, to, more * elem);
    }
}

static heddle_status bring(void **out, calibrate_run *run, void *host, size_t bytes)
{
    heddle_status st = heddle_buffer_alloc(out, run->comm, bytes, HEDDLE_SPACE_DEVICE);
    st = st == HEDDLE_OK ? judge_device_copy(run->comm, *out, host, bytes, run->there->stream) : st;
    free(host);
    return st;
}

heddle_status calibrate_hold(calibrate_run *run, int which, heddle_dtype dtype, size_t elems)
{
    const size_t bytes = (elems * heddle_dtype_bytes(dtype) + 63) / 64 * 64;
    char *host = aligned_alloc(64, bytes);
    if (host == NULL) {
        return judge_no_memory("an operation to time", (double)bytes);
    }
    fill(host, dtype, elems);
    if (run->there != NULL) {
        return bring(&run->held[which], run, host, bytes);
    }
    run->held[which] = host;
    return HEDDLE_OK;
}

void calibrate_let_go(calibrate_run *run)
{
    for (int i = 0; i < CALIBRATE_HELD; i++) {
        if (run->there != NULL) {
            heddle_buffer_free(run->comm, run->held[i]);
        } else {
            free(run->held[i]);
        }
    }
}

/* --- the device --------------------------------------------------------------------------------------------------- */

/* Ranks on the same device as this one, and how many devices there are. */
static heddle_status count_devices(int *sharing, int *devices, const calibrate_there *there, heddle_comm *comm)
{
    enum { WORD = sizeof there->device };
    const int ranks = heddle_comm_size(comm), me = heddle_comm_rank(comm);
    char *all = calloc((size_t)ranks, WORD);
    heddle_status st = all != NULL ? heddle_comm_allgather(comm, there->device, all, WORD)
                                   : judge_no_memory("names of devices", (double)ranks * WORD);
    for (int r = 0; r < ranks && st == HEDDLE_OK; r++) {
        int is_first = 1;
        for (int before = 0; before < r; before++) {
            is_first &= memcmp(all + (size_t)before * WORD, all + (size_t)r * WORD, WORD) != 0;
        }
        *devices += is_first;
        *sharing += memcmp(all + (size_t)me * WORD, all + (size_t)r * WORD, WORD) == 0;
    }
    free(all);
    return st;
}

/* Memory: of the rank that has least. */
heddle_status calibrate_there_share(calibrate_result *out, const calibrate_there *there, heddle_comm *comm)
{
    int sharing = 0;
    heddle_status st = count_devices(&sharing, &out->devices, there, comm);
    double least = st == HEDDLE_OK ? -(double)(there->memory_bytes / sharing) : 0;
    st = st == HEDDLE_OK ? samples_slowest(&least, 1, comm) : st;
    out->memory_bytes = (int64_t)-least;
    return st;
}

static heddle_status make_keeper(calibrate_there *out, heddle_comm *comm)
{
    heddle_block_options options;
    heddle_block_options_init(&options);
    options.kind = HEDDLE_STAGE_MLP;
    options.mlp_channels = 64;
    options.space = HEDDLE_SPACE_DEVICE;
    options.comm = comm;
    heddle_status st = heddle_shape_parse(&options.shape, "bf16[b=1 s=1 c=64]");
    return st == HEDDLE_OK ? heddle_block_create(&out->keeper, &options) : st;
}

heddle_status calibrate_there_make(calibrate_there *out, heddle_comm *comm)
{
    const heddle_device *table = heddle_comm_device_table(comm);
    const int device = heddle_comm_device(comm);
    if (table->kernels == NULL || table->memory == NULL) {
        return heddle_set_error(HEDDLE_ERR_UNSUPPORTED, "devices of kind %s have no %s", table->name,
                                table->kernels == NULL ? "kernels to measure" : "word for how much memory they have");
    }
    heddle_status st = table->memory(&out->memory_bytes, device);
    st = st == HEDDLE_OK ? table->identify(out->device, sizeof out->device, device) : st;
    st = st == HEDDLE_OK ? judge_stream_create(&out->stream, comm) : st;
    st = st == HEDDLE_OK ? table->timer_create(&out->begin, device) : st;
    st = st == HEDDLE_OK ? table->timer_create(&out->end, device) : st;
    return st == HEDDLE_OK ? make_keeper(out, comm) : st;
}

void calibrate_there_free(calibrate_there *there, heddle_comm *comm)
{
    const heddle_device *table = heddle_comm_device_table(comm);
    heddle_block_destroy(there->keeper);
    table->event_destroy(there->begin, heddle_comm_device(comm));
    table->event_destroy(there->end, heddle_comm_device(comm));
    judge_stream_destroy(comm, there->stream);
}

heddle_status calibrate_there_products(calibrate_result *out, calibrate_run *run)
{
    heddle_bench_product_result told = HEDDLE_EMPTY(heddle_bench_product_result);
    heddle_status st = run->operation->open(run);
    st = st == HEDDLE_OK ? heddle_bench_product(&told, run->block, 0, HEDDLE_PRODUCT_FORWARD, run->rows, 0) : st;
    snprintf(out->products, sizeof out->products, "%s", told.kernel);
    st = st == HEDDLE_OK ? heddle_comm_barrier(run->comm) : st;
    run->operation->close(run);
    return st;
}

/* --- times -------------------------------------------------------------------------------------------------------- */

/* Half of `others` over the other half, which is more than the cache holds; of the activation what fits there. */
heddle_status calibrate_there_meet(calibrate_run *run)
{
    const heddle_device *table = heddle_comm_device_table(run->comm);
    const int device = heddle_comm_device(run->comm);
    const int64_t half = run->others_bytes / 2;
    const int64_t x = run->rows * run->channels * (int64_t)heddle_dtype_bytes(run->dtype);
    heddle_status st = table->copy(run->others, 0, run->others + half, 0, half, 1, device, run->there->stream);
    return st == HEDDLE_OK
               ? table->copy(run->others, 0, run->held[0], 0, x < half ? x : half, 1, device, run->there->stream)
               : st;
}

/* What is before them is enqueued behind the barrier, so that the device has no time to wait for launches. */
heddle_status calibrate_there_time(double *ms, calibrate_run *run, int64_t repeats)
{
    const heddle_device *table = heddle_comm_device_table(run->comm);
    const int device = heddle_comm_device(run->comm);
    const calibrate_there *at = run->there;
    heddle_status st = heddle_comm_barrier(run->comm);
    st = st == HEDDLE_OK && run->operation->before != NULL && repeats > 0 ? run->operation->before(run) : st;
    st = st == HEDDLE_OK ? table->event_record(at->begin, device, at->stream) : st;
    for (int64_t i = 0; i < repeats && st == HEDDLE_OK; i++) {
        st = run->operation->once(run);
    }
    st = st == HEDDLE_OK ? table->event_record(at->end, device, at->stream) : st;
    const heddle_status settled = judge_device_settle(run->comm, at->stream);
    st = st == HEDDLE_OK ? settled : st;
    st = st == HEDDLE_OK ? table->timer_read(ms, at->begin, at->end, device) : st;
    *ms /= fmax((double)repeats, 1);
    return st;
}
