/* Ranks that meet on emulated devices: reshards by one launch per rank, ranks that do not come, and an abort. */
#include "case.h"
#include "cudasim.h"
#include "draw.h"
#include "kernels/table_device.h"
#include "random_problem.h"
#include "time_limit.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { MOST_RANKS = 8, BLOCKS = 6 };

static const hd_device_kernels *device;

/* What one rank has on the device. */
typedef struct rank {
    cudaStream_t stream;
    void *src, *dst, *list, *list_on_device;
    size_t src_bytes, dst_bytes;
    hd_device_report *report;
    hd_device_meet meet;
    int64_t planned_to[MOST_RANKS];
    const void *src_at[MOST_RANKS];
    void *dst_at[MOST_RANKS];
} rank;

typedef struct world {
    int nranks;
    rank rank[MOST_RANKS];
    uint64_t *abort_word;
} world;

static void *device_new(size_t bytes)
{
    void *memory = NULL;
    OK(cudaMalloc(&memory, bytes > 0 ? bytes : 1));
    return memory;
}

static void *pinned_new(size_t bytes)
{
    void *memory = NULL;
    OK(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
    memset(memory, 0, bytes);
    return memory;
}

static void world_make(world *w, int nranks, int needs_ready, uint64_t deadline_ns)
{
    memset(w, 0, sizeof *w);
    device = &hd_kernels_cuda;
    OK(device->load());
    w->nranks = nranks;
    w->abort_word = pinned_new(8);
    for (int r = 0; r < nranks; r++) {
        rank *me = &w->rank[r];
        OK(cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking));
        me->report = pinned_new(sizeof *me->report);
        me->meet = (hd_device_meet){.rank = r,
                                    .npeers = nranks,
                                    .needs_ready = needs_ready,
                                    .state = device_new(sizeof(hd_device_state)),
                                    .deadline_ns = deadline_ns,
                                    .abort_word = w->abort_word,
                                    .report = me->report};
        OK(cudaMemset(me->meet.state, 0, sizeof(hd_device_state)));
    }
    for (int r = 0; r < nranks; r++) {
        for (int p = 0; p < nranks; p++) {
            w->rank[r].meet.peer_state[p] = w->rank[p].meet.state;
        }
    }
    OK(cudaDeviceSynchronize());
}

static void world_free(world *w)
{
    for (int r = 0; r < w->nranks; r++) {
        rank *me = &w->rank[r];
        OK(cudaStreamDestroy(me->stream));
        OK(cudaFreeHost(me->report));
        OK(cudaFree(me->meet.state));
    }
    OK(cudaFreeHost(w->abort_word));
}

static void array_of(hd_array *out, const hd_problem *problem, int is_dst, int r)
{
    HD_OK(hd_phase_box(&out->box, problem, 0, is_dst, r));
    heddle_box_strides(out->stride_elems, &out->box,
                       is_dst ? &problem->phase[0].to_order : &problem->phase[0].from_order);
}

static hd_device_box box_of(const hd_copy *copy, int peer, int is_pull)
{
    hd_device_box box = {.peer = peer,
                         .src_base = is_pull ? peer : 0,
                         .dst_base = is_pull ? 0 : peer,
                         .src_offset_bytes = copy->src_offset_bytes,
                         .dst_offset_bytes = copy->dst_offset_bytes,
                         .run_bytes = copy->run_bytes,
                         .nloops = copy->nloops};
    memcpy(box.count, copy->count, sizeof box.count);
    memcpy(box.src_stride_bytes, copy->src_stride_bytes, sizeof box.src_stride_bytes);
    memcpy(box.dst_stride_bytes, copy->dst_stride_bytes, sizeof box.dst_stride_bytes);
    return box;
}

/* The boxes that a rank moves, from its successor on, and whom it hears from. */
static int boxes_of(hd_device_box *box, world *w, const hd_problem *problem, int r, int is_pull)
{
    rank *me = &w->rank[r];
    size_t elem_bytes = heddle_dtype_bytes(problem->line.shape.dtype);
    hd_pieces mine, theirs;
    HD_OK(hd_compile(&mine, problem, 0, r, is_pull ? HD_RECV : HD_SEND));
    HD_OK(hd_compile(&theirs, problem, 0, r, is_pull ? HD_SEND : HD_RECV));
    me->meet.heard = 0;
    for (int i = 0; i < theirs.count; i++) {
        me->meet.heard |= theirs.piece[i].peer != r ? (uint64_t)1 << theirs.piece[i].peer : 0;
    }
    int n = 0;
    memset(me->planned_to, 0, sizeof me->planned_to);
    for (int step = 1; step <= w->nranks; step++) {
        int peer = (r + step) % w->nranks;
        for (int i = 0; i < mine.count; i++) {
            if (mine.piece[i].peer == peer) {
                hd_array src, dst;
                hd_copy copy;
                array_of(&src, problem, 0, is_pull ? peer : r);
                array_of(&dst, problem, 1, is_pull ? r : peer);
                hd_piece_copy(&copy, &mine.piece[i], &src, &dst, elem_bytes);
                box[n++] = box_of(&copy, peer, is_pull);
                me->planned_to[peer] += hd_copy_bytes(&copy);
            }
        }
    }
    hd_pieces_free(&mine);
    hd_pieces_free(&theirs);
    return n;
}

static void bind(world *w, const hd_problem *problem, const all_parts *src, const all_parts *dst, int is_pull)
{
    for (int r = 0; r < w->nranks; r++) {
        w->rank[r].src = device_new(src->bytes[r]);
        w->rank[r].dst = device_new(dst->bytes[r]);
        w->rank[r].src_bytes = src->bytes[r];
        w->rank[r].dst_bytes = dst->bytes[r];
    }
    for (int r = 0; r < w->nranks; r++) {
        rank *me = &w->rank[r];
        hd_device_box box[2 * MOST_RANKS];
        int n = boxes_of(box, w, problem, r, is_pull), blocks = BLOCKS * w->nranks;
        size_t bytes = device->list_bytes(box, n, blocks);
        me->list = malloc(bytes);
        device->list_make(me->list, box, n, blocks);
        me->list_on_device = device_new(bytes);
        OK(cudaMemcpy(me->list_on_device, me->list, bytes, cudaMemcpyHostToDevice));
        for (int p = 0; p < w->nranks; p++) {
            me->src_at[p] = is_pull ? w->rank[p].src : me->src;
            me->dst_at[p] = is_pull ? me->dst : w->rank[p].dst;
        }
    }
}

static void unbind(world *w)
{
    for (int r = 0; r < w->nranks; r++) {
        rank *me = &w->rank[r];
        OK(cudaFree(me->src));
        OK(cudaFree(me->dst));
        OK(cudaFree(me->list_on_device));
        free(me->list);
    }
}

/* Nobody is told where a rank's destination lies but by that rank's launch. */
static void announce(world *w, int announces)
{
    for (int r = 0; r < w->nranks && announces; r++) {
        rank *me = &w->rank[r];
        me->meet.announces = 1;
        for (int p = 0; p < w->nranks; p++) {
            me->meet.place[p] = (uint64_t)(uintptr_t)me->dst;
            me->dst_at[p] = p == r ? me->dst : NULL;
        }
    }
}

static void launch(world *w, int r, int is_pull)
{
    rank *me = &w->rank[r];
    hd_device_move move = {me->list, me->list_on_device, w->nranks, w->nranks, me->src_at, me->dst_at, &me->meet};
    OK((is_pull ? device->pull : device->push)(&move, me->stream));
}

/* Fresh numbers, all ranks at once; every stream is in order by itself, and by the flags with the others. What stands
 * in the reports is nonsense, for the host's memory is far: kernels write there and do not read. */
static void execute(world *w, const all_parts *src, const all_parts *dst, int is_pull)
{
    for (int r = 0; r < w->nranks; r++) {
        rank *me = &w->rank[r];
        for (int p = 0; p < w->nranks; p++) {
            me->report->bytes_to[p] = me->planned_to[p] > 0 ? UINT64_MAX / 3 : 0;
        }
        OK(cudaMemcpyAsync(me->src, src->part[r], src->bytes[r], cudaMemcpyHostToDevice, me->stream));
        OK(cudaMemsetAsync(me->dst, 0x5a, dst->bytes[r] > 0 ? dst->bytes[r] : 1, me->stream));
    }
    for (int r = 0; r < w->nranks; r++) {
        launch(w, r, is_pull);
    }
    for (int r = 0; r < w->nranks; r++) {
        rank *me = &w->rank[r];
        OK(cudaMemcpyAsync(dst->part[r], me->dst, dst->bytes[r], cudaMemcpyDeviceToHost, me->stream));
        OK(cudaStreamSynchronize(me->stream));
    }
}

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
static void launches(const char *text)
{
    enum { LAUNCHES = 20 };
    scene s;
    scene_make(&s, text, 1, (uint64_t)60000000000);
    world *w = &s.w;
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
    launches(whole);
    launches(one_way);
}

/* Whoever waits for a rank that does not come ends at a deadline (the others keep it), names it, moves no more. */
HD_CASE(a_rank_that_does_not_come_is_named)
{
    for (int needs_ready = 0; needs_ready < 2; needs_ready++) {
        scene s;
        scene_make(&s, whole, needs_ready, (uint64_t)hd_test_missed_ns(0.2));
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
    scene s;
    scene_make(&s, whole, 1, (uint64_t)3600000000000);
    launch(&s.w, 0, 0);
    usleep(2000);
    assert_int_equal(cudaStreamQuery(s.w.rank[0].stream), cudaErrorNotReady);
    __atomic_store_n(s.w.abort_word, 1, __ATOMIC_RELEASE);
    OK(cudaDeviceSynchronize());
    assert_int_equal(s.w.rank[0].report->status, HD_DEVICE_ABORTED);
    scene_free(&s);
}
