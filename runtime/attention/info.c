/* What an attention did and holds, beside what was planned. */
#include "runtime/attention/attention_private.h"

/* What the core and the heads exchange have moved, one way. */
static void count(int64_t *bytes, int64_t *messages, const heddle_attention *a, int is_back)
{
    const int first = is_back ? HD_O_TO_HEADS : 0, end = is_back ? HD_HEADS_WAYS : HD_O_TO_HEADS;
    const hd_moved core = a->on != NULL ? hd_attn_on_moved(a->on, is_back) : a->core.moved[is_back];
    *bytes = core.bytes;
    *messages = core.messages;
    for (int way = first; way < end; way++) {
        const hd_moved moved = hd_reshard_moved(a->heads.way[way]);
        *bytes += moved.bytes;
        *messages += moved.messages;
    }
}

heddle_status heddle_attention_get_info(heddle_attention_info *out, const heddle_attention *attention)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, attention));
    const heddle_attention *a = attention;
    heddle_attention_info info = {.method = heddle_attention_method_name(a->problem.options.method),
                                  .forwards = a->forwards,
                                  .backwards = a->backwards,
                                  .saved_bytes = a->saved_bytes + a->core.saved_bytes,
                                  .workspace_bytes = a->workspace_bytes + a->core.workspace_bytes,
                                  .kernel = a->on != NULL ? hd_attn_on_kernel(a->on) : a->core.kernels->name,
                                  .why = a->why};
    const hd_attn_problem *p = &a->problem;
    hd_memory memory;
    hd_flops flops;
    hd_method_memory(&memory, p->method, &p->members, p->rank); /* of the CPU's method */
    hd_method_flops(&flops, p->method, &p->members, p->rank, hd_attn_pairs(p));
    info.planned_saved_bytes = a->on == NULL ? (int64_t)memory.saved_bytes : 0;
    info.planned_workspace_bytes = a->on == NULL ? (int64_t)memory.workspace_bytes : 0;
    info.room_bytes = a->core.room_bytes;
    info.forward_flops = (int64_t)flops.forward;
    info.backward_flops = (int64_t)flops.backward;
    hd_attn_plan(&info.planned, p);
    count(&info.measured.forward_bytes, &info.measured.forward_messages, a, 0);
    count(&info.measured.backward_bytes, &info.measured.backward_messages, a, 1);
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_attention_info, method));
out:
    return st;
}
