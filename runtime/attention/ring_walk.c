/* One turn round the ring: blocks travel, partial sums come home, work is done meanwhile.
 *
 * In step i rank r holds the block of member r - i. Its contribution to that member's sum joins what the rank before
 * has added up for it, and goes on; after the last step it is one hop from home. So sums of N blocks take N - 1 hops,
 * and are added in the order of the ring, the same in every run.
 */
#include "runtime/attention/attention_internal.h"

#include <string.h>

static heddle_status create_hop(hd_core *core, int kind, int64_t bytes_a_row)
{
    heddle_status st = HEDDLE_OK;
    int n = core->nranks, r = core->rank;
    int64_t *bytes = NULL;
    hd_hop_plan plan = {.to = (r + 1) % n, .from = (r + n - 1) % n, .ntransfers = n - 1};
    HD_TRY(hd_comm_agree(core->comm, hd_alloc((void **)&bytes, 2 * (size_t)n, sizeof(int64_t), "a ring")));
    for (int i = 0; i < n - 1; i++) { /* blocks: that of member r - i leaves; sums: one step later */
        int member = kind != HD_SUMS ? (r - i + n) % n : (r - i - 1 + n) % n;
        bytes[i] = core->rows[member].rows * bytes_a_row;
        bytes[n + i] = core->rows[(member + n - 1) % n].rows * bytes_a_row;
    }
    plan.send_bytes = bytes;
    plan.recv_bytes = bytes + n;
    HD_TRY(hd_hop_create(&core->hop[kind], core->comm, &plan, core->problem->options.deadline_ms));
out:
    hd_free(bytes);
    return st;
}

heddle_status hd_ring_create(hd_core *core, const int64_t bytes_a_row[HD_HOPS])
{
    heddle_status st = HEDDLE_OK, mine = HEDDLE_OK;
    int64_t rows = hd_core_most_rows(core);
    int64_t block = bytes_a_row[HD_TRAVEL] > bytes_a_row[HD_SPREAD] ? bytes_a_row[HD_TRAVEL] : bytes_a_row[HD_SPREAD];
    if (core->nranks == 1) {
        return HEDDLE_OK;
    }
    for (int i = 0; i < 2 && mine == HEDDLE_OK && block > 0 && i < core->nranks - 1; i++) {
        mine = hd_core_buffer(&core->travel[i], core, rows * block);
    }
    for (int i = 0; i < 3 && mine == HEDDLE_OK && bytes_a_row[HD_SUMS] > 0; i++) {
        if (i != 1 || core->nranks > 2) { /* two ranks: the next sum is never begun while one is on its way */
            mine = hd_core_buffer(&core->sum[i], core, rows * bytes_a_row[HD_SUMS]);
        }
    }
    HD_TRY(hd_comm_agree(core->comm, mine));
    for (int kind = 0; kind < HD_HOPS; kind++) {
        if (bytes_a_row[kind] > 0) {
            HD_TRY(create_hop(core, kind, bytes_a_row[kind]));
        }
    }
out:
    return st;
}

void hd_ring_destroy(hd_core *core)
{
    if (core->comm == NULL) {
        return;
    }
    for (int kind = 0; kind < HD_HOPS; kind++) {
        hd_hop_destroy(core->hop[kind]);
    }
    for (int i = 0; i < 2; i++) {
        heddle_buffer_free(core->comm, core->travel[i]);
    }
    for (int i = 0; i < 3; i++) {
        heddle_buffer_free(core->comm, core->sum[i]);
    }
}

static heddle_status poll_hops(void *ctx)
{
    heddle_status st = HEDDLE_OK;
    hd_core *core = ctx;
    for (int kind = 0; kind < HD_HOPS; kind++) {
        HD_TRY(hd_hop_progress(core->hop[kind]));
    }
out:
    return st;
}

/* No samples or no heads: there is no hop, and nothing to move. */
static heddle_status start(hd_core *core, int kind, int index, const void *src, void *dst)
{
    return core->hop[kind] != NULL ? hd_hop_start(core->hop[kind], index, src, dst) : HEDDLE_OK;
}

static heddle_status finish(hd_core *core, int kind)
{
    return core->hop[kind] != NULL ? hd_hop_wait(core->hop[kind], &core->moved[core->going_back]) : HEDDLE_OK;
}

/* The sum that has arrived joins the one made here, which goes on. */
static heddle_status pass_sum(hd_core *core, const hd_ring_walk *walk, int step, int member)
{
    heddle_status st = HEDDLE_OK;
    int64_t elems = core->rows[member].rows * walk->sum_elems_a_row;
    if (step > 1) {
        HD_TRY(finish(core, HD_SUMS));
        core->kernels->add(core->sum[0], core->sum[2], elems);
    }
    void *made = core->sum[0];
    if (core->nranks > 2) {
        core->sum[0] = core->sum[1];
        core->sum[1] = made;
    }
    HD_TRY(start(core, HD_SUMS, step - 1, made, core->sum[2]));
out:
    return st;
}

heddle_status hd_ring_run(hd_core *core, const hd_ring_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    int n = core->nranks;
    const void *held = walk->block;
    hd_poll poll = {n > 1 ? poll_hops : NULL, core};
    for (int i = 0; i < n; i++) {
        int member = (core->rank - i + n) % n;
        void *next = core->travel[i % 2];
        if (walk->block != NULL && i < n - 1) {
            HD_TRY(start(core, walk->kind, i, held, next));
        }
        int64_t sum_elems = core->rows[member].rows * walk->sum_elems_a_row;
        if (walk->own_sum != NULL && i > 0 && sum_elems > 0) {
            memset(core->sum[0], 0, (size_t)(sum_elems * core->problem->real_bytes));
        }
        HD_TRY(walk->visit(walk->ctx, member, held, i == 0 ? walk->own_sum : core->sum[0], poll));
        if (walk->own_sum != NULL && i > 0) {
            HD_TRY(pass_sum(core, walk, i, member));
        }
        if (walk->block != NULL && i < n - 1) {
            HD_TRY(finish(core, walk->kind));
            held = next;
        }
    }
    if (walk->own_sum != NULL && n > 1) {
        HD_TRY(finish(core, HD_SUMS));
        core->kernels->add(walk->own_sum, core->sum[2], core->rows[core->rank].rows * walk->sum_elems_a_row);
    }
out:
    return st;
}
