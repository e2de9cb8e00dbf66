/* Chunked linear attention on one thread against the sgemm of oneDNN in the same run.
 *
 *   bench_linear [ROWS [HEADS]]     HEADS: rows are HEADS * d apart, as in an array of so many heads
 *
 * GFLOP/s count what the chunked form needs: half of a chunk's square, and four (backward: eight) products with a
 * state.
 */
#include "kernels/table.h"
#include "runtime/base/base.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SGEMM = 1024, ROUNDS = 15, ARRAYS = 7 };

typedef struct bench {
    const hd_linear_kernels *kernels;
    int64_t rows, chunk, d, stride; /* of rows */
    float *memory[ARRAYS];          /* q k v d_o o, dq dk dv in the last ones */
    float *state[2];
    void *scratch;
} bench;

static double sgemm_gflops(void)
{
    size_t elems = (size_t)SGEMM * SGEMM;
    float *a = calloc(3 * elems, sizeof *a);
    double best = 0;
    for (int i = 0; i < ROUNDS && a != NULL; i++) {
        int64_t start_ns = hd_now_ns();
        dnnl_sgemm('N', 'N', SGEMM, SGEMM, SGEMM, 1, a, SGEMM, a + elems, SGEMM, 0, a + 2 * elems, SGEMM);
        double rate = 2.0 * SGEMM * SGEMM * SGEMM / (double)(hd_now_ns() - start_ns);
        best = rate > best ? rate : best;
    }
    free(a);
    return best;
}

static hd_linear_rows rows_at(const bench *b, int which, int64_t row)
{
    return (hd_linear_rows){
        .data = b->memory[which] + row * b->stride, .row = b->stride, .column = 1, .dtype = HEDDLE_F32};
}

static void chunk_at(hd_linear_chunk *c, const bench *b, int64_t row)
{
    c->rows = b->rows - row < b->chunk ? b->rows - row : b->chunk;
    c->q = rows_at(b, 0, row);
    c->k = rows_at(b, 1, row);
    c->v = rows_at(b, 2, row);
    c->d_o = rows_at(b, 3, row);
    c->o = c->dq = c->o_so_far = rows_at(b, 4, row);
    c->dk = c->dk_so_far = rows_at(b, 5, row);
    c->dv = c->dv_so_far = rows_at(b, 6, row);
}

static void forward_whole(const bench *b, const hd_linear_chunk *c)
{
    b->kernels->forward(b->scratch, c, b->state[0]);
}

/* As when the state comes from another rank. */
static void forward_in_parts(const bench *b, const hd_linear_chunk *c)
{
    b->kernels->states(b->scratch, c, 0, b->state[1], NULL);
    b->kernels->inner(b->scratch, c);
    b->kernels->outer(b->scratch, c, b->state[0], NULL);
    b->kernels->fold(b->state[0], 0.5, b->state[0], b->state[1], b->d * b->kernels->padded(b->d));
}

static void backward(const bench *b, const hd_linear_chunk *c)
{
    b->kernels->states(b->scratch, c, 1, NULL, b->state[1]);
    b->kernels->inner_back(b->scratch, c, b->state[0], NULL);
    b->kernels->outer_back(b->scratch, c, NULL, b->state[0]);
    b->kernels->fold(b->state[0], 0.5, b->state[0], b->state[1], b->d * b->kernels->padded(b->d));
}

static double gflops(const bench *b, void (*work)(const bench *, const hd_linear_chunk *), int is_backward)
{
    const hd_linear_dims dims = {b->d, b->d, b->chunk, 0};
    double best = 0, d = (double)b->d, half = ((double)b->chunk + 1) / 2;
    double flops = (double)b->rows * (is_backward ? 2 * half * 5 * d + 8 * d * d : 2 * half * 2 * d + 4 * d * d);
    for (int i = 0; i < ROUNDS; i++) {
        int64_t start_ns = hd_now_ns();
        memset(b->state[0], 0, (size_t)(b->d * b->kernels->padded(b->d)) * sizeof(float));
        b->kernels->begin(b->scratch, &dims, 0.99);
        for (int64_t row = 0; row < b->rows; row += b->chunk) {
            hd_linear_chunk c;
            chunk_at(&c, b, row);
            work(b, &c);
        }
        double rate = flops / (double)(hd_now_ns() - start_ns);
        best = rate > best ? rate : best;
    }
    return best;
}

static void bench_one(const hd_linear_kernels *kernels, int64_t rows, int64_t chunk, int64_t d, int64_t heads)
{
    bench b = {.kernels = kernels, .rows = rows, .chunk = chunk, .d = d, .stride = heads * d};
    const hd_linear_dims dims = {d, d, chunk, 0};
    for (int i = 0; i < ARRAYS; i++) {
        b.memory[i] = malloc((size_t)(rows * b.stride) * sizeof(float));
        for (int64_t e = 0; e < rows * b.stride; e++) {
            b.memory[i][e] = (float)((e * 7919 + i) % 1000) / 500 - 1;
        }
    }
    for (int i = 0; i < 2; i++) {
        b.state[i] = calloc((size_t)(d * kernels->padded(d)), sizeof(float));
    }
    b.scratch = aligned_alloc(64, (kernels->scratch_bytes(&dims) + 127) / 64 * 64);
    double sgemm = sgemm_gflops(), whole = gflops(&b, forward_whole, 0);
    double parts = gflops(&b, forward_in_parts, 0), back = gflops(&b, backward, 1);
    printf(
        "%-10s d %4lld chunk %4lld  sgemm %7.1f  forward %7.1f (%.2f)  in parts %7.1f (%.2f)  backward %7.1f (%.2f)\n",
        kernels->name, (long long)d, (long long)chunk, sgemm, whole, whole / sgemm, parts, parts / sgemm, back,
        back / sgemm);
    for (int i = 0; i < ARRAYS; i++) {
        free(b.memory[i]);
    }
    free(b.state[0]);
    free(b.state[1]);
    free(b.scratch);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"avx512", "avx2"};
    int64_t rows = argc > 1 ? atoll(argv[1]) : 4096, heads = argc > 2 ? atoll(argv[2]) : 1;
    if (rows < 1 || rows > 1 << 20 || heads < 1 || heads > 64) {
        fprintf(stderr,
                "usage: bench_linear [ROWS [HEADS]]   rows 1 to %d, heads 1 to 64; OMP_NUM_THREADS=1 for oneDNN\n",
                1 << 20);
        return 2;
    }
    for (int k = 0; k < 2; k++) {
        const hd_kernels *kernels = hd_kernels_named(names[k]);
        for (int64_t d = 64; d <= 128 && kernels != NULL; d += 64) {
            for (int64_t chunk = 64; chunk <= 256; chunk *= 2) {
                bench_one(&kernels->linear_f32, rows, chunk, d, heads);
            }
        }
    }
    return 0;
}
