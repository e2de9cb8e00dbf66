/* Shapes and meshes: text forms and checks. */
#include "runtime/layout/algebra.h"
#include "runtime/layout/text.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *text;
    size_t bytes;
} dtypes[HEDDLE_DTYPE_COUNT] = {
#define ROW(name, text, bytes) {text, bytes},
    HEDDLE_DTYPE_LIST(ROW)
#undef ROW
};

size_t heddle_dtype_bytes(heddle_dtype dtype)
{
    return (unsigned)dtype < HEDDLE_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *heddle_dtype_name(heddle_dtype dtype)
{
    return (unsigned)dtype < HEDDLE_DTYPE_COUNT ? dtypes[dtype].text : "unknown";
}

/* Shapes are checked for every rank of a mesh, and most names differ in their first letter. */
static int is_named(const char *own, const char *name)
{
    return own[0] == name[0] && strcmp(own, name) == 0;
}

int heddle_dim_index(const heddle_shape *shape, const char *name)
{
    for (int d = 0; shape != NULL && name != NULL && d < shape->ndim; d++) {
        if (is_named(shape->dim[d].name, name)) {
            return d;
        }
    }
    return -1;
}

int heddle_axis_index(const heddle_mesh *mesh, const char *name)
{
    for (int a = 0; mesh != NULL && name != NULL && a < mesh->naxes; a++) {
        if (is_named(mesh->axis[a].name, name)) {
            return a;
        }
    }
    return -1;
}

/* Names are written into lines and error sentences, so they have one form: a small letter, then letters, digits and
 * _. */
static int name_is_valid(const char *name)
{
    size_t n = 0;
    for (; n < HEDDLE_NAME_BYTES && name[n] != '\0'; n++) {
        char c = name[n];
        if (!((c >= 'a' && c <= 'z') || (n > 0 && ((c >= '0' && c <= '9') || c == '_')))) {
            return 0;
        }
    }
    return n > 0 && n < HEDDLE_NAME_BYTES;
}

/* Elements, counting an extent of 0 as 1 so that strides stay in range too; -1: more than HD_MAX_BYTES. */
static int64_t span_elems(const heddle_shape *shape)
{
    int64_t elems = 1;
    for (int d = 0; d < shape->ndim; d++) {
        int64_t extent = shape->dim[d].extent > 0 ? shape->dim[d].extent : 1;
        if (elems > HD_MAX_BYTES / extent) {
            return -1;
        }
        elems *= extent;
    }
    return elems;
}

/* 2^62 bytes: sums of two such numbers, and strides of elements, stay within 63 bits. */
static heddle_status check_size(const heddle_shape *shape)
{
    int64_t elems = span_elems(shape);
    int64_t bytes = (int64_t)heddle_dtype_bytes(shape->dtype);
    if (elems < 0 || elems > HD_MAX_BYTES / bytes) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "the extents' product is more than 2^62 bytes of %s (%lld elements)",
                       heddle_dtype_name(shape->dtype), (long long)(HD_MAX_BYTES / bytes));
    }
    return HEDDLE_OK;
}

heddle_status heddle_shape_check(const heddle_shape *shape)
{
    heddle_status st = HD_NEED(shape);
    if (st != HEDDLE_OK) {
        return st;
    }
    if ((unsigned)shape->dtype >= HEDDLE_DTYPE_COUNT) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "dtype %d is not one of the %d known", (int)shape->dtype, HEDDLE_DTYPE_COUNT);
    }
    if (shape->ndim < 1 || shape->ndim > HEDDLE_MAX_DIMS) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "a shape has 1 to %d dims, not %d", HEDDLE_MAX_DIMS, shape->ndim);
    }
    for (int d = 0; d < shape->ndim; d++) {
        const heddle_dim *dim = &shape->dim[d];
        if (!name_is_valid(dim->name)) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "dim %d has no valid name: [a-z][a-z0-9_]*, at most %d characters", d,
                           HEDDLE_NAME_BYTES - 1);
        }
        if (is_named(dim->name, "sum")) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "dim %d is named 'sum', which is reserved for partial sums", d);
        }
        int first = heddle_dim_index(shape, dim->name);
        if (first != d) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "dims %d and %d are both named '%s'", first, d, dim->name);
        }
        if (dim->extent < 0) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "dim '%s' has extent %lld, less than 0", dim->name,
                           (long long)dim->extent);
        }
    }
    return check_size(shape);
}

heddle_status heddle_mesh_check(const heddle_mesh *mesh)
{
    heddle_status st = HD_NEED(mesh);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (mesh->naxes < 1 || mesh->naxes > HEDDLE_MAX_AXES) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "a mesh has 1 to %d axes, not %d", HEDDLE_MAX_AXES, mesh->naxes);
    }
    int64_t size = 1;
    for (int a = 0; a < mesh->naxes; a++) {
        const heddle_axis *axis = &mesh->axis[a];
        if (!name_is_valid(axis->name)) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "axis %d has no valid name: [a-z][a-z0-9_]*, at most %d characters", a,
                           HEDDLE_NAME_BYTES - 1);
        }
        int first = heddle_axis_index(mesh, axis->name);
        if (first != a) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "axes %d and %d are both named '%s'", first, a, axis->name);
        }
        if (axis->size < 1) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "axis '%s' has size %d, less than 1", axis->name, axis->size);
        }
        size *= axis->size;
        if (size > HEDDLE_MAX_RANKS) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "the mesh has %lld ranks or more, at most %d are possible",
                           (long long)size, HEDDLE_MAX_RANKS);
        }
    }
    return HEDDLE_OK;
}

/* A wrong name is answered with all right ones. */
static heddle_status scan_dtype(heddle_dtype *out, hd_scan *scan)
{
    char name[HEDDLE_NAME_BYTES], list[128] = "";
    const char *at = NULL;
    heddle_status st = hd_scan_name(name, &at, scan, "a dtype");
    if (st != HEDDLE_OK) {
        return st;
    }
    size_t used = 0;
    for (int i = 0; i < HEDDLE_DTYPE_COUNT; i++) {
        if (strcmp(name, dtypes[i].text) == 0) {
            *out = (heddle_dtype)i;
            return HEDDLE_OK;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, " %s", dtypes[i].text);
    }
    return hd_scan_fail(scan, HEDDLE_ERR_PARSE, at, "unknown dtype '%s' (dtypes:%s)", name, list);
}

/* DTYPE[NAME=EXTENT NAME=EXTENT ...]. Each complaint points at the column of the word that is wrong. */
heddle_status hd_scan_shape(heddle_shape *out, hd_scan *scan)
{
    heddle_status st = HEDDLE_OK;
    heddle_shape shape;
    memset(&shape, 0, sizeof shape);
    HD_TRY(scan_dtype(&shape.dtype, scan));
    const char *open = scan->at;
    HD_TRY(hd_scan_expect(scan, "[", "after the dtype"));
    do {
        heddle_dim dim;
        const char *at = NULL, *number = NULL;
        HD_TRY(hd_scan_name(dim.name, &at, scan, "a dim name"));
        if (shape.ndim == HEDDLE_MAX_DIMS) {
            return hd_scan_fail(scan, HEDDLE_ERR_PARSE, at, "a shape has at most %d dims", HEDDLE_MAX_DIMS);
        }
        if (strcmp(dim.name, "sum") == 0) {
            return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, at, "a dim cannot be named 'sum': it means partial sums");
        }
        if (heddle_dim_index(&shape, dim.name) >= 0) {
            return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, at, "dim '%s' appears twice", dim.name);
        }
        HD_TRY(hd_scan_expect(scan, "=", "after the dim's name"));
        HD_TRY(hd_scan_number(&dim.extent, &number, scan, "an extent"));
        shape.dim[shape.ndim++] = dim;
    } while (!hd_scan_accept(scan, "]"));
    st = check_size(&shape);
    if (st != HEDDLE_OK) {
        return hd_scan_fail(scan, st, open, "%s", heddle_last_error());
    }
    *out = shape;
out:
    return st;
}

/* [NAME=SIZE NAME=SIZE ...] */
heddle_status hd_scan_mesh(heddle_mesh *out, hd_scan *scan)
{
    heddle_status st = HEDDLE_OK;
    heddle_mesh mesh;
    memset(&mesh, 0, sizeof mesh);
    int64_t ranks = 1;
    HD_TRY(hd_scan_expect(scan, "[", "where a mesh begins"));
    do {
        heddle_axis axis;
        const char *at = NULL, *number = NULL;
        int64_t size = 0;
        HD_TRY(hd_scan_name(axis.name, &at, scan, "an axis name"));
        if (mesh.naxes == HEDDLE_MAX_AXES) {
            return hd_scan_fail(scan, HEDDLE_ERR_PARSE, at, "a mesh has at most %d axes", HEDDLE_MAX_AXES);
        }
        if (heddle_axis_index(&mesh, axis.name) >= 0) {
            return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, at, "axis '%s' appears twice", axis.name);
        }
        HD_TRY(hd_scan_expect(scan, "=", "after the axis's name"));
        HD_TRY(hd_scan_number(&size, &number, scan, "a size"));
        if (size < 1) {
            return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, number, "axis '%s' has size 0, less than 1", axis.name);
        }
        if (size > HEDDLE_MAX_RANKS / ranks) {
            return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, number,
                                "axis '%s' of size %lld makes more than %d ranks, the most possible", axis.name,
                                (long long)size, HEDDLE_MAX_RANKS);
        }
        ranks *= size;
        axis.size = (int)size;
        mesh.axis[mesh.naxes++] = axis;
    } while (!hd_scan_accept(scan, "]"));
    *out = mesh;
out:
    return st;
}

heddle_status heddle_shape_parse(heddle_shape *out, const char *text)
{
    heddle_status st = HEDDLE_OK;
    heddle_shape shape;
    hd_scan scan = {"shape", text, text};
    HD_TRY(HD_NEED(out, text));
    HD_TRY(hd_scan_shape(&shape, &scan));
    HD_TRY(hd_scan_end(&scan));
    *out = shape;
out:
    return st;
}

heddle_status heddle_mesh_parse(heddle_mesh *out, const char *text)
{
    heddle_status st = HEDDLE_OK;
    heddle_mesh mesh;
    hd_scan scan = {"mesh", text, text};
    HD_TRY(HD_NEED(out, text));
    HD_TRY(hd_scan_mesh(&mesh, &scan));
    HD_TRY(hd_scan_end(&scan));
    *out = mesh;
out:
    return st;
}

void hd_write_shape(hd_writer *writer, const heddle_shape *shape)
{
    hd_write(writer, "%s[", heddle_dtype_name(shape->dtype));
    for (int d = 0; d < shape->ndim; d++) {
        hd_write(writer, "%s%s=%lld", d > 0 ? " " : "", shape->dim[d].name, (long long)shape->dim[d].extent);
    }
    hd_write(writer, "]");
}

void hd_write_mesh(hd_writer *writer, const heddle_mesh *mesh)
{
    for (int a = 0; a < mesh->naxes; a++) {
        hd_write(writer, "%s%s=%d", a > 0 ? " " : "[", mesh->axis[a].name, mesh->axis[a].size);
    }
    hd_write(writer, "]");
}

heddle_status heddle_shape_format(char *out, size_t out_bytes, const heddle_shape *shape)
{
    heddle_status st = HEDDLE_OK;
    hd_writer writer = {out, out_bytes, 0, 0};
    HD_TRY(HD_NEED(out, shape));
    HD_TRY(heddle_shape_check(shape));
    hd_write_shape(&writer, shape);
    st = hd_writer_end(&writer, "shape");
out:
    return st;
}

/* Compares an array's shape with the one that is wanted; `what` and `whose` are the two ends of the sentence. */
heddle_status hd_shape_need(const heddle_shape *x, const heddle_shape *wanted, int names, const char *what,
                            const char *whose)
{
    int same = x->dtype == wanted->dtype && x->ndim == wanted->ndim;
    for (int d = 0; same && d < wanted->ndim; d++) {
        same = x->dim[d].extent == wanted->dim[d].extent &&
               (!names || strncmp(x->dim[d].name, wanted->dim[d].name, HEDDLE_NAME_BYTES) == 0);
    }
    if (same) {
        return HEDDLE_OK;
    }
    char has[HEDDLE_LINE_BYTES] = "?", wants[HEDDLE_LINE_BYTES] = "?"; /* one that is none has no text */
    heddle_ignore(heddle_shape_format(has, sizeof has, x));
    heddle_ignore(heddle_shape_format(wants, sizeof wants, wanted));
    return hd_fail(HEDDLE_ERR_LAYOUT, "%s is %s, %s %s", what, has, whose, wants);
}

heddle_status heddle_mesh_format(char *out, size_t out_bytes, const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    hd_writer writer = {out, out_bytes, 0, 0};
    HD_TRY(HD_NEED(out, mesh));
    HD_TRY(heddle_mesh_check(mesh));
    hd_write_mesh(&writer, mesh);
    st = hd_writer_end(&writer, "mesh");
out:
    return st;
}
