/* Shared by the two files that read a model: the frame (dims, tensors) and the stages. */
#ifndef HD_MODEL_READ_H
#define HD_MODEL_READ_H

#include "planner/model/model.h"
#include "runtime/document/node.h"

#define HD_EXTENT_MAX (INT64_C(1) << 48)

/* What reading needs besides the model: the tensors' names. */
typedef struct hd_model_reader {
    heddle_model *m;
    const char *activation;
    const char *text;
} hd_model_reader;

extern const char *const hd_role_names[];

hd_mark hd_mark_of(const hd_node *node);
int hd_is_dim_name(const char *text);
/* The index of a declared dim. */
heddle_status hd_read_dim_ref(int *out, const heddle_model *model, const hd_node *node, const char *what);
heddle_status hd_read_stages(hd_model_reader *reader, const hd_node *node);

#endif
