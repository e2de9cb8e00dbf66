/* The gradient kernels of blocks, of every instruction set against the reference. */
#include "block_problem.h"
#include "kernels/table.h"

enum { WIDE = 70, ROWS = 3, ARRAYS = 6 };

/* Whatever one call of every kernel gives, for widths 1 .. WIDE. */
static void run_kernels(const hd_kernels *k, const float *in, heddle_dtype dtype, int64_t c,
                        float out[ARRAYS][ROWS * WIDE])
{
    float shift[WIDE] = {0}, *dx = stored(in + 300, ROWS * c, dtype), *src = stored(in, ROWS * c, dtype);
    memset(out, 0, ARRAYS * sizeof *out);
    k->scale_rows(out[0], in, ROWS, c, in + 77);
    k->norm_back(dx, c, src, dtype, in + 50, ROWS, c, c & 1 ? in + 11 : NULL, c & 1 ? shift : NULL,
                 c & 1 ? out[1] : NULL);
    for (int64_t i = 0; i < ROWS * c; i++) {
        out[2][i] = (float)value_at(dx, dtype, i);
        out[3][i] = in[i + 21];
        out[5][i] = in[i + 31];
    }
    k->gelu_back(out[3], out[4], src, dtype, ROWS * c);
    k->norm_rotate_back(out[5], src, dtype, ROWS, c, in + 5, c % 2 == 0 ? in + 90 : NULL, out[1] + c);
    k->add_columns(out[0], in + 3, ROWS, c + 5, c);
    out[1][2 * c] = k->add_scaled(out[0], in + 8, in + 200, c, 0.5f);
    memcpy(out[1] + 2 * WIDE, shift, sizeof shift);
    free(dx);
    free(src);
}

HD_CASE(kernels_agree)
{
    static const char *const name[] = {"avx512", "avx2"};
    static float in[1000], wanted[ARRAYS][ROWS * WIDE], got[ARRAYS][ROWS * WIDE];
    for (int i = 0; i < 2; i++) {
        if (hd_kernels_named(name[i]) == NULL) {
            hd_not_here(name[i], "this CPU has no %s", name[i]);
        }
    }
    for (int i = 0; i < 1000; i++) {
        in[i] = symmetric();
    }
    for (int64_t c = 1; c < WIDE; c++) {
        for (int i = 0; i < 4; i++) {
            const hd_kernels *kernels = hd_kernels_named(name[i / 2]);
            run_kernels(hd_kernels_named("generic"), in, dtypes[i & 1], c, wanted);
            if (kernels == NULL) {
                continue;
            }
            run_kernels(kernels, in, dtypes[i & 1], c, got);
            for (int a = 0; a < ARRAYS; a++) {
                double allowed = a == 2 && i & 1 ? 0x1p-7 : 3e-6, largest = 1; /* seen: 8e-4, 4e-7 */
                for (int j = 0; j < ROWS * WIDE; j++) {
                    largest = fmax(largest, fabs((double)wanted[a][j]));
                }
                for (int j = 0; j < ROWS * WIDE; j++) {
                    if (!(fabs((double)wanted[a][j] - (double)got[a][j]) <= allowed * largest)) {
                        fail_msg("%s, width %d, array %d, element %d: %g, not %g", kernels->name, (int)c, a, j,
                                 (double)got[a][j], (double)wanted[a][j]);
                    }
                }
            }
        }
    }
    assert_null(hd_kernels_named("sse"));
}
