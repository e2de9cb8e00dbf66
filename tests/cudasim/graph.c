/* Capture of streams into graphs, and graphs that run again. A graph runs its
 * operations one after another in the order in which they were captured, which
 * every order between its streams allows. */
#include "sim.h"

struct CUgraph_st {
    int references;
    hd_sim_op *first, *last;
};

struct CUgraphExec_st {
    cudaGraph_t graph;
};

typedef struct hd_sim_capture {
    uint64_t number;
    cudaGraph_t graph;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    int is_invalid, nlanes;
    cudaStream_t lane[HD_SIM_MAX_LANES];               /* 0: where it began */
    uint64_t seen[HD_SIM_MAX_LANES][HD_SIM_MAX_LANES]; /* operations of the second that the first
                                      comes behind */
    struct hd_sim_capture *next;
} hd_sim_capture;

static hd_sim_capture *captures;
static uint64_t last_number;
static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

static void graph_unref(cudaGraph_t graph)
{
    if (--graph->references > 0) {
        return;
    }
    while (graph->first != NULL) {
        hd_sim_op *op = graph->first;
        graph->first = op->next;
        if (op->drop != NULL) {
            op->drop(op);
        }
        free(op);
    }
    free(graph);
}

int hd_sim_forbids(void)
{
    int forbidden = 0;
    hd_sim_lock();
    for (hd_sim_capture *c = captures; c != NULL; c = c->next) {
        int is_own = pthread_equal(c->thread, pthread_self()) && c->mode != cudaStreamCaptureModeRelaxed;
        int is_all = c->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
        if ((is_own && thread_mode != cudaStreamCaptureModeRelaxed) || is_all) {
            forbidden = c->is_invalid = 1;
        }
    }
    hd_sim_unlock();
    return forbidden;
}

cudaError_t hd_sim_capture_implicit(cudaStream_t stream)
{
    for (hd_sim_capture *c = captures; c != NULL && stream->is_legacy; c = c->next) {
        for (int i = 0; i < c->nlanes; i++) {
            if (c->lane[i]->is_blocking && c->lane[i]->device == stream->device) {
                c->is_invalid = 1;
                return cudaErrorStreamCaptureImplicit;
            }
        }
    }
    return cudaSuccess;
}

cudaError_t hd_sim_capture_op(cudaStream_t stream, const hd_sim_op *what)
{
    hd_sim_capture *c = stream->capture;
    hd_sim_op *op = c->is_invalid ? NULL : malloc(sizeof *op);
    if (op == NULL) {
        return c->is_invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorMemoryAllocation;
    }
    *op = *what;
    op->next = NULL;
    *(c->graph->first == NULL ? &c->graph->first : &c->graph->last->next) = op;
    c->graph->last = op;
    c->seen[stream->lane][stream->lane]++;
    return cudaSuccess;
}

static void run_nothing(hd_sim_op *op)
{
    (void)op;
}

static void drop_gone(hd_sim_op *op)
{
    op->u.host.function(op->u.host.user);
}

int hd_sim_when_gone(void *stream, void (*gone)(void *user), void *user)
{
    const hd_sim_op op = {.run = run_nothing, .drop = drop_gone, .u.host = {gone, user}};
    hd_sim_lock();
    cudaStream_t found = hd_sim_stream(stream);
    int is_in = found != NULL && found->capture != NULL && hd_sim_capture_op(found, &op) == cudaSuccess;
    hd_sim_unlock();
    return is_in;
}

void hd_sim_capture_record(cudaEvent_t event, cudaStream_t stream)
{
    event->capture = stream->capture->number;
    memcpy(event->seen, stream->capture->seen[stream->lane], sizeof event->seen);
}

cudaError_t hd_sim_capture_wait(cudaStream_t stream, const struct CUevent_st *event)
{
    hd_sim_capture *c = captures;
    while (c != NULL && (event->capture == 0 || c->number != event->capture)) {
        c = c->next;
    }
    if (c == NULL || (stream->capture != NULL && stream->capture != c)) {
        if (stream->capture != NULL) {
            stream->capture->is_invalid = 1;
        }
        return event->capture == 0 ? cudaErrorStreamCaptureIsolation
               : c == NULL         ? cudaErrorCapturedEvent
                                   : cudaErrorStreamCaptureMerge;
    }
    if (stream->capture == NULL) {
        if (c->nlanes == HD_SIM_MAX_LANES) {
            hd_sim_die("a capture of more than %d streams", HD_SIM_MAX_LANES);
        }
        stream->capture = c;
        stream->lane = c->nlanes;
        c->lane[c->nlanes++] = stream;
        stream->references++;
    }
    uint64_t *seen = c->seen[stream->lane];
    for (int i = 0; i < HD_SIM_MAX_LANES; i++) {
        seen[i] = seen[i] > event->seen[i] ? seen[i] : event->seen[i];
    }
    return cudaSuccess;
}

static hd_sim_capture *capture_new(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    hd_sim_capture *c = calloc(1, sizeof *c);
    cudaGraph_t graph = calloc(1, sizeof *graph);
    if (c == NULL || graph == NULL) {
        free(c);
        free(graph);
        return NULL;
    }
    graph->references = 1;
    *c = (hd_sim_capture){.number = ++last_number,
                          .graph = graph,
                          .mode = mode,
                          .thread = pthread_self(),
                          .nlanes = 1,
                          .lane = {stream},
                          .next = captures};
    stream->references++;
    return c;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    HD_SIM_CALL();
    cudaError_t error = cudaSuccess;
    hd_sim_lock();
    cudaStream_t stream = hd_sim_stream(handle);
    if (stream == NULL || stream->is_legacy) {
        error = stream == NULL ? cudaErrorInvalidResourceHandle : cudaErrorStreamCaptureUnsupported;
    } else if (stream->capture != NULL) {
        error = cudaErrorIllegalState;
    } else {
        stream->capture = capture_new(stream, mode);
        stream->lane = 0;
        error = stream->capture == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
        captures = error == cudaSuccess ? stream->capture : captures;
    }
    hd_sim_unlock();
    return hd_sim_result(error);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    HD_SIM_CALL();
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

/* All that was captured elsewhere must have come back to where it began. */
static int is_joined(const hd_sim_capture *c)
{
    int joined = 1;
    for (int i = 1; i < c->nlanes; i++) {
        joined = joined && c->seen[0][i] == c->seen[i][i];
    }
    return joined;
}

static void capture_free(hd_sim_capture *c)
{
    hd_sim_capture **at = &captures;
    while (*at != c) {
        at = &(*at)->next;
    }
    *at = c->next;
    for (int i = 0; i < c->nlanes; i++) {
        c->lane[i]->capture = NULL;
        hd_sim_stream_unref(c->lane[i]);
    }
    free(c);
}

/* A capture ends here, also where the call fails. */
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out)
{
    cudaError_t error = hd_sim_begin_in_context(__func__);
    *out = NULL;
    hd_sim_lock();
    cudaStream_t stream = hd_sim_stream(handle);
    hd_sim_capture *c = stream != NULL ? stream->capture : NULL;
    error = error != cudaSuccess ? error
            : stream == NULL     ? cudaErrorInvalidResourceHandle
            : c == NULL          ? cudaErrorIllegalState
            : c->is_invalid      ? cudaErrorStreamCaptureInvalidated
                                 : cudaSuccess;
    if (error == cudaSuccess && c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self())) {
        error = cudaErrorStreamCaptureWrongThread;
    } else if (error == cudaSuccess && c->lane[0] != stream) {
        error = cudaErrorStreamCaptureUnmatched;
    } else if (error == cudaSuccess && !is_joined(c)) {
        error = cudaErrorStreamCaptureUnjoined;
    }
    if (error == cudaSuccess) {
        *out = c->graph;
    } else if (c != NULL) {
        graph_unref(c->graph);
    }
    if (c != NULL) {
        capture_free(c);
    }
    hd_sim_unlock();
    return hd_sim_result(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
    HD_SIM_CALL();
    *status = cudaStreamCaptureStatusNone;
    hd_sim_lock();
    cudaStream_t stream = hd_sim_stream(handle);
    cudaError_t error = stream != NULL ? hd_sim_capture_implicit(stream) : cudaErrorInvalidResourceHandle;
    if (stream != NULL && stream->capture != NULL) {
        *status = stream->capture->is_invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    }
    hd_sim_unlock();
    return hd_sim_result(error);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    HD_SIM_CALL();
    *out = NULL;
    if (graph == NULL || flags != 0) {
        return hd_sim_result(cudaErrorInvalidValue);
    }
    *out = malloc(sizeof **out);
    if (*out == NULL) {
        return hd_sim_result(cudaErrorMemoryAllocation);
    }
    hd_sim_lock();
    (*out)->graph = graph;
    graph->references++;
    hd_sim_unlock();
    return cudaSuccess;
}

static void run_graph(hd_sim_op *op)
{
    for (hd_sim_op *each = op->u.graph->first; each != NULL; each = each->next) {
        each->run(each);
    }
}

static void drop_graph(hd_sim_op *op)
{
    graph_unref(op->u.graph);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    HD_SIM_CALL();
    if (exec == NULL) {
        return hd_sim_result(cudaErrorInvalidValue);
    }
    hd_sim_op op = {.run = run_graph, .drop = drop_graph, .u.graph = exec->graph};
    hd_sim_lock();
    exec->graph->references++;
    hd_sim_unlock();
    return hd_sim_result(hd_sim_enqueue(stream, &op));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    HD_SIM_CALL();
    if (exec == NULL) {
        return hd_sim_result(cudaErrorInvalidValue);
    }
    hd_sim_lock();
    graph_unref(exec->graph);
    hd_sim_unlock();
    free(exec);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    HD_SIM_CALL();
    if (graph == NULL) {
        return hd_sim_result(cudaErrorInvalidValue);
    }
    hd_sim_lock();
    graph_unref(graph);
    hd_sim_unlock();
    return cudaSuccess;
}
