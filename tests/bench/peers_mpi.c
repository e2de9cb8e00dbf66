/* The textbook ways to switch with MPI. */
#include "peers.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct state {
    const peers_problem *p;
    MPI_Datatype token;
    MPI_Datatype *send_type, *recv_type; /* [size], count 1 each */
    int *ones, *zeros;
    int *send_count, *recv_count, *send_at, *recv_at; /* tokens */
    MPI_Request *requests;
    char *packed; /* interleaved array, ordered by peer */
} state;

static int64_t t_of(const peers_problem *p, int r)
{
    return p->t_lo[r + 1] - p->t_lo[r];
}

static int64_t s_of(const peers_problem *p, int r)
{
    return p->s_lo[r + 1] - p->s_lo[r];
}

/* The part of array [rows, columns] that is rows [r0, r0+nr) and columns [c0, c0+nc); empty parts are empty types. */
static MPI_Datatype part(MPI_Datatype token, int64_t rows, int64_t columns, int64_t r0, int64_t nr, int64_t c0,
                         int64_t nc)
{
    MPI_Datatype type;
    if (nr == 0 || nc == 0) {
        MPI_Type_contiguous(0, token, &type);
    } else {
        const int sizes[2] = {(int)rows, (int)columns};
        const int lengths[2] = {(int)nr, (int)nc};
        const int starts[2] = {(int)r0, (int)c0};
        MPI_Type_create_subarray(2, sizes, lengths, starts, MPI_ORDER_C, token, &type);
    }
    MPI_Type_commit(&type);
    return type;
}

static MPI_Datatype interleaved_part(const state *s, int r)
{
    return part(s->token, s->p->t_local, s->p->S, 0, s->p->t_local, s->p->s_lo[r], s_of(s->p, r));
}

static MPI_Datatype stacked_part(const state *s, int r)
{
    return part(s->token, s->p->T, s->p->s_local, s->p->t_lo[r], t_of(s->p, r), 0, s->p->s_local);
}

static int make(peers_method *m, const peers_problem *p, void *src, void *dst)
{
    state *s = calloc(1, sizeof(*s));
    size_t n = (size_t)p->size;
    s->p = p;
    s->send_type = calloc(n, sizeof(MPI_Datatype));
    s->recv_type = calloc(n, sizeof(MPI_Datatype));
    s->requests = calloc(2 * n, sizeof(MPI_Request));
    int *ints = calloc(6 * n, sizeof(int));
    s->ones = ints;
    s->zeros = ints + n;
    s->send_count = ints + 2 * n;
    s->recv_count = ints + 3 * n;
    s->send_at = ints + 4 * n;
    s->recv_at = ints + 5 * n;
    MPI_Type_contiguous((int)p->token_bytes, MPI_BYTE, &s->token);
    MPI_Type_commit(&s->token);
    for (int r = 0; r < p->size; r++) {
        s->ones[r] = 1;
        s->send_type[r] = p->backward ? stacked_part(s, r) : interleaved_part(s, r);
        s->recv_type[r] = p->backward ? interleaved_part(s, r) : stacked_part(s, r);
        int interleaved = (int)(p->t_local * s_of(p, r));
        int interleaved_at = (int)(p->t_local * p->s_lo[r]);
        int stacked = (int)(t_of(p, r) * p->s_local);
        int stacked_at = (int)(p->t_lo[r] * p->s_local);
        s->send_count[r] = p->backward ? stacked : interleaved;
        s->send_at[r] = p->backward ? stacked_at : interleaved_at;
        s->recv_count[r] = p->backward ? interleaved : stacked;
        s->recv_at[r] = p->backward ? interleaved_at : stacked_at;
    }
    s->packed = malloc(p->interleaved_bytes + 1);
    memset(s->packed, 1, p->interleaved_bytes + 1);
    m->state = s;
    m->src = src;
    m->dst = dst;
    return 0;
}

static void destroy(peers_method *m)
{
    state *s = m->state;
    for (int r = 0; r < s->p->size; r++) {
        MPI_Type_free(&s->send_type[r]);
        MPI_Type_free(&s->recv_type[r]);
    }
    MPI_Type_free(&s->token);
    free(s->packed);
    free(s->ones);
    free(s->requests);
    free(s->recv_type);
    free(s->send_type);
    free(s);
}

static void run_alltoallw(peers_method *m)
{
    state *s = m->state;
    MPI_Alltoallw(m->src, s->ones, s->zeros, s->send_type, m->dst, s->ones, s->zeros, s->recv_type, MPI_COMM_WORLD);
}

/* Column block of peer r <-> its place in `packed`. */
static void repack(const state *s, char *interleaved, int r, int to_packed)
{
    const peers_problem *p = s->p;
    size_t row_bytes = (size_t)(s_of(p, r) * p->token_bytes);
    char *packed = s->packed + p->t_local * p->s_lo[r] * p->token_bytes;
    for (int64_t t = 0; t < p->t_local; t++) {
        char *row = interleaved + (t * p->S + p->s_lo[r]) * p->token_bytes;
        memcpy(to_packed ? packed : row, to_packed ? row : packed, row_bytes);
        packed += row_bytes;
    }
}

static void run_alltoallv(peers_method *m)
{
    state *s = m->state;
    const peers_problem *p = s->p;
    for (int r = 0; !p->backward && r < p->size; r++) {
        repack(s, m->src, r, 1);
    }
    MPI_Alltoallv(p->backward ? m->src : s->packed, s->send_count, s->send_at, s->token,
                  p->backward ? s->packed : m->dst, s->recv_count, s->recv_at, s->token, MPI_COMM_WORLD);
    for (int r = 0; p->backward && r < p->size; r++) {
        repack(s, m->dst, r, 0);
    }
}

static void copy_own_block(const state *s, char *src, char *dst)
{
    const peers_problem *p = s->p;
    size_t row_bytes = (size_t)(p->s_local * p->token_bytes);
    for (int64_t t = 0; t < p->t_local; t++) {
        int64_t interleaved = (t * p->S + p->s_lo[p->rank]) * p->token_bytes;
        int64_t stacked = (p->t_lo[p->rank] + t) * (int64_t)row_bytes;
        memcpy(dst + (p->backward ? interleaved : stacked), src + (p->backward ? stacked : interleaved), row_bytes);
    }
}

/* The stacked side in place and contiguous, the interleaved side typed. */
static void run_typed(peers_method *m)
{
    state *s = m->state;
    const peers_problem *p = s->p;
    int n = 0;
    for (int i = 1; i < p->size; i++) {
        int r = (p->rank + p->size - i) % p->size;
        if (p->backward) {
            MPI_Irecv(m->dst, 1, s->recv_type[r], r, 0, MPI_COMM_WORLD, &s->requests[n++]);
        } else {
            MPI_Irecv(peers_at(m->dst, s->recv_at[r] * p->token_bytes), s->recv_count[r], s->token, r, 0,
                      MPI_COMM_WORLD, &s->requests[n++]);
        }
    }
    for (int i = 1; i < p->size; i++) {
        int r = (p->rank + i) % p->size;
        if (p->backward) {
            MPI_Isend(peers_at(m->src, s->send_at[r] * p->token_bytes), s->send_count[r], s->token, r, 0,
                      MPI_COMM_WORLD, &s->requests[n++]);
        } else {
            MPI_Isend(m->src, 1, s->send_type[r], r, 0, MPI_COMM_WORLD, &s->requests[n++]);
        }
    }
    copy_own_block(s, m->src, m->dst);
    MPI_Waitall(n, s->requests, MPI_STATUSES_IGNORE);
}

const peers_method peers_alltoallw = {
    .name = "MPI_Alltoallw, subarrays", .make = make, .run = run_alltoallw, .destroy = destroy};
const peers_method peers_alltoallv = {
    .name = "pack + MPI_Alltoallv", .make = make, .run = run_alltoallv, .destroy = destroy};
const peers_method peers_typed = {.name = "typed isend/irecv", .make = make, .run = run_typed, .destroy = destroy};
