/* Backward of CROSS on a device. Gradients of keys and values are of the block's type before they go through their
 * layer. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"

typedef struct gradients {
    char *dq, *dkv, *d_o;
    float *delta, *change;
} gradients;

static char *at(const hd_on_call *call, void *data, int64_t elem)
{
    return (char *)data + (size_t)elem * hd_block_elem_bytes(call->block);
}

static heddle_status restore(hd_on_call *call, hd_on_crossed *a)
{
    const size_t elem = hd_block_elem_bytes(call->block);
    const int64_t elems = call->rows * call->c;
    const int64_t words = call->view->samples * call->block->options.text_tokens * call->c;
    const heddle_conditioning *given = call->view->conditioning;
    if (call->kept.again) {
        call->kept.wide = hd_on_take(call, elems, elem);
        call->kept.o = hd_on_take(call, elems, elem);
        call->kept.mixer = hd_on_take(call, call->rows * call->block->options.heads, 2 * sizeof(float));
        call->kept.text = hd_on_take(call, 2 * words, elem);
        return hd_on_cross_mix(call, a, call->kept.x);
    }
    *a = (hd_on_crossed){
        .kv = call->kept.text, .q = call->kept.wide, .o = call->kept.o, .stats = (float *)(void *)call->kept.mixer};
    a->text = (char *)(uintptr_t)(given->text + call->view->first_sample * call->block->options.text_tokens * call->c);
    a->words = call->dtype == HEDDLE_F32 ? a->text : hd_on_take(call, words, elem);
    return a->words == a->text ? HEDDLE_OK
                               : HD_ON_LAUNCH(call, convert, a->words, call->dtype, a->text, HEDDLE_F32, words);
}

/* Of `count` samples with texts of one length. */
static heddle_status attention_back(hd_on_call *call, const hd_on_crossed *a, const gradients *g, int64_t first,
                                    int64_t count)
{
    const int64_t rows = call->view->sample_rows;
    hd_on_crossed d = {.kv = g->dkv, .q = g->dq, .o = g->d_o};
    const hd_device_attention to = hd_on_cross_of(call, &d, first, count);
    const hd_device_attention_back back = {.of = hd_on_cross_of(call, a, first, count),
                                           .d_o = to.o,
                                           .dq = to.q,
                                           .dk = to.k,
                                           .dv = to.v,
                                           .delta = g->delta + first * call->block->options.heads * rows};
    return HD_ON_LAUNCH(call, attention_back, &back);
}

/* Of samples that all have a text. */
static heddle_status rows_back(hd_on_call *call, const hd_on_crossed *a, const gradients *g, int64_t first,
                               int64_t samples)
{
    heddle_status st = HEDDLE_OK;
    const int64_t c = call->c, rows = samples * call->view->sample_rows, begin = first * call->view->sample_rows * c;
    const hd_device_rows of = {.dtype = call->dtype, .rows = rows, .c = c};
    char *dx = at(call, call->view->x, begin);
    int64_t count;
    HD_TRY(hd_on_through(call, HD_LAYER_CROSS_PROJ, at(call, g->d_o, begin), call->dtype, dx, rows));
    HD_TRY(hd_on_weight(call, HD_LAYER_CROSS_PROJ, dx, at(call, a->o, begin), rows));
    for (int64_t s = first; s < first + samples; s += count) {
        count = hd_on_run_of(call, s, 0);
        HD_TRY(attention_back(call, a, g, s, count));
    }
    HD_TRY(hd_on_weight(call, HD_LAYER_Q, at(call, g->dq, begin), at(call, call->kept.x, begin), rows));
    HD_TRY(hd_on_through(call, HD_LAYER_Q, g->change, HEDDLE_F32, at(call, g->dq, begin), rows));
    st = HD_ON_LAUNCH(call, gate_residual, &of, dx, g->change, HEDDLE_F32, NULL);
out:
    return st;
}

/* `rows` rows of the text from `row` on. */
static heddle_status words_back(hd_on_call *call, const hd_on_crossed *a, const gradients *g, int64_t row, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    const int64_t c = call->c;
    float *dtext = call->wanted != NULL ? call->wanted->text : NULL;
    const hd_device_rows of = {.dtype = HEDDLE_F32, .rows = rows, .c = c};
    char *dkv = at(call, g->dkv, row * 2 * c);
    HD_TRY(hd_on_weight(call, HD_LAYER_KV, dkv, at(call, a->words, row * c), rows));
    if (dtext != NULL) {
        dtext += (call->view->first_sample * call->block->options.text_tokens + row) * c;
        HD_TRY(hd_on_through(call, HD_LAYER_KV, g->change, HEDDLE_F32, dkv, rows));
        HD_TRY(HD_ON_LAUNCH(call, gate_residual, &of, dtext, g->change, HEDDLE_F32, NULL));
    }
out:
    return st;
}

static heddle_status text_back(hd_on_call *call, const hd_on_crossed *a, const gradients *g)
{
    heddle_status st = HEDDLE_OK;
    const int64_t tokens = call->block->options.text_tokens;
    int64_t count;
    for (int64_t s = 0; s < call->view->samples; s += count) {
        const int64_t length = hd_cross_length(call->block, call->view, s);
        count = length == tokens || length == 0 ? hd_on_run_of(call, s, 0) : 1; /* whole texts lie behind one another */
        HD_TRY(length > 0 ? words_back(call, a, g, s * tokens, count > 1 ? count * tokens : length) : HEDDLE_OK);
    }
out:
    return st;
}

heddle_status hd_on_cross_back(hd_on_call *call)
{
    heddle_status st = HEDDLE_OK;
    const size_t elem = hd_block_elem_bytes(call->block);
    const int64_t elems = call->rows * call->c;
    const int64_t words = call->view->samples * call->block->options.text_tokens * call->c;
    hd_on_crossed a;
    int64_t count;
    HD_TRY(restore(call, &a));
    const gradients g = {.dq = hd_on_take(call, elems, elem),
                         .dkv = hd_on_take(call, 2 * words, elem),
                         .d_o = hd_on_take(call, elems, elem),
                         .delta = hd_on_take(call, call->rows * call->block->options.heads, sizeof(float)),
                         .change = hd_on_take(call, elems > words ? elems : words, sizeof(float))};
    for (int64_t s = 0; s < call->view->samples; s += count) {
        count = hd_on_run_of(call, s, 1);
        HD_TRY(hd_cross_length(call->block, call->view, s) > 0 ? rows_back(call, &a, &g, s, count) : HEDDLE_OK);
    }
    st = text_back(call, &a, &g);
out:
    return st;
}
