/* Memory of AdamW on a device: who has it when the optimiser has gone. */
#include "adamw_twin.h"
#include "held_streams.h"
#include "runtime/parallel/parallel_internal.h"

/* No peer has the state mapped, so it goes back to the device. */
HD_RANK_CASE(state_is_given_back, "2 shm cuda peer")
{
    twin t;
    device_sim sim;
    const way of = {"[sp=2]", 1, 0, 0, 0, 0.5};
    heddle_reshard_line line;
    heddle_reshard *later = NULL;
    heddle_reshard_options options;
    heddle_status st = twin_make(&t, comm, &of);
    HD_TRY(st);
    HD_TRY(device_sim_get(&sim));
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    HD_TRY(heddle_reshard_parse(&line, "f32[t=6 s=8] on [sp=2]: t@sp -> s@sp"));
    HD_TRY(heddle_reshard_create_line(&later, comm, &line, &options)); /* peers map what they can by now */
    const int64_t bytes = sim.device_bytes(), state = heddle_adamw_state_bytes(t.adamw[1]);
    heddle_adamw_destroy(t.adamw[1]);
    t.adamw[1] = NULL;
    CHECK(state > 0 && sim.device_bytes() <= bytes - state);
    st = heddle_comm_barrier(comm);
out:
    heddle_reshard_destroy(later);
    twin_free(&t);
    return st;
}

/* What streams have yet to do may use it: it is not given to others, and nobody waits for the streams. Steps in two of
 * them are one behind the other, unlike what does nothing. */
static heddle_status destroys_behind_steps(heddle_comm *comm, twin *t, const device_sim *sim)
{
    heddle_status st;
    const hd_device *device = hd_comm_device(comm);
    heddle_stream other = HEDDLE_NO_STREAM;
    const int64_t bytes = sim->device_bytes();
    int has_ended = 0;
    HD_TRY(device->library->stream_create(&other, device->number));
    sim->hold(t->stream);
    HD_TRY(heddle_adamw_step(t->adamw[1], 1e-2, t->stream));
    HD_TRY(heddle_bucket_gather(t->bucket[1], other));
    HD_TRY(stream_ends(&has_ended, device, other, hd_test_limit_ns(4)));
    CHECK(has_ended);
    HD_TRY(heddle_adamw_step(t->adamw[1], 1e-2, other));
    HD_TRY(stream_has_ended(&has_ended, device, other));
    CHECK(!has_ended);
out:
    twin_free(t);
    CHECK_OR_RETURN(st != HEDDLE_OK || sim->device_bytes() == bytes);
    return st;
}

/* A graph has had a reduce of the bucket. */
static heddle_status destroys_beside_a_graph(heddle_comm *comm, twin *t, const device_sim *sim)
{
    t->bucket[1]->used.is_captured = 1;
    return destroys_behind_steps(comm, t, sim);
}

static heddle_status no_order(heddle_stream stream, void *event, int device)
{
    (void)stream, (void)event, (void)device;
    return heddle_set_error(HEDDLE_ERR_DEVICE, "no order for you");
}

/* The step before has ended, but nobody knows of this one when it has: it did not get behind the other. */
static heddle_status destroys_a_step_without_an_end(heddle_comm *comm, twin *t, const device_sim *sim)
{
    heddle_status st;
    const hd_device *device = hd_comm_device(comm);
    heddle_device library = *device->library;
    hd_device without = *device;
    heddle_stream other = HEDDLE_NO_STREAM;
    const int64_t bytes = sim->device_bytes();
    library.stream_wait = no_order;
    without.library = &library;
    HD_TRY(device->library->stream_create(&other, device->number));
    HD_TRY(heddle_adamw_step(t->adamw[1], 1e-2, t->stream));
    HD_TRY(device_settle(comm, t->stream));
    sim->hold(other);
    t->bucket[1]->used.device = &without;
    CHECK(heddle_adamw_step(t->adamw[1], 1e-2, other) == HEDDLE_ERR_DEVICE && says("no order for you"));
out:
    t->bucket[1]->used.device = device;
    twin_free(t);
    CHECK_OR_RETURN(st != HEDDLE_OK || sim->device_bytes() == bytes);
    return st;
}

/* Nobody waits longer than a deadline, nor who destroys the communicator behind them. */
static void is_not_freed(heddle_status (*destroys)(heddle_comm *, twin *, const device_sim *))
{
    hd_leaves("memory that a stream uses which does not come to its end");
    heddle_comm_options options = by_nccl(0.5);
    heddle_comm *comm = NULL;
    device_sim sim;
    twin t;
    const way of = {"[sp=1]", 0, 0, 0, -1, 0.5};
    options.wire = HEDDLE_WIRE_PEER;
    HD_OK(heddle_comm_open(&comm, "self", &options));
    HD_OK(device_sim_get(&sim));
    HD_OK(device_sim_unseen());
    HD_OK(twin_make(&t, comm, &of));
    const int64_t start_ns = hd_now_ns();
    HD_OK(destroys(comm, &t, &sim));
    heddle_comm_destroy(comm);
    assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(8));
    sim.release();
}

HD_CASE(memory_of_steps_under_way_is_not_freed)
{
    is_not_freed(destroys_behind_steps);
}

HD_CASE(memory_of_steps_beside_a_graph_is_not_freed)
{
    is_not_freed(destroys_beside_a_graph);
}

HD_CASE(memory_of_a_step_without_an_end_is_not_freed)
{
    is_not_freed(destroys_a_step_without_an_end);
}
