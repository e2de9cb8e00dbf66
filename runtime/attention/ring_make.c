/* A ring, made: one transfer for every step, or one that lends; buffers for what is in hand. */
#include "runtime/attention/ring.h"

#include <string.h>

static void hop_destroy(hd_hop *hop)
{
    if (hop == NULL) {
        return;
    }
    for (int i = 0; hop->transfer != NULL && i < hop->ntransfers; i++) {
        hd_transfer_destroy(hop->transfer[i]);
    }
    hd_channel_destroy(hop->channel);
    HD_FREE_ALL(hop->transfer, hop->send_bytes, hop->at, hop);
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
    HD_TRY(hd_alloc((void **)&hop->at, (size_t)core->nranks, sizeof *hop->at, "a ring"));
    HD_TRY(hd_channel_create(&hop->channel, core->comm, &options));
out:
    return st;
}

static void describe_step(hd_transfer_spec *spec, hd_item *send, hd_item *recv, const hd_core *core, int64_t send_bytes,
                          int64_t recv_bytes)
{
    int n = core->nranks, r = core->rank;
    memset(spec, 0, sizeof *spec);
    *send = (hd_item){.peer = (r + 1) % n, .copy = {.run_bytes = send_bytes}};
    *recv = (hd_item){.peer = (r + n - 1) % n, .copy = {.run_bytes = recv_bytes}};
    spec->send = (hd_items){send, send_bytes > 0};
    spec->recv = (hd_items){recv, recv_bytes > 0};
    spec->space = core->problem->options.space;
    spec->src_bytes = (size_t)send_bytes;
    spec->dst_bytes = (size_t)recv_bytes;
    spec->footprint_bytes = send_bytes + recv_bytes;
}

/* The own blocks to all other members, theirs to this one. */
static void describe_loan(hd_transfer_spec *spec, hd_item *item, const hd_core *core, int64_t bytes_a_row)
{
    int n = core->nranks, r = core->rank;
    int64_t own_bytes = core->rows[r].rows * bytes_a_row;
    memset(spec, 0, sizeof *spec);
    spec->lends = 1;
    spec->space = core->problem->options.space;
    spec->src_bytes = (size_t)own_bytes;
    spec->send.item = item;
    spec->recv.item = item + n - 1;
    for (int i = 1; i < n; i++) { /* in the order in which they come and are waited for */
        int from = (r - i + n) % n;
        int64_t bytes = core->rows[from].rows * bytes_a_row;
        if (own_bytes > 0) {
            spec->send.item[spec->send.count++] = (hd_item){.peer = (r + i) % n, .copy = {.run_bytes = own_bytes}};
        }
        if (bytes > 0) {
            spec->recv.item[spec->recv.count++] = (hd_item){.peer = from, .copy = {.run_bytes = bytes}};
        }
    }
}

static heddle_status create_hop(hd_core *core, int kind, int64_t bytes_a_row, int lent)
{
    heddle_status st = HEDDLE_OK;
    int n = core->nranks, r = core->rank;
    hd_transfer_spec *spec = NULL;
    hd_item *item = NULL;
    heddle_status mine = hop_alloc(&core->hop[kind], core, kind != HD_SPREAD && core->lends);
    mine = mine == HEDDLE_OK ? hd_alloc((void **)&spec, (size_t)n, sizeof *spec, "a ring") : mine;
    mine = mine == HEDDLE_OK ? hd_alloc((void **)&item, 2 * (size_t)n, sizeof *item, "a ring") : mine;
    HD_TRY(hd_comm_agree(core->comm, mine));
    hd_hop *hop = core->hop[kind];
    hop->bytes_a_row = bytes_a_row;
    for (int i = 0; i < n - 1; i++) { /* blocks: that of member r - i leaves; sums: one step later */
        int member = kind != HD_SUMS ? (r - i + n) % n : (r - i - 1 + n) % n;
        hop->send_bytes[i] = core->rows[member].rows * bytes_a_row;
        describe_step(&spec[i], &item[2 * i], &item[2 * i + 1], core, hop->send_bytes[i],
                      core->rows[(member + n - 1) % n].rows * bytes_a_row);
    }
    if (hop->lends && kind == HD_SUMS) { /* to the next one, of whatever member */
        int64_t most_bytes = hd_core_most_rows(core) * bytes_a_row;
        describe_step(spec, item, item + 1, core, most_bytes, most_bytes);
        spec->lends = 1;
    } else if (hop->lends) {
        describe_loan(spec, item, core, lent * bytes_a_row);
    }
    HD_TRY(hd_transfers_create(hop->transfer, hop->channel, spec, hop->ntransfers, HEDDLE_OK));
out:
    hd_free(spec);
    hd_free(item);
    return st;
}

heddle_status hd_ring_create(hd_core *core, const int64_t bytes_a_row[HD_HOPS], int lent)
{
    heddle_status st = HEDDLE_OK, mine = HEDDLE_OK;
    int64_t rows = hd_core_most_rows(core);
    if (core->nranks == 1 || rows == 0) {
        return HEDDLE_OK;
    }
    core->lends = hd_can_lend(core->comm);
    int64_t travel = core->lends ? 0 : bytes_a_row[HD_TRAVEL];
    int64_t block = travel > bytes_a_row[HD_SPREAD] ? travel : bytes_a_row[HD_SPREAD];
    for (int i = 0; i < 2 && mine == HEDDLE_OK && block > 0 && i < core->nranks - 1; i++) {
        mine = hd_core_buffer(&core->travel[i], core, rows * block);
    }
    for (int i = 0; i < 3 && mine == HEDDLE_OK && bytes_a_row[HD_SUMS] > 0; i++) {
        int is_wanted = i == 0 || (i == 1 ? core->nranks > 2 : !core->lends);
        if (is_wanted) { /* two ranks: the next sum is never begun while one is on its way; lent: none arrives */
            mine = hd_core_buffer(&core->sum[i], core, rows * bytes_a_row[HD_SUMS]);
        }
    }
    if (mine == HEDDLE_OK) {
        mine = hd_alloc((void **)&core->held, (size_t)core->nranks, sizeof *core->held, "a ring");
    }
    HD_TRY(hd_comm_agree(core->comm, mine));
    for (int kind = 0; kind < HD_HOPS; kind++) {
        if (bytes_a_row[kind] > 0) {
            HD_TRY(create_hop(core, kind, bytes_a_row[kind], lent));
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
    hd_free(core->held);
}
