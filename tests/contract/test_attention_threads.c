/* Threads of a rank: the same bits whatever their number, for every method, mask, type and sharing of heads. */
#include "case.h"

#include "runtime/verify/random.h"

#include <heddle/heddle.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAYS = 8 }; /* q k v o do dq dk dv */

typedef struct job {
    const char *shape, *mesh, *layout;
    heddle_attention_method method;
    int kv_heads, causal, zigzag, projected, with_nan;
} job;

typedef struct run {
    char *data[ARRAYS], *lse, *e[4];
    size_t bytes[ARRAYS], lse_bytes, e_bytes;
} run;

static void fill(char *data, size_t bytes, heddle_dtype dtype, uint64_t seed)
{
    random_source source = {seed};
    size_t elem = heddle_dtype_bytes(dtype);
    for (size_t i = 0; i < bytes / elem; i++) {
        double value = random_unit(&source);
        float narrow = (float)value;
        uint32_t bits;
        memcpy(&bits, &narrow, 4);
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(data + i * elem,
               dtype == HEDDLE_F64   ? (void *)&value
               : dtype == HEDDLE_F32 ? (void *)&narrow
                                     : &half,
               elem);
    }
}

static heddle_status run_once(run *out, heddle_comm *comm, const job *j, int threads)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_box box;
    heddle_attention *attention = NULL;
    heddle_attention_options options;
    heddle_attention_rows rows;
    heddle_attention_array x[ARRAYS];
    int rank = heddle_comm_rank(comm);
    HD_OK(heddle_shape_parse(&shape, j->shape));
    HD_OK(heddle_mesh_parse(&mesh, j->mesh));
    HD_OK(heddle_layout_parse(&layout, j->layout, &shape, &mesh));
    HD_OK(heddle_layout_box(&box, &shape, &mesh, &layout, rank));
    heddle_attention_options_init(&options);
    options.method = j->method;
    options.kv_heads = j->kv_heads;
    options.causal = j->causal;
    options.placement = j->zigzag ? HEDDLE_PLACEMENT_ZIGZAG : HEDDLE_PLACEMENT_CONTIGUOUS;
    options.projected_length = j->projected;
    options.log_sum_exp = 1;
    options.threads = threads;
    HD_OK(heddle_attention_local_rows(&rows, &shape, &mesh, &layout, options.placement, rank));
    memset(x, 0, sizeof x);
    memset(out, 0, sizeof *out);
    size_t elem = heddle_dtype_bytes(shape.dtype), real = shape.dtype == HEDDLE_F64 ? 8 : 4;
    for (int i = 0; i < ARRAYS; i++) {
        int of_keys = i == 1 || i == 2 || i == 6 || i == 7;
        int64_t heads = of_keys && j->kv_heads > 0 ? j->kv_heads : box.len[2];
        out->bytes[i] = (size_t)(box.len[0] * rows.rows * heads * box.len[3]) * elem;
        out->data[i] = calloc(1, out->bytes[i] + 8);
        fill(out->data[i], out->bytes[i], shape.dtype, (uint64_t)(100 * rank + i));
        x[i].data = out->data[i];
    }
    if (j->with_nan && rank == 0) {
        memset(out->data[1], 0xff, elem); /* a NaN in the first key */
    }
    out->lse_bytes = (size_t)(box.len[0] * rows.rows * box.len[2]) * real;
    out->lse = calloc(1, out->lse_bytes + 8);
    HD_OK(heddle_attention_create(&attention, comm, &shape, &mesh, &layout, &options));
    if (j->projected > 0) {
        out->e_bytes = (size_t)(j->projected * rows.rows) * elem;
        for (int i = 0; i < 4; i++) {
            out->e[i] = calloc(1, out->e_bytes + 8);
            fill(out->e[i], out->e_bytes, shape.dtype, (uint64_t)(1000 + 100 * rank + i));
        }
        HD_OK(heddle_attention_set_projection(attention, out->e[0], out->e[1], out->e[2], out->e[3]));
    }
    HD_OK(heddle_attention_forward(attention, &x[0], &x[1], &x[2], &x[3], out->lse, HEDDLE_NO_STREAM));
    HD_OK(heddle_attention_backward(attention, &x[4], &x[5], &x[6], &x[7], HEDDLE_NO_STREAM));
    heddle_attention_destroy(attention);
    return HEDDLE_OK;
}

static void free_run(run *r)
{
    for (int i = 0; i < ARRAYS; i++) {
        free(r->data[i]);
    }
    for (int i = 0; i < 4; i++) {
        free(r->e[i]);
    }
    free(r->lse);
}

static heddle_status compare(heddle_comm *comm, void *arg)
{
    static const int counts[] = {3, 16, 2};
    const job *j = arg;
    run one, many;
    int same = 1;
    HD_OK(run_once(&one, comm, j, 0));
    for (int i = 0; i < hd_rounds(3); i++) {
        HD_OK(run_once(&many, comm, j, counts[i]));
        for (int a = 3; a < ARRAYS; a++) {
            same &= memcmp(one.data[a], many.data[a], one.bytes[a]) == 0;
        }
        same &= memcmp(one.lse, many.lse, one.lse_bytes) == 0;
        for (int a = 2; a < 4 && j->projected > 0; a++) {
            same &= memcmp(one.e[a], many.e[a], one.e_bytes) == 0;
        }
        free_run(&many);
        if (!same) {
            fprintf(stderr, "%s on %s, %s, method %d, %d key heads, causal %d: %d threads differ from one\n", j->shape,
                    j->mesh, j->layout, (int)j->method, j->kv_heads, j->causal, counts[i]);
        }
    }
    free_run(&one);
    return same ? HEDDLE_OK : HEDDLE_ERR_MISMATCH;
}

static void try_all(const char *dtype)
{
    char shape[96];
    for (int m = 0; m < HEDDLE_ATTENTION_METHOD_COUNT; m++) {
        for (int variant = 0; variant < 6; variant++) {
            if (variant != m % 6 && !hd_goes("%s %d %d", dtype, m, variant)) {
                continue;
            }
            int local = m == HEDDLE_ATTENTION_LOCAL, usp = m == HEDDLE_ATTENTION_USP;
            job j = {.shape = shape,
                     .mesh = usp ? "[a=2 b=2]" : "[sp=2]",
                     .layout = local ? "b@sp"
                               : usp ? "s@a,s@b"
                                     : "s@sp",
                     .method = (heddle_attention_method)m,
                     .causal = variant % 2,
                     .zigzag = variant == 3,
                     .kv_heads = variant == 2 || variant == 3 ? 2 : 0,
                     .with_nan = variant == 5};
            /* one head and sample: queries are cut */
            const char *sizes = variant < 4 ? "[b=2 s=150 h=4 d=16]" : "[b=2 s=261 h=1 d=12]";
            snprintf(shape, sizeof shape, "%s%s", dtype, sizes);
            HD_OK(heddle_run_ranks(usp ? 4 : 2, "threads", compare, &j));
        }
    }
    job projected = {
        .shape = shape, .mesh = "[sp=2]", .layout = "s@sp", .method = HEDDLE_ATTENTION_RSA, .projected = 9};
    snprintf(shape, sizeof shape, "%s[b=2 s=61 h=4 d=8]", dtype);
    HD_OK(heddle_run_ranks(2, "threads", compare, &projected));
}

HD_CASE(f32_same_bits)
{
    try_all("f32");
}

HD_CASE(bf16_same_bits)
{
    try_all("bf16");
}

HD_CASE(f64_same_bits)
{
    try_all("f64");
}

HD_RANK_CASE(numbers_out_of_range, "1 threads")
{
    static const int bad[] = {-1, 257};
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    HD_OK(heddle_shape_parse(&shape, "f32[b=1 s=8 h=1 d=8]"));
    HD_OK(heddle_mesh_parse(&mesh, "[sp=1]"));
    HD_OK(heddle_layout_parse(&layout, "s@sp", &shape, &mesh));
    for (int i = 0; i < 2; i++) {
        heddle_attention *attention = NULL;
        heddle_attention_options options;
        heddle_attention_options_init(&options);
        options.threads = bad[i];
        HD_FAILS(HEDDLE_ERR_ARG, heddle_attention_create(&attention, comm, &shape, &mesh, &layout, &options));
        assert_non_null(strstr(heddle_last_error(), "threads"));
    }
    return HEDDLE_OK;
}
