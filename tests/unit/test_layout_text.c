/* Text forms: what is read, how it is printed, and where errors are. */
#include "case.h"

#include <heddle/reshard.h>
#include <string.h>

/* Reads a line and prints it; the shortest form must come out, and come out again of itself. */
static void prints_as(const char *text, const char *wanted)
{
    heddle_reshard_line line, again;
    char first[HEDDLE_LINE_BYTES], second[HEDDLE_LINE_BYTES];
    HD_OK(heddle_reshard_parse(&line, text));
    HD_OK(heddle_reshard_format(first, sizeof first, &line));
    assert_string_equal(first, wanted);
    HD_OK(heddle_reshard_parse(&again, first));
    HD_OK(heddle_reshard_format(second, sizeof second, &again));
    assert_string_equal(second, wanted);
    assert_memory_equal(&again, &line, sizeof line);
}

HD_CASE(canonical_lines)
{
    const char *same[] = {
        "bf16[b=2 t=30 s=1590 c=1152] on [sp=4]: t@sp -> s@sp as b,s,t,c",
        "f64[t=5] on [sp=4]: t@sp(0 4 1 0) -> *",
        "bool[t=7 s_1=5] on [node=2 gpu=4]: t@node,t@gpu -> t@node,sum@gpu as s_1,t",
        "f8e5m2[t=7 s=0] on [node=2 gpu=4]: sum@node,s@gpu -> t@node(7 0),t@gpu",
        "u8[a=4611686018427387904] on [x=1]: * -> a@x",
        "i8[a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1] on [w=1 x=1 y=1 z=1]: a@w,a@x,a@y,a@z -> sum@w,sum@x,sum@y,sum@z",
        "i32[on=2 as=3] on [as=2]: as@as -> on@as as as,on",
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        prints_as(same[i], same[i]);
    }
    prints_as("f32[t=5  s=3]  on[sp=4] :t@sp->s @ sp  ", "f32[t=5 s=3] on [sp=4]: t@sp -> s@sp");
    prints_as("f32[t=5 s=3] on [sp=4]: t@sp as t,s -> s@sp as t, s", "f32[t=5 s=3] on [sp=4]: t@sp -> s@sp");
    prints_as("f32[t=5 s=3] on [sp=4]: t@sp(2 1 1 1) -> s@sp", "f32[t=5 s=3] on [sp=4]: t@sp -> s@sp");
    prints_as("f32[t=5 s=3] on [a=2 b=2]: s@b,t@a -> sum@b,t@a(5 0)",
              "f32[t=5 s=3] on [a=2 b=2]: t@a,s@b -> t@a(5 0),sum@b");
}

static void fails_with(heddle_status wanted, const char *text, const char *sentence)
{
    heddle_reshard_line line;
    memset(&line, 0x5a, sizeof line);
    heddle_reshard_line before = line;
    HD_FAILS(wanted, heddle_reshard_parse(&line, text));
    assert_string_equal(heddle_last_error(), sentence);
    assert_memory_equal(&line, &before, sizeof line); /* written only on success */
}

HD_CASE(errors_have_columns)
{
    fails_with(HEDDLE_ERR_PARSE, "",
               "reshard line, column 1: expected a dtype (a lower-case letter first), found the end");
    fails_with(
        HEDDLE_ERR_PARSE, "f31[t=1]",
        "reshard line, column 1: unknown dtype 'f31' (dtypes: f64 f32 f16 bf16 f8e4m3 f8e5m2 i64 i32 i8 u8 bool)");
    fails_with(HEDDLE_ERR_PARSE, "f32 t=1]", "reshard line, column 5: expected '[' after the dtype, found 't'");
    fails_with(HEDDLE_ERR_PARSE, "f32[]",
               "reshard line, column 5: expected a dim name (a lower-case letter first), found ']'");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=-1]", "reshard line, column 7: expected an extent (a whole number), found '-'");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=4611686018427387905]",
               "reshard line, column 7: an extent is larger than 2^62 = 4611686018427387904");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=99999999999999999999999]",
               "reshard line, column 7: an extent is larger than 2^62 = 4611686018427387904");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=1152921504606846977]",
               "reshard line, column 4: the extents' product is more than 2^62 bytes of f32 (1152921504606846976 "
               "elements)");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[a=4000000000 b=0 c=4000000000]",
               "reshard line, column 4: the extents' product is more than 2^62 bytes of f32 (1152921504606846976 "
               "elements)");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=1 t=2]", "reshard line, column 9: dim 't' appears twice");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[sum=1]",
               "reshard line, column 5: a dim cannot be named 'sum': it means partial sums");
    fails_with(HEDDLE_ERR_PARSE, "f32[abcdefghijklmnop=1]",
               "reshard line, column 5: a dim name 'abcdefghijklmno...' is longer than 15 characters");
    fails_with(HEDDLE_ERR_PARSE, "f32[a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1 i=1]",
               "reshard line, column 37: a shape has at most 8 dims");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=1]x", "reshard line, column 9: expected 'on' after the shape, found 'x'");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=1] on t",
               "reshard line, column 13: expected '[' where a mesh begins, found 't'");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=1] on [x=0]", "reshard line, column 16: axis 'x' has size 0, less than 1");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=1] on [x=256 y=4097]",
               "reshard line, column 22: axis 'y' of size 4097 makes more than 1048576 ranks, the most possible");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=1] on [x=2 x=2]", "reshard line, column 18: axis 'x' appears twice");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=1] on [a=1 b=1 c=1 d=1 e=1]",
               "reshard line, column 30: a mesh has at most 4 axes");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=1] on [x=2] t@x",
               "reshard line, column 19: expected ':' after the mesh, found 't'");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[b=1 t=1] on [x=2]: q@x -> *",
               "reshard line, column 24: unknown dim 'q' (dims: b t)");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[b=1 t=1] on [x=2 y=2]: t@z -> *",
               "reshard line, column 30: unknown axis 'z' (axes: x y)");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[b=1 t=1] on [x=2 y=2]: t@x,b@x -> *",
               "reshard line, column 34: axis 'x' appears twice");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=1] on [x=2]: t -> *",
               "reshard line, column 22: expected '@' after the dim's name, found '-'");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=1] on [x=2]: t@x",
               "reshard line, column 23: expected '->' after the first layout, found the end");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=1] on [x=2]: t@x -> * *",
               "reshard line, column 29: expected nothing more, found '*'");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=1] on [x=2]: t@x -> *\n",
               "reshard line, column 28: expected nothing more, found byte 0x0a");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=1] on [x=2]: t@x -> \xc3\xa9",
               "reshard line, column 27: expected a dim name (a lower-case letter first), found byte 0xc3");
}

/* Nesting is the mesh's, so a text that looks like the other nesting is none. */
HD_CASE(entries_of_a_dim_in_the_order_of_axes)
{
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=4 s=4] on [sp=2 h=2]: s@sp,s@h -> s@h,s@sp",
               "reshard line, column 47: s@sp behind s@h, but blocks nest in the mesh's order of axes: write s@sp,s@h");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=8] on [x=2 y=2 z=2]: t@x,t@z,t@y -> *",
               "reshard line, column 38: t@y behind t@z, but blocks nest in the mesh's order of axes: write t@y,t@z");
    heddle_reshard_line line;
    heddle_layout layout;
    HD_OK(heddle_reshard_parse(&line, "f32[t=4 s=4] on [sp=2 h=2]: s@sp,s@h -> s@h,t@sp"));
    HD_OK(heddle_reshard_parse(&line, "f32[t=4 s=4] on [sp=2 h=2]: sum@h,sum@sp -> s@sp,s@h"));
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_layout_parse(&layout, "s@h,s@sp", &line.shape, &line.mesh));
    layout = heddle_layout_replicated(); /* by hand there is no order: nested as the mesh is, and written so */
    layout.dim_of_axis[1] = 1;
    layout.dim_of_axis[0] = 1;
    char text[HEDDLE_LINE_BYTES];
    HD_OK(heddle_layout_format(text, sizeof text, &layout, &line.shape, &line.mesh));
    assert_string_equal(text, "s@sp,s@h");
    assert_true(heddle_layout_equal(&layout, &line.to, &line.mesh));
}

HD_CASE(block_lengths)
{
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=7] on [x=3]: t@x(3 4) -> *",
               "reshard line, column 23: 2 block lengths for axis 'x' of size 3");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=7] on [x=3]: t@x(3 2 1) -> *",
               "reshard line, column 23: block lengths on 'x' add up to 6, dim 't' has 7");
    fails_with(
        HEDDLE_ERR_LAYOUT, "f32[t=7] on [x=3]: t@x(3 2 4611686018427387904) -> *",
        "reshard line, column 23: block lengths on 'x': length 4611686018427387904 of block 2 with 2 of 't' left");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=7] on [x=2 y=2]: t@x,t@y(3 4) -> *",
               "reshard line, column 31: block lengths on 'y', the inner axis of dim 't' (outer: 'x')");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=7] on [x=2]: sum@x(3 4) -> *",
               "reshard line, column 25: partial sums have no block lengths");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=7] on [x=2]: t@x() -> *",
               "reshard line, column 24: expected a block length (a whole number), found ')'");
    fails_with(HEDDLE_ERR_PARSE, "f32[t=7] on [x=2]: t@x(3 4 -> *",
               "reshard line, column 28: expected a block length (a whole number), found '-'");
}

HD_CASE(memory_orders)
{
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=7 s=1] on [x=2]: * as t -> *",
               "reshard line, column 29: the memory order names 1 of 2 dims");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=7 s=1] on [x=2]: * as t,t -> *",
               "reshard line, column 31: dim 't' appears twice in the memory order");
    fails_with(HEDDLE_ERR_LAYOUT, "f32[t=7 s=1] on [x=2]: * as t,q -> *",
               "reshard line, column 31: unknown dim 'q' (dims: t s)");
}

/* More lengths than a layout has room for, on axes that are legal each for itself. */
HD_CASE(too_many_blocks)
{
    char text[4096] = "f32[t=1 s=1] on [x=100 y=100]: t@x(0 1";
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < 98; i++) {
            strcat(text, " 0");
        }
        strcat(text, side == 0 ? "),s@y(0 1" : ") -> *");
    }
    heddle_reshard_line line;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_reshard_parse(&line, text));
    assert_non_null(strstr(heddle_last_error(), "more than 128 block lengths in one layout"));
}

HD_CASE(separate_forms)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    char text[64], small[8];
    HD_OK(heddle_shape_parse(&shape, "bf16[b=2 t=30]"));
    HD_OK(heddle_mesh_parse(&mesh, "[node=2 gpu=4]"));
    HD_OK(heddle_layout_parse(&layout, "t@node,sum@gpu", &shape, &mesh));
    HD_OK(heddle_shape_format(text, sizeof text, &shape));
    assert_string_equal(text, "bf16[b=2 t=30]");
    HD_OK(heddle_mesh_format(text, sizeof text, &mesh));
    assert_string_equal(text, "[node=2 gpu=4]");
    HD_OK(heddle_layout_format(text, sizeof text, &layout, &shape, &mesh));
    assert_string_equal(text, "t@node,sum@gpu");
    HD_FAILS(HEDDLE_ERR_ARG, heddle_layout_format(small, sizeof small, &layout, &shape, &mesh));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_layout_format(text, 14, &layout, &shape, &mesh)); /* no room for the 0 */
    HD_OK(heddle_layout_format(text, 15, &layout, &shape, &mesh));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_shape_format(NULL, 0, &shape));
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_shape_parse(&shape, "bf16[b=2 t=30] "
                                                          "x"));
    assert_string_equal(heddle_last_error(), "shape, column 16: expected nothing more, found 'x'");
    HD_FAILS(HEDDLE_ERR_ARG, heddle_shape_parse(&shape, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_reshard_parse(NULL, "x"));
    assert_int_equal(heddle_dim_index(&shape, "t"), 1);
    assert_int_equal(heddle_dim_index(&shape, "q"), -1);
    assert_int_equal(heddle_axis_index(&mesh, "gpu"), 1);
    assert_int_equal(heddle_axis_index(&mesh, "q"), -1);
}
