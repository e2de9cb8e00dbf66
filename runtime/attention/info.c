/* What an attention did and holds, beside what was planned. */
#include "runtime/attention/attention_private.h"

heddle_status heddle_attention_get_info(heddle_attention_info *out, const heddle_attention *attention)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, attention));
    const heddle_attention *a = attention;
    const hd_moved *way = a->heads.moved;
    heddle_attention_info info = {.method = heddle_attention_method_name(a->problem.options.method),
                                  .forwards = a->forwards,
                                  .backwards = a->backwards,
                                  .saved_bytes = a->saved_bytes + a->core.saved_bytes,
                                  .workspace_bytes = a->workspace_bytes + a->core.workspace_bytes,
                                  .kernel = a->core.kernels->name,
                                  .why = a->why};
    const hd_attn_problem *p = &a->problem;
    hd_memory memory;
    hd_flops flops;
    hd_method_memory(&memory, p->method, &p->members, p->rank);
    hd_method_flops(&flops, p->method, &p->members, p->rank, hd_attn_pairs(p));
    info.planned_saved_bytes = (int64_t)memory.saved_bytes;
    info.planned_workspace_bytes = (int64_t)memory.workspace_bytes;
    info.room_bytes = a->core.room_bytes;
    info.forward_flops = (int64_t)flops.forward;
    info.backward_flops = (int64_t)flops.backward;
    hd_attn_plan(&info.planned, p);
    info.measured.forward_bytes =
        a->core.moved[0].bytes + way[HD_QKV_TO_HEADS].bytes + way[HD_O_TO_ROWS].bytes + way[HD_LSE_TO_ROWS].bytes;
    info.measured.forward_messages = a->core.moved[0].messages + way[HD_QKV_TO_HEADS].messages +
                                     way[HD_O_TO_ROWS].messages + way[HD_LSE_TO_ROWS].messages;
    info.measured.backward_bytes = a->core.moved[1].bytes + way[HD_O_TO_HEADS].bytes + way[HD_QKV_TO_ROWS].bytes;
    info.measured.backward_messages =
        a->core.moved[1].messages + way[HD_O_TO_HEADS].messages + way[HD_QKV_TO_ROWS].messages;
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_attention_info, method));
out:
    return st;
}
