/* Inside of a dense pair: life (pair.c), the products on the gathered rows (pair_rows.c), calls (pair_run.c). */
#ifndef HD_PAIR_INTERNAL_H
#define HD_PAIR_INTERNAL_H

#include "kernels/gemm.h"
#include "runtime/parallel/parallel_internal.h"

#include <heddle/train/dense_pair.h>

enum {
    HD_PAIR_PARAMS = 4,
    HD_PAIR_ROWS = HD_GEMM_LARGE_ROWS, /* that go through the pair together; one job */
    HD_PAIR_PANEL_ROWS = 192           /* of a weight's gradient; one job, whatever the number of threads */
};

enum { HD_FC1_WEIGHT = 0, HD_FC1_BIAS = 1, HD_FC2_WEIGHT = 2, HD_FC2_BIAS = 3 };
enum { HD_PAIR_FC1 = 0, HD_PAIR_FC2 = 1, HD_PAIR_BACK2 = 2, HD_PAIR_BACK1 = 3, HD_PAIR_GEMMS = 4 };

struct heddle_dense_pair {
    heddle_comm *comm;
    heddle_dense_pair_options options;
    heddle_dtype dtype;
    int first;                          /* 1: coordinate 0 of the axis, which adds fc2's bias */
    int64_t channels, rows, gathered;   /* rows: of the own part; gathered: that the products see */
    int64_t hidden_lo, hidden;          /* own block of W1's rows */
    heddle_reshard *gather, *scatter;   /* own part -> gathered rows; partial sums of them -> own part */
    heddle_param param[HD_PAIR_PARAMS]; /* data owned */
    float *gradient[HD_PAIR_PARAMS];    /* NULL: forward only */
    hd_gemm *gemm[HD_PAIR_GEMMS];       /* NULL: no hidden channels here */
    const hd_kernels *kernels;
    int seats, committed, kept; /* kept: x and the hidden layer of a forward are there */
    void *x, *y;                /* [gathered][c] of the dtype, peers reach it: x; y's partial sums, dy, dx's */
    float *before;              /* [gathered][hidden]: fc1's result; forward without backward: per seat */
    float *active;              /* likewise, after the activation; of the dtype in forward */
    float *d_hidden;            /* [gathered][hidden] */
    float *x32, *dy32;          /* bf16: [gathered][c] */
    int64_t saved_bytes, workspace_bytes, forwards, backwards;
};

/* y = the partial sums of the gathered rows of x. */
heddle_status hd_pair_rows_forward(heddle_dense_pair *pair);
/* x: gathered x; y: gathered dy on entry, partial sums of dx on return. Adds to the gradients but fc2.bias's. */
heddle_status hd_pair_rows_backward(heddle_dense_pair *pair);
/* dst[n] += column sums of own rows of the dtype */
void hd_pair_add_columns(const heddle_dense_pair *pair, float *dst, const void *rows);

#endif
