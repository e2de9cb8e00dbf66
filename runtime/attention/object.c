/* What attention and linear attention have in common as objects of a communicator: what ranks compare when they make
 * one, what a failure leaves behind, what an array must be. */
#include "runtime/attention/object.h"

#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"

#include <stdio.h>

void hd_object_describe(hd_fields *fields, const heddle_shape *shape, const heddle_mesh *mesh,
                        const heddle_layout *layout)
{
    char text[HEDDLE_LINE_BYTES];
    heddle_ignore(heddle_shape_format(text, sizeof text, shape));
    hd_fields_add(fields, "shape", "%s", text);
    heddle_ignore(heddle_mesh_format(text, sizeof text, mesh));
    hd_fields_add(fields, "mesh", "%s", text);
    heddle_ignore(heddle_layout_format(text, sizeof text, layout, shape, mesh));
    hd_fields_add(fields, "layout", "%s", text);
}

/* Ranks that wait for this one are told; alone there is nobody to tell. `why` keeps the sentence for later calls. */
static heddle_status leave(heddle_comm *comm, int nranks, heddle_status st, char *why, size_t bytes)
{
    if (nranks > 1) {
        return hd_comm_give_up(comm, st, why, bytes);
    }
    hd_copy_text(why, bytes, heddle_last_error());
    return hd_fail(st, "%s", why);
}

heddle_status hd_object_give_up(hd_broken *broken, heddle_comm *comm, int nranks, heddle_status st)
{
    broken->status = st;
    broken->resets = hd_comm_resets(comm);
    return leave(comm, nranks, st, broken->why, sizeof broken->why);
}

/* heddle_comm_reset makes the communicator anew, and with it what broke before. */
int hd_object_is_broken(hd_broken *broken, const heddle_comm *comm)
{
    if (broken->status != HEDDLE_OK && broken->resets != hd_comm_resets(comm)) {
        broken->status = HEDDLE_OK;
    }
    return broken->status != HEDDLE_OK;
}

heddle_status hd_object_refuse(heddle_comm *comm, int nranks, heddle_status st)
{
    hd_broken unused;
    return leave(comm, nranks, st, unused.why, sizeof unused.why);
}

heddle_status hd_object_check_array(const hd_object_array *x, int rank)
{
    const heddle_box box = {.ndim = 4, .len = {x->len[0], x->len[1], x->len[2], x->len[3]}};
    int64_t bytes = 0;
    if (heddle_box_elems(&box) == 0) {
        return HEDDLE_OK;
    }
    if (x->array == NULL || x->array->data == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: %s is NULL on rank %d, which holds %lld rows of it", x->function, x->name,
                       rank, (long long)(x->len[0] * x->len[1]));
    }
    /* Dense arrays end where their extents say; strides may reach anywhere, and written rows must not overlap. */
    heddle_status st = hd_array_is_dense(x->array)
                           ? HEDDLE_OK
                           : hd_box_reach(&bytes, &box, x->array->stride_elems, x->shape, x->is_written);
    return st == HEDDLE_OK ? st : hd_fail_prefix(st, "%s: %s on rank %d", x->function, x->name, rank);
}
