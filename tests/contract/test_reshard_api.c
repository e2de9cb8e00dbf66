/* What the calls promise besides moving bytes: refusals reach every rank, plans are independent. */
#include "reshard_check.h"
#include "reshard_setup.h"
#include "time_limit.h"

#include "runtime/comm/comm_internal.h"

#define SWITCH "f32[t=6 s=9 c=4] on [sp=3]: t@sp -> s@sp"

static heddle_status wrong(const char *what, heddle_status st)
{
    char sentence[400];
    snprintf(sentence, sizeof sentence, "%s", heddle_last_error());
    return hd_fail(HEDDLE_ERR_INTERNAL, "%s: got %s: %s", what, heddle_status_name(st), sentence);
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

typedef struct variant {
    const char *line, *field; /* what rank 2 asks for, and the field that differs */
    heddle_memory memory;
    heddle_tuning tuning;
    const char *kernel;
} variant;

static const variant variants[] = {
    {"f64[t=6 s=9 c=4] on [sp=3]: t@sp -> s@sp", "dtype", 0, 0, NULL},
    {"f32[t=6 s=9 h=4] on [sp=3]: t@sp -> s@sp", "dims", 0, 0, NULL},
    {"f32[t=6 s=9] on [sp=3]: t@sp -> s@sp", "dims", 0, 0, NULL},
    {"f32[t=6 s=8 c=4] on [sp=3]: t@sp -> s@sp", "extents", 0, 0, NULL},
    {"f32[t=6 s=9 c=4] on [rp=3]: t@rp -> s@rp", "mesh", 0, 0, NULL},
    {"f32[t=6 s=9 c=4] on [sp=3]: c@sp -> s@sp", "from layout", 0, 0, NULL},
    {"f32[t=6 s=9 c=4] on [sp=3]: t@sp -> s@sp(3 4 2)", "to layout", 0, 0, NULL},
    {"f32[t=6 s=9 c=4] on [sp=3]: t@sp as s,t,c -> s@sp", "from order", 0, 0, NULL},
    {"f32[t=6 s=9 c=4] on [sp=3]: t@sp -> s@sp as s,t,c", "to order", 0, 0, NULL},
    {SWITCH, "memory", HEDDLE_MEMORY_ANY, 0, NULL},
    {SWITCH, "tuning", 0, HEDDLE_TUNING_RULES, NULL},
    {SWITCH, "kernel", 0, 0, "memcpy"},
};

HD_RANK_CASE(mismatch_reaches_every_rank, "3 threads", "3 shm")
{
    const int nvariants = (int)(sizeof variants / sizeof *variants);
    for (int i = 0; i < nvariants; i++) {
        heddle_reshard_line line;
        heddle_reshard_options options;
        heddle_reshard *reshard = NULL;
        int odd = heddle_comm_rank(comm) == 2;
        heddle_status st = heddle_reshard_parse(&line, odd ? variants[i].line : SWITCH);
        if (st != HEDDLE_OK) {
            return st;
        }
        heddle_reshard_options_init(&options);
        if (odd) {
            options.memory = variants[i].memory;
            options.tuning = variants[i].tuning;
            options.kernel = variants[i].kernel;
        }
        st = heddle_reshard_create_line(&reshard, comm, &line, &options);
        const char *why = heddle_last_error();
        if (st != HEDDLE_ERR_MISMATCH || reshard != NULL || strstr(why, "rank 2") == NULL ||
            strstr(why, variants[i].field) == NULL) {
            return wrong(variants[i].field, st);
        }
    }
    return HEDDLE_OK;
}

HD_RANK_CASE(bad_arguments_reach_every_rank, "3 threads", "3 shm")
{
    static const int64_t folded[] = {1, 1, 1}, negative[] = {-4, 4, 1}, far[] = {(int64_t)1 << 61, 4, 1};
    for (int i = 0; i < 9; i++) {
        heddle_reshard_line line;
        heddle_reshard_options options;
        heddle_reshard *reshard = NULL;
        int bad = heddle_comm_rank(comm) == 1;
        heddle_status st = heddle_reshard_parse(&line, SWITCH);
        if (st != HEDDLE_OK) {
            return st;
        }
        heddle_reshard_options_init(&options);
        if (bad) {
            options.kernel = i == 0 ? "no_such_kernel" : NULL;
            options.dst_stride_elems = i == 1 ? folded : i == 7 ? far : NULL;
            options.src_stride_elems = i == 2 ? negative : i == 8 ? far : NULL;
            options.struct_bytes = i == 3 ? 1000 : options.struct_bytes;
            options.deadline_ms = i == 4 ? -1 : i == 6 ? INT64_MAX : 0;
        }
        st = heddle_reshard_create_line(&reshard, comm, bad && i == 5 ? NULL : &line, &options);
        if (st != (bad ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER) || (!bad && strstr(heddle_last_error(), "rank 1") == NULL) ||
            (bad && i == 0 && strstr(heddle_last_error(), "memcpy") == NULL) ||
            (bad && i >= 7 && strstr(heddle_last_error(), "reaches beyond 2^62 bytes") == NULL)) {
            return wrong("a rank with bad arguments", st);
        }
    }
    return HEDDLE_OK;
}

/* Strides that no memory has, but an address space might: the sums over ranks and phases stay in 64 bits. */
HD_RANK_CASES(strides_at_the_end_of_64_bits, 4, "3 threads")
{
    static const char *const lines[] = {SWITCH, "f64[t=6 s=4 c=8] on [x=3]: t@x -> *",
                                        "f64[t=6 s=4 c=8] on [x=3]: sum@x -> t@x"};
    const int64_t far = ((int64_t)1 << 62) / 8;
    for (int i = 0; i < 3; i++) {
        heddle_reshard_line line;
        heddle_reshard_options options;
        heddle_reshard *reshard = NULL;
        heddle_reshard_info info = {.struct_bytes = sizeof info};
        int64_t stride[3] = {far / 8, 8, 1};
        heddle_status st = heddle_reshard_parse(&line, lines[i]);
        heddle_reshard_options_init(&options);
        options.memory = HEDDLE_MEMORY_ANY;
        options.tuning = HEDDLE_TUNING_RULES;
        options.src_stride_elems = nth % 2 ? stride : NULL;
        options.dst_stride_elems = nth / 2 ? stride : NULL;
        line.shape.dtype = HEDDLE_F64;
        st = st == HEDDLE_OK ? heddle_reshard_create_line(&reshard, comm, &line, &options) : st;
        st = st == HEDDLE_OK ? heddle_reshard_get_info(&info, reshard) : st;
        heddle_reshard_destroy(reshard);
        if (st != HEDDLE_OK || (info.src_bytes > (size_t)far) != (nth % 2) ||
            (info.dst_bytes > (size_t)far) != (nth / 2)) {
            return wrong(lines[i], st);
        }
    }
    return HEDDLE_OK;
}

static heddle_status too_few_ranks(heddle_comm *comm, void *arg)
{
    heddle_reshard_line line;
    heddle_reshard *reshard = NULL;
    (void)arg;
    heddle_status st = heddle_reshard_parse(&line, SWITCH);
    if (st == HEDDLE_OK) {
        st = heddle_reshard_create_line(&reshard, comm, &line, NULL);
        st = st == HEDDLE_ERR_LAYOUT && strstr(heddle_last_error(), "3") != NULL ? HEDDLE_OK : wrong("mesh of 3", st);
    }
    return st;
}

/* No device is attached here. */
HD_RANK_CASE(devices_want_a_library, "2 threads", "2 shm")
{
    heddle_reshard *reshard = NULL;
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    heddle_status st = heddle_reshard_parse(&line, "f32[a=6 b=6] on [x=2]: a@x -> b@x");
    if (st == HEDDLE_OK) {
        st = heddle_reshard_create_line(&reshard, comm, &line, &options);
        st = st == HEDDLE_ERR_UNSUPPORTED && strstr(heddle_last_error(), "a reshard: memory of device 0") != NULL
                 ? HEDDLE_OK
                 : wrong("a reshard on a device", st);
    }
    return st;
}

HD_CASE(mesh_must_have_all_ranks)
{
    HD_OK(heddle_run_ranks(2, "threads", too_few_ranks, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_reshard_execute(NULL, NULL, NULL, HEDDLE_NO_STREAM));
    heddle_reshard_destroy(NULL);
}

/* --- refusals while executing ------------------------------------------------------------------------------------- */

static heddle_status try_refusals(heddle_comm *comm, setup *s, int bad_rank, const void *bad_src, void *bad_dst)
{
    int bad = heddle_comm_rank(comm) == bad_rank;
    char name[16];
    snprintf(name, sizeof name, "rank %d", bad_rank);
    for (int i = 0; i < 4; i++) { /* several in a row, then a good one */
        memset(s->dst, 0x77, s->info.dst_bytes);
        heddle_status st = heddle_reshard_execute(s->reshard, bad ? bad_src : s->src, bad ? bad_dst : s->dst, NULL);
        if (st != HEDDLE_ERR_ARG || strstr(heddle_last_error(), name) == NULL) {
            return wrong("a refused execution", st);
        }
        for (size_t k = 0; k < s->info.dst_bytes; k++) {
            if (((unsigned char *)s->dst)[k] != 0x77) {
                return hd_fail(HEDDLE_ERR_INTERNAL, "data moved in spite of a refusal");
            }
        }
        st = i % 2 == 0 ? heddle_reshard_execute(s->reshard, s->src, s->dst, NULL) : HEDDLE_OK;
        if (st != HEDDLE_OK) {
            return wrong("an execution after a refused one", st);
        }
    }
    return HEDDLE_OK;
}

HD_RANK_CASE(overlap_is_refused_on_every_rank, "3 threads", "3 shm")
{
    static const char *const texts[] = {SWITCH, "f32[t=6 s=9 c=4] on [sp=3]: s@sp -> t@sp",
                                        "f32[t=6 s=9 c=4] on [sp=3]: sum@sp -> *",
                                        "f32[t=9] on [sp=3]: t@sp(3 3 3) -> t@sp(4 4 1)"};
    for (int i = 0; i < 4; i++) {
        setup s;
        heddle_status st = set_up(&s, comm, texts[i], HEDDLE_MEMORY_PEER);
        for (int bad = 0; bad < 3 && st == HEDDLE_OK; bad++) {
            st = try_refusals(comm, &s, bad, s.src, s.src);
            st = st == HEDDLE_OK ? try_refusals(comm, &s, bad, NULL, s.dst) : st;
            st = st == HEDDLE_OK ? try_refusals(comm, &s, bad, (char *)s.dst + s.info.dst_bytes - 4, s.dst) : st;
        }
        st = tear_down(&s, comm, st);
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}

HD_RANK_CASE(unreachable_memory_is_refused_on_every_rank, "3 shm")
{
    setup s;
    static float mine[6 * 9 * 4];
    heddle_status st = set_up(&s, comm, SWITCH, HEDDLE_MEMORY_PEER);
    for (int bad = 0; bad < 3 && st == HEDDLE_OK; bad++) {
        st = try_refusals(comm, &s, bad, mine, s.dst);
        st = st == HEDDLE_OK ? try_refusals(comm, &s, bad, s.src, mine) : st;
    }
    return tear_down(&s, comm, st);
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static heddle_status several_in_flight(heddle_comm *comm, void *arg)
{
    enum { PLANS = 4 };
    static const char *const texts[PLANS] = {SWITCH, "f32[t=6 s=9 c=4] on [sp=3]: s@sp -> t@sp",
                                             "i64[t=6 s=9 c=4] on [sp=3]: sum@sp -> *", SWITCH};
    setup s[PLANS];
    heddle_status st = HEDDLE_OK;
    int made = 0;
    (void)arg;
    for (; made < PLANS && st == HEDDLE_OK; made++) {
        st = set_up(&s[made], comm, texts[made], HEDDLE_MEMORY_PEER);
    }
    for (int round = 0; round < 20 && st == HEDDLE_OK; round++) {
        for (int i = 0; i < PLANS && st == HEDDLE_OK; i++) {
            st = heddle_reshard_start(s[i].reshard, s[i].src, s[i].dst, NULL);
        }
        if (st == HEDDLE_OK && heddle_reshard_start(s[0].reshard, s[0].src, s[0].dst, NULL) != HEDDLE_ERR_ARG) {
            st = hd_fail(HEDDLE_ERR_INTERNAL, "a second start while one is in flight was accepted");
        }
        double work = 0;
        for (int done = 0, turn = 0; turn < 100 && st == HEDDLE_OK && !done; turn++) {
            for (int k = 0; k < 1000; k++) {
                work += k * 0.5;
            }
            st = heddle_reshard_test(s[turn % PLANS].reshard, &done);
        }
        for (int i = PLANS - 1; i >= 0 && st == HEDDLE_OK && work > 0; i--) { /* waits in another order */
            heddle_reshard *next = s[(i + heddle_comm_rank(comm)) % PLANS].reshard;
            st = round % 2 == 0 ? heddle_reshard_wait(next) : heddle_reshard_wait_on(next, HEDDLE_NO_STREAM);
        }
    }
    for (int i = 0; i < made; i++) {
        st = tear_down(&s[i], comm, st);
    }
    return st;
}

HD_CASE(plans_are_independent)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = 4 * hd_test_limit_ns(5) / 1000000;
    /* Waiting in different orders needs progress of the peer's copy: only test() and wait() of that plan give it. */
    HD_OK(heddle_run_ranks_with(3, "threads", &options, several_in_flight, NULL));
    HD_OK(heddle_run_ranks_with(3, "shm", &options, several_in_flight, NULL));
}

HD_RANK_CASE(info_says_what_happens, "2 threads", "2 shm")
{
    setup s;
    heddle_status st = set_up(&s, comm, "bf16[t=8 s=6 c=64] on [sp=2]: t@sp -> s@sp", HEDDLE_MEMORY_PEER);
    int me = heddle_comm_rank(comm);
    if (st == HEDDLE_OK &&
        (s.info.workspace_bytes != 0 || s.info.bytes_to[me] != 0 || s.info.bytes_to[1 - me] != 4 * 3 * 64 * 2 ||
         s.info.bytes_from[1 - me] != 4 * 3 * 64 * 2 || s.info.bytes_sent != 4 * 3 * 64 * 2 ||
         strcmp(s.info.path, "peer push") != 0 || s.info.why[0] == 0 ||
         strcmp(s.info.line, "bf16[t=8 s=6 c=64] on [sp=2]: t@sp -> s@sp") != 0)) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "info: workspace %lld, to %lld, path %s, line %s",
                     (long long)s.info.workspace_bytes, (long long)s.info.bytes_to[1 - me], s.info.path, s.info.line);
    }
    st = tear_down(&s, comm, st);
    if (st == HEDDLE_OK) {
        st = set_up(&s, comm, "bf16[t=8 s=6 c=64] on [sp=2]: s@sp -> t@sp", HEDDLE_MEMORY_ANY);
        int staged = strcmp(s.info.path, hd_comm_shares_address_space(comm) ? "peer pull" : "staged") == 0;
        if (st == HEDDLE_OK && !staged) {
            st = hd_fail(HEDDLE_ERR_INTERNAL, "private memory goes by path %s", s.info.path);
        }
        st = tear_down(&s, comm, st);
    }
    return st;
}
