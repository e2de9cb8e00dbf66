/* What a stage's rows get on their way to where they are stored: x + gate * y, rounded once. */
#ifndef HD_CUDA_GATE_H
#define HD_CUDA_GATE_H

#include "kernels/cuda/place.h"
#include "kernels/cuda/rows.h"

/* p becomes p + gate * y; has_gate 0: p + y */
HD_DEV void hd_gate_piece(hd_lane_piece *p, const float *y, const float *gate, int has_gate, heddle_dtype dtype)
{
    float to[HD_PIECE_MOST];
    HD_UNROLL
    for (int i = 0; i < hd_piece_elems(dtype); i++) {
        const float held = hd_piece_get(p, i, dtype);
        to[i] = has_gate ? hd_fma(gate[i], y[i], held) : held + y[i];
    }
    *p = hd_piece_of(to, dtype);
}

/* hd_device_gate for kernels, which count in pieces of 16 bytes. */
typedef struct hd_gate_args {
    const char *y;             /* f32 */
    const float *gate;         /* NULL: 1 */
    char *keep;                /* NULL: nowhere */
    hd_divisor c, sample_rows; /* pieces of a row; rows of a sample, d 0: all */
    int64_t sample_stride;
} hd_gate_args;

static inline hd_gate_args hd_gate_args_of(const hd_device_gate *gate)
{
    hd_gate_args a;
    a.y = (const char *)gate->y;
    a.gate = gate->gate;
    a.keep = (char *)gate->keep;
    a.c = hd_divisor_of(gate->rows.c / (gate->rows.dtype == HEDDLE_F32 ? 4 : 8));
    a.sample_rows = hd_divisor_of(gate->rows.sample_rows);
    a.sample_stride = gate->rows.sample_stride;
    return a;
}

enum { HD_GATED_IN_FLIGHT = 4 /* pieces of a thread, each with its change */ };

/* A piece of the rows on its way. */
typedef struct hd_gated_piece {
    hd_lane_piece x, y[HD_PIECE_MOST / 4];
    uint32_t number; /* from the first of all rows on */
    int64_t to;
} hd_gated_piece;

HD_DEV void hd_gated_load(hd_gated_piece *p, const hd_gate_args *a, const char *rows, heddle_dtype dtype)
{
    const int per = hd_piece_elems(dtype);
    p->x.whole = hd_load_constant_16(rows + (int64_t)p->number * 16);
    HD_UNROLL
    for (int i = 0; i < per / 4; i++) {
        p->y[i].whole = hd_load_constant_16(a->y + ((int64_t)p->number * (per / 4) + i) * 16);
    }
}

/* x becomes what the row has with its change, and keep gets what it had. */
HD_DEV void hd_gated_change(hd_gated_piece *p, const hd_gate_args *a, heddle_dtype dtype)
{
    const int per = hd_piece_elems(dtype);
    float y[HD_PIECE_MOST], gate[HD_PIECE_MOST] = {0};
    if (a->keep != 0) {
        hd_store_16(a->keep + (int64_t)p->number * 16, p->x.whole);
    }
    if (a->gate != 0) {
        const uint32_t row = hd_divide(&a->c, p->number);
        const int64_t vector = a->sample_rows.d == 0 ? 0 : hd_divide(&a->sample_rows, row) * a->sample_stride;
        hd_floats_load(gate, a->gate + vector + (p->number - row * a->c.d) * (uint32_t)per, per, per, 1);
    }
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        y[i] = hd_f32_from_bits(p->y[i / 4].word[i % 4]);
    }
    hd_gate_piece(&p->x, y, gate, a->gate != 0, dtype);
}

/* A box of rows, to where it belongs, with its change: vectors first, first + step and so on. Loads of several come
 * before the first of them is waited for. */
HD_DEV void hd_gated_box(const hd_gate_args *a, const hd_list_box *box, char *dst, const char *rows, uint32_t first,
                         uint32_t step, heddle_dtype dtype)
{
    for (uint32_t v = first; v < box->vectors; v += HD_GATED_IN_FLIGHT * step) {
        hd_gated_piece piece[HD_GATED_IN_FLIGHT];
        HD_UNROLL
        for (int u = 0; u < HD_GATED_IN_FLIGHT; u++) {
            if (v + u * step < box->vectors) {
                const hd_place at = hd_place_of(box, v + u * step, 1);
                piece[u].to = box->dst_offset_bytes + at.dst;
                piece[u].number = (uint32_t)((box->src_offset_bytes + at.src) / 16);
                hd_gated_load(&piece[u], a, rows, dtype);
            }
        }
        HD_UNROLL
        for (int u = 0; u < HD_GATED_IN_FLIGHT; u++) {
            if (v + u * step < box->vectors) {
                hd_gated_change(&piece[u], a, dtype);
                hd_store_16(dst + piece[u].to, piece[u].x.whole);
            }
        }
    }
}

#endif
