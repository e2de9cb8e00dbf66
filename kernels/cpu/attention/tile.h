/* Matrix products on small dense pieces, in registers: c[m][columns] (+)= a b, where element (r, i) of a is a[r * row +
 * i * column]. Included after the vectors. */

typedef struct product {
    float *c;
    int64_t c_row;
    const float *a;
    int64_t a_row, a_column;
    const float *b;
    int64_t b_row;
    int64_t rows, columns, n; /* n: length of the sums */
    int add;
} product;

enum { TILE_ROWS = 6, LONG_ROWS = 12 };

/* `rows` x `vecs` results; the last vector has `last` lanes (VEC: all). */
INLINE void tile(const product *p, int64_t m, int64_t first, int rows, int vecs, int64_t last)
{
    vec sum[LONG_ROWS][VEC_COLUMNS];
    float *c = p->c + m * p->c_row + first;
    const float *a = p->a + m * p->a_row, *b = p->b + first;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int z = 0; z < vecs; z++) {
            const float *at = c + r * p->c_row + z * VEC;
            sum[r][z] = !p->add ? vec_set1(0) : z == vecs - 1 && last < VEC ? vec_load_part(at, last) : vec_load(at);
        }
    }
    for (int64_t i = 0; i < p->n; i++) {
        vec row[VEC_COLUMNS];
#pragma GCC unroll 4
        for (int z = 0; z < vecs; z++) {
            row[z] = vec_load(b + i * p->b_row + z * VEC);
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            vec x = vec_set1(a[r * p->a_row + i * p->a_column]);
#pragma GCC unroll 4
            for (int z = 0; z < vecs; z++) {
                sum[r][z] = vec_fma(x, row[z], sum[r][z]);
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int z = 0; z < vecs; z++) {
            float *at = c + r * p->c_row + z * VEC;
            if (z == vecs - 1 && last < VEC) {
                vec_store_part(at, sum[r][z], last);
            } else {
                vec_store(at, sum[r][z]);
            }
        }
    }
}

INLINE void tile_column(const product *p, int64_t first, int vecs, int64_t last)
{
    int64_t m = 0;
    if (vecs <= VEC_COLUMNS / 2) {
        for (; m + LONG_ROWS <= p->rows; m += LONG_ROWS) {
            tile(p, m, first, LONG_ROWS, vecs, last);
        }
    }
    for (; m + TILE_ROWS <= p->rows; m += TILE_ROWS) {
        tile(p, m, first, TILE_ROWS, vecs, last);
    }
    for (; m + 2 <= p->rows; m += 2) {
        tile(p, m, first, 2, vecs, last);
    }
    for (; m < p->rows; m++) {
        tile(p, m, first, 1, vecs, last);
    }
}

#define COLUMN(vecs)                                                                                                   \
    static void column_##vecs(const product *p, int64_t first, int64_t last)                                           \
    {                                                                                                                  \
        if (last == VEC) {                                                                                             \
            tile_column(p, first, vecs, VEC);                                                                          \
        } else {                                                                                                       \
            tile_column(p, first, vecs, last);                                                                         \
        }                                                                                                              \
    }
COLUMN(1)
COLUMN(2)
#if HD_VEC_COLUMNS > 2
COLUMN(3)
COLUMN(4)
#endif
#undef COLUMN

/* b must be readable up to whole vectors. */
static void multiply(const product *p)
{
    static void (*const column[])(const product *, int64_t, int64_t) = {
        column_1,
        column_2,
#if HD_VEC_COLUMNS > 2
        column_3,
        column_4,
#endif
    };
    for (int64_t first = 0; first < p->columns; first += VEC_COLUMNS * VEC) {
        int64_t left = p->columns - first, width = left < VEC_COLUMNS * VEC ? left : VEC_COLUMNS * VEC;
        int64_t vecs = (width + VEC - 1) / VEC;
        column[vecs - 1](p, first, width - (vecs - 1) * VEC);
    }
}
