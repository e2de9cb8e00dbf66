/* What a reshard line starts from and ends with on every rank, by the single-process oracle. Replicas hold different
 * bytes on purpose, so that taking them from the wrong rank shows. */
#ifndef HD_TEST_RESHARD_WORLD_H
#define HD_TEST_RESHARD_WORLD_H

#include "runtime/verify/oracle.h"
#include "runtime/verify/random.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RC_EXECUTIONS = 3, RC_MOST_KNOWN = 100 };

/* In every other element rank 0 has a number beside which the others vanish and rank 1 its negative: added in any other
 * order than that of the ranks, the sum has other bits, in bf16 too. */
static inline double rc_vast(heddle_dtype dtype, size_t i, int rank)
{
    if (i % 2 == 0 || rank > 1) {
        return 0;
    }
    const double vast = dtype == HEDDLE_F64 ? 0x1p60 : 0x1p30;
    return rank == 0 ? vast : -vast;
}

/* Any bits where they are only moved; plain numbers where they may be added. */
static inline void rc_fill(unsigned char *data, size_t elems, heddle_dtype dtype, int adds, int rank, uint64_t seed)
{
    random_source source = {seed};
    size_t bytes = heddle_dtype_bytes(dtype);
    for (size_t i = 0; i < elems; i++) {
        uint64_t bits = random_bits(&source);
        if (adds) {
            double number = (double)(int64_t)(bits % 4001) / 16.0 - 125.0 + rc_vast(dtype, i, rank);
            float single = (float)number;
            switch (dtype) {
            case HEDDLE_F64:
                memcpy(&bits, &number, 8);
                break;
            case HEDDLE_F32:
                memcpy(&bits, &single, 4);
                break;
            case HEDDLE_BF16:
                memcpy(&bits, &single, 4);
                bits >>= 16;
                break;
            case HEDDLE_F16:
                bits = (bits & 0x83ff) | (10 + bits / 65536 % 8) << 10;
                break;
            case HEDDLE_F8E4M3:
            case HEDDLE_F8E5M2:
                bits = (bits & 0x83) | (bits / 65536 % 8 + 6) << 2;
                break;
            case HEDDLE_BOOL:
                bits &= 1;
                break;
            default:
                break;
            }
        } else if (dtype == HEDDLE_BOOL) {
            bits &= 1;
        }
        memcpy(data + i * bytes, &bits, bytes);
    }
}

/* A sum of one term is that term, whatever its bits. */
static inline int rc_adds(const heddle_reshard_line *line)
{
    for (int a = 0; a < line->mesh.naxes; a++) {
        if (line->from.dim_of_axis[a] == HEDDLE_PARTIAL && line->mesh.axis[a].size > 1) {
            return 1;
        }
    }
    return 0;
}

/* Dense arrays of every rank and what the oracle makes of them. */
typedef struct rc_world {
    int nranks;
    unsigned char **src, **dst;
} rc_world;

static inline void rc_world_free(rc_world *w)
{
    for (int r = 0; r < w->nranks; r++) {
        free(w->src[r]);
        free(w->dst[r]);
    }
    free(w->src);
    free(w->dst);
}

static inline heddle_status rc_world_make(rc_world *w, const heddle_reshard_line *line, uint64_t seed)
{
    size_t elem_bytes = heddle_dtype_bytes(line->shape.dtype);
    w->nranks = heddle_mesh_size(&line->mesh);
    w->src = calloc((size_t)w->nranks, sizeof *w->src);
    w->dst = calloc((size_t)w->nranks, sizeof *w->dst);
    for (int r = 0; r < w->nranks; r++) {
        heddle_box from, to;
        heddle_ignore(heddle_layout_box(&from, &line->shape, &line->mesh, &line->from, r));
        heddle_ignore(heddle_layout_box(&to, &line->shape, &line->mesh, &line->to, r));
        w->src[r] = malloc((size_t)heddle_box_elems(&from) * elem_bytes + 1);
        w->dst[r] = malloc((size_t)heddle_box_elems(&to) * elem_bytes + 1);
        rc_fill(w->src[r], (size_t)heddle_box_elems(&from), line->shape.dtype, rc_adds(line), r,
                seed * 1000 + (uint64_t)r);
        memset(w->dst[r], 0x5a, (size_t)heddle_box_elems(&to) * elem_bytes + 1);
    }
    return oracle_reshard(line, (const void *const *)w->src, (void *const *)w->dst);
}

/* Worlds of lines that are run many times, by rounds; made before ranks start, only read by them. */
typedef struct rc_known {
    const char *text;
    rc_world world[RC_EXECUTIONS];
} rc_known;

static rc_known rc_all_known[RC_MOST_KNOWN];

static inline uint64_t rc_seed(int round)
{
    return 7 + (uint64_t)round;
}

static inline void rc_prepare(const char *const *lines, int count)
{
    rc_known *known = rc_all_known;
    while (known->text != NULL) {
        known++;
    }
    for (int i = 0; i < count; i++, known++) {
        heddle_reshard_line line;
        heddle_status st = heddle_reshard_parse(&line, lines[i]);
        for (int round = 0; round < RC_EXECUTIONS && st == HEDDLE_OK; round++) {
            st = rc_world_make(&known->world[round], &line, rc_seed(round));
        }
        if (st != HEDDLE_OK || known == rc_all_known + RC_MOST_KNOWN - 1) {
            fprintf(stderr, "%s: %s\n", lines[i], heddle_last_error());
            abort();
        }
        known->text = lines[i];
    }
}

/* NULL: was not prepared. */
static inline const rc_world *rc_find(const char *text, int round)
{
    for (const rc_known *known = rc_all_known; known->text != NULL; known++) {
        if (strcmp(known->text, text) == 0) {
            return &known->world[round];
        }
    }
    return NULL;
}

#endif
