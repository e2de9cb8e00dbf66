/* A rank's whole pass on a device, its arrays and its stream with it. */
#ifndef HD_TEST_WHOLE_PASS_H
#define HD_TEST_WHOLE_PASS_H

#include "device_sim.h"
#include "executor_fixture.h"

enum { MOST_BYTES = ELEMS * sizeof(float) };

/* A rank's pass: forward, and back where `backward`. */
typedef struct whole {
    bench b;
    heddle_tensor first, x, dx;
    void *x_memory, *dx_memory, *vector, *text;
    heddle_executor_options options;
    int64_t most_workspace_bytes; /* of each stage; 0: what they want */
    const char *epilogue;         /* NULL: whole on every rank */
    heddle_conditioning conditioning;
    heddle_stream stream;
    float start[ELEMS];
    int backward;
} whole;

typedef struct results {
    float x[ELEMS], dx[ELEMS];
} results;

static inline heddle_status on_device(void **out, const bench *b, const void *host, size_t bytes)
{
    heddle_status st = heddle_buffer_alloc(out, b->comm, bytes, HEDDLE_SPACE_DEVICE);
    return st == HEDDLE_OK ? device_copy_now(b->comm, *out, host, bytes) : st;
}

static inline void choose(whole *w, heddle_comm *comm, int backward)
{
    memset(w, 0, sizeof *w);
    w->backward = backward;
    w->options = options_on(comm);
    w->options.blocks = HEDDLE_SPACE_DEVICE;
    w->options.backward = backward;
    w->options.keeps_weights = !backward;
}

static inline heddle_status set_up(whole *w, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(make_bench_to(&w->b, comm, w->epilogue));
    for (int i = 0; i < STAGES; i++) {
        w->b.stage[i].most_workspace_bytes = w->most_workspace_bytes;
    }
    HD_TRY(heddle_executor_create(&w->b.executor, comm, w->b.schedule, w->b.stage, &w->options));
    HD_TRY(fill(&w->b));
    memcpy(w->start, w->b.data, sizeof w->start);
    HD_TRY(on_device(&w->x_memory, &w->b, w->start, MOST_BYTES));
    HD_TRY(on_device(&w->dx_memory, &w->b, w->start, MOST_BYTES));
    HD_TRY(on_device(&w->vector, &w->b, w->b.vector, sizeof w->b.vector));
    HD_TRY(on_device(&w->text, &w->b, w->b.text, sizeof w->b.text));
    w->conditioning = (heddle_conditioning){w->vector, w->text, NULL};
    w->first = w->b.x;
    w->first.data = w->x_memory;
    w->first.space = w->options.space;
    w->first.device = w->options.device;
    HD_TRY(hd_comm_device(comm)->library->stream_create(&w->stream, heddle_comm_device(comm)));
    st = heddle_comm_barrier(comm); /* nobody allocates any more */
out:
    return st;
}

static inline void tear_down(whole *w)
{
    heddle_comm *comm = w->b.comm;
    free_bench(&w->b);
    heddle_buffer_free(comm, w->x_memory);
    heddle_buffer_free(comm, w->dx_memory);
    heddle_buffer_free(comm, w->vector);
    heddle_buffer_free(comm, w->text);
    hd_comm_device(comm)->library->stream_destroy(w->stream, heddle_comm_device(comm));
}

static inline heddle_status enqueue(whole *w)
{
    heddle_status st = HEDDLE_OK;
    w->x = w->first;
    HD_TRY(heddle_executor_forward(w->b.executor, &w->x, &w->conditioning, w->stream));
    if (w->backward) {
        w->dx = w->x; /* the same layout, in memory of its own */
        w->dx.data = w->dx_memory;
        HD_TRY(heddle_executor_backward(w->b.executor, &w->dx, &w->conditioning, NULL, w->stream));
    }
out:
    return st;
}

#endif
