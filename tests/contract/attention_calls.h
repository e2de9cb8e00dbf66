/* Calls of an attention or of a linear attention of s@sp on a device: its arrays on one rank, bf16, in the order of a
 * stream, and bits that are the same in every run and replay. Graphs are those of heddle's table, so a card has them,
 * too. */
#ifndef HD_TEST_ATTENTION_CALLS_H
#define HD_TEST_ATTENTION_CALLS_H

#include "held_streams.h"
#include "on_device.h"
#include "time_limit.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <unistd.h>

enum { CALL_ARRAYS = 8, CALL_RESULTS = 4, CALL_MOST_ELEMS = 2 * 19 * 64 };

typedef struct part part;
typedef uint16_t results[CALL_RESULTS][CALL_MOST_ELEMS];

/* Zeros before it is set up. x: q, k, v, d_o; o, dq, dk, dv. */
struct part {
    heddle_comm *comm;
    void *object;
    heddle_status (*both_ways)(part *p);
    heddle_attention_array x[CALL_ARRAYS];
    size_t bytes; /* of each */
    heddle_stream stream;
};

static inline heddle_status part_parse(heddle_shape *shape, heddle_mesh *mesh, heddle_layout *layout, const char *text,
                                       int ranks)
{
    heddle_status st = HEDDLE_OK;
    char mesh_text[32];
    snprintf(mesh_text, sizeof mesh_text, "[sp=%d]", ranks);
    HD_TRY(heddle_shape_parse(shape, text));
    HD_TRY(heddle_mesh_parse(mesh, mesh_text));
    st = heddle_layout_parse(layout, "s@sp", shape, mesh);
out:
    return st;
}

static inline heddle_status part_open(part *p, heddle_comm *comm, heddle_status (*both_ways)(part *p))
{
    memset(p, 0, sizeof *p);
    p->comm = comm;
    p->both_ways = both_ways;
    return hd_comm_device(comm)->library->stream_create(&p->stream, heddle_comm_device(comm));
}

/* The arrays, of so many elements each. */
static inline heddle_status part_fill(part *p, int elems)
{
    heddle_status st = HEDDLE_OK;
    uint16_t host[CALL_MOST_ELEMS];
    p->bytes = (size_t)elems * sizeof host[0];
    for (int i = 0; i < CALL_ARRAYS; i++) {
        for (int k = 0; k < elems; k++) {
            host[k] =
                (uint16_t)(0x3e00 + (k * 37 + i * 11 + heddle_comm_rank(p->comm)) % 0x180 + (k % 3 == 0) * 0x8000);
        }
        HD_TRY(heddle_buffer_alloc(&p->x[i].data, p->comm, p->bytes, HEDDLE_SPACE_DEVICE));
        HD_TRY(device_copy(p->comm, p->x[i].data, host, p->bytes, p->stream));
        HD_TRY(device_settle(p->comm, p->stream));
    }
    st = heddle_comm_barrier(p->comm); /* nobody calls while others allocate */
out:
    return st;
}

/* Behind the end of its object. */
static inline void part_close(part *p)
{
    for (int i = 0; i < CALL_ARRAYS; i++) {
        heddle_buffer_free(p->comm, p->x[i].data);
    }
    if (p->stream != HEDDLE_NO_STREAM && heddle_comm_poll(p->comm) == HEDDLE_OK) {
        hd_comm_device(p->comm)->library->stream_destroy(p->stream, heddle_comm_device(p->comm));
    }
}

/* The results, when all is done. */
static inline heddle_status part_fetch(part *p, results out)
{
    heddle_status st = HEDDLE_OK;
    memset(out, 0, sizeof(results));
    for (int i = 0; i < CALL_RESULTS; i++) {
        HD_TRY(device_copy(p->comm, out[i], p->x[CALL_ARRAYS - CALL_RESULTS + i].data, p->bytes, p->stream));
    }
    HD_TRY(device_settle(p->comm, p->stream));
    st = heddle_comm_poll(p->comm);
out:
    return st;
}

static inline heddle_status part_agrees(part *p, results wanted, const char *what)
{
    static _Thread_local results got;
    heddle_status st = part_fetch(p, got);
    return st != HEDDLE_OK || memcmp(wanted, got, sizeof(results)) == 0
               ? st
               : heddle_set_error(HEDDLE_ERR_INTERNAL, "rank %d: other bits %s", heddle_comm_rank(p->comm), what);
}

static inline heddle_status part_replays(part *p, results wanted, int times)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = hd_comm_device(p->comm)->library;
    const int device = heddle_comm_device(p->comm);
    void *graph = NULL;
    HD_TRY(library->capture_begin(device, p->stream));
    st = p->both_ways(p);
    const heddle_status ended = library->capture_end(&graph, device, p->stream);
    HD_TRY(st == HEDDLE_OK ? ended : st);
    for (int i = 0; i < hd_rounds(times); i++) {
        HD_TRY(library->graph_launch(graph, device, p->stream));
        HD_TRY(part_agrees(p, wanted, "in a replay"));
    }
out:
    library->graph_destroy(graph, device);
    return st;
}

/* Of one that is set up: eager and replayed. */
static inline heddle_status part_keeps_bits(part *p, int runs, int replays)
{
    static _Thread_local results wanted;
    heddle_status st = HEDDLE_OK;
    HD_TRY(p->both_ways(p));
    HD_TRY(part_fetch(p, wanted));
    for (int i = 0; i < hd_rounds(runs); i++) {
        HD_TRY(p->both_ways(p));
        HD_TRY(part_agrees(p, wanted, "in another run"));
    }
    st = part_replays(p, wanted, replays);
out:
    return st;
}

/* Of a rank that is alone, so that no exchange orders them: what is kept between calls is that of the call before until
 * that has ended, also where its stream is gone and another one has the handle. */
static inline heddle_status part_takes_turns(part *p)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = hd_comm_device(p->comm);
    heddle_stream held = p->stream;
    device_sim sim = {0};
    int goes_ahead = 1;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(p->both_ways(p));
    HD_TRY(device_settle(p->comm, p->stream));
    sim.hold(held);
    HD_TRY(p->both_ways(p));
    HD_TRY(device->library->stream_create(&p->stream, device->number));
    HD_TRY(stream_comes_again(&held, &p->stream, device));
    HD_TRY(p->both_ways(p));
    HD_TRY(stream_has_ended(&goes_ahead, device, p->stream));
    CHECK(!goes_ahead);
out:
    if (sim.release != NULL) {
        sim.release();
    }
    return st == HEDDLE_OK ? device_settle(p->comm, p->stream) : st;
}

/* With `rank` bringing an array of the host in the place of k, all hear of it: that rank as an argument that is wrong,
 * in these words. */
static inline heddle_status part_hears_of(part *p, int rank, const char *words)
{
    heddle_status st = HEDDLE_OK;
    const heddle_comm *comm = p->comm;
    uint16_t here[CALL_MOST_ELEMS] = {0};
    void *const there = p->x[1].data;
    const int is_mine = heddle_comm_rank(comm) == rank;
    p->x[1].data = is_mine ? here : there;
    HD_TRY(device_sim_unseen());
    st = p->both_ways(p);
    p->x[1].data = there;
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(10);
    while (st == HEDDLE_OK && hd_now_ns() < until_ns) { /* it was enqueued before the other one gave up */
        st = heddle_comm_poll(p->comm);
        usleep(5000);
    }
    REFUSED(is_mine ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER, words, st);
    st = HEDDLE_OK;
out:
    return st;
}

/* What graphs had ends with the communicator of a rank that is alone, too. */
static inline void nothing_is_left_behind(heddle_rank_main fn)
{
    device_sim sim;
    heddle_comm *comm = alone_on(HEDDLE_WIRE_PEER);
    HD_OK(fn(comm, NULL));
    heddle_comm_destroy(comm);
    if (!is_on_card()) {
        HD_OK(device_sim_get(&sim));
        assert_int_equal(sim.device_bytes(), 0);
    }
}

#endif
