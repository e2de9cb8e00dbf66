/* Linear attention on a device as launches: which walks over q, k, v and do give states, results and gradients. Of
 * objects (linear_on.c) and of blocks whose fibres are whole (runtime/block/device/linear.c). */
#ifndef HD_ATTENTION_LINEAR_WALKS_H
#define HD_ATTENTION_LINEAR_WALKS_H

#include "kernels/table_device.h"
#include <heddle/comm.h>

/* States of k and v in front of segments, from the left and from the right; of q and do, from the right and from the
 * left. Those of one direction: the first and the third. */
enum { HD_WALKS_KV_LEFT, HD_WALKS_KV_RIGHT, HD_WALKS_G_RIGHT, HD_WALKS_G_LEFT, HD_WALKS_STATES };

typedef struct hd_linear_walks {
    const hd_device_kernels *kernels;
    heddle_stream stream;
    heddle_dtype dtype;
    int64_t outer, inner, heads, n, dk, dv; /* as kernels/device_linear.h has them */
    int is_two_sided;                       /* bidirectional */
    const float *log2_decay;
    hd_device_tokens q, k, v, o, d_o, dq, dk_out, dv_out;
    int gives_f32;                  /* o is f32 whatever the type is */
    float *states[HD_WALKS_STATES]; /* [fibres][heads][segments][dk][dv]; NULL: zeros where there is one segment */
    float *before;                  /* two-sided, not f32: f32 [fibres][n][heads][the larger of dk and dv] */
    float *end;                     /* one-sided: gets the state behind the fibres; NULL: not wanted */
} hd_linear_walks;

/* Of a fibre of n rows, by n alone: at most HD_WALKS_SEGMENTS, of as many rows. */
int64_t hd_linear_segment_rows(int64_t n);
int64_t hd_linear_segments(int64_t n);

/* The launchers' codes, 0 or what the first that failed came to. */

/* Parts of states; then the states of a fibre that begins with `in` (NULL: zeros), in front of its segments (spreads)
 * or behind it alone. */
int hd_linear_walks_parts(const hd_linear_walks *w, int which);
int hd_linear_walks_states(const hd_linear_walks *w, int which, const float *in, float *out, int spreads);
/* dst = g^rows state + add, of the states of all heads; state or add NULL: zeros. dst may be any of both. */
int hd_linear_walks_fold(const hd_linear_walks *w, float *dst, int64_t rows, const float *state, const float *add);
/* Of fibres that are whole here: their states, where there are any, and results. */
int hd_linear_walks_whole(const hd_linear_walks *w, int is_back);
/* From states in front of segments: those of k and v, and for dk and dv those of q and do. */
int hd_linear_walks_forward(const hd_linear_walks *w);
int hd_linear_walks_dq(const hd_linear_walks *w);
int hd_linear_walks_dk_dv(const hd_linear_walks *w);

#endif
