/* bf16 is a way to store: every method gives the bits of the same work in f32, rounded once. And who holds which rows.
 */
#include "case.h"

#include "runtime/verify/random.h"

#include <heddle/heddle.h>
#include <heddle/sys/index.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAYS = 8, INPUTS = 4, HEADS = 4, ROWS = 53, WIDTH = 24 }; /* q k v do o dq dk dv */

typedef struct job {
    heddle_attention_method method;
    int causal, zigzag;
} job;

typedef struct result {
    uint16_t *half[ARRAYS];
    float *wide[ARRAYS], *lse;
    int64_t elems, rows;
} result;

/* Round to nearest even; written out here, so that nothing judges itself. */
static uint16_t narrow(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t low = bits & 0xffff, up = low > 0x8000 || (low == 0x8000 && (bits >> 16 & 1) != 0);
    return (uint16_t)((bits >> 16) + up);
}

static float widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void make(result *r, int64_t rows, int rank)
{
    random_source source = {(uint64_t)rank + 1};
    r->rows = rows;
    r->elems = 2 * rows * HEADS * WIDTH;
    r->lse = calloc((size_t)(2 * HEADS * rows) + 1, sizeof(float));
    for (int i = 0; i < ARRAYS; i++) {
        r->half[i] = calloc((size_t)r->elems + 1, sizeof(uint16_t));
        r->wide[i] = calloc((size_t)r->elems + 1, sizeof(float));
        for (int64_t e = 0; e < r->elems && i < INPUTS; e++) {
            r->half[i][e] = narrow((float)random_unit(&source));
            r->wide[i][e] = widen(r->half[i][e]);
        }
    }
}

static void free_result(result *r)
{
    for (int i = 0; i < ARRAYS; i++) {
        free(r->half[i]);
        free(r->wide[i]);
    }
    free(r->lse);
}

static heddle_status run(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    int usp = j->method == HEDDLE_ATTENTION_USP, local = j->method == HEDDLE_ATTENTION_LOCAL, wrong = 0;
    result r = {.lse = NULL};
    float *first_lse = NULL;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        char text[64];
        heddle_shape shape;
        heddle_mesh mesh;
        heddle_layout layout;
        heddle_attention *a = NULL;
        heddle_attention_options options;
        heddle_attention_rows rows;
        heddle_attention_array x[ARRAYS] = {{.data = NULL}};
        snprintf(text, sizeof text, "%s[b=%d s=%d h=%d d=%d]", bf16 ? "bf16" : "f32", local ? 8 : 2, ROWS, HEADS,
                 WIDTH);
        HD_OK(heddle_shape_parse(&shape, text));
        HD_OK(heddle_mesh_parse(&mesh, usp ? "[a=2 b=2]" : "[sp=4]"));
        HD_OK(heddle_layout_parse(&layout, local ? "b@sp" : usp ? "s@a,s@b" : "s@sp", &shape, &mesh));
        heddle_attention_options_init(&options);
        options.method = j->method;
        options.causal = j->causal;
        options.placement = j->zigzag ? HEDDLE_PLACEMENT_ZIGZAG : HEDDLE_PLACEMENT_CONTIGUOUS;
        options.log_sum_exp = 1;
        HD_OK(heddle_attention_local_rows(&rows, &shape, &mesh, &layout, options.placement, heddle_comm_rank(comm)));
        if (!bf16) {
            make(&r, rows.rows, heddle_comm_rank(comm));
            first_lse = calloc((size_t)(2 * HEADS * r.rows) + 1, sizeof(float));
        }
        for (int i = 0; i < ARRAYS; i++) {
            x[i].data = bf16 ? (void *)r.half[i] : (void *)r.wide[i];
        }
        HD_OK(heddle_attention_create(&a, comm, &shape, &mesh, &layout, &options));
        HD_OK(heddle_attention_forward(a, &x[0], &x[1], &x[2], &x[4], bf16 ? r.lse : first_lse, HEDDLE_NO_STREAM));
        HD_OK(heddle_attention_backward(a, &x[3], &x[5], &x[6], &x[7], HEDDLE_NO_STREAM));
        heddle_attention_destroy(a);
    }
    for (int i = INPUTS; i < ARRAYS; i++) {
        int64_t differ = 0;
        for (int64_t e = 0; e < r.elems; e++) {
            differ += r.half[i][e] != narrow(r.wide[i][e]);
        }
        if (differ > 0) {
            static const char *const name[] = {"o", "dq", "dk", "dv"};
            fprintf(stderr, "%s, causal %d, zigzag %d: %lld of %lld elements of %s are not f32's, rounded\n",
                    heddle_attention_method_name(j->method), j->causal, j->zigzag, (long long)differ,
                    (long long)r.elems, name[i - INPUTS]);
            wrong = 1;
        }
    }
    wrong |= memcmp(r.lse, first_lse, (size_t)(2 * HEADS * r.rows) * sizeof(float)) != 0;
    free(first_lse);
    free_result(&r);
    return wrong ? HEDDLE_ERR_MISMATCH : HEDDLE_OK;
}

HD_CASE(bf16_is_f32_rounded_once)
{
    for (int m = 0; m < HEDDLE_ATTENTION_METHOD_COUNT; m++) {
        for (int variant = 0; variant < 3; variant++) {
            job j = {(heddle_attention_method)m, variant > 0, variant > 1};
            HD_OK(heddle_run_ranks(4, "threads", run, &j));
        }
    }
}

/* Of 2N balanced chunks member i holds chunk i, then chunk 2N-1-i. */
HD_CASE(zigzag_rows)
{
    for (int n = 1; n <= 5; n++) {
        for (int64_t sequence = 0; sequence < 24; sequence++) {
            heddle_shape shape;
            heddle_mesh mesh = {.naxes = 1, .axis = {{"sp", n}}};
            heddle_layout layout = heddle_layout_replicated();
            HD_OK(heddle_shape_parse(&shape, "f32[b=1 s=1 h=1 d=1]"));
            shape.dim[1].extent = sequence;
            layout.dim_of_axis[0] = 1;
            for (int i = 0; i < n; i++) {
                heddle_attention_rows rows;
                HD_OK(heddle_attention_local_rows(&rows, &shape, &mesh, &layout, HEDDLE_PLACEMENT_ZIGZAG, i));
                const int chunk[] = {i, 2 * n - 1 - i};
                for (int c = 0; c < 2; c++) {
                    assert_int_equal(rows.lo[c], heddle_shard_start(sequence, 2 * n, chunk[c]));
                    assert_int_equal(rows.len[c], heddle_shard_len(sequence, 2 * n, chunk[c]));
                }
                assert_int_equal(rows.rows, rows.len[0] + rows.len[1]);
            }
        }
    }
}
