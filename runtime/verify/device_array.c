/* Copies and waits of judges, with the device's own table. */
#include "runtime/verify/device_array.h"

#include <heddle/sys/device.h>
#include <time.h>

enum { PATIENCE_S = 60 };

heddle_status judge_stream_create(heddle_stream *out, const heddle_comm *comm)
{
    const heddle_device *table = heddle_comm_device_table(comm);
    *out = HEDDLE_NO_STREAM;
    return table != NULL && table->stream_create != NULL ? table->stream_create(out, heddle_comm_device(comm))
                                                         : HEDDLE_OK;
}

void judge_stream_destroy(const heddle_comm *comm, heddle_stream stream)
{
    if (stream != HEDDLE_NO_STREAM) {
        heddle_comm_device_table(comm)->stream_destroy(stream, heddle_comm_device(comm));
    }
}

heddle_status judge_device_settle(const heddle_comm *comm, heddle_stream stream)
{
    const heddle_device *table = heddle_comm_device_table(comm);
    const int device = heddle_comm_device(comm);
    const struct timespec nap = {.tv_nsec = 20000};
    struct timespec start, now;
    void *event = NULL;
    int done = 0;
    heddle_status st = table->event_create(&event, device);
    st = st == HEDDLE_OK ? table->event_record(event, device, stream) : st;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (st == HEDDLE_OK && (st = table->event_test(event, device, &done)) == HEDDLE_OK && !done) {
        nanosleep(&nap, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - start.tv_sec > PATIENCE_S) {
            st = heddle_set_error(HEDDLE_ERR_TIMEOUT, "device %d has not done what it was given within %d s", device,
                                  PATIENCE_S);
        }
    }
    table->event_destroy(event, device);
    return st;
}

heddle_status judge_device_copy(const heddle_comm *comm, void *dst, const void *src, size_t bytes, heddle_stream stream)
{
    const heddle_device *table = heddle_comm_device_table(comm);
    heddle_status st = table->copy(dst, 0, src, 0, (int64_t)bytes, 1, heddle_comm_device(comm), stream);
    return st == HEDDLE_OK ? judge_device_settle(comm, stream) : st;
}

heddle_status judge_there_make(judge_there *out, heddle_comm *comm, judge_array *array, int n, int is_used)
{
    *out = (judge_there){.comm = comm, .array = array, .n = n, .is_used = is_used};
    heddle_status st = is_used ? judge_stream_create(&out->stream, comm) : HEDDLE_OK;
    for (int i = 0; i < n && st == HEDDLE_OK && is_used; i++) {
        st = heddle_buffer_alloc(&out->memory[i], comm, array[i].bytes, HEDDLE_SPACE_DEVICE);
    }
    return st;
}

void judge_there_free(judge_there *there, heddle_comm *comm)
{
    for (int i = 0; i < there->n && there->is_used; i++) {
        heddle_buffer_free(comm, there->memory[i]);
    }
    judge_stream_destroy(comm, there->stream);
}

heddle_attention_array judge_there_array(const judge_there *there, int which)
{
    const judge_array *x = &there->array[which];
    heddle_attention_array array = x->array;
    if (there->memory[which] != NULL) {
        array.data = (char *)there->memory[which] + ((char *)x->array.data - x->memory);
    }
    return array;
}

heddle_status judge_there_bring(const judge_there *there)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < there->n && st == HEDDLE_OK && there->memory[i] != NULL; i++) {
        st = judge_device_copy(there->comm, there->memory[i], there->array[i].memory, there->array[i].bytes,
                               there->stream);
    }
    return st;
}

heddle_status judge_there_fetch(const judge_there *there, int first)
{
    heddle_status st = HEDDLE_OK;
    for (int i = first; i < there->n && st == HEDDLE_OK && there->memory[i] != NULL; i++) {
        st = judge_device_copy(there->comm, there->array[i].memory, there->memory[i], there->array[i].bytes,
                               there->stream);
    }
    return st;
}
