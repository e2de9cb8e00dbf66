/* Shared by the files that read a model: the frame (dims, tensors), the stages, and numbers with a point. */
#ifndef HD_MODEL_READ_H
#define HD_MODEL_READ_H

#include "planner/model/model.h"
#include "runtime/document/node.h"
#include "runtime/method/method.h"

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
/* "4" or "2.6875", up to six places, in millionths. */
heddle_status hd_read_ratio(int64_t *out, const hd_node *node);
/* "0.99", or "slopes", which is 0: every head its own. */
heddle_status hd_read_decay(double *out, const hd_node *node);
/* An hd_document_reader that makes a heddle_model. */
heddle_status hd_model_read(void *out, const hd_node *root);
heddle_status hd_read_stages(hd_model_reader *reader, const hd_node *node);

#endif
