/* Memory for frameworks' pools that peers have mapped is kept when it is freed: when it is the next one's, whose. */
#include "device_pool.h"

#include <sys/wait.h>

enum { MEMORY_ALLOCATION = 2 }; /* cudaErrorMemoryAllocation */

typedef struct later {
    const pool_api *p;
    _Atomic int is_done;
} later;

static void *release_later(void *arg)
{
    later *l = arg;
    usleep(50000);
    atomic_store(&l->is_done, 1);
    l->p->sim.release();
    return NULL;
}

/* Held by a communicator: two pieces, of one and of five grains. */
static heddle_status set_up(device_fixture *f, pool_api *p, heddle_comm *comm, void *piece[2])
{
    heddle_status st = HEDDLE_OK;
    const int device = heddle_comm_device(comm);
    HD_TRY(pool_get(p));
    piece[0] = p->take(1, device, NULL);
    piece[1] = p->take(5 * GRAIN, device, NULL);
    CHECK(piece[0] != NULL && piece[1] != NULL);
    HD_TRY(device_set_up(f, comm, 0));
    st = heddle_comm_barrier(comm);
out:
    return st;
}

/* The stream that it was taken for tells nothing: work with it is in another one. */
HD_RANK_CASE(it_is_free_when_the_device_has_done_all, "2 shm cuda:0 peer")
{
    heddle_status st = HEDDLE_OK;
    pool_api p;
    device_fixture f = {0};
    void *piece[2] = {NULL, NULL}, *stream[2] = {NULL, NULL};
    const int device = heddle_comm_device(comm);
    later l = {.p = &p};
    pthread_t thread;
    HD_TRY(set_up(&f, &p, comm, piece));
    HD_TRY(p.sim.stream_create(&stream[0]));
    HD_TRY(p.sim.stream_create(&stream[1]));
    p.sim.hold(stream[1]);
    HD_TRY(device_copy(comm, piece[0], (char *)piece[0] + OFFSET, OFFSET, stream[1]));
    CHECK(pthread_create(&thread, NULL, release_later, &l) == 0);
    p.give(piece[0], 1, device, stream[0]);
    const int was_done = atomic_load(&l.is_done);
    pthread_join(thread, NULL);
    CHECK(was_done && p.take(1, device, NULL) == piece[0]);
    p.sim.stream_destroy(stream[0]);
    p.give(piece[0], 1, device, stream[0]); /* which its owner has destroyed */
    CHECK(p.take(1, device, NULL) == piece[0]);
    p.give(piece[0], 1, device, NULL);
    st = heddle_comm_barrier(comm);
out:
    if (stream[1] != NULL) {
        p.sim.stream_destroy(stream[1]);
    }
    device_tear_down(&f);
    return st;
}

HD_RANK_CASE(a_capture_is_not_harmed, "2 shm cuda:0 peer")
{
    heddle_status st = HEDDLE_OK;
    pool_api p;
    device_fixture f = {0};
    void *piece[2] = {NULL, NULL}, *stream = NULL, *graph = NULL;
    const int device = heddle_comm_device(comm);
    HD_TRY(set_up(&f, &p, comm, piece));
    HD_TRY(p.sim.stream_create(&stream));
    for (int mode = 0; mode < 3; mode++) {
        HD_TRY(p.sim.capture(stream, mode));
        p.give(piece[0], 1, device, stream);
        CHECK(p.take(1, device, stream) == piece[0]);
        HD_TRY(p.sim.record(stream, &graph));
        p.sim.graph_free(graph);
    }
    p.give(piece[0], 1, device, stream);
    st = heddle_comm_barrier(comm);
out:
    if (stream != NULL) {
        p.sim.stream_destroy(stream);
    }
    device_tear_down(&f);
    return st;
}

/* A piece that is much too large waits for somebody who needs it, unless there is nothing else; one that was freed when
 * the device could not be waited for is nobody's. */
HD_RANK_CASE(which_one_is_next, "2 shm cuda:0 peer")
{
    heddle_status st = HEDDLE_OK;
    pool_api p;
    device_fixture f = {0};
    void *piece[2] = {NULL, NULL};
    const int device = heddle_comm_device(comm);
    HD_TRY(set_up(&f, &p, comm, piece));
    p.give(piece[1], 5 * GRAIN, device, NULL);
    void *other = p.take(GRAIN, device, NULL);
    CHECK(other != NULL && other != piece[1]);
    p.give(other, GRAIN, device, NULL);
    CHECK(p.take(4 * GRAIN, device, NULL) == piece[1]);
    p.give(piece[1], 5 * GRAIN, device, NULL);
    p.sim.fail_at(2, MEMORY_ALLOCATION);
    CHECK(p.take(GRAIN, device, NULL) == piece[1]);
    p.sim.fail_at(2, MEMORY_ALLOCATION);
    p.give(piece[1], 5 * GRAIN, device, NULL);
    other = p.take(5 * GRAIN, device, NULL);
    CHECK(other != NULL && other != piece[1]);
    p.give(other, 5 * GRAIN, device, NULL);
    p.give(piece[0], 1, device, NULL);
    HD_TRY(p.error());
    st = heddle_comm_barrier(comm);
out:
    device_tear_down(&f);
    return st;
}

HD_RANK_CASE(a_fork_gets_nothing, "2 shm cuda:0 peer")
{
    heddle_status st = HEDDLE_OK;
    pool_api p;
    device_fixture f = {0};
    void *piece[2] = {NULL, NULL};
    const int device = heddle_comm_device(comm);
    int status = 0;
    HD_TRY(set_up(&f, &p, comm, piece));
    p.give(piece[0], 1, device, NULL);
    const pid_t child = fork();
    if (child == 0) {
        p.give(piece[1], 5 * GRAIN, device, NULL);
        _exit(p.take(1, device, NULL) == NULL ? 0 : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(p.take(1, device, NULL) == piece[0]);
    p.give(piece[0], 1, device, NULL);
    p.give(piece[1], 5 * GRAIN, device, NULL);
    st = heddle_comm_barrier(comm);
out:
    device_tear_down(&f);
    return st;
}
