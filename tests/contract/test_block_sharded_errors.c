/* Requests that contradict themselves or one another, and ranks that die, in blocks with a sharded mixed dim. */
#include "accident.h"
#include "block_calls.h"
#include "case.h"
#include "time_limit.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <heddle/train/tape.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static heddle_block *make_block(heddle_stage_kind kind, const char *shape)
{
    heddle_block *block = NULL;
    heddle_block_options options;
    heddle_block_options_init(&options);
    options.kind = kind;
    options.mixed_dim = 1;
    options.heads = 2;
    options.modulate = 0;
    options.mlp_channels = 16;
    options.text_tokens = 4;
    HD_OK(heddle_shape_parse(&options.shape, shape));
    HD_OK(heddle_block_create(&block, &options));
    HD_OK(heddle_block_seed(block, 1));
    return block;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

typedef struct request {
    heddle_stage_kind kind;
    const char *mesh, *layout, *method;
    heddle_status wanted;
    const char *word; /* of the sentence */
} request;

static const request requests[] = {
    {HEDDLE_STAGE_MLP, "[sp=2]", "t@sp", "ring", HEDDLE_ERR_ARG, "MLP"},
    {HEDDLE_STAGE_CROSS, "[sp=2]", "t@sp", "ring", HEDDLE_ERR_ARG, "CROSS"},
    {HEDDLE_STAGE_ATTENTION, "[sp=2]", "t@sp", "rings", HEDDLE_ERR_ARG, "gather-kv"},
    {HEDDLE_STAGE_ATTENTION, "[sp=2]", "t@sp", "lasp", HEDDLE_ERR_ARG, "ulysses"},
    {HEDDLE_STAGE_LINEAR, "[sp=2]", "t@sp", "ring", HEDDLE_ERR_ARG, "lasp2"},
    {HEDDLE_STAGE_ATTENTION, "[sp=2]", "s@sp", "ring", HEDDLE_ERR_LAYOUT, "dim t"},
    {HEDDLE_STAGE_LINEAR, "[sp=2]", "*", "lasp", HEDDLE_ERR_LAYOUT, "dim t"},
    {HEDDLE_STAGE_ATTENTION, "[sp=2]", "t@sp", "local", HEDDLE_ERR_LAYOUT, "local"},
    {HEDDLE_STAGE_LINEAR, "[sp=2]", "t@sp", "local", HEDDLE_ERR_LAYOUT, "local"},
    {HEDDLE_STAGE_ATTENTION, "[sp=2]", "t@sp", "usp", HEDDLE_ERR_LAYOUT, "usp"},
    {HEDDLE_STAGE_ATTENTION, "[sp=2]", "c@sp", "local", HEDDLE_ERR_LAYOUT, "channels"},
    {HEDDLE_STAGE_ATTENTION, "[sp=2]", "sum@sp", "local", HEDDLE_ERR_LAYOUT, "partial"},
    {HEDDLE_STAGE_ATTENTION, "[sp=3]", "t@sp", "ring", HEDDLE_ERR_LAYOUT, "3 ranks"},
};

static heddle_status ask(heddle_comm *comm, heddle_block *block, const char *mesh_text, const char *layout_text,
                         const char *method)
{
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_shape shape;
    HD_OK(heddle_shape_parse(&shape, "f32[b=2 t=6 s=3 c=8]"));
    HD_OK(heddle_mesh_parse(&mesh, mesh_text));
    HD_OK(heddle_layout_parse(&layout, layout_text, &shape, &mesh));
    return heddle_block_shard_attention(block, comm, &mesh, &layout, method);
}

static heddle_status every_request(heddle_comm *comm, void *arg)
{
    (void)arg;
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        const request *r = &requests[i];
        heddle_block *block = make_block(r->kind, "f32[b=2 t=6 s=3 c=8]");
        heddle_status st = ask(comm, block, r->mesh, r->layout, r->method);
        if (st != r->wanted || strstr(heddle_last_error(), r->word) == NULL) {
            fprintf(stderr, "%s, %s by %s: status %d, %s\n", r->mesh, r->layout, r->method, (int)st,
                    heddle_last_error());
            return HEDDLE_ERR_MISMATCH;
        }
        heddle_block_destroy(block);
    }
    return HEDDLE_OK;
}

HD_CASE(bad_requests_are_refused_on_every_rank)
{
    HD_OK(heddle_run_ranks(2, "threads", every_request, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_shard_attention(NULL, NULL, NULL, NULL, NULL));
}

HD_RANK_CASE(ranks_that_disagree_say_so, "3 threads")
{
    int rank = heddle_comm_rank(comm);
    heddle_block *block = make_block(HEDDLE_STAGE_ATTENTION, "f32[b=2 t=6 s=3 c=8]");
    HD_FAILS(HEDDLE_ERR_MISMATCH, ask(comm, block, "[sp=3]", "t@sp", rank == 1 ? "rsa" : "ring"));
    assert_non_null(strstr(heddle_last_error(), "rank 1 asks for softmax attention by rsa"));
    HD_FAILS(rank == 2 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER,
             ask(comm, block, "[sp=3]", "t@sp", rank == 2 ? "rong" : "ring"));
    assert_non_null(strstr(heddle_last_error(), "rong"));
    HD_FAILS(rank == 1 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER,
             ask(comm, block, "[sp=3]", "t@sp", rank == 1 ? NULL : "ring"));
    assert_non_null(strstr(heddle_last_error(), "method is NULL"));
    HD_OK(ask(comm, block, "[sp=3]", "t@sp", "ring"));
    HD_FAILS(HEDDLE_ERR_ARG, ask(comm, block, "[sp=3]", "t@sp", "ring")); /* twice */
    heddle_block_destroy(block);
    return HEDDLE_OK;
}

/* A mistake of one rank in a call must not let the others wait. */
HD_RANK_CASE(a_wrong_box_is_an_error_everywhere, "3 threads")
{
    int rank = heddle_comm_rank(comm);
    float x[2 * 6 * 3 * 8] = {0};
    heddle_block *block = make_block(HEDDLE_STAGE_ATTENTION, "f32[b=2 t=6 s=3 c=8]");
    HD_OK(ask(comm, block, "[sp=3]", "t@sp", "ring"));
    heddle_box box = {.ndim = 4, .lo = {0, 2 * rank, 0, 0}, .len = {2, rank == 1 ? 1 : 2, 3, 8}};
    heddle_status st = forward_on(block, x, &box, NULL);
    assert_int_equal(st, rank == 1 ? HEDDLE_ERR_LAYOUT : HEDDLE_ERR_PEER);
    assert_non_null(strstr(heddle_last_error(), "2..3 of dim t"));
    heddle_block_destroy(block);
    return HEDDLE_OK;
}

/* Rank 1 has no forward on its tape, or has committed since. The sentence of the others is its. */
HD_RANK_CASES(a_wrong_backward_is_an_error_everywhere, 2, "3 threads")
{
    const int forgets = nth;
    const char *word = forgets ? "holds no forward" : "committed 1 times";
    int rank = heddle_comm_rank(comm);
    float x[2 * 6 * 3 * 8] = {0};
    heddle_tape *tape = NULL, *other = NULL;
    heddle_block *block = make_block(HEDDLE_STAGE_ATTENTION, "f32[b=2 t=6 s=3 c=8]");
    HD_OK(ask(comm, block, "[sp=3]", "t@sp", "ring"));
    heddle_box box = {.ndim = 4, .lo = {0, 2 * rank, 0, 0}, .len = {2, 2, 3, 8}};
    HD_OK(heddle_tape_create(&tape, block, NULL));
    HD_OK(heddle_tape_create(&other, block, NULL));
    HD_OK(forward_tape_on(block, x, &box, NULL, tape));
    HD_OK(heddle_comm_barrier(comm)); /* a rank that gives up ends what the others are still in */
    if (rank == 1 && !forgets) {
        HD_OK(heddle_block_commit(block));
    }
    HD_FAILS(rank == 1 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER,
             backward_on(block, x, NULL, NULL, rank == 1 && forgets ? other : tape));
    assert_non_null(strstr(heddle_last_error(), word));
    heddle_tape_destroy(other);
    heddle_tape_destroy(tape);
    heddle_block_destroy(block);
    return HEDDLE_OK;
}

HD_CASE(traffic_of_a_plain_block_is_nothing)
{
    heddle_block *block = make_block(HEDDLE_STAGE_ATTENTION, "f32[b=2 t=6 s=3 c=8]");
    heddle_block_traffic traffic = {.struct_bytes = 0};
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_get_traffic(&traffic, block));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_get_traffic(NULL, block));
    traffic.struct_bytes = sizeof traffic;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_get_traffic(&traffic, NULL));
    HD_OK(heddle_block_get_traffic(&traffic, block));
    assert_int_equal(traffic.planned_forward_bytes | traffic.planned_backward_bytes | traffic.measured_bytes, 0);
    heddle_block_destroy(block);
}

/* --- ranks that die ----------------------------------------------------------------------------------------------- */

enum { RANKS = 3 };

typedef struct job {
    accident accident;
    heddle_stage_kind kind;
    const char *method;
} job;

static heddle_status until_it_fails(heddle_comm *comm, void *arg)
{
    job *j = arg;
    int rank = heddle_comm_rank(comm);
    heddle_block *block = make_block(j->kind, "f32[b=2 t=6 s=3 c=8]");
    float *x = calloc(2 * 2 * 3 * 8, sizeof *x);
    heddle_box box = {.ndim = 4, .lo = {0, 2 * rank, 0, 0}, .len = {2, 2, 3, 8}};
    HD_OK(ask(comm, block, "[sp=3]", "t@sp", j->method));
    accident_begins(&j->accident, rank);
    heddle_status st = HEDDLE_OK;
    for (int i = 0; st == HEDDLE_OK && accident_lets(&j->accident, rank, i); i++) {
        st = forward_on(block, x, &box, NULL);
    }
    if (st != HEDDLE_OK) {
        accident_note(&j->accident, rank, st);
    }
    heddle_block_destroy(block);
    free(x);
    return st == HEDDLE_OK ? HEDDLE_ERR_IO : st;
}

static void survive(heddle_stage_kind kind, const char *method, const char *transport, int kills)
{
    job *j = hd_shared(sizeof *j);
    const accident *a = &j->accident;
    *j = (job){.accident = {.kills = kills}, .kind = kind, .method = method};
    HD_FAILS(kills ? HEDDLE_ERR_PEER : HEDDLE_ERR_IO, heddle_run_ranks(RANKS, transport, until_it_fails, j));
    for (int rank = 0; rank < 2; rank++) {
        if (a->seen[rank] - 1 != (int)HEDDLE_ERR_PEER || strstr((const char *)a->why[rank], "rank 2") == NULL) {
            fail_msg("%s, rank %d: status %d, %s", method, rank, a->seen[rank] - 1, (const char *)a->why[rank]);
        }
    }
}

HD_CASE(a_rank_dies_amid_its_calls)
{
    survive(HEDDLE_STAGE_ATTENTION, "ring", "shm", 1);
    survive(HEDDLE_STAGE_ATTENTION, "ulysses", "shm", 1);
    survive(HEDDLE_STAGE_LINEAR, "lasp", "shm", 1);
}

HD_CASE(a_rank_leaves)
{
    survive(HEDDLE_STAGE_ATTENTION, "ring", "threads", 0);
    survive(HEDDLE_STAGE_LINEAR, "scan", "threads", 0);
}

/* --- memory that is not there ------------------------------------------------------------------------------------- */

typedef struct shortage {
    heddle_stage_kind kind;
    const char *method;
    int nth;                    /* allocation of rank 1 that fails */
    volatile int status[RANKS]; /* of the first call that failed */
} shortage;

/* Made before the shortage begins; what is collective comes after. */
static heddle_status short_of_memory(heddle_comm *comm, void *arg)
{
    shortage *s = arg;
    int rank = heddle_comm_rank(comm);
    heddle_block *block = make_block(s->kind, "bf16[b=2 t=6 s=3 c=8]");
    heddle_tape *tape = NULL;
    uint16_t *x = calloc(2 * 2 * 3 * 8, sizeof *x);
    heddle_box box = {.ndim = 4, .lo = {0, 2 * rank, 0, 0}, .len = {2, 2, 3, 8}};
    HD_OK(heddle_tape_create(&tape, block, NULL));
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    HD_OK(heddle_shape_parse(&shape, "bf16[b=2 t=6 s=3 c=8]"));
    HD_OK(heddle_mesh_parse(&mesh, "[sp=3]"));
    HD_OK(heddle_layout_parse(&layout, "t@sp", &shape, &mesh));
    hd_alloc_fail_at(rank == 1 ? s->nth : 0);
    heddle_status st = heddle_block_shard_attention(block, comm, &mesh, &layout, s->method);
    st = st != HEDDLE_OK ? st : forward_tape_on(block, x, &box, NULL, tape);
    st = st != HEDDLE_OK ? st : backward_on(block, x, NULL, NULL, tape);
    hd_alloc_fail_at(0);
    s->status[rank] = (int)st;
    heddle_tape_destroy(tape);
    heddle_block_destroy(block);
    free(x);
    return HEDDLE_OK;
}

/* Wherever it happens, the rank says so and the others do not wait for it. */
static void run_short(heddle_stage_kind kind, const char *method)
{
    hd_see_processes();
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = 4 * hd_test_limit_ns(5) / 1000000;
    shortage *s = hd_shared(sizeof *s);
    s->kind = kind;
    s->method = method;
    int failures = 0;
    for (s->nth = 1; s->nth == 1 || s->status[1] != HEDDLE_OK; s->nth += 1 + s->nth / 8) {
        for (int rank = 0; rank < RANKS; rank++) {
            s->status[rank] = HEDDLE_ERR_INTERNAL;
        }
        HD_OK(heddle_run_ranks_with(RANKS, "shm", &options, short_of_memory, s));
        for (int rank = 0; rank < RANKS && s->status[1] != HEDDLE_OK; rank++) {
            int wanted = rank == 1 ? HEDDLE_ERR_NOMEM : HEDDLE_ERR_PEER;
            if (s->status[rank] != wanted) {
                fail_msg("%s, allocation %d of rank 1: rank %d has status %d", method, s->nth, rank, s->status[rank]);
            }
        }
        failures += s->status[1] != HEDDLE_OK;
    }
    assert_true(failures > 10);
}

HD_CASE(lost_allocations_are_reported_everywhere)
{
    run_short(HEDDLE_STAGE_ATTENTION, "ring");
    run_short(HEDDLE_STAGE_ATTENTION, "ulysses");
    run_short(HEDDLE_STAGE_LINEAR, "lasp");
}
