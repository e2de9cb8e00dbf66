/* FFTW's distributed transposes, single precision: a token is a tuple of H/2 (16-bit) or H floats. */
#include "peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_FFTW_MPI
#include <fftw3-mpi.h>

typedef struct state {
    fftwf_plan plan;
    float *src, *dst;
} state;

static int same_blocks(int64_t extent, int64_t block, int size, const int64_t *lo)
{
    for (int r = 0; r <= size; r++) {
        int64_t at = r * block < extent ? r * block : extent;
        if (lo[r] != at) {
            return 0;
        }
    }
    return 1;
}

static int make(peers_method *m, const peers_problem *p, void *src, void *dst)
{
    (void)dst;
    static int started;
    if (!started) {
        fftwf_mpi_init();
        started = 1;
    }
    int64_t t_block = (p->T + p->size - 1) / p->size;
    int64_t s_block = (p->S + p->size - 1) / p->size;
    if (!same_blocks(p->T, t_block, p->size, p->t_lo) || !same_blocks(p->S, s_block, p->size, p->s_lo)) {
        snprintf(m->why, sizeof(m->why), "FFTW's blocks of ceil(n/p) differ from balanced ones");
        return -1;
    }
    ptrdiff_t howmany = (ptrdiff_t)(p->token_bytes / (int64_t)sizeof(float));
    ptrdiff_t n[2] = {(ptrdiff_t)(p->backward ? p->S : p->T), (ptrdiff_t)(p->backward ? p->T : p->S)};
    ptrdiff_t block = (ptrdiff_t)(p->backward ? s_block : t_block);
    ptrdiff_t tblock = (ptrdiff_t)(p->backward ? t_block : s_block);
    ptrdiff_t n0, start0, n1, start1;
    ptrdiff_t floats =
        fftwf_mpi_local_size_many_transposed(2, n, howmany, block, tblock, MPI_COMM_WORLD, &n0, &start0, &n1, &start1);
    state *s = calloc(1, sizeof(*s));
    s->src = fftwf_alloc_real((size_t)floats);
    s->dst = fftwf_alloc_real((size_t)floats);
    memset(s->src, 1, (size_t)floats * sizeof(float));
    memset(s->dst, 1, (size_t)floats * sizeof(float));
    unsigned flags = m->mode != 0 ? FFTW_MEASURE : FFTW_PATIENT;
    flags |= FFTW_DESTROY_INPUT | (p->backward ? FFTW_MPI_TRANSPOSED_IN : FFTW_MPI_TRANSPOSED_OUT);
    double begin = MPI_Wtime();
    s->plan = fftwf_mpi_plan_many_transpose(n[0], n[1], howmany, block, tblock, s->src, s->dst, MPI_COMM_WORLD, flags);
    m->plan_s = MPI_Wtime() - begin;
    m->state = s;
    m->src = s->src;
    m->dst = s->dst;
    if (s->plan == NULL) {
        snprintf(m->why, sizeof(m->why), "FFTW made no plan");
        return -1;
    }
    memcpy(s->src, src, p->src_bytes);
    return 0;
}

static void run(peers_method *m)
{
    fftwf_execute(((state *)m->state)->plan);
}

static void destroy(peers_method *m)
{
    state *s = m->state;
    fftwf_destroy_plan(s->plan);
    fftwf_free(s->src);
    fftwf_free(s->dst);
    free(s);
}
#else
static int make(peers_method *m, const peers_problem *p, void *src, void *dst)
{
    (void)p, (void)src, (void)dst;
    snprintf(m->why, sizeof(m->why), "built without FFTW's MPI library (Debian: libfftw3-mpi-dev)");
    return -1;
}

static void run(peers_method *m)
{
    (void)m;
}

static void destroy(peers_method *m)
{
    (void)m;
}
#endif

const peers_method peers_fftw = {.name = "FFTW-MPI transpose", .make = make, .run = run, .destroy = destroy};
