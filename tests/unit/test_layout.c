/* Boxes, strides and index arithmetic of layouts. */
#include "case.h"

#include <heddle/reshard.h>
#include <heddle/sys/index.h>
#include <heddle/tensor.h>
#include <string.h>

static void parse(heddle_shape *shape, heddle_mesh *mesh, heddle_layout *layout, const char *shape_text,
                  const char *mesh_text, const char *layout_text)
{
    HD_OK(heddle_shape_parse(shape, shape_text));
    HD_OK(heddle_mesh_parse(mesh, mesh_text));
    HD_OK(heddle_layout_parse(layout, layout_text, shape, mesh));
}

HD_CASE(balanced_blocks)
{
    for (int64_t extent = 0; extent < 40; extent++) {
        for (int n = 1; n <= 12; n++) {
            int64_t start = 0;
            for (int i = 0; i < n; i++) {
                int64_t len = heddle_shard_len(extent, n, i);
                assert_int_equal(heddle_shard_start(extent, n, i), start);
                assert_int_equal(len, extent / n + (i < extent % n));
                for (int64_t x = start; x < start + len; x++) {
                    assert_int_equal(heddle_shard_owner(extent, n, x), i);
                }
                start += len;
            }
            assert_int_equal(start, extent);
        }
    }
}

HD_CASE(blocks_of_huge_extents)
{
    int64_t extent = ((int64_t)1 << 62) - 1;
    int n = 65536, last = n - 1;
    assert_int_equal(heddle_shard_start(extent, n, last) + heddle_shard_len(extent, n, last), extent);
    assert_int_equal(heddle_shard_owner(extent, n, extent - 1), last);
    assert_int_equal(heddle_shard_owner(extent, n, heddle_shard_start(extent, n, 1234)), 1234);
    assert_int_equal(heddle_shard_owner(extent, n, heddle_shard_start(extent, n, 1234) - 1), 1233);
}

HD_CASE(explicit_blocks)
{
    const int64_t len[5] = {0, 3, 0, 0, 2};
    const int owner[5] = {1, 1, 1, 4, 4};
    for (int x = 0; x < 5; x++) {
        assert_int_equal(heddle_split_owner(len, 5, x), owner[x]);
    }
    assert_int_equal(heddle_split_start(len, 4), 3);
    int64_t lo = 10, n = 5;
    heddle_range_narrow(&lo, &n, len, 5, 4);
    assert_int_equal(lo, 13);
    assert_int_equal(n, 2);
}

HD_CASE(ranks_and_coordinates)
{
    heddle_mesh mesh;
    HD_OK(heddle_mesh_parse(&mesh, "[node=2 gpu=3 x=4]"));
    assert_int_equal(heddle_mesh_size(&mesh), 24);
    const int size[3] = {2, 3, 4};
    for (int rank = 0; rank < 24; rank++) {
        int coords[HEDDLE_MAX_AXES], same[3];
        HD_OK(heddle_mesh_coords(coords, &mesh, rank));
        assert_int_equal((coords[0] * 3 + coords[1]) * 4 + coords[2], rank);
        assert_int_equal(heddle_mesh_rank_of(coords, size, 3), rank);
        heddle_mesh_coords_of(same, size, 3, rank);
        assert_memory_equal(same, coords, sizeof same);
    }
    int coords[HEDDLE_MAX_AXES];
    HD_FAILS(HEDDLE_ERR_ARG, heddle_mesh_coords(coords, &mesh, 24));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_mesh_coords(coords, &mesh, -1));
}

HD_CASE(ravel_and_unravel)
{
    const int64_t len[3] = {2, 3, 4};
    int64_t coord[3] = {0}, lo[3] = {5, 6, 7}, stride[3] = {100, 10, 1}, at[3] = {6, 8, 10};
    for (int64_t i = 0; i < 24; i++) {
        heddle_index_unravel(coord, len, 3, i);
        assert_int_equal(heddle_index_ravel(coord, len, 3), i);
    }
    assert_int_equal(heddle_index_offset(at, lo, stride, 3), 123);
}

/* All ranks' boxes cover every element once per replica. */
static void boxes_partition(const char *shape_text, const char *mesh_text, const char *layout_text, int64_t copies)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    parse(&shape, &mesh, &layout, shape_text, mesh_text, layout_text);
    int64_t sum = 0, whole = 1;
    for (int d = 0; d < shape.ndim; d++) {
        whole *= shape.dim[d].extent;
    }
    for (int r = 0; r < heddle_mesh_size(&mesh); r++) {
        heddle_box box;
        HD_OK(heddle_layout_box(&box, &shape, &mesh, &layout, r));
        sum += heddle_box_elems(&box);
    }
    assert_int_equal(sum, whole * copies);
}

HD_CASE(boxes_add_up)
{
    boxes_partition("u8[t=17 s=5]", "[x=4]", "t@x", 1);
    boxes_partition("u8[t=3 s=5]", "[x=8]", "t@x", 1);
    boxes_partition("u8[t=17 s=5]", "[x=4 y=3]", "t@x", 3);
    boxes_partition("u8[t=17 s=5]", "[x=4 y=3]", "t@x,t@y", 1);
    boxes_partition("u8[t=17 s=5]", "[x=4 y=3]", "t@x(0 9 0 8),t@y", 1);
    boxes_partition("u8[t=17 s=5]", "[x=4 y=3]", "t@x,sum@y", 3);
    boxes_partition("u8[t=17 s=0]", "[x=4 y=3]", "s@x,t@y", 1);
}

static void box_is(const char *layout_text, int rank, int64_t lo, int64_t len)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_box box;
    parse(&shape, &mesh, &layout, "bf16[b=2 t=30 s=5]", "[node=2 gpu=4]", layout_text);
    HD_OK(heddle_layout_box(&box, &shape, &mesh, &layout, rank));
    assert_int_equal(box.lo[0], 0);
    assert_int_equal(box.len[0], 2);
    assert_int_equal(box.lo[1], lo);
    assert_int_equal(box.len[1], len);
}

HD_CASE(nested_boxes)
{
    box_is("t@node", 5, 15, 15);
    box_is("t@gpu", 5, 8, 8);
    box_is("t@gpu", 6, 16, 7);
    /* 30 = 15 + 15; 15 = 4 + 4 + 4 + 3: a block stays inside its node's block */
    box_is("t@node,t@gpu", 3, 12, 3);
    box_is("t@node,t@gpu", 4, 15, 4);
    box_is("t@node(29 1),t@gpu", 0, 0, 8);
    box_is("t@node(29 1),t@gpu", 3, 22, 7);
    box_is("t@node(29 1),t@gpu", 4, 29, 1);
    box_is("t@node(29 1),t@gpu", 5, 30, 0);
    box_is("sum@node,t@gpu(0 0 30 0)", 6, 0, 30);
}

HD_CASE(tensors)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_tensor tensor;
    char data[64];
    parse(&shape, &mesh, &layout, "f32[t=5 s=3]", "[x=4]", "t@x");
    HD_OK(heddle_tensor_init(&tensor, data, &shape, &mesh, &layout, NULL, 0));
    assert_int_equal(tensor.capacity_bytes, 2 * 3 * 4);
    assert_int_equal(tensor.stride_elems[0], 3);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tensor_init(&tensor, NULL, &shape, &mesh, &layout, NULL, 0));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tensor_init(&tensor, data, &shape, &mesh, &layout, NULL, 4));
    const heddle_order twice = {2, {1, 1}};
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_tensor_init(&tensor, data, &shape, &mesh, &layout, &twice, 0));
    HD_OK(heddle_layout_parse(&layout, "t@x(5 0 0 0)", &shape, &mesh));
    HD_OK(heddle_tensor_init(&tensor, NULL, &shape, &mesh, &layout, NULL, 1));
    assert_int_equal(tensor.capacity_bytes, 0);
}

/* What a program may fill in: the sentence says where and both numbers. */
HD_CASE(sentences_of_values_made_by_hand)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_tensor tensor;
    char data[64];
    static const struct {
        const char *why;
        int what, value; /* see below */
    } row[] = {
        {"a shape has 1 to 8 dims, not 0", 0, 0},
        {"a shape has 1 to 8 dims, not 9", 0, 9},
        {"dtype 99 is not one of the 11 known", 1, 99},
        {"dim 1 is named 'sum', which is reserved for partial sums", 2, 's'},
        {"dims 0 and 1 are both named 't'", 2, 't'},
        {"dim 's' has extent -3, less than 0", 3, -3},
        {"a mesh has 1 to 4 axes, not 5", 4, 5},
        {"axes 0 and 1 are both named 'x'", 5, 'x'},
        {"axis 1 has no valid name: [a-z][a-z0-9_]*, at most 15 characters", 5, 'Y'},
        {"dim 1 has no valid name: [a-z][a-z0-9_]*, at most 15 characters", 2, 0},
        {"axis 'y' has size 0, less than 1", 6, 0},
        {"the mesh has 1048578 ranks or more, at most 1048576 are possible", 6, 524289},
        {"axis 'x' shards dim 2, the shape has 2", 7, 2},
        {"axis 'x' shards dim -3, the shape has 2", 7, -3},
        {"axis 'x' has -1 block lengths but less than 0 is not possible", 8, -1},
        {"129 block lengths in one layout, at most 128 are possible", 8, 129},
        {"axis 'y' has 2 block lengths but shards no dim", 9, 2},
        {"entry 1 of the memory order is dim 0: named before", 10, 0},
        {"entry 1 of the memory order is dim 2: no such dim", 10, 2},
        {"the memory order names 1 dims, the shape has 2", 11, 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        heddle_order order = {2, {0, 1}};
        const int value = row[i].value;
        parse(&shape, &mesh, &layout, "f32[t=5 s=3]", "[x=2 y=2]", "t@x");
        shape.ndim = row[i].what == 0 ? value : shape.ndim;
        shape.dtype = row[i].what == 1 ? (heddle_dtype)value : shape.dtype;
        if (row[i].what == 2) {
            strcpy(shape.dim[1].name, value == 's' ? "sum" : value == 't' ? "t" : "");
        }
        shape.dim[1].extent = row[i].what == 3 ? value : shape.dim[1].extent;
        mesh.naxes = row[i].what == 4 ? value : mesh.naxes;
        mesh.axis[1].name[0] = row[i].what == 5 ? (char)value : 'y';
        mesh.axis[1].size = row[i].what == 6 ? value : mesh.axis[1].size;
        layout.dim_of_axis[0] = row[i].what == 7 ? value : layout.dim_of_axis[0];
        layout.nshards[0] = row[i].what == 8 ? value : 0;
        layout.nshards[1] = row[i].what == 9 ? value : 0;
        order.dim[1] = row[i].what == 10 ? value : 1;
        order.ndim = row[i].what == 11 ? value : 2;
        HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_tensor_init(&tensor, data, &shape, &mesh, &layout, &order, 0));
        if (strstr(heddle_last_error(), row[i].why) == NULL) {
            fail_msg("'%s' is not in: %s", row[i].why, heddle_last_error());
        }
    }
}

HD_CASE(values_made_by_hand)
{
    heddle_shape shape, bad;
    heddle_mesh mesh, bad_mesh;
    heddle_layout layout, worse;
    parse(&shape, &mesh, &layout, "f32[t=5 s=3]", "[x=4]", "t@x");
    bad = shape;
    memset(bad.dim[0].name, 'a', sizeof bad.dim[0].name); /* no end */
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_shape_check(&bad));
    bad = shape;
    strcpy(bad.dim[1].name, "t");
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_shape_check(&bad));
    bad = shape;
    bad.dim[0].extent = -1;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_shape_check(&bad));
    bad = shape;
    bad.dtype = (heddle_dtype)99;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_shape_check(&bad));
    bad = shape;
    bad.dim[0].extent = (int64_t)1 << 60;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_shape_check(&bad));
    bad_mesh = mesh;
    bad_mesh.axis[0].size = 0;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_mesh_check(&bad_mesh));
    bad_mesh.axis[0].size = HEDDLE_MAX_RANKS + 1;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_mesh_check(&bad_mesh));
    worse = layout;
    worse.dim_of_axis[0] = 2;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_layout_check(&worse, &shape, &mesh));
    worse.dim_of_axis[0] = -3;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_layout_check(&worse, &shape, &mesh));
    worse = layout;
    worse.nshards[0] = 4;
    worse.shard_len[0] = INT64_MAX;
    worse.shard_len[1] = INT64_MAX;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_layout_check(&worse, &shape, &mesh));
    worse.nshards[0] = 1 << 30;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_layout_check(&worse, &shape, &mesh));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_layout_check(NULL, &shape, &mesh));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_layout_check(&layout, NULL, &mesh));
}

HD_CASE(equal_layouts)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout a, b;
    parse(&shape, &mesh, &a, "f32[t=5 s=3]", "[x=4]", "t@x");
    HD_OK(heddle_layout_parse(&b, "t@x(2 1 1 1)", &shape, &mesh));
    assert_true(heddle_layout_equal(&a, &b, &mesh));
    b = a;
    b.nshards[0] = 4;
    memcpy(b.shard_len, (const int64_t[]){2, 1, 1, 1}, 4 * sizeof *b.shard_len);
    assert_true(heddle_layout_equal(&a, &b, &mesh));
    memcpy(b.shard_len, (const int64_t[]){1, 2, 1, 1}, 4 * sizeof *b.shard_len);
    assert_false(heddle_layout_equal(&a, &b, &mesh));
    heddle_layout c = b; /* other lengths, both explicit */
    assert_true(heddle_layout_equal(&c, &b, &mesh));
    memcpy(c.shard_len, (const int64_t[]){1, 1, 2, 1}, 4 * sizeof *c.shard_len);
    assert_false(heddle_layout_equal(&c, &b, &mesh));
    b = heddle_layout_replicated();
    assert_false(heddle_layout_equal(&a, &b, &mesh));
}

/* A tensor is described anew from its own shape and layout, strides in the place of the box's lengths. */
HD_CASE(outputs_may_be_inputs)
{
    heddle_reshard_line line;
    heddle_tensor x, again;
    heddle_box box;
    float data[24];
    HD_OK(heddle_reshard_parse(&line, "f32[b=2 t=3 c=4] on [sp=2]: t@sp(1 2) -> * as c,b,t"));
    memset(&x, 0, sizeof x);
    HD_OK(heddle_tensor_init(&x, data, &line.shape, &line.mesh, &line.from, NULL, 1));
    again = x;
    HD_OK(heddle_tensor_init(&x, data, &x.shape, &line.mesh, &x.layout, NULL, 1));
    assert_memory_equal(&x, &again, sizeof x);
    assert_int_equal(x.shape.dim[2].extent, 4);
    assert_int_equal(x.layout.shard_len[1], 2);
    assert_int_equal(x.capacity_bytes, 64);
    HD_OK(heddle_layout_box(&box, &x.shape, &line.mesh, &line.to, 1));
    heddle_box_strides(box.len, &box, &line.to_order);
    assert_int_equal(box.len[0], 3);
    assert_int_equal(box.len[1], 1);
    assert_int_equal(box.len[2], 6);
}

/* Explicit lengths differ in any of their numbers, the last one too, and lengths that are balanced equal none. */
HD_CASE(equal_sees_every_block)
{
    heddle_reshard_line line;
    heddle_layout other;
    HD_OK(heddle_reshard_parse(&line, "f32[t=12 s=8] on [a=4 b=2]: t@a(1 5 2 4),s@b(3 5) -> t@a,s@b"));
    other = line.from;
    assert_int_equal(heddle_layout_equal(&line.from, &other, &line.mesh), 1);
    for (int i = 0; i < 6; i++) {
        for (int k = i + 1; k < 6; k++) { /* two lengths of one axis change places */
            if ((i < 4) == (k < 4)) {
                other = line.from;
                other.shard_len[i] = line.from.shard_len[k];
                other.shard_len[k] = line.from.shard_len[i];
                assert_int_equal(heddle_layout_equal(&line.from, &other, &line.mesh), 0);
                assert_int_equal(heddle_layout_equal(&other, &line.from, &line.mesh), 0);
            }
        }
    }
    assert_int_equal(heddle_layout_equal(&line.from, &line.to, &line.mesh), 0);
    other = line.to;
    other.nshards[0] = 4;
    for (int i = 0; i < 4; i++) {
        other.shard_len[i] = 3;
    }
    assert_int_equal(heddle_layout_equal(&line.to, &other, &line.mesh), 1);
}
