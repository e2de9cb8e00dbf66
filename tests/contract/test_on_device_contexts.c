/* A device whose memory no rank uses has no context, whichever thread calls; and a thread has after a call of heddle
 * the context that it had before, also none, also one of its own. */
#include "nccl_sim.h"
#include "own_stream.h"

#include <time.h>
#include <unistd.h>

enum { RANKS = 2, FIRST = 1, DEVICES = 4 };

static const struct timespec some_looks = {.tv_nsec = 90000000}; /* of the thread beside, one every 20 ms */

/* --- ranks on the devices 1 and 2 --------------------------------------------------------------------------------- */

static int is_process;

static heddle_status check_contexts(const device_sim *sim, int own)
{
    heddle_status st = HEDDLE_OK;
    void *context = NULL;
    for (int device = 0; device < DEVICES; device++) {
        const int is_used = is_process ? device == own : device >= FIRST && device < FIRST + RANKS;
        if (sim->contexts(device) != is_used) {
            return heddle_set_error(HEDDLE_ERR_INTERNAL, "rank on device %d: device %d has %d contexts", own, device,
                                    sim->contexts(device));
        }
    }
    CHECK(sim->current(&context) == 0 && context == NULL);
out:
    return st;
}

/* Executions that are waited for, asked after, and looked at from beside while the stream does not move. */
static heddle_status use(own_stream *o, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    int before = 0, done = 0, is_enqueued = strstr(heddle_comm_describe(comm), "wire host") == NULL;
    HD_TRY(own_set_up(o, comm, 0));
    HD_TRY(three_rounds(&o->f));
    if (is_enqueued) { /* else start waits for the stream */
        HD_TRY(heddle_comm_barrier(comm));
        HD_TRY(o->device->library->enter(&before, o->device->number)); /* CUDA's own call, without heddle */
        o->sim.hold(o->stream);
        o->device->library->leave(before);
        HD_TRY(heddle_comm_barrier(comm));
    }
    HD_TRY(heddle_reshard_start(o->f.reshard, o->f.src, o->f.dst, o->stream));
    HD_TRY(heddle_reshard_test(o->f.reshard, &done));
    nanosleep(&some_looks, NULL);
    HD_TRY(heddle_comm_barrier(comm));
    o->sim.release();
    HD_TRY(heddle_reshard_wait(o->f.reshard));
    HD_TRY(heddle_comm_poll(comm));
    st = heddle_comm_barrier(comm);
out:
    o->sim.release();
    return st;
}

static heddle_status uses_its_own(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const heddle_wire *wire = arg;
    const int device = FIRST + heddle_comm_rank(comm);
    own_stream o = {0};
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", device);
    HD_TRY(heddle_comm_attach_device(comm, name, *wire));
    HD_TRY(use(&o, comm));
    HD_TRY(check_contexts(&o.sim, device));
out:
    own_tear_down(&o);
    st = st == HEDDLE_OK ? check_contexts(&o.sim, device) : st;
    return st;
}

static void run_beside_device_0(const char *transport, heddle_wire wire)
{
    is_process = strcmp(transport, "shm") == 0;
    setenv("HEDDLE_CUDASIM_DEVICES", "4", 1);
    setenv("HEDDLE_MODULE_PATH", HEDDLE_NCCL_SIM, 1);
    HD_OK(heddle_run_ranks_with(RANKS, transport, NULL, uses_its_own, &wire));
}

HD_CASE(threads_by_host)
{
    run_beside_device_0("threads", HEDDLE_WIRE_HOST);
}

HD_CASE(threads_by_peer)
{
    run_beside_device_0("threads", HEDDLE_WIRE_PEER);
}

HD_CASE(threads_by_nccl)
{
    run_beside_device_0("threads", HEDDLE_WIRE_NCCL);
}

HD_CASE(processes)
{
    run_beside_device_0("shm", HEDDLE_WIRE_HOST);
    run_beside_device_0("shm", HEDDLE_WIRE_PEER);
    run_beside_device_0("shm", HEDDLE_WIRE_NCCL);
}

/* --- what a caller had -------------------------------------------------------------------------------------------- */

typedef struct caller {
    device_sim sim;
    const heddle_device *table;
    int device;
    void *had; /* NULL: none */
} caller;

static heddle_status still_has(const caller *c, const char *after)
{
    void *now = NULL;
    return c->sim.current(&now) == 0 && now == c->had
               ? HEDDLE_OK
               : heddle_set_error(HEDDLE_ERR_INTERNAL, "after %s the current context is %p, not %p", after, now,
                                  c->had);
}

/* A call may fail (each does, once): it leaves what was there all the same. */
#define AFTER(call)                                                                                                    \
    do {                                                                                                               \
        (void)(call);                                                                                                  \
        HD_TRY(still_has(c, #call));                                                                                   \
    } while (0)
#define AFTER_VOID(call)                                                                                               \
    do {                                                                                                               \
        call;                                                                                                          \
        HD_TRY(still_has(c, #call));                                                                                   \
    } while (0)

static heddle_status enqueue_all(const caller *c, void *memory, char *host, void *event, void *stream)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *t = c->table;
    heddle_space space = HEDDLE_SPACE_HOST;
    int number = 0;
    AFTER(t->pin(host + 64, 64, c->device)); /* no copy's */
    AFTER(t->copy(memory, 64, host, 64, 64, 1, c->device, stream));
    AFTER(t->copy(host, 16, memory, 32, 8, 2, c->device, stream));
    AFTER(t->event_record(event, c->device, stream));
    AFTER(t->stream_wait(stream, event, c->device));
    AFTER(t->stream_captures(&number, c->device, stream));
    AFTER(t->check(c->device));
    AFTER(t->look(&space, &number, memory));
    for (number = 0; number == 0 && t->event_test(event, c->device, &number) == HEDDLE_OK;) {
        usleep(100);
    }
    HD_TRY(still_has(c, "event_test"));
    AFTER_VOID(t->unpin(host + 64, c->device));
out:
    return st;
}

static heddle_status measure_all(const caller *c, void *stream)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *t = c->table;
    void *timer = NULL, *graph = NULL;
    double ms = 0;
    AFTER(t->timer_create(&timer, c->device));
    AFTER(t->event_record(timer, c->device, stream));
    AFTER(t->timer_read(&ms, timer, timer, c->device));
    AFTER_VOID(t->event_destroy(timer, c->device));
    AFTER(t->capture_begin(c->device, stream));
    AFTER(t->capture_end(&graph, c->device, stream));
    if (graph != NULL) {
        AFTER(t->graph_launch(graph, c->device, stream));
    }
    AFTER_VOID(t->graph_destroy(graph, c->device));
out:
    return st;
}

static heddle_status ask_all(const caller *c, void *memory)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *t = c->table;
    heddle_device_name name;
    void *mapped = NULL;
    char word[64];
    int blocks = 0, before = 0;
    AFTER(t->blocks(&blocks, c->device));
    AFTER(t->identify(word, sizeof word, c->device));
    AFTER(t->reach(c->device, c->device == 0));
    memset(&name, 0, sizeof name);
    AFTER(t->share(&name, memory, c->device));
    AFTER(t->map(&mapped, &name, c->device)); /* refused: it is this process's */
    AFTER_VOID(t->unmap(memory, c->device));  /* likewise */
    if (t->enter(&before, c->device) == HEDDLE_OK) {
        t->leave(before);
    }
    st = still_has(c, "enter and leave");
out:
    return st;
}

static heddle_status call_all(const caller *c)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *t = c->table;
    void *memory = NULL, *event = NULL, *stream = NULL;
    char host[128] = {0}, words[200];
    int number = 0, is_whole = 0;
    AFTER(t->open(&number, "1", 0, words, sizeof words));
    AFTER(t->alloc(&memory, c->device, 64));
    AFTER(t->event_create(&event, c->device));
    AFTER(t->stream_create(&stream, c->device));
    is_whole = memory != NULL && event != NULL && stream != NULL;
    HD_TRY(is_whole ? enqueue_all(c, memory, host, event, stream) : HEDDLE_OK);
    HD_TRY(is_whole ? measure_all(c, stream) : HEDDLE_OK);
    HD_TRY(is_whole ? ask_all(c, memory) : HEDDLE_OK);
    AFTER_VOID(t->stream_destroy(stream, c->device));
    AFTER_VOID(t->event_destroy(event, c->device));
    AFTER_VOID(t->free(memory, c->device));
out:
    return st;
}

static void set_up_caller(caller *c)
{
    heddle_comm *comm = alone();
    c->device = heddle_comm_device(comm);
    c->table = hd_comm_device(comm)->library;
    HD_OK(device_sim_get(&c->sim));
    heddle_comm_destroy(comm);
}

/* All calls well, then the first one failing, then the second one. */
static void each_call(const caller *c)
{
    int64_t calls = c->sim.calls();
    hd_leaves("what cannot be destroyed because a call fails is left to the process");
    HD_OK(still_has(c, "nothing"));
    HD_OK(call_all(c));
    calls = c->sim.calls() - calls;
    assert_true(calls > 40);
    for (int64_t n = 1; n <= calls; n++) {
        c->sim.fail_at(n, 999);
        heddle_status st = call_all(c);
        c->sim.fail_at(0, 0);
        HD_OK(st);
    }
}

HD_CASE(a_caller_without_any_has_none)
{
    caller c = {0};
    set_up_caller(&c);
    each_call(&c);
    assert_int_equal(c.sim.contexts(1), 1);
    assert_int_equal(c.sim.contexts(0), 1); /* reached as a peer: no thread has chosen it */
}

HD_CASE(a_caller_that_has_chosen_a_device_has_that)
{
    for (int device = 0; device < 2; device++) {
        caller c = {0};
        set_up_caller(&c);
        assert_int_equal(c.sim.set_device(device), 0);
        assert_int_equal(c.sim.current(&c.had), 0);
        assert_non_null(c.had);
        each_call(&c);
        assert_int_equal(c.sim.set_current(NULL), 0);
    }
}

/* Of another device; of this one, in which heddle then works. */
HD_CASE(a_caller_with_a_context_of_its_own_has_that)
{
    for (int device = 0; device < 2; device++) {
        caller c = {0};
        set_up_caller(&c);
        c.had = c.sim.context_create(device);
        assert_non_null(c.had);
        each_call(&c);
        c.sim.context_destroy(c.had);
    }
}

/* Messages are a library of their own. */
static heddle_status has_it_after_messages(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o = {0};
    caller c = {0};
    (void)arg;
    HD_TRY(use(&o, comm));
    c.sim = o.sim;
    c.had = c.sim.context_create(3);
    CHECK(c.had != NULL);
    HD_TRY(three_rounds(&o.f));
    HD_TRY(still_has(&c, "three executions"));
    st = heddle_comm_barrier(comm);
out:
    own_tear_down(&o);
    if (c.had != NULL) {
        st = st == HEDDLE_OK ? still_has(&c, "destroying a plan") : st;
        c.sim.context_destroy(c.had);
    }
    return st;
}

HD_CASE(a_caller_has_it_after_messages)
{
    run_by_nccl(RANKS, has_it_after_messages, NULL);
}
