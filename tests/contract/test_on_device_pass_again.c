/* After a failure of one rank in a pass by a wire on which devices wait for one another no reset brings the
 * communicator back: all ranks destroy it, open another one, and go on with the same bits. */
#include "launched.h"
#include "time_limit.h"
#include "whole_pass.h"

#include <unistd.h>

enum { PASSES = 3 };

typedef struct job {
    heddle_wire wire;
    const char *folder;
} job;

static heddle_status open_one(heddle_comm **out, const job *j)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.device = "cuda";
    options.wire = j->wire;
    options.module_folder = j->folder;
    options.deadline_ms = 4 * hd_test_limit_ns(5) / 1000000;
    return heddle_comm_open(out, "shm", &options);
}

static heddle_status is_right(whole *w, float *result)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(enqueue(w));
    HD_TRY(device_copy(w->b.comm, result, w->x.data, MOST_BYTES, w->stream));
    HD_TRY(device_settle(w->b.comm, w->stream));
    CHECK(memcmp(result, w->start, MOST_BYTES) != 0);
    st = heddle_comm_barrier(w->b.comm);
out:
    return st;
}

/* Rank 1 gives another shape: rank 0 may hear of it only when its pass is enqueued. */
static heddle_status fails(whole *w)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *comm = w->b.comm;
    const int is_wrong = heddle_comm_rank(comm) == 1;
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(5);
    w->first.shape.dim[1].extent += is_wrong;
    heddle_status got = enqueue(w);
    while (got == HEDDLE_OK && hd_now_ns() < until_ns) {
        usleep(1000);
        got = heddle_comm_poll(comm);
    }
    CHECK(got != HEDDLE_OK && (got == HEDDLE_ERR_PEER) == !is_wrong);
    CHECK(is_wrong || strstr(heddle_last_error(), "rank 1 gave up: ") != NULL);
    CHECK(heddle_comm_reset(comm) == HEDDLE_ERR_UNSUPPORTED);
    CHECK(strstr(heddle_last_error(), "destroy it and open another one") != NULL);
out:
    return st;
}

static heddle_status goes_on(void *arg)
{
    heddle_status st = HEDDLE_OK;
    static float first[ELEMS], result[ELEMS];
    for (int pass = 0; pass < PASSES && st == HEDDLE_OK; pass++) {
        whole w;
        heddle_comm *comm = NULL;
        st = open_one(&comm, arg);
        if (st == HEDDLE_OK) {
            choose(&w, comm, 0);
            st = set_up(&w, comm);
            st = st == HEDDLE_OK ? is_right(&w, pass == 0 ? first : result) : st;
            st = st == HEDDLE_OK ? fails(&w) : st;
            tear_down(&w);
        }
        heddle_comm_destroy(comm);
    }
    CHECK(memcmp(first, result, sizeof first) == 0);
out:
    return st;
}

HD_CASE(by_peer)
{
    launch(2, goes_on, &(job){HEDDLE_WIRE_PEER, HEDDLE_DEVICE_SIM});
}

HD_CASE(by_nccl)
{
    setenv("HEDDLE_CUDASIM_DEVICES", "4", 1); /* ranks of one device would share its default stream */
    launch(2, goes_on, &(job){HEDDLE_WIRE_NCCL, HEDDLE_NCCL_SIM});
}
