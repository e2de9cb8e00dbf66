/* Memory for frameworks' pools: what it is, who may free it, and that the wire peer stores to it. */
#include "device_pool.h"

/* --- by itself ---------------------------------------------------------------------------------------------------- */

HD_CASE(whole_pieces_or_nothing)
{
    pool_api p;
    int device = -1;
    HD_OK(pool_get(&p));
    HD_OK(p.set_device(1));
    void *one = p.take(1, 0, NULL), *two = p.take(GRAIN + 1, 1, NULL);
    assert_non_null(one);
    assert_non_null(two);
    assert_int_equal(p.sim.device_bytes(), 3 * GRAIN);
    assert_null(p.take(0, 0, NULL));
    assert_null(p.take(SIZE_MAX, 0, NULL));
    assert_null(p.take((size_t)1 << 40, 0, NULL)); /* more than there is */
    assert_null(p.take(1, 7, NULL));               /* no such device */
    p.give(NULL, 1, 0, NULL);
    p.give((char *)one + OFFSET, 1, 0, NULL); /* not from here */
    assert_int_equal(p.sim.device_bytes(), 3 * GRAIN);
    p.give(two, GRAIN + 1, 1, NULL);
    p.give(one, 1, 0, NULL);
    assert_int_equal(p.sim.device_bytes(), 0);
    HD_OK(p.error());
    HD_OK(p.get_device(&device));
    assert_int_equal(device, 1);
}

/* A call that fails is no memory, or memory all the same; no more is left than the piece that could not go back. */
HD_CASE(every_call_can_fail)
{
    enum { CALLS = 16 };
    pool_api p;
    int device = -1, refused = 0;
    HD_OK(pool_get(&p));
    void *other = p.take(1, 0, NULL); /* the device is in use */
    for (int n = 1; n <= CALLS; n++) {
        const int64_t before = p.sim.device_bytes();
        p.sim.fail_at(n, n % 2 == 0 ? 2 : 999);
        void *memory = p.take(1, 1, NULL);
        p.sim.fail_at(0, 0);
        refused += memory == NULL;
        HD_OK(p.error());
        HD_OK(p.get_device(&device));
        assert_int_equal(device, 0);
        p.sim.fail_at(n, 999);
        p.give(memory, 1, 1, NULL);
        p.sim.fail_at(0, 0);
        HD_OK(p.error());
        assert_true(p.sim.device_bytes() - before <= GRAIN);
    }
    assert_in_range(refused, 2, 6);
    p.give(other, 1, 0, NULL);
    HD_OK(p.get_device(&device));
    assert_int_equal(device, 0);
}

static void *give_all(void *arg)
{
    pool_api p;
    void **memory = arg;
    assert_int_equal(pool_get(&p), HEDDLE_OK);
    for (int i = 0; memory[i] != NULL; i++) {
        p.give(memory[i], GRAIN, i % 2, NULL);
    }
    return NULL;
}

static void in_another_thread(void **memory)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, give_all, memory), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void *take_and_give(void *arg)
{
    const pool_api *p = arg;
    for (int round = 0; round < 50; round++) {
        void *a = p->take(GRAIN, 0, NULL), *b = p->take(1, 1, NULL);
        p->give(a, GRAIN, 0, NULL);
        p->give(b, 1, 1, NULL);
    }
    return NULL;
}

HD_CASE(any_thread_at_any_time)
{
    enum { THREADS = 4 };
    pool_api p;
    pthread_t thread[THREADS];
    void *memory[3] = {NULL};
    HD_OK(pool_get(&p));
    memory[0] = p.take(GRAIN, 0, NULL);
    memory[1] = p.take(GRAIN, 1, NULL);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, take_and_give, &p), 0);
    }
    in_another_thread(memory);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    }
    assert_int_equal(p.sim.device_bytes(), 0);
}

/* Of each mode; a global one forbids cudaMalloc to every thread. */
HD_CASE(while_a_stream_captures)
{
    pool_api p;
    void *stream = NULL, *graph = NULL;
    HD_OK(pool_get(&p));
    HD_OK(p.sim.stream_create(&stream));
    for (int mode = 0; mode < 3; mode++) {
        HD_OK(p.sim.capture(stream, mode));
        void *memory[2] = {p.take(1, 0, stream), NULL}, *mine = p.take(1, 0, stream);
        assert_non_null(memory[0]);
        assert_non_null(mine);
        in_another_thread(memory);
        p.give(mine, 1, 0, stream);
        HD_OK(p.error());
        HD_OK(p.sim.record(stream, &graph)); /* no harm was done */
        p.sim.graph_free(graph);
        assert_int_equal(p.sim.device_bytes(), 0);
    }
    p.sim.stream_destroy(stream);
}

/* torch keeps the functions' addresses, and frees when the process ends. */
HD_CASE(the_library_stays)
{
    pool_api p;
    HD_OK(pool_get(&p));
    void *memory = p.take(1, 0, NULL);
    for (int i = 0; i < 8; i++) { /* more often than it was opened */
        (void)dlclose(p.sim.handle);
    }
    p.give(memory, 1, 0, NULL);
    assert_int_equal(p.sim.device_bytes(), 0);
}

/* An ending call that fails is nobody else's failure: launches ask for the last error. */
HD_CASE(no_error_is_left_behind)
{
    pool_api p;
    heddle_comm *comm = alone();
    const hd_device *device = hd_comm_device(comm);
    hd_leaves("what cannot be destroyed because a call fails is left to the process");
    HD_OK(pool_get(&p));
    for (int64_t n = 1; n <= 3; n++) {
        void *event = NULL, *memory = NULL;
        HD_OK(device->library->event_create(&event, device->number));
        HD_OK(device->library->alloc(&memory, device->number, 64));
        p.sim.fail_at(n, 999);
        device->library->event_destroy(event, device->number);
        device->library->free(memory, device->number);
        p.sim.fail_at(0, 0);
        HD_OK(p.error());
    }
    heddle_comm_destroy(comm);
}

/* --- the wire peer ------------------------------------------------------------------------------------------------ */

/* Rounds of f's plan from and to places within pieces of the pool. */
static heddle_status into(const device_fixture *f, void *src, void *dst, int round)
{
    device_fixture g = *f;
    g.src = (int32_t *)((char *)src + OFFSET);
    g.dst = (int32_t *)((char *)dst + GRAIN - sizeof f->got); /* up to its end */
    return whole(&g, round);
}

/* What was there when a plan was made is stored to, by all plans; later pieces get a copy. One that was freed is
 * the next one of its size. */
HD_RANK_CASE(processes_map_it, "2 shm cuda peer", "2 shm cuda:0 peer")
{
    heddle_status st = HEDDLE_OK;
    pool_api p;
    device_fixture f = {0}, g = {0};
    const int device = heddle_comm_device(comm), rank = heddle_comm_rank(comm);
    void *memory[2] = {NULL, NULL};
    HD_TRY(pool_get(&p));
    void *src = p.take(1, device, NULL), *dst = p.take(GRAIN, device, NULL), *late = NULL;
    CHECK(src != NULL && dst != NULL);
    HD_TRY(device_set_up(&f, comm, 0));
    for (int round = 0; round < 3; round++) {
        HD_TRY(into(&f, src, dst, round));
        HD_TRY(says_why(f.reshard, direct));
    }
    CHECK((late = p.take(GRAIN, device, NULL)) != NULL);
    HD_TRY(into(&f, src, rank == 0 ? late : dst, 3));
    HD_TRY(says_why(f.reshard, rank == 0 ? lands : direct));
    HD_TRY(device_set_up(&g, comm, 0)); /* now it is mapped */
    HD_TRY(into(&f, src, late, 4));
    HD_TRY(says_why(f.reshard, direct));
    HD_TRY(into(&f, src, dst, 5));
    HD_TRY(into(&f, src, late, 6));
    HD_TRY(into(&g, src, late, 7));
    HD_TRY(says_why(g.reshard, direct));

    const int64_t before = p.sim.device_bytes();
    heddle_buffer_free(comm, dst); /* not its own: nothing happens */
    p.give((memory[0] = dst), GRAIN, device, NULL);
    CHECK(p.sim.device_bytes() == before);
    void *again = p.take(2 * GRAIN + 1, device, NULL); /* more than what is kept has */
    CHECK(again != NULL && again != dst && p.sim.device_bytes() == before + 3 * GRAIN);
    p.give(again, 2 * GRAIN + 1, device, NULL); /* peers know nothing of it */
    CHECK(p.sim.device_bytes() == before && p.take(1, device, NULL) == dst);
    HD_TRY(into(&g, src, dst, 8));
    HD_TRY(says_why(g.reshard, direct));
    in_another_thread(memory);
    memory[0] = late;
    in_another_thread(memory);
    p.give(src, 1, device, NULL);
    CHECK(p.sim.device_bytes() == before); /* they end with the communicator */
    st = heddle_comm_barrier(comm);
out:
    device_tear_down(&f);
    device_tear_down(&g);
    return st;
}

/* A communicator of its own, whose plans have mapped the piece. */
static heddle_status opens(heddle_comm **own, device_fixture *f, const heddle_comm *comm, const char *word)
{
    heddle_status st = HEDDLE_OK;
    char key[40];
    const heddle_comm_options options = device_options("cuda:0", HEDDLE_WIRE_PEER);
    snprintf(key, sizeof key, "pool-%d-%s", (int)getppid(), word);
    HD_TRY(heddle_comm_join(own, key, heddle_comm_rank(comm), 2, &options));
    HD_TRY(device_set_up(f, *own, 0));
    device_tear_down(f); /* the next plan finds it mapped */
    st = device_set_up(f, *own, 0);
out:
    return st;
}

static void closes(heddle_comm **own, device_fixture *f)
{
    if (*own != NULL) {
        device_tear_down(f);
        heddle_comm_destroy(*own);
        *own = NULL;
    }
}

/* Of two communicators that have it mapped the last one lets it go; what is in use outlives both, and is mapped by the
 * next one. */
static heddle_status ends_with_the_last(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    pool_api p;
    heddle_comm *one = NULL, *other = NULL;
    device_fixture f = {0}, g = {0};
    (void)arg;
    HD_TRY(pool_get(&p));
    void *dst = p.take(1, 0, NULL), *freed = p.take(1, 0, NULL);
    CHECK(dst != NULL && freed != NULL);
    HD_TRY(opens(&one, &f, comm, "one"));
    HD_TRY(opens(&other, &g, comm, "other"));
    HD_TRY(into(&f, dst, dst, 0));
    HD_TRY(into(&g, dst, dst, 1));
    HD_TRY(says_why(f.reshard, direct));
    HD_TRY(says_why(g.reshard, direct));
    p.give(freed, 1, 0, NULL);
    closes(&one, &f);
    HD_TRY(heddle_comm_barrier(comm));
    CHECK(p.sim.device_bytes() > 2 * GRAIN);
    HD_TRY(into(&g, dst, dst, 2));
    closes(&other, &g);
    CHECK(p.sim.device_bytes() == GRAIN);
    HD_TRY(opens(&one, &f, comm, "again"));
    HD_TRY(into(&f, dst, dst, 3));
    HD_TRY(says_why(f.reshard, direct));
    closes(&one, &f);
    p.give(dst, 1, 0, NULL);
    CHECK(p.sim.device_bytes() == 0);
    st = heddle_comm_barrier(comm);
out:
    closes(&one, &f);
    closes(&other, &g);
    return st;
}

HD_CASE(communicators_hold_it)
{
    HD_OK(heddle_run_ranks_with(2, "shm", NULL, ends_with_the_last, NULL));
}

HD_RANK_CASE(threads_reach_it, "2 threads cuda peer", "2 threads cuda:0 peer", "2 threads cuda host")
{
    heddle_status st = HEDDLE_OK;
    pool_api p;
    device_fixture f = {0};
    const int device = heddle_comm_device(comm);
    HD_TRY(pool_get(&p));
    void *src = p.take(GRAIN, device, NULL), *dst = p.take(1, device, NULL);
    CHECK(src != NULL && dst != NULL);
    HD_TRY(device_set_up(&f, comm, 0));
    for (int round = 0; round < 3; round++) {
        HD_TRY(into(&f, src, dst, round));
    }
    HD_TRY(heddle_comm_barrier(comm)); /* cudaFree waits for the other one's kernels */
    p.give(src, GRAIN, device, NULL);
    p.give(dst, 1, device, NULL);
    st = heddle_comm_barrier(comm);
out:
    device_tear_down(&f);
    return st;
}
