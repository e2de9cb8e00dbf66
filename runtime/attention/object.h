/* What objects of softmax and of linear attention have in common: what their ranks compare, and how a call fails. */
#ifndef HD_ATTENTION_OBJECT_H
#define HD_ATTENTION_OBJECT_H

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include <heddle/attention.h>

/* Shape, mesh and layout. */
void hd_object_describe(hd_fields *fields, const heddle_shape *shape, const heddle_mesh *mesh,
                        const heddle_layout *layout);
/* A call cannot go on, and the object cannot be used again. The other ranks of a sequence that has `nranks` must not
 * wait for this one: they are told. Returns `st`, with the sentence of the moment. */
heddle_status hd_object_give_up(hd_broken *broken, heddle_comm *comm, int nranks, heddle_status st);
/* Has a call failed half way, and the communicator was not reset since? */
int hd_object_is_broken(hd_broken *broken, const heddle_comm *comm);
/* A mistake that only this rank may have made, found before anything has happened: the object is as it was. */
heddle_status hd_object_refuse(heddle_comm *comm, int nranks, heddle_status st);

/* An array of a call, this rank's part of `shape`, which has len[] of each dim. */
typedef struct hd_object_array {
    const char *function, *name; /* for the sentence */
    const heddle_attention_array *array;
    const heddle_shape *shape;
    int64_t len[4];
    int is_written;
} hd_object_array;
/* Without strides the array is dense. */
static inline int hd_array_is_dense(const heddle_attention_array *array)
{
    const int64_t *stride = array->stride_elems;
    return stride[0] == 0 && stride[1] == 0 && stride[2] == 0 && stride[3] == 0;
}
/* The array may be NULL where the part is empty. HEDDLE_ERR_ARG: elsewhere; strides that heddle_box_reach refuses. */
heddle_status hd_object_check_array(const hd_object_array *x, int rank);

#endif
