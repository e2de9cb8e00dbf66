/* The switch that every row of bench_peers performs, and what a row is.
 *
 * A tensor [T, S, H], row-major. Forward: T sharded -> S sharded; backward: the reverse. Both directions have one
 * *interleaved* array [T_local, S] whose part for a peer is a column block, and one *stacked* array [T, S_local] whose
 * part for a peer is contiguous. Elements are opaque; a token is one row of H elements. */
#ifndef PEERS_H
#define PEERS_H

#include <heddle/heddle.h>
#include <heddle/mpi.h>

typedef struct peers_problem {
    int64_t T, S, H;
    int elem_bytes;
    int backward;
    int rank, size;
    int64_t token_bytes;
    int64_t *t_lo, *s_lo; /* [size + 1] balanced block bounds */
    int64_t t_local, s_local;
    size_t interleaved_bytes, stacked_bytes;
    size_t src_bytes, dst_bytes;
} peers_problem;

typedef struct peers_method peers_method;
struct peers_method {
    const char *name;
    /* Returns 0, or -1 with `why` written: the row is then left out. Collective. src and dst are reachable by peers. */
    int (*make)(peers_method *method, const peers_problem *problem, void *src, void *dst);
    void (*run)(peers_method *method);
    void (*destroy)(peers_method *method);
    heddle_comm *comm; /* ours: which communicator */
    int mode;          /* the row's own */
    void *state;
    void *src, *dst; /* what run reads and writes; make sets it (most take those given) */
    int is_roof;     /* moves bytes of its own rank only: content is not checked */
    double plan_s;
    char why[512];
    char note[512];
};

extern const peers_method peers_alltoallw, peers_alltoallv, peers_typed, peers_fftw;
extern const peers_method peers_ours, peers_memcpy, peers_kernel;

static inline char *peers_at(void *base, int64_t offset_bytes)
{
    return (char *)base + offset_bytes;
}

#endif
