/* Events. A record is a ticket; a wait is for the ticket that was the last one when it was asked for. */
#include "sim.h"

void hd_sim_event_unref(cudaEvent_t event)
{
    if (--event->references == 0) {
        free(event);
    }
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags)
{
    HD_SIM_CALL();
    *out = NULL;
    if (flags > (cudaEventBlockingSync | cudaEventDisableTiming)) {
        return hd_sim_result(cudaErrorInvalidValue);
    }
    *out = calloc(1, sizeof **out);
    if (*out == NULL) {
        return hd_sim_result(cudaErrorMemoryAllocation);
    }
    (*out)->references = 1;
    (*out)->is_timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}

static _Atomic(cudaEvent_t) kept; /* those that could not be destroyed: nobody has leaked them */

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    const cudaError_t early = hd_sim_begin_in_context(__func__);
    if (early != cudaSuccess && event != NULL) {
        event->kept = atomic_exchange(&kept, event);
    }
    if (early != cudaSuccess || event == NULL) {
        return early != cudaSuccess ? early : hd_sim_result(cudaErrorInvalidResourceHandle);
    }
    hd_sim_lock();
    hd_sim_event_unref(event);
    hd_sim_unlock();
    return cudaSuccess;
}

static void drop_event(hd_sim_op *op)
{
    hd_sim_event_unref(op->u.event.event);
}

static void run_record(hd_sim_op *op)
{
    cudaEvent_t event = op->u.event.event;
    hd_sim_release(&event->edge);
    hd_sim_lock();
    if (event->done < op->u.event.ticket) {
        event->done = op->u.event.ticket;
        event->time_ns = hd_sim_time_ns();
    }
    hd_sim_changed();
    hd_sim_unlock();
}

static void await(cudaEvent_t event, uint64_t ticket)
{
    while (event->done < ticket) {
        hd_sim_wait();
    }
    hd_sim_acquire(&event->edge);
}

static void run_wait(hd_sim_op *op)
{
    hd_sim_lock();
    await(op->u.event.event, op->u.event.ticket);
    hd_sim_unlock();
}

static cudaError_t enqueue(cudaEvent_t event, cudaStream_t stream, void (*run)(hd_sim_op *))
{
    hd_sim_lock();
    event->references++;
    event->recorded += run == run_record;
    hd_sim_op op = {.run = run, .drop = drop_event, .u.event = {event, event->recorded}};
    hd_sim_unlock();
    cudaError_t error = hd_sim_enqueue(stream, &op);
    if (error != cudaSuccess && run == run_record) {
        hd_sim_lock();
        event->recorded--;
        hd_sim_unlock();
    }
    return error;
}

/* Where a capture is concerned, nothing is enqueued: an order between its operations is all that comes of it. */
static cudaError_t captured(cudaEvent_t event, cudaStream_t handle, int is_record, int *was)
{
    cudaError_t error = cudaSuccess;
    hd_sim_lock();
    cudaStream_t stream = hd_sim_stream(handle);
    *was = stream != NULL && (stream->capture != NULL || (!is_record && event->capture != 0));
    if (*was && is_record) {
        hd_sim_capture_record(event, stream);
    } else if (*was) {
        error = hd_sim_capture_wait(stream, event);
    } else if (is_record) {
        event->capture = 0;
    }
    hd_sim_unlock();
    return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    HD_SIM_CALL();
    if (event == NULL) {
        return hd_sim_result(cudaErrorInvalidResourceHandle);
    }
    int was_captured = 0;
    cudaError_t error = captured(event, stream, 1, &was_captured);
    return hd_sim_result(was_captured ? error : enqueue(event, stream, run_record));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    HD_SIM_CALL();
    if (event == NULL || flags != 0) {
        return hd_sim_result(event == NULL ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue);
    }
    int was_captured = 0;
    cudaError_t error = captured(event, stream, 0, &was_captured);
    return hd_sim_result(was_captured ? error : enqueue(event, stream, run_wait));
}

/* A GPU refuses both of an event that was recorded in a capture. */
static cudaError_t check(cudaEvent_t event)
{
    return event == NULL ? cudaErrorInvalidResourceHandle : event->capture != 0 ? cudaErrorCapturedEvent : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    HD_SIM_CALL_OUTSIDE_CAPTURE();
    if (check(event) != cudaSuccess) {
        return hd_sim_result(check(event));
    }
    hd_sim_lock();
    int is_done = event->done == event->recorded;
    if (is_done) {
        hd_sim_acquire(&event->edge);
    }
    hd_sim_unlock();
    return hd_sim_result(is_done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    HD_SIM_CALL_OUTSIDE_CAPTURE();
    if (check(event) != cudaSuccess) {
        return hd_sim_result(check(event));
    }
    hd_sim_lock();
    await(event, event->recorded);
    hd_sim_unlock();
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    HD_SIM_CALL();
    if (begin == NULL || end == NULL || !begin->is_timed || !end->is_timed) {
        return hd_sim_result(cudaErrorInvalidResourceHandle);
    }
    hd_sim_lock();
    cudaError_t error = begin->recorded == 0 || end->recorded == 0 ? cudaErrorInvalidResourceHandle : cudaSuccess;
    if (error == cudaSuccess && (begin->done < begin->recorded || end->done < end->recorded)) {
        error = cudaErrorNotReady;
    }
    *ms = error == cudaSuccess ? (float)(int64_t)(end->time_ns - begin->time_ns) * 1e-6f : 0;
    hd_sim_unlock();
    return hd_sim_result(error);
}
