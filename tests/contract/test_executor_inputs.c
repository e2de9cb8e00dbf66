/* What one rank alone gives a pass that is not right: the others hear of it at once, and the executor goes on. */
#include "executor_fixture.h"
#include "time_limit.h"

/* What is wrong with x, or dx, of rank 1. */
typedef enum wrong { WRONG_SHAPE, WRONG_SPACE, WRONG_ROOM, WRONGS } wrong;

static void spoil(heddle_tensor *x, wrong what)
{
    x->shape.dim[1].extent += what == WRONG_SHAPE;
    x->space = what == WRONG_SPACE ? HEDDLE_SPACE_DEVICE : x->space;
    x->capacity_bytes = what == WRONG_ROOM ? 4 : x->capacity_bytes;
}

/* Rank 1 says why, and rank 0 what it said; not that it has gone on. */
static heddle_status is_told(heddle_comm *comm, heddle_status got)
{
    heddle_status st = HEDDLE_OK;
    const char *why = heddle_last_error();
    CHECK(got != HEDDLE_OK && (got == HEDDLE_ERR_PEER) == (heddle_comm_rank(comm) != 1));
    CHECK(heddle_comm_rank(comm) == 1 ||
          (strstr(why, "rank 1 gave up: ") != NULL && strstr(why, "resets the communicator") == NULL));
    st = heddle_comm_reset(comm);
out:
    return st;
}

static heddle_status forward(bench *b, float *output)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(fill(b));
    HD_TRY(heddle_executor_forward(b->executor, &b->x, &b->conditioning, placed_stream));
    memcpy(output, b->x.data, ELEMS * sizeof(float));
out:
    return st;
}

static heddle_status forward_wrongly(bench *b, wrong what)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(fill(b));
    if (heddle_comm_rank(b->comm) == 1) {
        spoil(&b->x, what);
    }
    st = is_told(b->comm, heddle_executor_forward(b->executor, &b->x, &b->conditioning, placed_stream));
out:
    return st;
}

static heddle_status backward_wrongly(bench *b, wrong what)
{
    heddle_tensor dx = b->x;
    if (heddle_comm_rank(b->comm) == 1) {
        spoil(&dx, what);
    }
    return is_told(b->comm, heddle_executor_backward(b->executor, &dx, &b->conditioning, NULL, placed_stream));
}

static heddle_status wrong_inputs(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    bench b;
    float wanted[ELEMS], got[ELEMS];
    heddle_executor_options options = options_on(comm);
    (void)arg;
    options.backward = 1;
    HD_TRY(make_bench(&b, comm));
    HD_TRY(heddle_executor_create(&b.executor, comm, b.schedule, b.stage, &options));
    HD_TRY(forward(&b, wanted));
    for (wrong what = 0; what < WRONGS; what++) {
        HD_TRY(forward_wrongly(&b, what));
        HD_TRY(forward(&b, got));
        HD_TRY(backward_wrongly(&b, what));
        HD_TRY(forward(&b, got));
        CHECK(memcmp(got, wanted, sizeof got) == 0);
    }
out:
    free_bench(&b);
    return st;
}

HD_CASE(wrong_inputs_of_one_rank_are_told)
{
    const int64_t start_ns = hd_now_ns();
    HD_OK(heddle_run_ranks(2, "threads", wrong_inputs, NULL));
    assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(20)); /* nobody waits for a deadline */
}
