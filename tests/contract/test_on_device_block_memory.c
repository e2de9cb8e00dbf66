/* Blocks over a sharded dim that have reserved nothing: whichever piece of device memory is missing on one rank amid
 * forward or backward, all ranks hear it, nothing is lost, and the same block and tape go on. */
#include "block_on_device.h"
#include "check.h"

#include <heddle/train/tape.h>

enum { RANKS = 2, MOST = 4096 };

typedef struct job {
    const char *method;
    heddle_stage_kind kind;
    heddle_dtype dtype;
} job;

static const job jobs[] = {
    {"ring", HEDDLE_STAGE_ATTENTION, HEDDLE_BF16},     {"ulysses", HEDDLE_STAGE_ATTENTION, HEDDLE_F32},
    {"gather-kv", HEDDLE_STAGE_ATTENTION, HEDDLE_F32}, {"lasp", HEDDLE_STAGE_LINEAR, HEDDLE_F32},
    {"lasp2", HEDDLE_STAGE_LINEAR, HEDDLE_BF16},       {"scan", HEDDLE_STAGE_LINEAR, HEDDLE_F32}};

typedef struct life {
    heddle_comm *comm;
    device_sim sim;
    heddle_block *block;
    heddle_tape *tape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_box box;
    size_t bytes;
    void *x, *dx; /* on the device */
    char given[MOST], wanted[2][MOST], got[2][MOST];
} life;

static heddle_status make(life *l, const job *j)
{
    static const int64_t extent[] = {1, 6, 2, 16};
    heddle_status st = HEDDLE_OK;
    heddle_block_options options = options_for(j->kind, j->dtype, 4, extent);
    options.mixed_dim = 1;
    options.modulate = 0;
    options.space = HEDDLE_SPACE_DEVICE;
    options.comm = l->comm;
    HD_TRY(heddle_mesh_parse(&l->mesh, "[sp=2]"));
    HD_TRY(heddle_layout_parse(&l->layout, "t@sp", &options.shape, &l->mesh));
    HD_TRY(heddle_layout_box(&l->box, &options.shape, &l->mesh, &l->layout, heddle_comm_rank(l->comm)));
    l->bytes = (size_t)heddle_box_elems(&l->box) * heddle_dtype_bytes(j->dtype);
    HD_TRY(heddle_block_create(&l->block, &options));
    HD_TRY(heddle_block_seed(l->block, 7));
    HD_TRY(heddle_block_shard_attention(l->block, l->comm, &l->mesh, &l->layout, j->method));
    HD_TRY(heddle_tape_create(&l->tape, l->block, NULL));
    st = heddle_comm_barrier(l->comm);
out:
    return st;
}

static void end(life *l)
{
    heddle_tape_destroy(l->tape);
    heddle_block_destroy(l->block);
    l->tape = NULL;
    l->block = NULL;
}

static heddle_tensor tensor_of(const life *l, void *data)
{
    heddle_tensor x = box_tensor(l->block, data, &l->box);
    x.space = HEDDLE_SPACE_DEVICE;
    x.device = heddle_comm_device(l->comm);
    x.capacity_bytes = l->bytes;
    return x;
}

/* There and back; the end of it is the same on all ranks. */
static heddle_status pass(life *l)
{
    heddle_status st = HEDDLE_OK;
    const heddle_conditioning none = {0};
    const heddle_tensor x = tensor_of(l, l->x), dx = tensor_of(l, l->dx);
    HD_TRY(device_copy_now(l->comm, l->x, l->given, l->bytes));
    HD_TRY(device_copy_now(l->comm, l->dx, l->given, l->bytes));
    HD_TRY(heddle_block_forward_tape(l->block, &x, &l->box, &none, l->tape, HEDDLE_NO_STREAM));
    HD_TRY(heddle_block_backward(l->block, &dx, &none, NULL, l->tape, HEDDLE_NO_STREAM));
    HD_TRY(device_copy_now(l->comm, l->got[0], l->x, l->bytes));
    HD_TRY(device_copy_now(l->comm, l->got[1], l->dx, l->bytes));
    st = heddle_comm_barrier(l->comm);
out:
    return st;
}

/* Rank 1's n-th piece is missing. */
static heddle_status refuse_once(life *l, const job *j, int64_t n)
{
    heddle_status st = HEDDLE_OK;
    const int rank = heddle_comm_rank(l->comm);
    HD_TRY(make(l, j));
    l->sim.refuse_at(rank == 1 ? n : 0);
    const heddle_status got = pass(l);
    l->sim.refuse_at(0);
    CHECK(rank == 1 ? got == HEDDLE_ERR_NOMEM : got == HEDDLE_ERR_PEER);
    CHECK(says(" bytes"));
    HD_TRY(heddle_comm_reset(l->comm));
    HD_TRY(pass(l));
    CHECK(memcmp(l->got, l->wanted, sizeof l->got) == 0);
    end(l);
    st = heddle_comm_barrier(l->comm);
out:
    return st;
}

static heddle_status check(life *l, const job *j)
{
    heddle_status st = HEDDLE_OK;
    const int64_t bytes = l->sim.device_bytes();
    int64_t all[RANKS] = {0};
    HD_TRY(make(l, j));
    const int64_t before = l->sim.asked();
    HD_TRY(pass(l));
    const int64_t asked = l->sim.asked() - before;
    HD_TRY(pass(l));
    CHECK(l->sim.asked() - before == asked); /* the second time all is there */
    HD_TRY(heddle_comm_allgather(l->comm, &asked, all, sizeof asked));
    memcpy(l->wanted, l->got, sizeof l->wanted);
    end(l);
    CHECK(l->sim.device_bytes() == bytes && all[1] > 8);
    for (int64_t n = 1; n <= all[1]; n++) {
        HD_TRY(refuse_once(l, j, n));
        CHECK(l->sim.device_bytes() == bytes);
    }
out:
    return st == HEDDLE_OK ? st : hd_fail_prefix(st, "%s", j->method);
}

/* Processes: pieces of the one are not counted with those of the other. */
HD_RANK_CASES(memory_that_is_missing_amid_a_call, 4, "2 shm cuda host")
{
    heddle_status st = HEDDLE_OK;
    life *l = must_alloc(1, sizeof *l);
    l->comm = comm;
    for (int i = 0; i < MOST / 2; i++) { /* of all types: bytes of small numbers */
        ((uint16_t *)(void *)l->given)[i] = (uint16_t)(0x3c00 + i * 37 % 997);
    }
    HD_TRY(device_sim_get(&l->sim));
    HD_TRY(heddle_buffer_alloc(&l->x, comm, MOST, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_buffer_alloc(&l->dx, comm, MOST, HEDDLE_SPACE_DEVICE));
    st = check(l, &jobs[nth]);
out:
    end(l);
    heddle_buffer_free(comm, l->x);
    heddle_buffer_free(comm, l->dx);
    free(l);
    return st;
}
