/* A smaller problem of the same shape: plans that are large against the cache are timed on a twin, so that creation
 * needs a bounded time and memory. */
#include "runtime/reshard/plan.h"

enum {
    FOOTPRINT_CACHES = 6,     /* of a twin, all ranks together; at three the cache still flatters some kernels */
    MIN_RANK_BYTES = 4 << 20, /* of a twin: src + dst of one rank */
    MAX_RANK_BYTES = 128 << 20
};

static int64_t rank_bytes(const heddle_reshard_line *line)
{
    int64_t most = 0;
    for (int side = 0; side < 2; side++) { /* rank 0 holds the largest block of balanced layouts */
        heddle_box box;
        if (heddle_layout_box(&box, &line->shape, &line->mesh, side ? &line->to : &line->from, 0) != HEDDLE_OK) {
            return INT64_MAX;
        }
        most += heddle_box_elems(&box) * (int64_t)heddle_dtype_bytes(line->shape.dtype);
    }
    return most;
}

/* How far a dim may shrink: every rank keeps a few rows. 0: explicit blocks, leave it alone. */
static int64_t smallest_extent(const heddle_reshard_line *line, int dim)
{
    int64_t split[2] = {1, 1};
    for (int a = 0; a < line->mesh.naxes; a++) {
        const heddle_layout *side[2] = {&line->from, &line->to};
        for (int s = 0; s < 2; s++) {
            if (side[s]->dim_of_axis[a] == dim) {
                if (side[s]->nshards[a] > 0) {
                    return 0;
                }
                split[s] *= line->mesh.axis[a].size;
            }
        }
    }
    return 2 * (split[0] > split[1] ? split[0] : split[1]);
}

/* Halves outer dims, so that runs keep their length as long as possible. Returns 0 when it cannot be done. */
static int shrink(heddle_reshard_line *line, int64_t limit_bytes)
{
    for (int i = 0; i < line->shape.ndim; i++) {
        int d = line->from_order.ndim > 0 ? line->from_order.dim[i] : i;
        int64_t least = smallest_extent(line, d);
        while (least > 0 && line->shape.dim[d].extent / 2 >= least && rank_bytes(line) > limit_bytes) {
            line->shape.dim[d].extent /= 2;
        }
    }
    return rank_bytes(line) <= 2 * limit_bytes;
}

static int64_t limit_of(const heddle_reshard *plan)
{
    const int *local;
    int64_t limit = FOOTPRINT_CACHES * (int64_t)heddle_comm_shared_cache_bytes(plan->comm) /
                    hd_comm_local_ranks(plan->comm, &local);
    return limit < MIN_RANK_BYTES ? MIN_RANK_BYTES : limit > MAX_RANK_BYTES ? MAX_RANK_BYTES : limit;
}

heddle_status hd_twin_create(heddle_reshard **out, heddle_reshard *plan, int *possible)
{
    int64_t limit = INT64_MAX, mine = limit_of(plan);
    heddle_status st = HEDDLE_OK;
    void *all = NULL;
    hd_request request = plan->request;
    HD_TRY(hd_comm_agree(plan->comm, hd_alloc(&all, (size_t)plan->nranks, sizeof(int64_t), "trials of a reshard")));
    HD_TRY(hd_comm_allgather_or_abort(plan->comm, &mine, all, sizeof mine));
    for (int r = 0; r < plan->nranks; r++) {
        limit = ((int64_t *)all)[r] < limit ? ((int64_t *)all)[r] : limit;
    }
    *possible = 1;
    *out = plan;
    if (plan->largest_bytes <= limit) {
        goto out;
    }
    *possible = shrink(&request.line, limit);
    if (*possible) {
        heddle_reshard_options options = request.options;
        options.tuning = HEDDLE_TUNING_RULES;
        options.space = HEDDLE_SPACE_HOST; /* as the bare route's */
        options.device = 0;
        options.memory = plan->bare->spec.any_memory ? HEDDLE_MEMORY_ANY : HEDDLE_MEMORY_PEER;
        HD_TRY(heddle_reshard_create_line(out, plan->comm, &request.line, &options));
    }
out:
    hd_free(all);
    return st;
}
