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

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    HD_SIM_CALL();
    if (event == NULL) {
        return hd_sim_result(cudaErrorInvalidResourceHandle);
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
    if (event == NULL) {
        return hd_sim_result(cudaErrorInvalidResourceHandle);
    }
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
    return hd_sim_result(error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    HD_SIM_CALL();
    return enqueue(event, stream, run_record);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    HD_SIM_CALL();
    return flags != 0 ? hd_sim_result(cudaErrorInvalidValue) : enqueue(event, stream, run_wait);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    HD_SIM_CALL();
    if (event == NULL) {
        return hd_sim_result(cudaErrorInvalidResourceHandle);
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
    HD_SIM_CALL();
    if (event == NULL) {
        return hd_sim_result(cudaErrorInvalidResourceHandle);
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
