/* Ranks that meet on emulated devices: reshards by one launch per rank, ranks that do not come, and an abort. */
#include "device_world.h"
#include "time_limit.h"

#include <unistd.h>

static void check_reports(const world *w, int launches)
{
    for (int r = 0; r < w->nranks; r++) {
        const hd_device_report *report = w->rank[r].report;
        assert_int_equal(report->status, HD_DEVICE_CAME);
        assert_int_equal(report->epoch, launches);
        assert_true(report->end_ns > report->begin_ns);
        for (int p = 0; p < w->nranks; p++) {
            assert_int_equal(report->bytes_to[p], launches * w->rank[r].planned_to[p]);
        }
    }
}

static void reshards(int is_pull)
{
    static const int sizes[] = {2, 3, 4, 8};
    enum { LAUNCHES = 3 };
    random_source source = {is_pull ? 11 : 7};
    for (int round = 0; round < hd_rounds(60); round++) {
        heddle_reshard_line line;
        hd_problem problem;
        all_parts src, dst, wanted;
        hd_random_line(&line, &source, sizes[round % 4], 5, 1500, 0);
        HD_OK(hd_problem_make(&problem, &line));
        all_parts_make(&src, &line, 0);
        all_parts_make(&dst, &line, 1);
        all_parts_make(&wanted, &line, 1);
        world w;
        world_make(&w, sizes[round % 4], 1, (uint64_t)60000000000);
        bind(&w, &problem, &src, &dst, is_pull);
        announce(&w, !is_pull && round % 2 == 0);
        let_wait(&w, round / 2 % 3);
        for (int i = 0; i < LAUNCHES; i++) {
            all_parts_fill_random(&src, &source, line.shape.dtype);
            hd_simulate_oracle(&line, &src, &wanted);
            execute(&w, &src, &dst, is_pull);
            all_parts_equal(&dst, &wanted, &line);
        }
        check_reports(&w, LAUNCHES);
        unbind(&w);
        world_free(&w);
        all_parts_free(&src);
        all_parts_free(&dst);
        all_parts_free(&wanted);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

HD_CASE(random_reshards_are_pushed)
{
    reshards(0);
}

HD_CASE(random_reshards_are_pulled)
{
    reshards(1);
}

/* Every rank has something for every block of every peer; and one where all blocks work for one peer. */
static const char whole[] = "f32[t=64 s=64 c=4] on [sp=4]: t@sp -> s@sp";
static const char one_way[] = "f32[t=64 s=64 c=4] on [sp=2]: t@sp(0 64) -> t@sp(64 0)";

typedef struct scene {
    heddle_reshard_line line;
    hd_problem problem;
    all_parts src, dst, wanted;
    world w;
} scene;

static void scene_make(scene *s, const char *text, int needs_ready, uint64_t deadline_ns)
{
    random_source source = {3};
    HD_OK(heddle_reshard_parse(&s->line, text));
    HD_OK(hd_problem_make(&s->problem, &s->line));
    all_parts_make(&s->src, &s->line, 0);
    all_parts_make(&s->dst, &s->line, 1);
    all_parts_make(&s->wanted, &s->line, 1);
    all_parts_fill_random(&s->src, &source, s->line.shape.dtype);
    hd_simulate_oracle(&s->line, &s->src, &s->wanted);
    world_make(&s->w, s->src.nranks, needs_ready, deadline_ns);
    bind(&s->w, &s->problem, &s->src, &s->dst, 0);
}

static void scene_free(scene *s)
{
    unbind(&s->w);
    world_free(&s->w);
    all_parts_free(&s->src);
    all_parts_free(&s->dst);
    all_parts_free(&s->wanted);
}

/* Enqueued one behind another, without a word from the host: epochs keep the ranks in step. READY keeps a rank that is
 * ahead from writing where the one behind still reads. */
static void launches(const char *text, int most_waiting)
{
    enum { LAUNCHES = 20 };
    scene s;
    scene_make(&s, text, 1, (uint64_t)60000000000);
    world *w = &s.w;
    let_wait(w, most_waiting);
    unsigned char *kept[MOST_RANKS];
    for (int r = 0; r < w->nranks; r++) {
        kept[r] = pinned_new(s.dst.bytes[r] + 1);
        OK(cudaMemcpy(w->rank[r].src, s.src.part[r], s.src.bytes[r], cudaMemcpyHostToDevice));
    }
    for (int i = 0; i < LAUNCHES; i++) {
        for (int r = 0; r < w->nranks; r++) {
            launch(w, (r + i) % w->nranks, 0);
            rank *me = &w->rank[(r + i) % w->nranks];
            OK(cudaMemcpyAsync(kept[(r + i) % w->nranks], me->dst, me->dst_bytes, cudaMemcpyDeviceToHost, me->stream));
            OK(cudaMemsetAsync(me->dst, i, me->dst_bytes, me->stream));
        }
    }
    OK(cudaDeviceSynchronize());
    for (int r = 0; r < w->nranks; r++) {
        assert_memory_equal(kept[r], s.wanted.part[r], s.dst.bytes[r]);
        OK(cudaFreeHost(kept[r]));
    }
    check_reports(w, LAUNCHES);
    scene_free(&s);
}

HD_CASE(launches_follow_one_another)
{
    launches(whole, 0);
    launches(one_way, 0);
}

HD_CASE(launches_behind_one_that_meets_follow_one_another)
{
    launches(whole, 1);
    launches(one_way, 1);
}

/* Rank 0 waits for the others: no block of what moves has begun where one thread waits in front. */
HD_CASE(who_waits_leaves_room)
{
    enum { WAITING = 3 * BLOCKS /* blocks for peers */ };
    for (int most = WAITING - 1; most <= WAITING; most++) {
        scene s;
        scene_make(&s, whole, 1, (uint64_t)60000000000);
        let_wait(&s.w, most);
        assert_int_equal(device->list_blocks(s.w.rank[0].list), WAITING + BLOCKS);
        const hd_device_state *mine = hd_sim_view(s.w.rank[0].meet.state, sizeof *mine);
        const hd_device_state *peer = hd_sim_view(s.w.rank[1].meet.state, sizeof *peer);
        launch(&s.w, 0, 0);
        for (int i = 0; __atomic_load_n(&peer->ready[0], __ATOMIC_ACQUIRE) == 0; i++) {
            assert_true(i < 60000);
            usleep(1000);
        }
        assert_int_equal(__atomic_load_n(&mine->begun, __ATOMIC_RELAXED) > 0, most == WAITING);
        for (int r = 1; r < s.w.nranks; r++) {
            launch(&s.w, r, 0);
        }
        for (int r = 0; r < s.w.nranks; r++) {
            OK(cudaStreamSynchronize(s.w.rank[r].stream));
        }
        check_reports(&s.w, 1);
        scene_free(&s);
    }
}

/* Whoever waits for a rank that does not come ends at a deadline (the others keep it), names it, moves no more. */
HD_CASE(a_rank_that_does_not_come_is_named)
{
    for (int how = 0; how < 3; how++) {
        const int needs_ready = how > 0;
        scene s;
        scene_make(&s, whole, needs_ready, (uint64_t)hd_test_missed_ns(0.2));
        let_wait(&s.w, how > 1);
        for (int i = 0; i < 2; i++) {
            for (int r = 0; r < 4; r++) {
                if (r != 2) {
                    launch(&s.w, r, 0);
                }
            }
            OK(cudaDeviceSynchronize());
        }
        for (int r = 0; r < 4; r++) {
            const hd_device_report *report = s.w.rank[r].report;
            assert_int_equal(report->status, r == 2 ? HD_DEVICE_CAME : HD_DEVICE_LATE);
            assert_int_equal(report->epoch, 0);
            assert_int_equal(report->peer, r == 2 ? 0 : 2);
        }
        launch(&s.w, 2, 0); /* the others have given up; what they had moved before is there */
        OK(cudaDeviceSynchronize());
        assert_int_equal(s.w.rank[2].report->status, needs_ready ? HD_DEVICE_LATE : HD_DEVICE_CAME);
        scene_free(&s);
    }
}

HD_CASE(an_abort_ends_waits)
{
    for (int most_waiting = 0; most_waiting < 2; most_waiting++) {
        scene s;
        scene_make(&s, whole, 1, (uint64_t)3600000000000);
        let_wait(&s.w, most_waiting);
        launch(&s.w, 0, 0);
        usleep(2000);
        assert_int_equal(cudaStreamQuery(s.w.rank[0].stream), cudaErrorNotReady);
        (void)cudaGetLastError();
        __atomic_store_n(s.w.abort_word, 1, __ATOMIC_RELEASE);
        OK(cudaDeviceSynchronize());
        assert_int_equal(s.w.rank[0].report->status, HD_DEVICE_ABORTED);
        scene_free(&s);
    }
}
