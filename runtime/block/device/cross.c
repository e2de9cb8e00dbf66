/* CROSS on a device: q of the rows, k and v of the text, attention, projection, residual. Samples without a text are
 * left as they are; lengths are the host's, and samples of one length beside one another are one launch. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"

#include <math.h>

static char *at_row(const hd_on_call *call, void *data, int64_t row, int64_t width)
{
    return (char *)data + (size_t)(row * width) * hd_block_elem_bytes(call->block);
}

/* Samples from `first` on whose texts are as long as its own, or (any) none of which is without. */
int64_t hd_on_run_of(const hd_on_call *call, int64_t first, int any)
{
    const int64_t length = hd_cross_length(call->block, call->view, first);
    int64_t end = first + 1;
    while (end < call->view->samples) {
        const int64_t next = hd_cross_length(call->block, call->view, end);
        if (any ? (next == 0) != (length == 0) : next != length) {
            break;
        }
        end++;
    }
    return end - first;
}

hd_device_attention hd_on_cross_of(const hd_on_call *call, const hd_on_crossed *a, int64_t first, int64_t samples)
{
    const heddle_block *block = call->block;
    const int64_t rows = call->view->sample_rows, tokens = block->options.text_tokens, c = call->c;
    const int64_t d = block->head_channels, heads = block->options.heads;
    char *kv = at_row(call, a->kv, first * tokens, 2 * c);
    return (hd_device_attention){.dtype = call->dtype,
                                 .outer = samples,
                                 .inner = 1,
                                 .heads = heads,
                                 .kv_heads = heads,
                                 .nq = rows,
                                 .nk = hd_cross_length(block, call->view, first),
                                 .d = d,
                                 .scale = 1.0f / sqrtf((float)d),
                                 .diagonal = tokens + rows,
                                 .fibres_of_length = 1,
                                 .q = {at_row(call, a->q, first * rows, c), rows * c, 0, c, d},
                                 .k = {kv, tokens * 2 * c, 0, 2 * c, d},
                                 .v = {at_row(call, kv, 1, c), tokens * 2 * c, 0, 2 * c, d},
                                 .o = {at_row(call, a->o, first * rows, c), rows * c, 0, c, d},
                                 .stats = a->stats != NULL ? a->stats + first * heads * rows * 2 : NULL};
}

static void take_arrays(hd_on_call *call, hd_on_crossed *a)
{
    const size_t elem = hd_block_elem_bytes(call->block);
    const hd_kept *kept = call->keeps ? &call->kept : NULL;
    const int64_t elems = call->rows * call->c;
    const int64_t text = call->view->samples * call->block->options.text_tokens * call->c;
    a->text = (char *)(uintptr_t)(call->view->conditioning->text +
                                  call->view->first_sample * call->block->options.text_tokens * call->c);
    a->words = call->dtype == HEDDLE_F32 ? a->text : hd_on_take(call, text, elem);
    a->kv = kept != NULL ? kept->text : hd_on_take(call, 2 * text, elem);
    a->q = kept != NULL ? kept->wide : hd_on_take(call, elems, elem);
    a->o = kept != NULL ? kept->o : hd_on_take(call, elems, elem);
    a->stats = kept != NULL ? (float *)(void *)kept->mixer : NULL;
}

heddle_status hd_on_cross_mix(hd_on_call *call, hd_on_crossed *a, void *x)
{
    heddle_status st = HEDDLE_OK;
    const int64_t words = call->view->samples * call->block->options.text_tokens;
    int64_t count;
    take_arrays(call, a);
    if (a->words != a->text) {
        HD_TRY(HD_ON_LAUNCH(call, convert, a->words, call->dtype, a->text, HEDDLE_F32, words * call->c));
    }
    HD_TRY(hd_on_layer(call, HD_LAYER_KV, a->kv, a->words, words));
    HD_TRY(hd_on_layer(call, HD_LAYER_Q, a->q, x, call->rows));
    for (int64_t s = 0; s < call->view->samples; s += count) {
        count = hd_on_run_of(call, s, 0);
        const hd_device_attention attention = hd_on_cross_of(call, a, s, count);
        HD_TRY(attention.nk > 0 ? HD_ON_LAUNCH(call, attention, &attention) : HEDDLE_OK);
    }
out:
    return st;
}

heddle_status hd_on_cross(hd_on_call *call)
{
    heddle_status st = HEDDLE_OK;
    hd_on_crossed a;
    int64_t count;
    const int64_t rows = call->view->sample_rows, c = call->c;
    HD_TRY(hd_on_cross_mix(call, &a, call->view->x));
    float *change = hd_on_take(call, call->rows * c, sizeof(float));
    for (int64_t s = 0; s < call->view->samples; s += count) {
        count = hd_on_run_of(call, s, 1);
        if (hd_cross_length(call->block, call->view, s) > 0) {
            const hd_device_rows of = {.dtype = call->dtype, .rows = count * rows, .c = c};
            HD_TRY(hd_on_layer(call, HD_LAYER_CROSS_PROJ, change, at_row(call, a.o, s * rows, c), count * rows));
            void *keep = call->kept.x != NULL ? at_row(call, call->kept.x, s * rows, c) : NULL;
            const hd_device_gate added = {of, change, NULL, keep};
            HD_TRY(hd_on_change(call, at_row(call, call->view->x, s * rows, c), &added));
        }
    }
out:
    return st;
}
