/* The kernel table of a device: launchers, which put work into a stream and return. No types of CUDA; addresses are
 * those of device memory unless it says otherwise. Every launcher returns 0 or the runtime's code.
 *
 * A list is what a launch moves: strided copies whose addresses come later, as numbers into a table that each launch
 * brings. It is made once, in host memory, and copied as it is to device memory, where kernels read it.
 *
 * Ranks meet on the device. Each has a state there, zeros at first, into which its peers write two flags: READY ("what
 * is mine may be written or read now") when their launch begins, and DONE ("I have moved all that I move to or from
 * you"). One launch waits for READY of each peer before it touches that peer's memory, sets that peer's DONE behind
 * the last byte, and ends when DONE has come from all that move something of this rank's. So plain stream order is
 * enough for what reads the result. Where launches announce, a READY carries the address of what may be touched, so
 * that every launch may bring another one without anybody else having been told. Flags carry the number of the launch,
 * which lives in the state: a replayed graph stays in step.
 *
 * Any block of a launch may wait for a peer whose launch has not begun, and the first one that runs speaks for its
 * rank: so launches that wait for one another must fit on their device together, each whole (`resident`). What waits
 * keeps others off its processor, and the peer's launch may be behind a kernel that needs it whole: where more than
 * `most_waiting` blocks would wait, a kernel of one thread is launched in front of them and waits instead.
 */
#ifndef HD_KERNELS_TABLE_DEVICE_H
#define HD_KERNELS_TABLE_DEVICE_H

#include "kernels/copy.h"
#include "kernels/device_attention.h"
#include "kernels/device_linear.h"
#include "kernels/device_rows.h"
#include "kernels/training.h"

#include <heddle/sys/device_products.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HD_DEVICE_MAX_PEERS = 64, HD_DEVICE_MAX_BASES = 64 /* of one side */ };

/* As hd_lane, from src[src_base] + src_offset_bytes to dst[dst_base] + dst_offset_bytes of the launch. */
typedef struct hd_device_box {
    int peer; /* whose memory one side is; the own rank: nobody is waited for */
    int src_base, dst_base;
    int64_t src_offset_bytes, dst_offset_bytes, run_bytes;
    int nloops; /* outermost first */
    int64_t count[HD_MAX_LOOPS], src_stride_bytes[HD_MAX_LOOPS], dst_stride_bytes[HD_MAX_LOOPS];
} hd_device_box;

/* Of one rank, in device memory, zeroed before the first launch. failure: once set, launches fall through. */
typedef struct hd_device_state {
    uint64_t epoch, failure, begin_ns;
    uint32_t begun, ended;                                          /* blocks of the present launch */
    uint64_t ready[HD_DEVICE_MAX_PEERS], done[HD_DEVICE_MAX_PEERS]; /* written by peers */
    uint64_t place[HD_DEVICE_MAX_PEERS];                            /* likewise, before READY */
    uint32_t moved[HD_DEVICE_MAX_PEERS];                            /* blocks that have moved their part for a peer */
    uint64_t bytes_to[HD_DEVICE_MAX_PEERS];                         /* as the report has them */
} hd_device_state;

/* What waiting came to. */
typedef enum hd_device_outcome { HD_DEVICE_CAME, HD_DEVICE_LATE, HD_DEVICE_ABORTED } hd_device_outcome;

/* Pinned host memory, written by the last block of a launch, epoch last (status last when it failed). */
typedef struct hd_device_report {
    uint64_t epoch;                         /* launches that ended well */
    uint64_t status, peer;                  /* hd_device_outcome of the launch that failed, and who did not come */
    uint64_t begin_ns, end_ns;              /* of the last launch, by the device's clock */
    uint64_t bytes_to[HD_DEVICE_MAX_PEERS]; /* moved to or from a peer by this rank, in all */
} hd_device_report;

typedef struct hd_device_meet {
    int rank, npeers;
    uint64_t heard;  /* bit p: rank p moves something to or from this rank's memory, and says DONE */
    int needs_ready; /* agreed by all; 0 where something else keeps memory from being touched too early */
    int announces;   /* likewise, with needs_ready: a push's boxes for peers begin where those say, not at dst[] */
    hd_device_state *state;
    hd_device_state *peer_state[HD_DEVICE_MAX_PEERS]; /* of those heard, and of the peers of boxes */
    uint64_t place[HD_DEVICE_MAX_PEERS]; /* announced to those heard: where theirs begin, for kernels there */
    uint64_t deadline_ns;                /* of one wait */
    int most_waiting;                    /* blocks of a launch that may wait for READY; 0: any number */
    const uint64_t *abort_word;          /* pinned; not 0: waits end */
    hd_device_report *report;            /* pinned */
} hd_device_meet;

typedef struct hd_device_move {
    const void *list;           /* host memory */
    const void *list_on_device; /* a copy */
    int nsrc, ndst;
    const void *const *src;     /* [nsrc] host memory, read by the launcher */
    void *const *dst;           /* [ndst] */
    const hd_device_meet *meet; /* host memory; NULL: copies only, nobody is waited for */
} hd_device_move;

typedef struct hd_device_kernels {
    const char *name;
    /* Has every kernel loaded, which must not happen while another rank's kernel waits. */
    int (*load)(void);
    /* How many blocks of launches that meet the current device runs at the same time while it runs nothing else. */
    int (*resident)(int *blocks);
    /* Bytes of a list of these boxes, to be carried out by at most `blocks` blocks, but for one of each box at the
     * least; a box of more than 2^31 vectors counts as several. Peers are begun with in the order of the boxes. 0: more
     * than HD_DEVICE_MAX_BASES or HD_DEVICE_MAX_PEERS, a negative length or loop. */
    size_t (*list_bytes)(const hd_device_box *box, int nboxes, int blocks);
    void (*list_make)(void *list, const hd_device_box *box, int nboxes, int blocks);
    int (*list_blocks)(const void *list); /* of a launch */
    /* push: the boxes' sources are this rank's own, and nobody writes them while it runs. pull: the sources are of
     * peers. clear: zeros in the boxes' destinations; without a meeting. */
    int (*push)(const hd_device_move *move, void *stream);
    int (*pull)(const hd_device_move *move, void *stream);
    int (*clear)(const hd_device_move *move, void *stream);
    /* As push, of what gate_residual would make of its one source, dense rows, which stay as they are: each row is in
     * one box. Sources and destinations lie at multiples of 16, and the gate is whole. takes_gate: boxes of the list
     * are such that it works. */
    int (*push_gated)(const hd_device_move *move, const hd_device_gate *gate, void *stream);
    int (*takes_gate)(const void *list);
    /* As hd_sum_fn, bit for bit; 1 <= nterms <= HD_DEVICE_MAX_PEERS; term: host memory, read by the launcher. */
    int (*sum)(void *dst, const void *const *term, int nterms, int64_t elems, heddle_dtype dtype, void *stream);

    /* --- rows of blocks (kernels/device_rows.h), as the CPU's slots of these names (kernels/table.h), from F32, BF16
     * or F16 */

    /* dst may be src. */
    int (*norm_modulate)(const hd_device_rows *of, void *dst, const void *src, const float *shift, const float *scale,
                         void *stream);
    /* y: of x's type or F32. keep: gets x as it was; NULL: it is not wanted */
    int (*gate_residual)(const hd_device_rows *of, void *x, const void *y, heddle_dtype y_dtype, const float *gate,
                         void *keep, void *stream);
    /* dst = gelu(src), tanh form; dst may be src where they are of one type */
    int (*gelu)(void *dst, heddle_dtype dst_dtype, const void *src, heddle_dtype src_dtype, int64_t elems,
                void *stream);
    int (*convert)(void *dst, heddle_dtype dst_dtype, const void *src, heddle_dtype src_dtype, int64_t elems,
                   void *stream);
    /* dst[0][i] is src[i] rounded to BF16 or F16, dst[1][i] what that left, rounded: their sum is within 2^-17 of
     * src[i]; of F16, where both are normal numbers */
    int (*split)(void *dst, heddle_dtype dtype, const float *src, int64_t elems, void *stream);
    /* dst may be src. */
    int (*norm_rotate)(const hd_device_heads *of, void *dst, const void *src, void *stream);

    /* --- their gradients; scratch lies on the device, and is free again when the launch has ended */

    /* dst = src * gate */
    int (*scale_rows)(const hd_device_rows *of, void *dst, const void *src, const float *gate, void *stream);
    /* dx += the gradient through src's norm, given dy, of x's type or F32. scale may be NULL. stats: gets mean and
     * 1 / deviation of each row; NULL: they are not wanted. dshift and dscale are add_columns' of dy and src. */
    int (*norm_back)(const hd_device_rows *of, void *dx, const void *src, const void *dy, heddle_dtype dy_dtype,
                     const float *scale, float *stats, void *stream);
    /* active = gelu(src); dy, a gradient of that, becomes one of src; all of one type */
    int (*gelu_back)(void *dy, void *active, const void *src, heddle_dtype dtype, int64_t elems, void *stream);
    /* In place on dy, which lies as src, what norm_rotate began with; src and dweight may be NULL without weight.
     * dweight[0][d] +=, and of the second vectors dweight[1][d] */
    int (*norm_rotate_back)(const hd_device_heads *of, void *dy, const void *src, float *const dweight[2],
                            void *scratch, void *stream);
    size_t (*norm_rotate_back_bytes)(const hd_device_heads *of); /* of scratch */
    /* dst[sample][n] += sums of src, dst_times[sample][n] += those with other; either may be NULL: it is not
     * wanted. Samples lie dst_stride elements apart */
    int (*add_columns)(const hd_device_columns *of, float *dst, float *dst_times, int64_t dst_stride, void *scratch,
                       void *stream);
    size_t (*add_columns_bytes)(const hd_device_columns *of); /* of scratch */

    /* --- attention (kernels/device_attention.h) */

    int (*attention)(const hd_device_attention *of, void *stream);
    int (*attention_back)(const hd_device_attention_back *back, void *stream);
    size_t (*attention_back_bytes)(const hd_device_attention *of); /* of scratch */
    int (*arrange)(const hd_device_arrange *of, void *stream);
    int (*merge)(const hd_device_merge *of, void *stream);
    int (*log_sum)(const hd_device_log_sum *of, void *stream);

    /* --- linear attention (kernels/device_linear.h) */

    int (*linear)(const hd_device_linear *of, void *stream);
    int (*linear_states)(const hd_device_linear_states *of, void *stream);
    int (*head_norm)(const hd_device_head_norm *of, void *stream);
    int (*head_norm_back)(const hd_device_head_norm *of, void *stream);

    /* --- linear layers (heddle/sys/device_products.h), in tiles of one size; no workspace */

    int (*product)(const heddle_product *of, const heddle_product_call *call, void *stream);

    /* --- training (kernels/training.h), with the bits of the CPU's slots but for those of NaNs */

    /* clip: where the step's is, on the device; NULL: in the step */
    int (*adamw)(const hd_adamw_step *step, const double *clip, float *param, const float *grad, float *mean,
                 float *square, int64_t elems, void *stream);
    int (*divide)(float *dst, const float *src, float divisor, int64_t elems, void *stream);
    int (*zero)(float *dst, int64_t elems, void *stream);
    /* dst = or (adds) += the squares of values, 0 or more; digits are below 2^32 afterwards */
    int (*add_squares)(hd_squares *dst, const float *values, int64_t elems, int adds, void *scratch, void *stream);
    size_t (*add_squares_bytes)(void); /* of scratch */
    /* *dst = min(1, max_norm / the root of squares); 1 of a NaN */
    int (*clip)(double *dst, const hd_squares *squares, double max_norm, void *stream);
} hd_device_kernels;

/* Compiled by nvcc into the device library, or for the emulator of the tests. */
extern const hd_device_kernels hd_kernels_cuda;

#ifdef __cplusplus
}
#endif

#endif
