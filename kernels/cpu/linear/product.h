/* A product of body.h: dst = keep dst + (a b) * weight * mask; REAL is defined before. */
typedef struct gemm {
    REAL *dst;
    int64_t dst_row;
    const REAL *a;
    int64_t a_row, a_column; /* one of them is 1 */
    const REAL *b;
    int64_t b_row;
    int64_t m, n, k;
    hd_linear_part part;
    REAL keep;          /* 0: dst is not read */
    const REAL *weight; /* of row m at weight[m * weight_step]; NULL: 1 */
    int64_t weight_step;
    const REAL *mask; /* of result (m, n) at mask[n - m]; NULL: 1 */
    int exact;        /* triangles to the element: zeros beside them are not multiplied
                       */
} gemm;
