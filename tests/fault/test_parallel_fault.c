/* Buckets, dense pairs and pipelines when a rank runs out of memory, dies, or stops coming: everybody is told. */
#include "case.h"
#include "check.h"
#include "time_limit.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <heddle/train/adamw.h>
#include <heddle/train/bucket.h>
#include <heddle/train/dense_pair.h>
#include <heddle/train/pipeline.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUCKET, PAIR, PIPELINE, KINDS, RANKS = 4, MOST_ALLOCATIONS = 3000 };
static const char *const kinds[] = {"bucket", "pair", "pipeline"};

typedef struct thing {
    heddle_bucket *bucket;
    heddle_adamw *adamw;
    heddle_dense_pair *pair;
    heddle_pipeline *pipeline;
    float param[40], grad[40], x[64];
    heddle_bucket_part part;
} thing;

static const heddle_mesh mesh = {.naxes = 2, .axis = {{"dp", 2}, {"tp", 2}}};

static heddle_status make(thing *t, heddle_comm *comm, int kind)
{
    heddle_status st = HEDDLE_OK;
    if (kind == BUCKET) {
        heddle_bucket_options options;
        t->part = (heddle_bucket_part){t->param, t->grad, 40, 1};
        heddle_bucket_options_init(&options);
        options.sum_axes = 3;
        options.shard_axis = 0;
        st = heddle_bucket_create(&t->bucket, comm, &mesh, &t->part, 1, &options);
    } else if (kind == PAIR) {
        heddle_dense_pair_options options;
        heddle_shape shape;
        heddle_layout layout;
        HD_TRY(heddle_shape_parse(&shape, "f32[n=16 c=4]"));
        HD_TRY(heddle_layout_parse(&layout, "n@dp,n@tp", &shape, &mesh));
        heddle_dense_pair_options_init(&options);
        options.hidden = 6;
        st = heddle_dense_pair_create(&t->pair, comm, &shape, &mesh, &layout, 1, &options);
    } else {
        st = heddle_pipeline_create(&t->pipeline, comm, &mesh, 0);
    }
out:
    return st;
}

static void unmake(thing *t)
{
    heddle_adamw_destroy(t->adamw);
    heddle_bucket_destroy(t->bucket);
    heddle_dense_pair_destroy(t->pair);
    heddle_pipeline_destroy(t->pipeline);
    memset(t, 0, sizeof *t);
}

static heddle_status work(thing *t, int kind)
{
    heddle_status st = HEDDLE_OK;
    if (kind == BUCKET) {
        if (t->adamw == NULL) {
            HD_TRY(heddle_adamw_create(&t->adamw, t->bucket, NULL));
        }
        HD_TRY(heddle_bucket_reduce(t->bucket, HEDDLE_NO_STREAM));
        HD_TRY(heddle_adamw_step(t->adamw, 0.01, HEDDLE_NO_STREAM));
    } else if (kind == PAIR) {
        HD_TRY(heddle_dense_pair_commit(t->pair));
        HD_TRY(heddle_dense_pair_forward(t->pair, t->param, t->x, HEDDLE_NO_STREAM));
        HD_TRY(heddle_dense_pair_backward(t->pair, t->param, t->param, t->x, HEDDLE_NO_STREAM));
    } else if (heddle_pipeline_stage(t->pipeline) == 0) {
        HD_TRY(heddle_pipeline_send_next(t->pipeline, t->x, sizeof t->x, HEDDLE_NO_STREAM));
        HD_TRY(heddle_pipeline_recv_next(t->pipeline, t->x, sizeof t->x, HEDDLE_NO_STREAM));
    } else {
        HD_TRY(heddle_pipeline_recv_prev(t->pipeline, t->x, sizeof t->x, HEDDLE_NO_STREAM));
        HD_TRY(heddle_pipeline_send_prev(t->pipeline, t->x, sizeof t->x, HEDDLE_NO_STREAM));
    }
out:
    return st;
}

/* Every allocation of rank 1 fails once; the communicator goes on, and in the end the thing works. */
static heddle_status no_memory_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    int kind = *(int *)arg, rank = heddle_comm_rank(comm), failed = 0, all[RANKS];
    thing *t = calloc(1, sizeof *t);
    for (long nth = 1; nth <= MOST_ALLOCATIONS; nth++) {
        hd_alloc_fail_at(rank == 1 ? nth : 0);
        int made = (int)make(t, comm, kind);
        hd_alloc_fail_at(0);
        HD_TRY(heddle_comm_allgather(comm, &made, all, sizeof made));
        for (int r = 0; r < RANKS; r++) {
            CHECK(all[1] == HEDDLE_OK ? all[r] == HEDDLE_OK
                                      : all[r] == (int)(r == 1 ? HEDDLE_ERR_NOMEM : HEDDLE_ERR_PEER));
        }
        if (all[1] == HEDDLE_OK) {
            break;
        }
        failed++;
        unmake(t);
    }
    CHECK(failed > 2 && failed < MOST_ALLOCATIONS);
    HD_TRY(work(t, kind));
out:
    unmake(t);
    free(t);
    return st;
}

HD_CASE(out_of_memory)
{
    for (int kind = 0; kind < KINDS; kind++) {
        HD_OK(heddle_run_ranks(RANKS, "shm", no_memory_rank, &kind));
    }
}

typedef struct end {
    int kind;
    int kills;                /* rank 1 is killed; else it stops coming */
    volatile int seen[RANKS]; /* 1 + status of the call that failed */
    volatile int64_t ended_ns[RANKS];
    char why[RANKS][256];
} end;

static heddle_status end_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    end *e = arg;
    int rank = heddle_comm_rank(comm);
    thing *t = calloc(1, sizeof *t);
    HD_TRY(make(t, comm, e->kind));
    for (int turn = 0; turn < 1000 && st == HEDDLE_OK; turn++) {
        if (rank == 1 && turn == 5) {
            e->ended_ns[rank] = hd_now_ns();
            if (e->kills) {
                kill(getpid(), SIGKILL);
            }
            break; /* leaves with HEDDLE_OK: closes its communicator */
        }
        st = work(t, e->kind);
    }
    if (st != HEDDLE_OK) {
        e->ended_ns[rank] = hd_now_ns();
        snprintf(e->why[rank], sizeof e->why[rank], "%s", heddle_last_error());
    }
    e->seen[rank] = 1 + (int)st;
out:
    unmake(t);
    free(t);
    return st;
}

/* Whoever needs rank 1 is told by its end, long before the deadline. */
static void check_told(const end *e, int rank)
{
    /* the other pipeline, or the other tensor axis: done, or told */
    int is_apart = (e->kind == PIPELINE && rank % 2 == 0) || (e->kind == PAIR && rank >= 2);
    int64_t after_ns = e->ended_ns[rank] - e->ended_ns[1];
    if (is_apart && e->seen[rank] == 1 + HEDDLE_OK) {
        return;
    }
    if (e->seen[rank] != 1 + HEDDLE_ERR_PEER || strstr(e->why[rank], "rank 1") == NULL ||
        after_ns > hd_test_limit_ns(2)) {
        fail_msg("%s, %s: rank %d got %d after %lld ms: %s", kinds[e->kind], e->kills ? "killed" : "left", rank,
                 e->seen[rank] - 1, (long long)after_ns / 1000000, e->why[rank]);
    }
}

HD_CASE(ranks_end)
{
    end *e = hd_shared(sizeof *e);
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    for (int i = 0; i < 2 * KINDS; i++) {
        memset(e, 0, sizeof *e);
        e->kind = i / 2;
        e->kills = i % 2;
        options.deadline_ms = 15 * hd_test_limit_ns(2) / 1000000;
        HD_FAILS(HEDDLE_ERR_PEER, heddle_run_ranks_with(RANKS, "shm", &options, end_rank, e));
        for (int r = 0; r < RANKS; r++) {
            if (r != 1) {
                check_told(e, r);
            }
        }
    }
}
