#include "runtime/reshard/roofline.h"

#include "kernels/copy.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

enum { ORDER_OWN_FIRST, ORDER_OWN_LAST, ORDER_RANKS, ORDERS };
enum { PULL, PUSH, DIRECTIONS, WAYS_PER_KERNEL = DIRECTIONS * ORDERS, LINE = 64, SLOT_READY = 0, SLOT_DONE = 1 };

enum { SUMS = 2 };
static const char *const sum_names[SUMS] = {"sum_rows", "sum_rows_nt"};
static const int64_t piece_bytes[WAYS_PER_KERNEL] = {INT64_MAX, 262144, 65536, 32768, 16384, 8192};
static const char *const piece_names[WAYS_PER_KERNEL] = {"sum, whole",           "sum, pieces of 256 KB",
                                                         "sum, pieces of 64 KB", "sum, pieces of 32 KB",
                                                         "sum, pieces of 16 KB", "sum, pieces of 8 KB"};
static const char *const way_names[WAYS_PER_KERNEL] = {"pull, own part first", "pull, own part last", "pull, by rank",
                                                       "push, own part first", "push, own part last", "push, by rank"};

struct hd_roofline {
    heddle_comm *comm;
    hd_link *link;
    uint64_t sequence;
    int npeers; /* reachable ranks besides this one */
    int *peer;
    int is_local;
    hd_lane *lanes;   /* [WAYS_PER_KERNEL][nranks] */
    const void **src; /* by rank */
    void **dst;       /* by rank */
    int nranks;
    int64_t shortest_bytes[WAYS_PER_KERNEL];
    const hd_copy_kernel *kernel; /* those of this CPU: looked up once, a run takes as long as that */
    int nkernels;
    /* of lines that add; nterms 0: copies */
    hd_sum_fn sum[SUMS];
    int nterms;
    const char **term;
    const void **row;
    int64_t term_bytes, elem_bytes;
};

/* What every rank tells the others, followed by its row of bytes. */
typedef struct card {
    uint64_t src, dst; /* exported */
    int64_t src_bytes, dst_bytes;
} card;

size_t hd_roofline_slack_bytes(int nranks)
{
    return (size_t)(nranks + 1) * LINE;
}

static int64_t round_up(int64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Bytes that q has from p: what the reshard sends, and the rest of the destination from q itself. */
typedef struct table {
    int n;
    card *card;     /* [n] */
    int64_t *bytes; /* [p * n + q] */
} table;

/* One piece behind the other, each from a line of its own; the buffers have room for that. Only where more arrives than
 * the array holds (partial sums) do the last ones share its end. */
static int64_t place(const table *t, int64_t at, int64_t bytes, int64_t array_bytes)
{
    int64_t last = array_bytes - bytes;
    return at <= last + (int64_t)hd_roofline_slack_bytes(t->n) ? at : last / LINE * LINE;
}

static int64_t src_offset(const table *t, int p, int q)
{
    int64_t at = 0;
    for (int i = 0; i < q; i++) {
        at += round_up(t->bytes[p * t->n + i]);
    }
    return place(t, at, t->bytes[p * t->n + q], t->card[p].src_bytes);
}

static int64_t dst_offset(const table *t, int p, int q)
{
    int64_t at = 0;
    for (int i = 0; i < p; i++) {
        at += round_up(t->bytes[i * t->n + q]);
    }
    return place(t, at, t->bytes[p * t->n + q], t->card[q].dst_bytes);
}

static void free_table(table *t)
{
    hd_free(t->card);
    hd_free(t->bytes);
}

static heddle_status gather_table(table *t, heddle_comm *comm, const heddle_reshard_info *info, const void *src,
                                  const void *dst)
{
    heddle_status st = HEDDLE_OK;
    int rank = heddle_comm_rank(comm);
    size_t slack = hd_roofline_slack_bytes(t->n);
    int64_t *row = NULL;
    card own = {hd_comm_export(comm, src, info->src_bytes + slack), hd_comm_export(comm, dst, info->dst_bytes + slack),
                (int64_t)info->src_bytes, (int64_t)info->dst_bytes};
    HD_TRY(hd_alloc((void **)&t->card, (size_t)t->n, sizeof(card), "the ranks' buffers"));
    HD_TRY(hd_alloc((void **)&t->bytes, (size_t)t->n * (size_t)t->n, sizeof(int64_t), "the bytes between ranks"));
    HD_TRY(hd_alloc((void **)&row, (size_t)t->n, sizeof(int64_t), "a row of bytes"));
    HD_TRY(heddle_comm_allgather(comm, &own, t->card, sizeof(own)));
    int64_t from_others = 0;
    for (int p = 0; p < t->n; p++) {
        row[p] = info->bytes_to[p];
        from_others += p == rank ? 0 : info->bytes_from[p];
    }
    int64_t kept = own.dst_bytes - from_others;
    row[rank] = kept < 0 ? 0 : kept < own.src_bytes ? kept : own.src_bytes;
    HD_TRY(heddle_comm_allgather(comm, row, t->bytes, (size_t)t->n * sizeof(int64_t)));
out:
    hd_free(row);
    return st;
}

static int reaches(const hd_roofline *r, int rank)
{
    if (rank == heddle_comm_rank(r->comm)) {
        return 1;
    }
    for (int i = 0; i < r->npeers; i++) {
        if (r->peer[i] == rank) {
            return 1;
        }
    }
    return 0;
}

static hd_lane make_lane(const hd_roofline *r, const table *t, int direction, int other)
{
    int rank = heddle_comm_rank(r->comm);
    int p = direction == PULL ? other : rank; /* bytes go from p to q */
    int q = direction == PULL ? rank : other;
    hd_lane lane = {.run_bytes = t->bytes[p * t->n + q]};
    if (!reaches(r, other)) { /* as many bytes inside own memory, as if pulled */
        lane.run_bytes = t->bytes[other * t->n + rank];
        int64_t own = t->card[rank].src_bytes;
        lane.run_bytes = lane.run_bytes < own ? lane.run_bytes : own;
        lane.src_base = lane.dst_base = rank;
        lane.dst_offset_bytes = dst_offset(t, other, rank);
        return lane;
    }
    lane.src_base = p;
    lane.dst_base = q;
    lane.src_offset_bytes = src_offset(t, p, q);
    lane.dst_offset_bytes = dst_offset(t, p, q);
    return lane;
}

static void find_arrays(hd_roofline *r, const table *t, const void *src, void *dst)
{
    for (int i = 0; i < r->npeers; i++) {
        int peer = r->peer[i];
        r->src[peer] = hd_comm_import(r->comm, peer, t->card[peer].src);
        r->dst[peer] = hd_comm_import(r->comm, peer, t->card[peer].dst);
    }
    r->src[heddle_comm_rank(r->comm)] = src;
    r->dst[heddle_comm_rank(r->comm)] = dst;
}

static void make_lanes(hd_roofline *r, const table *t)
{
    int rank = heddle_comm_rank(r->comm);
    for (int way = 0; way < WAYS_PER_KERNEL; way++) {
        int order = way % ORDERS;
        r->shortest_bytes[way] = INT64_MAX;
        for (int i = 0; i < t->n; i++) {
            int other = order == ORDER_RANKS ? i : (rank + i + (order == ORDER_OWN_LAST)) % t->n;
            hd_lane *lane = &r->lanes[way * t->n + i];
            *lane = make_lane(r, t, way / ORDERS, other);
            if (lane->run_bytes > 0 && lane->run_bytes < r->shortest_bytes[way]) {
                r->shortest_bytes[way] = lane->run_bytes;
            }
        }
    }
}

heddle_status hd_roofline_create(hd_roofline **out, heddle_comm *comm, const heddle_reshard_info *info, void *src,
                                 void *dst)
{
    heddle_status st = HEDDLE_OK;
    hd_roofline *r = NULL;
    table t = {.n = heddle_comm_size(comm)};
    HD_TRY(hd_alloc((void **)&r, 1, sizeof(*r), "a roofline"));
    r->comm = comm;
    r->nranks = t.n;
    r->kernel = hd_copy_kernels(&r->nkernels);
    const int *local = NULL;
    int nlocal = hd_comm_local_ranks(comm, &local);
    HD_TRY(hd_alloc((void **)&r->peer, (size_t)t.n, sizeof(int), "a roofline's peers"));
    for (int i = 0; i < nlocal; i++) {
        if (local[i] != heddle_comm_rank(comm)) {
            r->peer[r->npeers++] = local[i];
        }
    }
    r->is_local = r->npeers + 1 < t.n;
    HD_TRY(hd_alloc((void **)&r->lanes, (size_t)t.n * WAYS_PER_KERNEL, sizeof(hd_lane), "a roofline's copies"));
    HD_TRY(hd_alloc((void **)&r->src, (size_t)t.n, sizeof(void *), "a roofline's copies"));
    HD_TRY(hd_alloc((void **)&r->dst, (size_t)t.n, sizeof(void *), "a roofline's copies"));
    HD_TRY(gather_table(&t, comm, info, src, dst));
    find_arrays(r, &t, src, dst);
    make_lanes(r, &t);
    HD_TRY(hd_link_create(&r->link, comm));
    *out = r;
    r = NULL;
out:
    hd_roofline_destroy(r);
    free_table(&t);
    return st;
}

void hd_roofline_destroy(hd_roofline *roofline)
{
    if (roofline == NULL) {
        return;
    }
    hd_link_destroy(roofline->link);
    HD_FREE_ALL(roofline->lanes, roofline->src, roofline->dst, roofline->peer, roofline->term, roofline->row, roofline);
}

int hd_roofline_ways(const hd_roofline *roofline)
{
    return (roofline->nterms > 0 ? SUMS : roofline->nkernels) * WAYS_PER_KERNEL;
}

int hd_roofline_ways_per_kernel(void)
{
    return WAYS_PER_KERNEL;
}

const char *hd_roofline_kernel(const hd_roofline *roofline, int way)
{
    int kernel = way / WAYS_PER_KERNEL;
    return roofline->nterms > 0 ? sum_names[kernel] : roofline->kernel[kernel].name;
}

const char *hd_roofline_way_name(const hd_roofline *roofline, int way)
{
    return (roofline->nterms > 0 ? piece_names : way_names)[way % WAYS_PER_KERNEL];
}

int hd_roofline_is_local(const hd_roofline *roofline)
{
    return roofline->is_local;
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* Those who send this rank a term of its whole part, itself among them; 0: not all send so much. */
static int count_terms(const hd_roofline *r, const heddle_reshard_info *info)
{
    int n = 1;
    for (int p = 0; p < r->nranks; p++) {
        if (p != heddle_comm_rank(r->comm) && info->bytes_from[p] > 0) {
            n += info->bytes_from[p] == (int64_t)info->dst_bytes ? 1 : -r->nranks;
        }
    }
    return n > 1 && info->src_bytes >= info->dst_bytes && !r->is_local ? n : 0;
}

heddle_status hd_roofline_add(hd_roofline *r, const heddle_reshard_info *info, const hd_kernels *kernels,
                              heddle_dtype dtype)
{
    heddle_status st = HEDDLE_OK;
    const int rank = heddle_comm_rank(r->comm), n = count_terms(r, info);
    int64_t mine[2] = {n, (int64_t)info->src_bytes}, *all = NULL, least = n;
    HD_TRY(hd_alloc((void **)&r->term, (size_t)r->nranks, sizeof(char *), "a roofline's terms"));
    HD_TRY(hd_alloc((void **)&r->row, (size_t)r->nranks, sizeof(void *), "a roofline's terms"));
    HD_TRY(hd_alloc((void **)&all, (size_t)r->nranks, sizeof mine, "a roofline's terms"));
    HD_TRY(heddle_comm_allgather(r->comm, mine, all, sizeof mine));
    r->term_bytes = (int64_t)info->dst_bytes;
    r->elem_bytes = (int64_t)heddle_dtype_bytes(dtype);
    r->sum[0] = kernels->sum[dtype];
    r->sum[1] = kernels->sum_streamed[dtype];
    for (int p = 0; p < r->nranks; p++) {
        least = all[2 * p] < least ? all[2 * p] : least;
        if (n > 0 && (p == rank || info->bytes_from[p] > 0)) { /* every rank's own piece, as far as there is one */
            int64_t last = (all[2 * p + 1] - r->term_bytes) / LINE * LINE, at = rank * round_up(r->term_bytes);
            r->term[r->nterms++] = (const char *)r->src[p] + (at < last ? at : last);
        }
    }
    r->nterms = least > 0 ? r->nterms : 0;
out:
    hd_free(all);
    return st;
}

static void add_terms(const hd_roofline *r, int way)
{
    int64_t piece = piece_bytes[way % WAYS_PER_KERNEL];
    char *dst = r->dst[heddle_comm_rank(r->comm)];
    for (int64_t at = 0; at < r->term_bytes; at += piece) {
        int64_t bytes = r->term_bytes - at < piece ? r->term_bytes - at : piece;
        for (int i = 0; i < r->nterms; i++) {
            r->row[i] = r->term[i] + at;
        }
        r->sum[way / WAYS_PER_KERNEL](dst + at, r->row, r->nterms, bytes / r->elem_bytes);
        if (piece >= r->term_bytes) {
            break;
        }
    }
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static heddle_status meet(hd_roofline *r, int slot, int64_t deadline_ns)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < r->npeers; i++) {
        HD_TRY(hd_link_post(r->link, r->peer[i], slot, r->sequence, NULL, 0));
    }
    for (int i = 0; i < r->npeers; i++) {
        HD_TRY(hd_link_wait(r->link, r->peer[i], slot, r->sequence, NULL, 0, deadline_ns, "roofline"));
    }
out:
    return st;
}

heddle_status hd_roofline_run(hd_roofline *roofline, int way, int64_t deadline_ns)
{
    heddle_status st = HEDDLE_OK;
    const hd_copy_kernel *kernel = &roofline->kernel[way / WAYS_PER_KERNEL]; /* of copies */
    int variant = way % WAYS_PER_KERNEL;
    if (roofline->shortest_bytes[variant] < kernel->min_run_bytes) {
        kernel = roofline->kernel;
    }
    roofline->sequence++;
    HD_TRY(meet(roofline, SLOT_READY, deadline_ns));
    if (roofline->nterms > 0) {
        add_terms(roofline, way);
    } else {
        const hd_lane *lanes = roofline->lanes + (size_t)variant * (size_t)roofline->nranks;
        kernel->copy(lanes, roofline->nranks, 0, NULL, roofline->src, roofline->dst);
    }
    HD_TRY(meet(roofline, SLOT_DONE, deadline_ns));
out:
    return st;
}
