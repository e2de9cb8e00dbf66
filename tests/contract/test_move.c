/* Transfers by themselves: random items between ranks, copied and added, against a loop over single bytes. */
#include "mover.h"

static heddle_status moves_once(heddle_comm *comm, void *arg)
{
    const how *h = arg;
    mover m;
    heddle_status st = HEDDLE_OK;
    HD_TRY(mover_open(&m, comm, h->seed, h->is_private, 0));
    for (int round = 0; round < 4; round++) {
        hd_leg leg = leg_of(&m, round);
        if (round % 2 == 0) {
            HD_TRY(hd_channel_run(m.channel, &leg, 1));
        } else {
            HD_TRY(hd_channel_start(m.channel, &leg, 1));
            HD_TRY(hd_channel_wait(m.channel));
        }
        HD_TRY(check(&m, round));
        HD_TRY(heddle_comm_barrier(comm));
    }
    HD_TRY(check_counters(&m, hd_channel_sent(m.channel), 4));
    HD_TRY(heddle_comm_barrier(comm));
out:
    mover_close(&m, h->is_private);
    return st;
}

/* Memory that no way leads to is refused by all, before anything is built; the communicator stays usable. */
static heddle_status other_spaces(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    hd_channel *channel = NULL;
    hd_transfer *transfer = NULL;
    hd_transfer_spec spec = {.space = HEDDLE_SPACE_DEVICE};
    HD_TRY(hd_channel_create(&channel, comm, &(hd_channel_options){.what = "test"}));
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, hd_transfers_create(&transfer, channel, &spec, 1, HEDDLE_OK));
    assert_non_null(strstr(heddle_last_error(), "a test of memory in space 1"));
    assert_null(transfer);
    spec.space = HEDDLE_SPACE_HOST;
    HD_TRY(hd_transfers_create(&transfer, channel, &spec, 1, HEDDLE_OK));
out:
    hd_transfer_destroy(transfer);
    hd_channel_destroy(channel);
    return st;
}

HD_CASE(spaces)
{
    HD_OK(heddle_run_ranks(RANKS, "threads", other_spaces, NULL));
    HD_OK(heddle_run_ranks(RANKS, "shm", other_spaces, NULL));
}

HD_CASE(random_items)
{
    for (how h = {.seed = 1}; h.seed <= (uint64_t)hd_rounds(ROUNDS); h.seed++) {
        HD_OK(heddle_run_ranks(RANKS, "threads", moves_once, &h));
        HD_OK(heddle_run_ranks(RANKS, "shm", moves_once, &h));
    }
}

HD_CASE(private_sources)
{
    for (how h = {.seed = 1, .is_private = 1}; h.seed <= (uint64_t)hd_rounds(ROUNDS); h.seed++) {
        HD_OK(heddle_run_ranks(RANKS, "shm", moves_once, &h));
    }
}

HD_CASE(messages_and_both)
{
    for (how h = {.seed = 1}; h.seed <= (uint64_t)hd_rounds(ROUNDS); h.seed++) {
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.force_messages = h.seed % 2 == 0;
        options.pretend_hosts = h.seed % 2 == 0 ? 0 : 2;
        HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, moves_once, &h));
        HD_OK(heddle_run_ranks_with(RANKS, "shm", &options, moves_once, &h));
        h.is_private = 1;
        HD_OK(heddle_run_ranks_with(RANKS, "shm", &options, moves_once, &h));
        h.is_private = 0;
    }
}

/* Two in flight; even ranks wait for the first one first, odd ranks for the second. */
static heddle_status two_at_once(heddle_comm *comm, void *arg)
{
    const how *h = arg;
    mover m[2];
    heddle_status st = HEDDLE_OK;
    memset(m, 0, sizeof m);
    for (int i = 0; i < 2; i++) {
        HD_TRY(mover_open(&m[i], comm, h->seed + (uint64_t)i, 0, 0));
    }
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 2; i++) {
            hd_leg leg = leg_of(&m[i], round);
            HD_TRY(hd_channel_start(m[i].channel, &leg, 1));
        }
        for (int i = 0; i < 2; i++) {
            mover *next = &m[(i + m[0].rank) % 2];
            HD_TRY(hd_channel_wait(next->channel));
            HD_TRY(check(next, round));
        }
        HD_TRY(heddle_comm_barrier(comm));
    }
out:
    mover_close(&m[0], 0);
    mover_close(&m[1], 0);
    return st;
}

HD_CASE(two_in_flight)
{
    for (how h = {.seed = 1}; h.seed <= (uint64_t)hd_rounds(ROUNDS); h.seed++) {
        HD_OK(heddle_run_ranks(RANKS, "threads", two_at_once, &h));
        HD_OK(heddle_run_ranks(RANKS, "shm", two_at_once, &h));
    }
}

/* The sum over the ranks of an array of i32, whose terms lie strided at the sources. */
enum { ROWS = 37, COLUMNS = 11, COLUMN_STRIDE = 3, ROW_STRIDE = 40 };

static void add_i32(void *dst, const void *const *src, int nsrc, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        int32_t sum = 0;
        for (int k = 0; k < nsrc; k++) {
            sum += ((const int32_t *)src[k])[i];
        }
        ((int32_t *)dst)[i] = sum;
    }
}

static heddle_status adds_up(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    int rank = heddle_comm_rank(comm), n = heddle_comm_size(comm);
    hd_channel *channel = NULL;
    hd_transfer *transfer = NULL;
    hd_item send[RANKS], recv[RANKS];
    int32_t *src = NULL, *dst = NULL;
    const hd_channel_options options = {.what = "sum"};
    hd_transfer_spec spec = {.adds = 1,
                             .add = add_i32,
                             .src_bytes = ROWS * ROW_STRIDE * 4,
                             .dst_bytes = ROWS * COLUMNS * 4,
                             .send = {send, n},
                             .recv = {recv, n}};
    for (int peer = 0; peer < n; peer++) {
        hd_copy copy = {.run_bytes = 4,
                        .nloops = 2,
                        .count = {ROWS, COLUMNS},
                        .src_stride_bytes = {ROW_STRIDE * 4, COLUMN_STRIDE * 4},
                        .dst_stride_bytes = {COLUMNS * 4, 4}};
        send[peer] = recv[peer] = (hd_item){peer, copy};
    }
    HD_TRY(heddle_buffer_alloc((void **)&src, comm, spec.src_bytes, HEDDLE_SPACE_HOST));
    HD_TRY(heddle_buffer_alloc((void **)&dst, comm, spec.dst_bytes, HEDDLE_SPACE_HOST));
    for (int i = 0; i < ROWS * ROW_STRIDE; i++) {
        src[i] = (rank + 1) * 100000 + i;
    }
    HD_TRY(hd_channel_create(&channel, comm, &options));
    HD_TRY(hd_transfers_create(&transfer, channel, &spec, 1, HEDDLE_OK));
    for (int round = 0; round < 3; round++) {
        hd_leg leg = {transfer, src, dst};
        memset(dst, 0xa5, spec.dst_bytes);
        HD_TRY(hd_channel_run(channel, &leg, 1));
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            int at = i / COLUMNS * ROW_STRIDE + i % COLUMNS * COLUMN_STRIDE;
            int want = n * (n + 1) / 2 * 100000 + n * at;
            if (dst[i] != want) {
                st = hd_fail(HEDDLE_ERR_INTERNAL, "rank %d: element %d is %d, not %d", rank, i, dst[i], want);
                goto out;
            }
        }
    }
    HD_TRY(heddle_comm_barrier(comm));
out:
    hd_transfer_destroy(transfer);
    hd_channel_destroy(channel);
    if (src != NULL) {
        heddle_buffer_free(comm, src);
    }
    if (dst != NULL) {
        heddle_buffer_free(comm, dst);
    }
    return st;
}

HD_CASE(sums)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.pretend_hosts = 2;
    for (int n = 1; n <= RANKS; n++) {
        HD_OK(heddle_run_ranks(n, "threads", adds_up, NULL));
        HD_OK(heddle_run_ranks(n, "shm", adds_up, NULL));
    }
    HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, adds_up, NULL));
    options.force_messages = 1;
    HD_OK(heddle_run_ranks_with(RANKS, "shm", &options, adds_up, NULL));
}
