/* A product of linear_body.h; REAL is defined before. */
typedef struct gemm {
    REAL *dst;
    int64_t dst_row;
    const REAL *a;
    int64_t a_row, a_column;
    const REAL *b;
    int64_t b_row;
    int64_t m, n, k;
    hd_linear_part part;
    int add;
    int exact; /* triangles to the element: zeros beside them are not multiplied */
} gemm;
