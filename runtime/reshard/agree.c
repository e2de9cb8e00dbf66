/* Ranks compare what they ask for before anything else happens, and tell one another what may differ. */
#include "runtime/base/fields.h"
#include "runtime/reshard/plan.h"

#include <stdio.h>
#include <string.h>

#define MEMORY_NAME(name, text) [HEDDLE_MEMORY_##name] = text,
#define TUNING_NAME(name, text) [HEDDLE_TUNING_##name] = text,
static const char *const memory_names[] = {HEDDLE_MEMORY_LIST(MEMORY_NAME)};
static const char *const tuning_names[] = {HEDDLE_TUNING_LIST(TUNING_NAME)};

static void add_order(hd_fields *fields, const char *name, const heddle_order *order)
{
    char text[HEDDLE_MAX_DIMS * 12] = "";
    size_t at = 0;
    for (int i = 0; i < order->ndim; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", i > 0 ? "," : "", order->dim[i]);
    }
    hd_fields_add(fields, name, "%s", text);
}

static void add_dims(hd_fields *fields, const heddle_shape *shape)
{
    char names[HEDDLE_MAX_DIMS * (HEDDLE_NAME_BYTES + 1)] = "",
                                                      extents[HEDDLE_MAX_DIMS * (HEDDLE_NAME_BYTES + 22)] = "";
    size_t n = 0, e = 0;
    for (int i = 0; i < shape->ndim; i++) {
        const heddle_dim *dim = &shape->dim[i];
        const char *gap = i > 0 ? " " : "";
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", gap, dim->name);
        e += (size_t)snprintf(extents + e, sizeof extents - e, "%s%s=%lld", gap, dim->name, (long long)dim->extent);
    }
    hd_fields_add(fields, "list of dims", "%s", names);
    hd_fields_add(fields, "list of extents", "%s", extents);
}

static void describe(hd_fields *fields, const hd_request *request)
{
    const heddle_reshard_line *line = &request->line;
    const heddle_reshard_options *o = &request->options;
    char text[HEDDLE_LINE_BYTES] = "";
    hd_fields_add(fields, "library version", "%zu %zu", sizeof(hd_facts), sizeof(hd_transfer_spec));
    hd_fields_add(fields, "dtype", "%s", heddle_dtype_name(line->shape.dtype));
    add_dims(fields, &line->shape);
    heddle_ignore(heddle_mesh_format(text, sizeof text, &line->mesh));
    hd_fields_add(fields, "mesh", "%s", text);
    heddle_ignore(heddle_layout_format(text, sizeof text, &line->from, &line->shape, &line->mesh));
    hd_fields_add(fields, "from layout", "%s", text);
    heddle_ignore(heddle_layout_format(text, sizeof text, &line->to, &line->shape, &line->mesh));
    hd_fields_add(fields, "to layout", "%s", text);
    add_order(fields, "from order", &line->from_order);
    add_order(fields, "to order", &line->to_order);
    hd_fields_add(fields, "memory option", "%s", memory_names[o->memory]);
    hd_fields_add(fields, "tuning option", "%s", tuning_names[o->tuning]);
    hd_fields_add(fields, "kernel", "%s", request->kernel != NULL ? request->kernel->name : "chosen");
    hd_fields_add(fields, "space", "%d", (int)o->space);
}

heddle_status hd_facts_agree(heddle_reshard *plan, heddle_comm *comm, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    hd_fields fields = {.what = "reshard", .line = plan != NULL ? plan->line_text : ""};
    hd_facts own;
    if (plan != NULL) {
        describe(&fields, &plan->request);
    }
    HD_TRY(hd_comm_agree_on(comm, &fields, mine));
    const hd_request *request = &plan->request;
    memset(&own, 0, sizeof own);
    memcpy(own.src_stride_elems, request->src_stride_elems, sizeof own.src_stride_elems);
    memcpy(own.dst_stride_elems, request->dst_stride_elems, sizeof own.dst_stride_elems);
    own.src_bytes = request->src_bytes;
    own.dst_bytes = request->dst_bytes;
    HD_TRY(hd_comm_allgather_or_abort(comm, &own, plan->facts, sizeof own));
out:
    return st;
}
