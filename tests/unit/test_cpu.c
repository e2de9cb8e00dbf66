/* HEDDLE_CPU: the library computes with the instruction set it names, and refuses one that it does not know. Every case
 * is a process of its own, and the variable is read where an object is made. */
#include "case.h"
#include "kernels/cpu/cpu.h"
#include "kernels/table.h"

#include <heddle/heddle.h>
#include <heddle/sys/bench.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 40, HEADS = 2, WIDTH = 24, ELEMS = ROWS * HEADS * WIDTH };

typedef struct made {
    char attention[16], copy[32];
    float o[ELEMS];
} made;

static void parse(heddle_shape *shape, heddle_mesh *mesh, heddle_layout *layout, const char *text)
{
    HD_OK(heddle_shape_parse(shape, text));
    HD_OK(heddle_mesh_parse(mesh, "[sp=1]"));
    HD_OK(heddle_layout_parse(layout, "*", shape, mesh));
}

static heddle_status reshard(heddle_comm *comm, made *out)
{
    heddle_reshard *plan = NULL;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_reshard_options options;
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_reshard_options_init(&options);
    options.tuning = HEDDLE_TUNING_RULES;
    parse(&shape, &mesh, &layout, "f32[t=7 s=9 c=5]");
    heddle_status st = heddle_reshard_create(&plan, comm, &shape, &mesh, &layout, &layout, &options);
    if (st == HEDDLE_OK) {
        st = heddle_reshard_get_info(&info, plan);
        snprintf(out->copy, sizeof out->copy, "%s", info.kernel);
    }
    heddle_reshard_destroy(plan);
    return st;
}

static heddle_status attend(heddle_comm *comm, made *out)
{
    static float x[3][ELEMS];
    heddle_attention *attention = NULL;
    heddle_attention_info info = HEDDLE_EMPTY(heddle_attention_info);
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    parse(&shape, &mesh, &layout, "f32[b=1 s=40 h=2 d=24]");
    for (int i = 0; i < 3 * ELEMS; i++) {
        x[i / ELEMS][i % ELEMS] = (float)(i * 7919 % 1999) / 1000 - 1;
    }
    heddle_attention_array q = {.data = x[0]}, k = {.data = x[1]}, v = {.data = x[2]}, o = {.data = out->o};
    heddle_status st = heddle_attention_create(&attention, comm, &shape, &mesh, &layout, NULL);
    if (st == HEDDLE_OK) {
        st = heddle_attention_forward(attention, &q, &k, &v, &o, NULL, HEDDLE_NO_STREAM);
    }
    if (st == HEDDLE_OK) {
        st = heddle_attention_get_info(&info, attention);
        snprintf(out->attention, sizeof out->attention, "%s", info.kernel);
    }
    heddle_attention_destroy(attention);
    return st;
}

static heddle_status make_all(heddle_comm *comm, void *arg)
{
    heddle_status st = reshard(comm, arg);
    return st == HEDDLE_OK ? attend(comm, arg) : st;
}

HD_CASE(the_library_runs_on_each)
{
    static made with[HD_ISAS];
    int widest = hd_cpu_isa();
    for (int isa = 0; isa <= widest; isa++) {
        setenv("HEDDLE_CPU", hd_isa_name[isa], 1);
        HD_OK(heddle_run_ranks(1, "threads", make_all, &with[isa]));
        assert_string_equal(with[isa].attention, hd_isa_name[isa]);
        for (int wider = isa + 1; wider < HD_ISAS; wider++) {
            assert_null(strstr(with[isa].copy, hd_isa_name[wider]));
        }
        for (int i = 0; i < ELEMS; i++) {
            assert_true(fabsf(with[isa].o[i] - with[0].o[i]) < 1e-5f);
        }
    }
    if (widest < HD_ISA_AVX512) {
        hd_not_here("avx512", "this CPU has no avx512");
    }
    if (widest < HD_ISA_AVX2) {
        hd_not_here("avx2", "this CPU has no avx2");
    }
}

HD_CASE(nothing_named_is_the_widest)
{
    const hd_kernels *any = NULL, *empty = NULL;
    unsetenv("HEDDLE_CPU");
    HD_OK(hd_kernels_cpu(&any));
    setenv("HEDDLE_CPU", "", 1);
    HD_OK(hd_kernels_cpu(&empty));
    assert_ptr_equal(any, empty);
    setenv("HEDDLE_CPU", "generic", 1);
    assert_null(hd_kernels_named("avx2"));
    assert_non_null(hd_kernels_named("generic"));
    for (int i = 0; heddle_copy_kernel_name(i, NULL) != NULL; i++) {
        assert_null(strstr(heddle_copy_kernel_name(i, NULL), "avx"));
    }
}

static heddle_status make_reshard(heddle_comm *comm, void *arg)
{
    return reshard(comm, arg);
}

static heddle_status make_attention(heddle_comm *comm, void *arg)
{
    return attend(comm, arg);
}

HD_CASE(misspelt_is_refused)
{
    static made out;
    float one = 1;
    setenv("HEDDLE_CPU", "avx51", 1);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_run_ranks(1, "threads", make_reshard, &out));
    assert_non_null(strstr(heddle_last_error(), "HEDDLE_CPU is 'avx51', wanted avx512, avx2 or generic"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_run_ranks(1, "threads", make_attention, &out));
    assert_null(heddle_copy_kernel_name(0, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_dense_forward(&one, &one, 1, 1, &one, NULL, 1, 1, HEDDLE_NO_STREAM));
    assert_non_null(strstr(heddle_last_error(), "HEDDLE_CPU is 'avx51', wanted avx512, avx2 or generic"));
}
