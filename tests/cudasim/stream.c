/* Streams: a thread and a queue each. The legacy default stream of a device and its blocking streams wait for one
 * another; streams made with cudaStreamNonBlocking do not. */
#include "sim.h"

#include <signal.h>

static cudaStream_t streams; /* all, newest first */

/* The handle of the stream that this thread destroyed last, whose work may go on: its next one's. NULL: none, so the
 * next one's is new. No address of memory: allocators order threads, or race where ThreadSanitizer sees no lock
 * (hd_sim_lock). */
static _Thread_local cudaStream_t spare;
static uintptr_t handles = 1 << 16;

/* What streams send goes to the device by a few connections, each of which hands on in the order in which things came:
 * what waits for its stream's turn keeps back all that came later, of other streams too. */
static struct connection {
    uint64_t came, gone;
    int streams;
} connections[HD_SIM_MAX_DEVICES][HD_SIM_MAX_CONNECTIONS];

static struct connection *connection_of(cudaStream_t stream)
{
    return &connections[stream->device][stream->connection];
}

/* One with the fewest streams. */
static int choose_connection(int device)
{
    int best = 0;
    for (int i = 1; i < hd_sim_connections(); i++) {
        best = connections[device][i].streams < connections[device][best].streams ? i : best;
    }
    return best;
}

void hd_sim_stream_unref(cudaStream_t stream)
{
    if (--stream->references == 0) {
        free(stream);
    }
}

static void run_and_free(cudaStream_t stream, hd_sim_op *op)
{
    stream->running = op;
    hd_sim_unlock();
    hd_sim_acquire(op);
    op->run(op);
    hd_sim_release(&stream->edge);
    hd_sim_lock();
    stream->running = NULL;
    if (op->drop != NULL) {
        op->drop(op);
    }
    free(op);
    stream->finished++;
    hd_sim_changed();
}

static _Thread_local int running_device;

int hd_sim_running_device(void)
{
    return running_device;
}

static void *stream_main(void *argument)
{
    cudaStream_t stream = argument;
    running_device = stream->device;
    hd_sim_lock();
    for (;;) {
        hd_sim_op *op = stream->first;
        if (op == NULL && stream->is_closing) {
            break;
        }
        if (op == NULL) {
            hd_sim_wait_at(&stream->work);
            continue;
        }
        if (hd_sim_connections() > 0 && connection_of(stream)->gone != op->turn) {
            hd_sim_wait();
            continue;
        }
        stream->first = op->next;
        if (hd_sim_connections() > 0) {
            connection_of(stream)->gone++;
            hd_sim_changed();
        }
        run_and_free(stream, op);
    }
    hd_sim_stream_unref(stream);
    hd_sim_unlock();
    hd_sim_end_fibres();
    return NULL;
}

static int start_thread(cudaStream_t stream)
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    int failed = pthread_create(&thread, NULL, stream_main, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) {
        pthread_detach(thread);
    }
    return failed;
}

/* With the lock. */
static cudaStream_t make(int device, int is_legacy, int is_blocking)
{
    cudaStream_t stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return NULL;
    }
    *stream = (struct CUstream_st){
        .device = device, .references = 2, .is_legacy = is_legacy, .is_blocking = is_blocking, .next = streams};
    stream->connection = choose_connection(device);
    if (start_thread(stream) != 0) {
        free(stream);
        return NULL;
    }
    streams = stream;
    connection_of(stream)->streams++;
    return stream;
}

static cudaStream_t legacy(int device)
{
    for (cudaStream_t s = streams; s != NULL; s = s->next) {
        if (s->is_legacy && s->device == device) {
            return s;
        }
    }
    return make(device, 1, 1);
}

cudaStream_t hd_sim_stream(cudaStream_t handle)
{
    if (handle == NULL || handle == cudaStreamLegacy) {
        return legacy(hd_sim_device());
    }
    for (cudaStream_t s = streams; s != NULL; s = s->next) {
        if (s->handle == handle) {
            return s;
        }
    }
    return NULL;
}

static int append(cudaStream_t stream, const hd_sim_op *what)
{
    hd_sim_op *op = malloc(sizeof *op);
    if (op == NULL) {
        return 0;
    }
    *op = *what;
    op->next = NULL;
    op->turn = connection_of(stream)->came++;
    if (stream->first == NULL) {
        stream->first = op;
    } else {
        stream->last->next = op;
    }
    stream->last = op;
    stream->enqueued++;
    hd_sim_release(op);
    hd_sim_call(&stream->work);
    return 1;
}

static void run_after(hd_sim_op *op)
{
    hd_sim_lock();
    while (op->u.after.stream->finished < op->u.after.ticket) {
        hd_sim_wait();
    }
    hd_sim_unlock();
    hd_sim_acquire(&op->u.after.stream->edge);
}

static void drop_after(hd_sim_op *op)
{
    hd_sim_stream_unref(op->u.after.stream);
}

static int append_after(cudaStream_t stream, cudaStream_t other)
{
    if (other->enqueued == 0) {
        return 1;
    }
    hd_sim_op op = {.run = run_after, .drop = drop_after, .u.after = {other, other->enqueued}};
    other->references++;
    return append(stream, &op);
}

/* What the legacy stream and the blocking ones owe one another. */
static int append_order(cudaStream_t stream)
{
    if (!stream->is_blocking) {
        return 1;
    }
    for (cudaStream_t s = streams; s != NULL; s = s->next) {
        if (s != stream && s->device == stream->device && s->is_blocking && (stream->is_legacy || s->is_legacy) &&
            !append_after(stream, s)) {
            return 0;
        }
    }
    return 1;
}

cudaError_t hd_sim_enqueue(cudaStream_t handle, hd_sim_op *what)
{
    hd_sim_lock();
    hd_sim_let_allocate();
    cudaStream_t stream = hd_sim_stream(handle);
    cudaError_t error = stream == NULL ? cudaErrorInvalidResourceHandle : hd_sim_capture_implicit(stream);
    if (error == cudaSuccess && stream->capture != NULL) {
        error = hd_sim_capture_op(stream, what);
    } else if (error == cudaSuccess && !(append_order(stream) && append(stream, what))) {
        error = cudaErrorMemoryAllocation;
    }
    if (error != cudaSuccess && what->drop != NULL) {
        what->drop(what);
    }
    hd_sim_unlock();
    return error;
}

int hd_sim_is_capturing(cudaStream_t handle)
{
    hd_sim_lock();
    cudaStream_t stream = hd_sim_stream(handle);
    int is_capturing = stream != NULL && stream->capture != NULL;
    hd_sim_unlock();
    return is_capturing;
}

void hd_sim_finish(cudaStream_t stream)
{
    uint64_t ticket = stream->enqueued;
    stream->references++;
    while (stream->finished < ticket) {
        hd_sim_wait();
    }
    hd_sim_acquire(&stream->edge);
    hd_sim_stream_unref(stream);
}

int hd_sim_is_copied(const void *memory, size_t bytes)
{
    int is_copied = 0;
    for (cudaStream_t s = streams; s != NULL; s = s->next) {
        is_copied |= s->running != NULL && hd_sim_copies(s->running, memory, bytes);
        for (const hd_sim_op *op = s->first; op != NULL; op = op->next) {
            is_copied |= hd_sim_copies(op, memory, bytes);
        }
    }
    return is_copied;
}

/* One after another; a stream that is destroyed meanwhile is gone from the list, so the list is begun again. */
void hd_sim_finish_device(int device)
{
    cudaStream_t s = streams;
    while (s != NULL) {
        if (s->device == device && s->finished < s->enqueued) {
            hd_sim_finish(s);
            s = streams;
            continue;
        }
        if (s->device == device) {
            hd_sim_acquire(&s->edge);
        }
        s = s->next;
    }
}

enum { GREATEST_PRIORITY = -5 /* as on an H100; 0 is the least */ };

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    HD_SIM_CALL();
    *least = 0;
    *greatest = GREATEST_PRIORITY;
    return cudaSuccess;
}

/* Priorities are noted, and have no effect. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned int flags, int priority)
{
    HD_SIM_CALL();
    if (flags > cudaStreamNonBlocking) {
        return hd_sim_result(cudaErrorInvalidValue);
    }
    hd_sim_lock();
    cudaStream_t stream = make(hd_sim_device(), 0, flags != cudaStreamNonBlocking);
    if (stream != NULL) {
        stream->handle = spare != NULL ? spare : (cudaStream_t)(handles += 16);
        spare = NULL;
        stream->priority = priority > 0 ? 0 : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
        *out = stream->handle;
    }
    hd_sim_unlock();
    return hd_sim_result(stream != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    HD_SIM_CALL();
    hd_sim_lock();
    const cudaStream_t stream = hd_sim_stream(handle);
    *priority = stream != NULL ? stream->priority : 0;
    hd_sim_unlock();
    return hd_sim_result(stream != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

/* What is in it is still done. */
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    HD_SIM_CALL();
    cudaError_t error = cudaErrorInvalidResourceHandle;
    hd_sim_lock();
    for (cudaStream_t *at = &streams; *at != NULL; at = &(*at)->next) {
        cudaStream_t s = *at;
        if (handle != NULL && s->handle == handle) {
            *at = s->next;
            spare = s->handle;
            s->is_closing = 1;
            connection_of(s)->streams--;
            hd_sim_call(&s->work);
            hd_sim_stream_unref(s);
            error = cudaSuccess;
            break;
        }
    }
    hd_sim_unlock();
    return hd_sim_result(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    HD_SIM_CALL_OUTSIDE_CAPTURE();
    hd_sim_lock();
    cudaStream_t stream = hd_sim_stream(handle);
    if (stream != NULL) {
        if (!append_order(stream)) { /* the legacy stream: what its next operation would wait for */
            hd_sim_die("no memory for a wait");
        }
        hd_sim_finish(stream);
    }
    hd_sim_unlock();
    return hd_sim_result(stream != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    HD_SIM_CALL();
    hd_sim_lock();
    cudaStream_t stream = hd_sim_stream(handle);
    cudaError_t error = cudaErrorInvalidResourceHandle;
    if (stream != NULL && stream->capture != NULL) {
        error = cudaErrorStreamCaptureUnsupported;
    } else if (stream != NULL) {
        error = stream->finished == stream->enqueued ? cudaSuccess : cudaErrorNotReady;
    }
    if (error == cudaSuccess) {
        hd_sim_acquire(&stream->edge);
    }
    hd_sim_unlock();
    return hd_sim_result(error);
}

static void run_host(hd_sim_op *op)
{
    op->u.host.function(op->u.host.user);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user)
{
    HD_SIM_CALL();
    hd_sim_op op = {.run = run_host, .u.host = {function, user}};
    return hd_sim_result(hd_sim_enqueue(stream, &op));
}
