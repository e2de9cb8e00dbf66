/* libFuzzer: shapes, meshes and layouts made of any bytes by hand. The checks either refuse them or all that follows
 * holds: boxes lie inside the tensor, texts read back equal. */
#include <heddle/reshard.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds) {
        abort();
    }
}

static void check_boxes(const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout)
{
    int nranks = heddle_mesh_size(mesh), step = nranks > 256 ? nranks / 256 : 1;
    for (int rank = 0; rank < nranks; rank += step) {
        heddle_box box;
        int64_t stride[HEDDLE_MAX_DIMS];
        require(heddle_layout_box(&box, shape, mesh, layout, rank) == HEDDLE_OK);
        for (int d = 0; d < shape->ndim; d++) {
            require(box.lo[d] >= 0 && box.len[d] >= 0 && box.lo[d] + box.len[d] <= shape->dim[d].extent);
        }
        heddle_box_strides(stride, &box, NULL);
    }
}

static void check_text(const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout)
{
    char text[HEDDLE_LINE_BYTES];
    heddle_layout again;
    require(heddle_layout_format(text, sizeof text, layout, shape, mesh) == HEDDLE_OK);
    require(heddle_layout_parse(&again, text, shape, mesh) == HEDDLE_OK);
    require(heddle_layout_equal(&again, layout, mesh));
}

/* Bytes as they come, or as small numbers, so that valid values are found too. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    memset(&shape, 0, sizeof shape);
    memset(&mesh, 0, sizeof mesh);
    memset(&layout, 0, sizeof layout);
    if (size > 0 && data[0] % 2 == 0) {
        size_t at = 1;
#define NEXT() (at < size ? data[at++] : 0)
        shape.dtype = (heddle_dtype)(NEXT() % 12);
        shape.ndim = NEXT() % 10;
        for (int d = 0; d < shape.ndim && d < HEDDLE_MAX_DIMS; d++) {
            shape.dim[d].name[0] = (char)('a' + NEXT() % 26);
            shape.dim[d].extent = NEXT() - 1;
        }
        mesh.naxes = NEXT() % 6;
        for (int a = 0; a < mesh.naxes && a < HEDDLE_MAX_AXES; a++) {
            mesh.axis[a].name[0] = (char)('a' + NEXT() % 26);
            mesh.axis[a].size = NEXT() % 20;
            layout.dim_of_axis[a] = NEXT() % 12 - 3;
            layout.nshards[a] = NEXT() % 20 - 8;
        }
        for (int i = 0; i < HEDDLE_MAX_SHARDS; i++) {
            layout.shard_len[i] = NEXT() - 1;
        }
#undef NEXT
    } else {
        size_t a = size < sizeof shape ? size : sizeof shape;
        memcpy(&shape, data, a);
        size_t b = size - a < sizeof mesh ? size - a : sizeof mesh;
        memcpy(&mesh, data + a, b);
        size_t c = size - a - b < sizeof layout ? size - a - b : sizeof layout;
        memcpy(&layout, data + a + b, c);
    }
    if (heddle_layout_check(&layout, &shape, &mesh) == HEDDLE_OK) {
        check_boxes(&shape, &mesh, &layout);
        check_text(&shape, &mesh, &layout);
    }
    return 0;
}
