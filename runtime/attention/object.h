/* What objects of softmax and of linear attention have in common: what their ranks compare, and how a call fails. */
#ifndef HD_ATTENTION_OBJECT_H
#define HD_ATTENTION_OBJECT_H

#include "runtime/comm/comm_internal.h"

typedef struct hd_broken {
    heddle_status status; /* of the call that failed half way; HEDDLE_OK: none has */
    char why[512];
} hd_broken;

/* Shape, mesh and layout. */
void hd_object_describe(hd_fields *fields, const heddle_shape *shape, const heddle_mesh *mesh,
                        const heddle_layout *layout);
/* A call cannot go on, and the object cannot be used again. The other ranks of a sequence that has `nranks` must not
 * wait for this one: they are told. Returns `st`, with the sentence of the moment. */
heddle_status hd_object_give_up(hd_broken *broken, heddle_comm *comm, int nranks, heddle_status st);
/* A mistake that only this rank may have made, found before anything has happened: the object is as it was. */
heddle_status hd_object_refuse(heddle_comm *comm, int nranks, heddle_status st);

#endif
