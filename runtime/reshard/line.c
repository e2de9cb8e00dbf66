/* The one-line text form of a reshard: SHAPE on MESH: LAYOUT [as ORDER] -> LAYOUT [as ORDER] */
#include "runtime/layout/algebra.h"
#include "runtime/layout/text.h"

#include <heddle/reshard.h>
#include <string.h>

static heddle_status scan_side(heddle_layout *layout, heddle_order *order, hd_scan *scan, const heddle_shape *shape,
                               const heddle_mesh *mesh)
{
    heddle_status st = hd_scan_layout(layout, scan, shape, mesh);
    if (st == HEDDLE_OK && hd_scan_accept(scan, "as")) {
        st = hd_scan_order(order, scan, shape);
    }
    return st;
}

heddle_status heddle_reshard_parse(heddle_reshard_line *out, const char *text)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line;
    HD_TRY(HD_NEED(out, text));
    memset(&line, 0, sizeof line);
    hd_scan scan = {"reshard line", text, text};
    HD_TRY(hd_scan_shape(&line.shape, &scan));
    HD_TRY(hd_scan_expect(&scan, "on", "after the shape"));
    HD_TRY(hd_scan_mesh(&line.mesh, &scan));
    HD_TRY(hd_scan_expect(&scan, ":", "after the mesh"));
    HD_TRY(scan_side(&line.from, &line.from_order, &scan, &line.shape, &line.mesh));
    HD_TRY(hd_scan_expect(&scan, "->", "after the first layout"));
    HD_TRY(scan_side(&line.to, &line.to_order, &scan, &line.shape, &line.mesh));
    HD_TRY(hd_scan_end(&scan));
    *out = line;
out:
    return st;
}

static void write_side(hd_writer *writer, const heddle_layout *layout, const heddle_order *order,
                       const heddle_reshard_line *line)
{
    heddle_order own;
    memset(&own, 0, sizeof own);
    hd_write_layout(writer, layout, &line->shape, &line->mesh);
    if (!hd_order_equal(order, &own, line->shape.ndim)) {
        hd_write(writer, " as ");
        hd_write_order(writer, order, &line->shape);
    }
}

heddle_status heddle_reshard_format(char *out, size_t out_bytes, const heddle_reshard_line *line)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, line));
    HD_TRY(heddle_layout_check(&line->from, &line->shape, &line->mesh));
    HD_TRY(heddle_layout_check(&line->to, &line->shape, &line->mesh));
    HD_TRY(hd_order_check(&line->from_order, &line->shape));
    HD_TRY(hd_order_check(&line->to_order, &line->shape));
    hd_writer writer = {out, out_bytes, 0, 0};
    hd_write_shape(&writer, &line->shape);
    hd_write(&writer, " on ");
    hd_write_mesh(&writer, &line->mesh);
    hd_write(&writer, ": ");
    write_side(&writer, &line->from, &line->from_order, line);
    hd_write(&writer, " -> ");
    write_side(&writer, &line->to, &line->to_order, line);
    st = hd_writer_end(&writer, "reshard");
out:
    return st;
}
