#include "runtime/verify/judge.h"

#include <heddle/comm.h>
#include <heddle/sys/transport.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Below this, exponentials and products have lost bits or are 0: no number of terms of it counts. In f16, which ends at
 * 2^-24, it is the terms that are of the type. */
static double underflow(heddle_dtype dtype)
{
    if (dtype == HEDDLE_F16) {
        return 0x1p-34;
    }
    return dtype == HEDDLE_F64 ? 0x1p-1000 : 0x1p-118;
}

static double rounding_of(heddle_dtype dtype)
{
    return dtype == HEDDLE_F64 ? 0x1p-53 : 0x1p-24;
}

/* What storing `value` in the dtype may change, where that is not the arithmetic's own rounding. */
static double stored_rounding(heddle_dtype dtype, double value)
{
    if (dtype == HEDDLE_F16 && value != 0) {
        return ldexp(1, (ilogb(value) > -14 ? ilogb(value) : -14) - 11);
    }
    return dtype == HEDDLE_BF16 && value != 0 ? ldexp(1, ilogb(value) - 8) : 0;
}

double judge_roundings(heddle_dtype dtype, double got, double want, double size)
{
    if (got == want || (isnan(got) && isnan(want))) {
        return 0;
    }
    if (!isfinite(got) || !isfinite(want) || !isfinite(size)) {
        return INFINITY;
    }
    double off = fabs(got - want) - stored_rounding(dtype, want);
    return off <= 0 ? 0 : off / (rounding_of(dtype) * size + underflow(dtype));
}

void judge_element(judge_error *error, heddle_dtype dtype, double got, double want, double size,
                   const int64_t index[JUDGE_DIMS])
{
    double roundings = judge_roundings(dtype, got, want, size);
    if (!(roundings <= error->worst)) {
        error->worst = roundings;
        error->got = got;
        error->want = want;
        error->limit = stored_rounding(dtype, want) + error->allowed * rounding_of(dtype) * size;
        for (int d = 0; d < JUDGE_DIMS; d++) {
            error->index[d] = index[d];
        }
    }
}

void judge_identity(judge_error *error, heddle_dtype dtype, double sum, double other, double size)
{
    double rounding = dtype == HEDDLE_BF16 ? 0x1p-8 : dtype == HEDDLE_F16 ? 0x1p-11 : rounding_of(dtype);
    double roundings = sum == other ? 0 : fabs(sum - other) / (rounding * size + underflow(dtype));
    if (!(roundings <= error->worst)) {
        error->worst = roundings;
        error->got = sum;
        error->want = other;
        error->limit = error->allowed * rounding * size;
        error->index[0] = -1;
    }
}

void judge_complain(char *out, size_t bytes, const judge_error *error, int rank)
{
    char place[96] = "";
    const int64_t *i = error->index;
    if (out[0] != 0 || error->worst <= error->allowed) {
        return;
    }
    if (i[0] >= 0) {
        snprintf(place, sizeof place, "[%lld %lld %lld %lld]", (long long)i[0], (long long)i[1], (long long)i[2],
                 (long long)i[3]);
    }
    snprintf(out, bytes,
             "rank %d: %s%s is %.17g, the reference says %.17g: off by %.3g, allowed are %.3g (%.3g "
             "roundings, allowed are %.3g)",
             rank, error->name, place, error->got, error->want, fabs(error->got - error->want), error->limit,
             error->worst, error->allowed);
}

void judge_counts(char *out, size_t bytes, int rank, int calls, const heddle_attention_traffic *measured,
                  const heddle_attention_traffic *told, const heddle_attention_traffic *planned)
{
    const struct {
        const char *what;
        int64_t measured, told, planned;
    } all[] = {{"bytes forward", measured->forward_bytes, told->forward_bytes, planned->forward_bytes},
               {"messages forward", measured->forward_messages, told->forward_messages, planned->forward_messages},
               {"bytes backward", measured->backward_bytes, told->backward_bytes, planned->backward_bytes},
               {"messages backward", measured->backward_messages, told->backward_messages, planned->backward_messages}};
    for (int i = 0; i < 4; i++) {
        if (all[i].planned * calls != all[i].measured || all[i].planned != all[i].told) {
            snprintf(out, bytes, "rank %d sent %lld %s in %d calls, planned were %lld each (the object says %lld)",
                     rank, (long long)all[i].measured, all[i].what, calls, (long long)all[i].planned,
                     (long long)all[i].told);
            return;
        }
    }
}

void judge_gather(judge_error *worst, const judge_error *error, int count)
{
    for (int i = 0; i < count; i++) {
        if (worst[i].name == NULL || !(error[i].worst * worst[i].allowed <= worst[i].worst * error[i].allowed)) {
            worst[i] = error[i];
        }
    }
}

heddle_status judge_no_memory(const char *what, double bytes)
{
    return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %s, %.0f bytes", what, bytes);
}

heddle_status judge_share(judge_error *error, int count, heddle_comm *comm)
{
    int n = heddle_comm_size(comm);
    double *own = calloc((size_t)count + 1, sizeof *own), *all = calloc((size_t)n * (size_t)count + 1, sizeof *all);
    heddle_status st =
        own != NULL && all != NULL ? HEDDLE_OK : judge_no_memory("errors of the ranks", 8.0 * (n + 1) * count);
    for (int i = 0; i < count && st == HEDDLE_OK; i++) {
        own[i] = error[i].worst;
    }
    st = st != HEDDLE_OK ? st : heddle_comm_allgather(comm, own, all, (size_t)count * sizeof *own);
    for (int i = 0; i < n * count && st == HEDDLE_OK; i++) {
        judge_error *e = &error[i % count];
        e->worst = !(all[i] <= e->worst) ? all[i] : e->worst;
    }
    free(own);
    free(all);
    return st;
}

void judge_list(char *out, size_t bytes, const judge_error *error, int count)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < count && at < bytes; i++) {
        int n = snprintf(out + at, bytes - at, "%s%s %.2g of %g", i == 0 ? "" : ", ", error[i].name, error[i].worst,
                         error[i].allowed);
        at += n > 0 ? (size_t)n : 0;
    }
}

heddle_status judge_first_problem(int *failed, int *speaks, heddle_comm *comm, int own)
{
    int n = heddle_comm_size(comm), first = 0;
    int *all = calloc((size_t)n, sizeof *all);
    if (all == NULL) {
        return judge_no_memory("what the ranks found", (double)n * sizeof *all);
    }
    heddle_status st = heddle_comm_allgather(comm, &own, all, sizeof own);
    while (st == HEDDLE_OK && first < n && !all[first]) {
        first++;
    }
    *failed = st == HEDDLE_OK && first < n;
    *speaks = *failed && first == heddle_comm_rank(comm);
    free(all);
    return st;
}

int judge_counts_once(const heddle_mesh *mesh, const heddle_layout *layout, const int *coords)
{
    int counts = 1;
    for (int a = 0; a < mesh->naxes; a++) {
        counts &= layout->dim_of_axis[a] != HEDDLE_REPLICATED || coords[a] == 0;
    }
    return counts;
}

int64_t judge_elems(const heddle_shape *shape)
{
    int64_t elems = 1;
    for (int d = 0; d < shape->ndim; d++) {
        elems *= shape->dim[d].extent;
    }
    return elems;
}

const char *judge_s(long long count)
{
    return count == 1 ? "" : "s";
}
