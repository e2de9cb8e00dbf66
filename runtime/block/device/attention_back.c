/* Backward of ATTENTION and LINEAR on a device. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"
#include "runtime/block/sharded.h"

/* What lies between the layers, from the tape, or made again from the input. */
static heddle_status restore(hd_on_call *call, hd_on_mixed *a)
{
    heddle_status st = HEDDLE_OK;
    const size_t elem = hd_block_elem_bytes(call->block);
    const int64_t elems = call->rows * call->c;
    if (call->kept.again) {
        call->kept.wide = hd_on_take(call, 3 * elems, elem);
        call->kept.o = hd_on_take(call, elems, elem);
        call->kept.mixer = hd_on_take(call, call->rows * call->block->options.heads, 2 * sizeof(float));
        HD_TRY(hd_on_mix(call, a, call->kept.x));
        call->tape->forward = call->block->sharded != NULL ? call->block->sharded->held : 0;
        goto out;
    }
    *a = (hd_on_mixed){.qkv = call->kept.wide,
                       .turned = call->kept.wide,
                       .o = call->kept.o,
                       .stats = (float *)(void *)call->kept.mixer};
    if (hd_on_turns(call->block)) {
        a->turned = hd_on_take(call, 2 * elems, elem);
        HD_TRY(hd_on_turn(call, a->turned, a->qkv));
    }
out:
    return st;
}

heddle_status hd_on_heads_back(hd_on_call *call, char *d_qkv, char *qkv)
{
    const hd_device_heads of = hd_on_heads_of(call);
    const size_t before = call->used;
    void *scratch = hd_on_take(call, (int64_t)call->on->kernels->norm_rotate_back_bytes(&of), 1);
    call->used = before; /* of the launch alone */
    return hd_on_turns(call->block)
               ? HD_ON_LAUNCH(call, norm_rotate_back, &of, d_qkv, qkv, call->on->gradient + HD_PARAM_Q_NORM, scratch)
               : HEDDLE_OK;
}

heddle_status hd_on_attention_back(hd_on_call *call)
{
    heddle_status st = HEDDLE_OK;
    const size_t elem = hd_block_elem_bytes(call->block);
    const int64_t elems = call->rows * call->c;
    hd_on_mixed a;
    HD_TRY(restore(call, &a));
    void *d_qkv = hd_on_take(call, 3 * elems, elem), *d_o = hd_on_take(call, elems, elem);
    float *delta = hd_on_take(call, call->rows * call->block->options.heads, sizeof *delta);
    HD_TRY(hd_on_out_back(call, HD_LAYER_PROJ, d_o, a.o, HD_GATE));
    const hd_device_attention gradients = hd_on_attention_of(call, d_qkv, d_qkv, d_o, NULL);
    const hd_device_attention_back back = {.of = hd_on_attention_of(call, a.qkv, a.turned, a.o, a.stats),
                                           .d_o = gradients.o,
                                           .dq = gradients.q,
                                           .dk = gradients.k,
                                           .dv = gradients.v,
                                           .delta = delta};
    HD_TRY(hd_on_attend_back(call, &back));
    HD_TRY(hd_on_heads_back(call, d_qkv, a.qkv));
    st = hd_on_in_back(call, HD_LAYER_QKV, d_qkv, call->kept.x, 0);
out:
    return st;
}
