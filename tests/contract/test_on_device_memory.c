/* An executor on devices of which one rank has no memory left, whichever piece it is that is missing: all ranks hear
 * why, and make another one. */
#include "device_sim.h"
#include "executor_fixture.h"

enum { PASSES = 16 /* tries for one that goes on with a whole pass */ };

typedef struct life {
    bench b;
    device_sim sim;
    heddle_executor_options options;
    heddle_conditioning there; /* on the device, and so is x */
    void *x;
    size_t bytes; /* of this rank's part, f32 */
    float wanted[ELEMS], got[ELEMS];
} life;

static heddle_status placed_on(void **out, heddle_comm *comm, const void *host, size_t bytes)
{
    heddle_status st = heddle_buffer_alloc(out, comm, bytes + 1, HEDDLE_SPACE_DEVICE);
    return st == HEDDLE_OK ? device_copy_now(comm, *out, host, bytes) : st;
}

static heddle_status begin(life *l, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    void *vector = NULL, *text = NULL;
    heddle_box box;
    memset(l, 0, sizeof *l);
    HD_TRY(device_sim_get(&l->sim));
    HD_TRY(make_bench(&l->b, comm));
    l->options = options_on(comm);
    l->options.blocks = HEDDLE_SPACE_DEVICE;
    l->options.backward = 1;
    HD_TRY(placed_on(&vector, comm, l->b.vector, sizeof l->b.vector));
    HD_TRY(placed_on(&text, comm, l->b.text, sizeof l->b.text));
    l->there = (heddle_conditioning){vector, text, NULL};
    HD_TRY(fill(&l->b));
    HD_TRY(heddle_layout_box(&box, &l->b.info.shape, &l->b.info.mesh, &l->b.first, heddle_comm_rank(comm)));
    l->bytes = (size_t)heddle_box_elems(&box) * sizeof(float);
    HD_TRY(placed_on(&l->x, comm, l->b.data, l->bytes));
    st = heddle_comm_barrier(comm);
out:
    return st;
}

static heddle_status make(life *l)
{
    return heddle_executor_create(&l->b.executor, l->b.comm, l->b.schedule, l->b.stage, &l->options);
}

/* There and back; `got` is what comes of it. */
static heddle_status pass(life *l)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *comm = l->b.comm;
    heddle_tensor x = l->b.x;
    x.data = l->x;
    x.space = HEDDLE_SPACE_DEVICE;
    x.device = heddle_comm_device(comm);
    HD_TRY(device_copy_now(comm, l->x, l->b.data, l->bytes));
    HD_TRY(heddle_executor_forward(l->b.executor, &x, &l->there, placed_stream));
    HD_TRY(heddle_executor_backward(l->b.executor, &x, &l->there, NULL, placed_stream));
    st = device_copy_now(comm, l->got, x.data, l->bytes);
out:
    return st;
}

static void end(life *l)
{
    heddle_executor_destroy(l->b.executor);
    l->b.executor = NULL;
}

/* Rank 1's n-th piece of memory is not there when the executor is made. All ranks hear it, and make another one. */
static heddle_status refuse_once(life *l, int64_t n)
{
    heddle_status st = HEDDLE_OK;
    const int rank = heddle_comm_rank(l->b.comm);
    l->sim.refuse_at(rank == 1 ? n : 0);
    const heddle_status got = make(l);
    l->sim.refuse_at(0);
    CHECK(rank == 1 ? got == HEDDLE_ERR_NOMEM : got == HEDDLE_ERR_PEER);
    CHECK(strstr(heddle_last_error(), " bytes") != NULL && l->b.executor == NULL);
    HD_TRY(heddle_comm_reset(l->b.comm));
    if (n % PASSES == 0) {
        HD_TRY(make(l));
        HD_TRY(pass(l));
        CHECK(memcmp(l->got, l->wanted, l->bytes) == 0);
        end(l);
    }
    st = heddle_comm_barrier(l->b.comm);
out:
    return st;
}

/* Processes: pieces of the one are not counted with those of the other. */
HD_RANK_CASE(a_rank_without_memory_says_so_to_all, "2 shm cuda host")
{
    heddle_status st = HEDDLE_OK;
    life l;
    HD_TRY(begin(&l, comm));
    const int64_t bytes = l.sim.device_bytes();
    const int64_t before = l.sim.asked();
    int64_t all[RANKS] = {0};
    HD_TRY(make(&l));
    const int64_t asked = l.sim.asked() - before;
    HD_TRY(pass(&l));
    CHECK(l.sim.asked() - before == asked); /* a pass asks for none */
    HD_TRY(heddle_comm_allgather(comm, &asked, all, sizeof asked));
    memcpy(l.wanted, l.got, sizeof l.wanted);
    end(&l);
    CHECK(l.sim.device_bytes() == bytes && all[1] > PASSES);
    for (int64_t n = 1; n <= all[1]; n++) {
        HD_TRY(refuse_once(&l, n));
        CHECK(l.sim.device_bytes() == bytes);
    }
out:
    free_bench(&l.b);
    heddle_buffer_free(comm, l.x);
    heddle_buffer_free(comm, (void *)(uintptr_t)l.there.vector);
    heddle_buffer_free(comm, (void *)(uintptr_t)l.there.text);
    return st;
}
