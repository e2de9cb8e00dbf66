/* Boxes of vectors of 16 to 1 bytes from one place to another. */
#ifndef HD_CUDA_VECTORS_H
#define HD_CUDA_VECTORS_H

#include "kernels/cuda/place.h"

enum { HD_IN_FLIGHT = 8 /* vectors of a thread */ };

typedef enum mode { FROM_OWN, FROM_PEER, ZEROS, GATED } mode;

/* Loads of several vectors, then their stores: neighbouring threads have neighbouring vectors. */
#define COPY_VECTORS(bytes, type, nothing)                                                                             \
    HD_DEV void copy_##bytes(const hd_list_box *box, char *dst, const char *src, uint32_t first, uint32_t step,        \
                             int has_few, mode how)                                                                    \
    {                                                                                                                  \
        for (uint32_t v = first; v < box->vectors; v += HD_IN_FLIGHT * step) {                                         \
            type held[HD_IN_FLIGHT];                                                                                   \
            int64_t to[HD_IN_FLIGHT];                                                                                  \
            HD_UNROLL                                                                                                  \
            for (int u = 0; u < HD_IN_FLIGHT; u++) {                                                                   \
                if (v + u * step < box->vectors) {                                                                     \
                    hd_place at = hd_place_of(box, v + u * step, has_few);                                             \
                    to[u] = at.dst;                                                                                    \
                    held[u] = how == ZEROS       ? nothing                                                             \
                              : how == FROM_PEER ? hd_load_##bytes(src + at.src)                                       \
                                                 : hd_load_constant_##bytes(src + at.src);                             \
                }                                                                                                      \
            }                                                                                                          \
            HD_UNROLL                                                                                                  \
            for (int u = 0; u < HD_IN_FLIGHT; u++) {                                                                   \
                if (v + u * step < box->vectors) {                                                                     \
                    hd_store_##bytes(dst + to[u], held[u]);                                                            \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

COPY_VECTORS(16, hd_v16, hd_zero_16())
COPY_VECTORS(8, uint64_t, 0)
COPY_VECTORS(4, uint32_t, 0)
COPY_VECTORS(2, uint16_t, 0)
COPY_VECTORS(1, uint8_t, 0)

#define COPY_PIECES(bytes, type)                                                                                       \
    for (uint32_t i = 0; i < box->width_bytes; i += bytes) {                                                           \
        type held = how == ZEROS ? 0 : hd_load_##bytes(src + at.src + i);                                              \
        hd_store_##bytes(dst + at.dst + i, held);                                                                      \
    }

/* Addresses came that are less aligned than the box: each vector in such pieces as both allow. */
HD_DEV void copy_pieces(const hd_list_box *box, char *dst, const char *src, uint32_t first, uint32_t step, mode how)
{
    const uintptr_t bits = (uintptr_t)src | (uintptr_t)dst;
    for (uint32_t v = first; v < box->vectors; v += step) {
        hd_place at = hd_place_of(box, v, 0);
        if (bits % 8 == 0) {
            COPY_PIECES(8, uint64_t)
        } else if (bits % 4 == 0) {
            COPY_PIECES(4, uint32_t)
        } else {
            COPY_PIECES(1, uint8_t)
        }
    }
}

#endif
