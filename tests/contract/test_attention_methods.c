/* Every attention method against the double-precision reference on real ranks: outputs, gradients, identities, bytes.
 */
#include "case.h"
#include "found.h"

#include "runtime/verify/attention_check.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <string.h>

typedef struct job {
    const char *shape, *mesh, *layout;
    int method; /* -1: any */
    int count;  /* random cases; 0: the one above in all its variants */
    uint64_t seed;
    heddle_dtype dtype;
} job;

static heddle_status check(heddle_comm *comm, const attention_case *c)
{
    char text[2048], problem[ATTENTION_PROBLEM_BYTES];
    heddle_status st = attention_check(comm, c, problem, NULL, NULL);
    attention_describe(text, sizeof text, c);
    return found(comm, st, problem, text);
}

static heddle_status random_cases(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    random_source source = {j->seed};
    heddle_status st = HEDDLE_OK;
    for (int done = 0; done < j->count && st == HEDDLE_OK;) {
        attention_case c;
        attention_draw(&c, &source, heddle_comm_size(comm), j->dtype);
        if (j->method < 0 || (int)c.options.method == j->method) {
            st = check(comm, &c);
            done++;
        }
    }
    return st;
}

static void run_random(int ranks, const char *transport, int method, int count)
{
    job j = {.method = method, .count = hd_rounds(count), .seed = 100 + (uint64_t)ranks, .dtype = HEDDLE_DTYPE_COUNT};
    HD_OK(heddle_run_ranks(ranks, transport, random_cases, &j));
}

HD_CASE(any_method_on_threads)
{
    for (int ranks = 1; ranks <= 8; ranks++) {
        run_random(ranks, "threads", -1, 25);
    }
}

HD_CASE(any_method_on_processes)
{
    for (int ranks = 2; ranks <= 5; ranks++) {
        run_random(ranks, "shm", -1, 15);
    }
}

/* The same problem by all methods, masks and placements, f64. */
static heddle_status all_variants(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    heddle_status st = HEDDLE_OK;
    attention_case c = {.seed = 7};
    st = heddle_shape_parse(&c.shape, j->shape);
    st = st != HEDDLE_OK ? st : heddle_mesh_parse(&c.mesh, j->mesh);
    st = st != HEDDLE_OK ? st : heddle_layout_parse(&c.layout, j->layout, &c.shape, &c.mesh);
    for (int variant = 0; variant < 6 * 2 * 2 * 2 * 2 && st == HEDDLE_OK; variant++) {
        int method = variant / 16;
        heddle_attention_options_init(&c.options);
        c.options.method = (heddle_attention_method)method;
        c.options.causal = variant & 1;
        c.options.placement = variant & 2 ? HEDDLE_PLACEMENT_ZIGZAG : HEDDLE_PLACEMENT_CONTIGUOUS;
        c.options.kv_heads = variant & 4 ? 2 : 0;
        c.options.log_sum_exp = c.options.rsa_all_reduce = (variant & 8) != 0;
        if (method != HEDDLE_ATTENTION_RSA) {
            c.options.rsa_all_reduce = 0;
        }
        if ((method == HEDDLE_ATTENTION_USP && heddle_axis_index(&c.mesh, "ring") < 0) ||
            (method == HEDDLE_ATTENTION_LOCAL && heddle_comm_size(comm) > 1)) {
            continue;
        }
        if (variant % 16 != 0 && !hd_goes("%s %d", j->mesh, variant)) {
            continue;
        }
        st = check(comm, &c);
    }
    return st;
}

HD_CASE(every_variant_of_one_problem)
{
    job one = {.shape = "f64[b=2 s=37 h=6 d=16]", .mesh = "[sp=4]", .layout = "s@sp"};
    HD_OK(heddle_run_ranks(4, "threads", all_variants, &one));
    job two = {.shape = "f64[b=1 s=29 h=4 d=8]", .mesh = "[ring=2 ul=3]", .layout = "s@ring,s@ul"};
    HD_OK(heddle_run_ranks(6, "threads", all_variants, &two));
    job tensor = {.shape = "f64[b=3 s=21 h=4 d=8]", .mesh = "[dp=2 tp=2 sp=2]", .layout = "b@dp,h@tp,s@sp"};
    HD_OK(heddle_run_ranks(8, "threads", all_variants, &tensor));
}

/* --- the formulas of the papers ----------------------------------------------------------------------------------- */

static heddle_attention_traffic plan(const char *shape_text, const char *mesh_text, const char *layout_text,
                                     const heddle_attention_options *options, int rank)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention_traffic traffic;
    HD_OK(heddle_shape_parse(&shape, shape_text));
    HD_OK(heddle_mesh_parse(&mesh, mesh_text));
    HD_OK(heddle_layout_parse(&layout, layout_text, &shape, &mesh));
    HD_OK(heddle_attention_plan_traffic(&traffic, &shape, &mesh, &layout, options, rank));
    return traffic;
}

HD_CASE(traffic_is_that_of_the_papers)
{
    /* B = 3, L = 64, Z = 8, A = 16, N = 4: one block is B Z c A elements */
    const char *shape = "f32[b=3 s=64 h=8 d=16]", *mesh = "[sp=4]";
    const int64_t block = 3 * 8 * 16 * 16 * 4, n = 4, m = 4 * block; /* m: the whole activation */
    heddle_attention_options o;
    heddle_attention_options_init(&o);
    o.method = HEDDLE_ATTENTION_RSA;
    heddle_attention_traffic t = plan(shape, mesh, "s@sp", &o, 1);
    assert_int_equal(t.forward_bytes, 2 * (n - 1) * block);
    assert_int_equal(t.backward_bytes, 4 * (n - 1) * block);
    o.rsa_all_reduce = 1;
    t = plan(shape, mesh, "s@sp", &o, 2);
    assert_int_equal(t.forward_bytes, 2 * (n - 1) * block);
    assert_int_equal(t.backward_bytes, 6 * (n - 1) * block);
    o.rsa_all_reduce = 0;
    o.method = HEDDLE_ATTENTION_RING;
    t = plan(shape, mesh, "s@sp", &o, 3);
    assert_int_equal(t.forward_bytes, 2 * (n - 1) * block);
    assert_int_equal(t.backward_bytes, 4 * (n - 1) * block);
    assert_int_equal(t.forward_messages, n - 1);
    t = plan("bf16[b=3 s=64 h=8 d=16]", mesh, "s@sp", &o, 3); /* gradients travel in f32 */
    assert_int_equal(t.backward_bytes, (n - 1) * (block + 2 * block));
    o.method = HEDDLE_ATTENTION_ULYSSES; /* (2 + 2/g) (M/N) f, forward and backward */
    for (int64_t g = 1; g <= 2; g++) {
        o.kv_heads = 8 / g;
        t = plan(shape, mesh, "s@sp", &o, 0);
        assert_int_equal(t.forward_bytes, (2 * g + 2) * (m / n) * (n - 1) / n / g);
        assert_int_equal(t.backward_bytes, t.forward_bytes);
    }
}

/* --- bad input ---------------------------------------------------------------------------------------------------- */

static heddle_status create(heddle_comm *comm, const char *shape_text, const char *layout_text,
                            const heddle_attention_options *options)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention *attention = NULL;
    char mesh_text[32];
    snprintf(mesh_text, sizeof mesh_text, "[sp=%d]", heddle_comm_size(comm));
    heddle_status st = heddle_shape_parse(&shape, shape_text);
    st = st != HEDDLE_OK ? st : heddle_mesh_parse(&mesh, mesh_text);
    st = st != HEDDLE_OK ? st : heddle_layout_parse(&layout, layout_text, &shape, &mesh);
    st = st != HEDDLE_OK ? st : heddle_attention_create(&attention, comm, &shape, &mesh, &layout, options);
    heddle_attention_destroy(attention);
    return st;
}

HD_RANK_CASE(bad_input_is_refused_on_every_rank, "3 threads")
{
    heddle_attention_options o;
    heddle_attention_options_init(&o);
    const char *good = "f32[b=1 s=8 h=6 d=4]";
    HD_FAILS(HEDDLE_ERR_LAYOUT, create(comm, good, "s@sp", &o)); /* local, but sharded */
    o.method = HEDDLE_ATTENTION_USP;
    HD_FAILS(HEDDLE_ERR_LAYOUT, create(comm, good, "s@sp", &o)); /* one axis */
    o.method = HEDDLE_ATTENTION_RING;
    HD_FAILS(HEDDLE_ERR_LAYOUT, create(comm, good, "d@sp", &o));
    HD_FAILS(HEDDLE_ERR_LAYOUT, create(comm, good, "sum@sp", &o));
    HD_FAILS(HEDDLE_ERR_LAYOUT, create(comm, "f32[b=1 s=8 d=4]", "s@sp", &o));
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, create(comm, "i32[b=1 s=8 h=6 d=4]", "s@sp", &o));
    o.kv_heads = 4;
    HD_FAILS(HEDDLE_ERR_ARG, create(comm, good, "s@sp", &o));
    o.kv_heads = 0;
    o.projected_length = 3;
    HD_FAILS(HEDDLE_ERR_ARG, create(comm, good, "s@sp", &o)); /* a ring has no projection */
    o.method = HEDDLE_ATTENTION_RSA;
    o.causal = 1;
    HD_FAILS(HEDDLE_ERR_ARG, create(comm, good, "s@sp", &o));
    o.projected_length = 0;
    int64_t lengths[1] = {9};
    o.key_lengths = lengths;
    HD_FAILS(HEDDLE_ERR_ARG, create(comm, good, "s@sp", &o));
    lengths[0] = 8;
    HD_OK(create(comm, good, "s@sp", &o));
    o.scale = heddle_comm_rank(comm) == 1 ? 2 : 1; /* found by every rank */
    HD_FAILS(HEDDLE_ERR_MISMATCH, create(comm, good, "s@sp", &o));
    return strstr(heddle_last_error(), "rank 1") != NULL && strstr(heddle_last_error(), "scale") != NULL
               ? HEDDLE_OK
               : HEDDLE_ERR_INTERNAL;
}

/* A mistake of one rank in a call ends the call on all of them. */
HD_RANK_CASE(a_mistake_of_one_rank_ends_the_call_of_all, "3 threads")
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention *attention = NULL;
    heddle_attention_options o;
    int rank = heddle_comm_rank(comm);
    float data[8 * 8 * 4] = {0};
    heddle_attention_array x = {.data = data}, nothing = {.data = NULL};
    heddle_attention_options_init(&o);
    o.method = HEDDLE_ATTENTION_RING;
    HD_OK(heddle_shape_parse(&shape, "f32[b=1 s=24 h=2 d=4]"));
    HD_OK(heddle_mesh_parse(&mesh, "[sp=3]"));
    HD_OK(heddle_layout_parse(&layout, "s@sp", &shape, &mesh));
    HD_OK(heddle_attention_create(&attention, comm, &shape, &mesh, &layout, &o));
    heddle_status st =
        heddle_attention_forward(attention, rank == 1 ? &nothing : &x, &x, &x, &x, NULL, HEDDLE_NO_STREAM);
    heddle_attention_destroy(attention);
    return st == (rank == 1 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER) ? HEDDLE_OK : HEDDLE_ERR_INTERNAL;
}

/* --- NaN ---------------------------------------------------------------------------------------------------------- */

static heddle_status nan_of(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const attention_case *base = arg;
    for (int method = HEDDLE_ATTENTION_ULYSSES; method < HEDDLE_ATTENTION_USP && st == HEDDLE_OK; method++) {
        attention_case c = *base;
        c.options.method = (heddle_attention_method)method;
        st = check(comm, &c);
    }
    return st;
}

HD_CASE(nan_goes_where_one_process_puts_it)
{
    for (int dtype = 0; dtype < 2; dtype++) {
        attention_case c = {.seed = 3, .nan_at = 97};
        HD_OK(heddle_shape_parse(&c.shape, dtype ? "f32[b=1 s=150 h=2 d=20]" : "f64[b=1 s=40 h=2 d=8]"));
        HD_OK(heddle_mesh_parse(&c.mesh, "[sp=3]"));
        HD_OK(heddle_layout_parse(&c.layout, "s@sp", &c.shape, &c.mesh));
        heddle_attention_options_init(&c.options);
        c.options.causal = 1;
        c.options.log_sum_exp = 1;
        HD_OK(heddle_run_ranks(3, "threads", nan_of, &c));
    }
}
