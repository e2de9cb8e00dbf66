/* One turn round the ring: blocks travel, partial sums come home, work is done meanwhile. Where all members reach one
 * another's memory the blocks stay: each member reads them where they lie, in the same order.
 *
 * In step i rank r holds the block of member r - i. Its contribution to that member's sum joins what the rank before
 * has added up for it, and goes on; after the last step it is one hop from home. So sums of N blocks take N - 1 hops,
 * and are added in the order of the ring, the same in every run.
 */
#include "runtime/attention/attention_internal.h"
#include "runtime/move/move.h"

#include <string.h>

/* Blocks, or sums of them, from the rank before to the next; or blocks from their owners. */
typedef struct hd_hop {
    hd_channel *channel;
    hd_transfer **transfer; /* by step; one where all members hold as many rows, or where blocks are lent */
    int ntransfers;
    int64_t *send_bytes; /* by step; lent blocks count as if they had been passed on */
    int lends;
    int step; /* in flight; -1 */
} hd_hop;

static void hop_destroy(hd_hop *hop)
{
    if (hop == NULL) {
        return;
    }
    for (int i = 0; hop->transfer != NULL && i < hop->ntransfers; i++) {
        hd_transfer_destroy(hop->transfer[i]);
    }
    hd_channel_destroy(hop->channel);
    hd_free(hop->transfer);
    hd_free(hop->send_bytes);
    hd_free(hop);
}

static int equal_rows(const hd_core *core)
{
    int equal = 1;
    for (int r = 1; r < core->nranks; r++) {
        equal &= core->rows[r].rows == core->rows[0].rows;
    }
    return equal;
}

static heddle_status hop_alloc(hd_hop **out, const hd_core *core, int lends)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = NULL;
    size_t steps = (size_t)core->nranks - 1;
    const hd_channel_options options = {.deadline_ms = core->problem->options.deadline_ms, .what = "ring transfer"};
    HD_TRY(hd_alloc((void **)&hop, 1, sizeof *hop, "a ring"));
    *out = hop;
    hop->step = -1;
    hop->lends = lends;
    hop->ntransfers = lends || equal_rows(core) ? 1 : core->nranks - 1;
    HD_TRY(hd_alloc((void **)&hop->transfer, steps, sizeof *hop->transfer, "a ring"));
    HD_TRY(hd_alloc((void **)&hop->send_bytes, steps, sizeof *hop->send_bytes, "a ring"));
    HD_TRY(hd_channel_create(&hop->channel, core->comm, &options));
out:
    return st;
}

static void describe_step(hd_transfer_spec *spec, hd_part *send, hd_part *recv, const hd_core *core, int64_t send_bytes,
                          int64_t recv_bytes)
{
    int n = core->nranks, r = core->rank;
    memset(spec, 0, sizeof *spec);
    *send = (hd_part){.peer = (r + 1) % n, .copy = {.run_bytes = send_bytes}};
    *recv = (hd_part){.peer = (r + n - 1) % n, .copy = {.run_bytes = recv_bytes}};
    spec->send = (hd_parts){send, send_bytes > 0};
    spec->recv = (hd_parts){recv, recv_bytes > 0};
    spec->space = core->problem->options.space;
    spec->src_bytes = (size_t)send_bytes;
    spec->dst_bytes = (size_t)recv_bytes;
    spec->footprint_bytes = send_bytes + recv_bytes;
}

/* The own block to all other members, theirs to this one. */
static void describe_loan(hd_transfer_spec *spec, hd_part *part, const hd_core *core, int64_t bytes_a_row)
{
    int n = core->nranks, r = core->rank;
    int64_t own_bytes = core->rows[r].rows * bytes_a_row;
    memset(spec, 0, sizeof *spec);
    spec->lends = 1;
    spec->space = core->problem->options.space;
    spec->src_bytes = (size_t)own_bytes;
    spec->send.part = part;
    spec->recv.part = part + n - 1;
    for (int i = 1; i < n; i++) { /* in the order in which they come and are waited for */
        int from = (r - i + n) % n;
        int64_t bytes = core->rows[from].rows * bytes_a_row;
        if (own_bytes > 0) {
            spec->send.part[spec->send.count++] = (hd_part){.peer = (r + i) % n, .copy = {.run_bytes = own_bytes}};
        }
        if (bytes > 0) {
            spec->recv.part[spec->recv.count++] = (hd_part){.peer = from, .copy = {.run_bytes = bytes}};
        }
    }
}

static heddle_status create_hop(hd_core *core, int kind, int64_t bytes_a_row)
{
    heddle_status st = HEDDLE_OK;
    int n = core->nranks, r = core->rank;
    hd_transfer_spec *spec = NULL;
    hd_part *part = NULL;
    heddle_status mine = hop_alloc(&core->hop[kind], core, kind == HD_TRAVEL && core->lends);
    mine = mine == HEDDLE_OK ? hd_alloc((void **)&spec, (size_t)n, sizeof *spec, "a ring") : mine;
    mine = mine == HEDDLE_OK ? hd_alloc((void **)&part, 2 * (size_t)n, sizeof *part, "a ring") : mine;
    HD_TRY(hd_comm_agree(core->comm, mine));
    hd_hop *hop = core->hop[kind];
    for (int i = 0; i < n - 1; i++) { /* blocks: that of member r - i leaves; sums: one step later */
        int member = kind != HD_SUMS ? (r - i + n) % n : (r - i - 1 + n) % n;
        hop->send_bytes[i] = core->rows[member].rows * bytes_a_row;
        describe_step(&spec[i], &part[2 * i], &part[2 * i + 1], core, hop->send_bytes[i],
                      core->rows[(member + n - 1) % n].rows * bytes_a_row);
    }
    if (hop->lends) {
        describe_loan(spec, part, core, bytes_a_row);
    }
    HD_TRY(hd_transfers_create(hop->transfer, hop->channel, spec, hop->ntransfers, HEDDLE_OK));
out:
    hd_free(spec);
    hd_free(part);
    return st;
}

heddle_status hd_ring_create(hd_core *core, const int64_t bytes_a_row[HD_HOPS])
{
    heddle_status st = HEDDLE_OK, mine = HEDDLE_OK;
    int64_t rows = hd_core_most_rows(core);
    if (core->nranks == 1) {
        return HEDDLE_OK;
    }
    core->lends = hd_can_lend(core->comm);
    int64_t travel = core->lends ? 0 : bytes_a_row[HD_TRAVEL];
    int64_t block = travel > bytes_a_row[HD_SPREAD] ? travel : bytes_a_row[HD_SPREAD];
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
        hop_destroy(core->hop[kind]);
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
        int done;
        if (core->hop[kind] != NULL && core->hop[kind]->step >= 0) {
            HD_TRY(hd_channel_progress(core->hop[kind]->channel, &done));
        }
    }
out:
    return st;
}

/* No samples or no heads: there is no hop, and nothing to move. Every rank runs its hops in the same order, so the one
 * that is furthest behind can always go on. */
static heddle_status start(hd_core *core, int kind, int step, const void *src, void *dst)
{
    hd_hop *hop = core->hop[kind];
    if (hop == NULL) {
        return HEDDLE_OK;
    }
    const hd_leg leg = {hop->transfer[hop->ntransfers == 1 ? 0 : step], src, dst};
    hop->step = step;
    return hd_channel_start(hop->channel, &leg, 1);
}

static void count(hd_core *core, int64_t bytes)
{
    hd_moved *moved = &core->moved[core->going_back];
    moved->bytes += bytes;
    moved->messages += bytes > 0;
}

static heddle_status finish(hd_core *core, int kind)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = core->hop[kind];
    if (hop == NULL) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_channel_wait(hop->channel));
    count(core, hop->send_bytes[hop->step]);
    hop->step = -1;
out:
    return st;
}

static int member_of(const hd_core *core, int step)
{
    return (core->rank - step + core->nranks) % core->nranks;
}

/* Before the visit: the block in hand goes on to the next rank, or the one to be visited is borrowed. */
static heddle_status take_block(hd_core *core, const hd_ring_walk *walk, int step, const void **held)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = core->hop[walk->kind];
    if (hop == NULL || !hop->lends) {
        return step < core->nranks - 1 ? start(core, walk->kind, step, *held, core->travel[step % 2]) : HEDDLE_OK;
    }
    if (step == 0) {
        HD_TRY(hd_channel_lend(hop->channel, &(hd_leg){.transfer = hop->transfer[0], .src = walk->block}));
        hop->step = 0;
    } else if (core->rows[member_of(core, step)].rows > 0) {
        HD_TRY(hd_channel_borrow(hop->channel, member_of(core, step), held));
    }
out:
    return st;
}

/* After it: the next one is in hand, or this one is given back. */
static heddle_status leave_block(hd_core *core, const hd_ring_walk *walk, int step, const void **held)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = core->hop[walk->kind];
    int is_last = step == core->nranks - 1;
    if (hop == NULL || !hop->lends) {
        HD_TRY(is_last ? HEDDLE_OK : finish(core, walk->kind));
        *held = core->travel[step % 2];
        return HEDDLE_OK;
    }
    if (step > 0 && core->rows[member_of(core, step)].rows > 0) {
        HD_TRY(hd_channel_return(hop->channel, member_of(core, step)));
    }
    count(core, is_last ? 0 : hop->send_bytes[step]);
out:
    return st;
}

/* The own block is read by nobody any more. */
static heddle_status regain_block(hd_core *core, const hd_ring_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = core->hop[walk->kind];
    if (hop != NULL && hop->lends) {
        HD_TRY(hd_channel_regain(hop->channel));
        hop->step = -1;
    }
out:
    return st;
}

/* After a failure, when no thread of this rank reads blocks any more. */
static heddle_status give_up(hd_core *core, heddle_status st)
{
    hd_hop *hop = core->hop[HD_TRAVEL];
    return hop != NULL && hop->lends ? hd_channel_forgo(hop->channel, st) : st;
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
        int member = member_of(core, i);
        if (walk->block != NULL) {
            HD_TRY(take_block(core, walk, i, &held));
        }
        int64_t sum_elems = core->rows[member].rows * walk->sum_elems_a_row;
        if (walk->own_sum != NULL && i > 0 && sum_elems > 0) {
            memset(core->sum[0], 0, (size_t)(sum_elems * core->problem->real_bytes));
        }
        HD_TRY(walk->visit(walk->ctx, member, held, i == 0 ? walk->own_sum : core->sum[0], poll));
        if (walk->own_sum != NULL && i > 0) {
            HD_TRY(pass_sum(core, walk, i, member));
        }
        if (walk->block != NULL) {
            HD_TRY(leave_block(core, walk, i, &held));
        }
    }
    if (walk->own_sum != NULL && n > 1) {
        HD_TRY(finish(core, HD_SUMS));
        core->kernels->add(walk->own_sum, core->sum[2], core->rows[core->rank].rows * walk->sum_elems_a_row);
    }
    if (walk->block != NULL) {
        HD_TRY(regain_block(core, walk));
    }
out:
    return st == HEDDLE_OK ? st : give_up(core, st);
}
