/* Boxes, strides and index arithmetic of layouts. */
#include "case.h"
#include "draw.h"

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

HD_CASE(strides)
{
    const heddle_box box = {3, {5, 6, 7}, {2, 3, 4}};
    const heddle_order order = {3, {2, 0, 1}};
    int64_t stride[HEDDLE_MAX_DIMS];
    heddle_box_strides(stride, &box, NULL);
    assert_int_equal(stride[0], 12);
    assert_int_equal(stride[1], 4);
    assert_int_equal(stride[2], 1);
    heddle_box_strides(stride, &box, &order);
    assert_int_equal(stride[2], 6);
    assert_int_equal(stride[0], 3);
    assert_int_equal(stride[1], 1);
}

/* One array of f64[t s c] with these strides: refused with words of the sentence, or (NULL) of so many bytes. */
HD_CASE(reach_of_strides)
{
    const int64_t most = INT64_MAX, far = (int64_t)1 << 59; /* elements of 8 bytes within 2^62 */
    const struct {
        int64_t len[3], stride[3];
        int is_written;
        const char *why;
        int64_t bytes;
    } row[] = {
        {{2, 3, 4}, {12, 4, 1}, 1, NULL, 8 * 24},
        {{2, 3, 4}, {1, 2, 6}, 1, NULL, 8 * 24},
        {{2, 3, 4}, {100, 10, 1}, 1, NULL, 8 * 124},
        {{2, 3, 4}, {0, 0, 0}, 0, NULL, 8},
        {{2, 3, 4}, {12, 0, 1}, 1, "stride of dim s is 0 elements, but its rows reach over 1", 0},
        {{2, 3, 4}, {12, 3, 1}, 1, "stride of dim s is 3 elements, but its rows reach over 4", 0},
        {{2, 3, 4}, {11, 4, 1}, 1, "stride of dim t is 11 elements, but its rows reach over 12", 0},
        {{2, 3, 4}, {12, 3, 1}, 0, NULL, 8 * 22},
        {{2, 3, 4}, {12, 4, -1}, 0, "stride of dim c is -1 elements, less than 0", 0},
        {{2, 3, 4}, {INT64_MIN, 4, 1}, 1, "less than 0", 0},
        {{2, 1, 1}, {far - 1, 0, 0}, 1, NULL, 8 * far},
        {{2, 1, 1}, {far, 0, 0}, 1, "stride of dim t is 576460752303423488 elements for 2 rows of f64", 0},
        {{2, 2, 1}, {far - 2, 1, 0}, 1, NULL, 8 * far},
        {{2, 2, 1},
         {far - 1, 1, 0},
         1,
         "stride of dim s is 1 elements for 2 rows of f64: the array reaches beyond 2^62",
         0},
        {{2, 3, 4}, {most, 1, 1}, 0, "reaches beyond 2^62 bytes", 0},
        {{2, 3, 4}, {12, most / 2 + 1, 1}, 0, "reaches beyond 2^62 bytes", 0},        /* 2 * 2^62 wraps to below 0 */
        {{2, 3, 5}, {12, 4, 4611686018427387904}, 0, "reaches beyond 2^62 bytes", 0}, /* 4 * 2^62 to 0 */
        {{1, 3, 4}, {-7, 4, 1}, 1, NULL, 8 * 12},                                     /* of one row no stride counts */
        {{1, 3, 4}, {most, 4, 1}, 1, NULL, 8 * 12},
        {{0, 3, 4}, {-7, 0, most}, 1, NULL, 0},
    };
    heddle_shape shape;
    HD_OK(heddle_shape_parse(&shape, "f64[t=2 s=3 c=5]"));
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const heddle_box box = {.ndim = 3, .len = {row[i].len[0], row[i].len[1], row[i].len[2]}};
        int64_t bytes = -1;
        HD_FAILS(row[i].why == NULL ? HEDDLE_OK : HEDDLE_ERR_ARG,
                 heddle_box_reach(&bytes, &box, row[i].stride, &shape, row[i].is_written));
        assert_int_equal(bytes, row[i].why == NULL ? row[i].bytes : -1);
        assert_true(row[i].why == NULL || strstr(heddle_last_error(), row[i].why) != NULL);
    }
    heddle_box box = {.ndim = 2, .len = {2, 3}};
    int64_t bytes = 0;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_box_reach(&bytes, &box, box.len, &shape, 0));
    box = (heddle_box){.ndim = 3, .len = {2, 4, 5}};
    HD_FAILS(HEDDLE_ERR_ARG, heddle_box_reach(&bytes, &box, box.len, &shape, 0));
    assert_non_null(strstr(heddle_last_error(), "the box has 4 of dim s, the shape has 3"));
    shape.dtype = HEDDLE_DTYPE_COUNT;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_box_reach(&bytes, &box, box.len, &shape, 0));
}

/* Against marks on every element: what is taken to be written shares none, and reaches to the last mark. */
HD_CASE(reach_of_drawn_strides)
{
    enum { MOST = 400 };
    heddle_shape shape;
    int written = 0;
    HD_OK(heddle_shape_parse(&shape, "i32[a=4 b=4 c=4]"));
    for (int n = 0; n < 3000; n++) {
        heddle_box box = {.ndim = 3};
        int64_t stride[HEDDLE_MAX_DIMS] = {0}, bytes = 0;
        int marks[MOST] = {0}, shares = 0, last = -1;
        for (int d = 0; d < 3; d++) {
            box.len[d] = between(0, 4);
            stride[d] = between(0, d == 0 ? 60 : 20);
        }
        for (int i = 0; i < box.len[0]; i++) {
            for (int j = 0; j < box.len[1]; j++) {
                for (int k = 0; k < box.len[2]; k++) {
                    int at = (int)(i * stride[0] + j * stride[1] + k * stride[2]);
                    shares |= marks[at]++ > 0;
                    last = at > last ? at : last;
                }
            }
        }
        HD_OK(heddle_box_reach(&bytes, &box, stride, &shape, 0));
        assert_int_equal(bytes, 4 * (last + 1));
        int taken = heddle_box_reach(&bytes, &box, stride, &shape, 1) == HEDDLE_OK;
        assert_false(taken && shares);
        written += taken && last > 0;
    }
    assert_in_range(written, 500, 2500);
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
