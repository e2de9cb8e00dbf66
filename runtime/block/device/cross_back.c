/* Backward of CROSS on a device. Gradients of keys and values are sums over rows, of which other ranks have more: they
 * go through their layer unrounded, so that the sum over ranks is the same however rows are dealt (hd_on_terms). */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"

typedef struct gradients {
    char *dq, *d_o;
    float *dkv, *delta, *change;
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
    return HEDDLE_OK;
}

/* Of `count` samples with texts of one length. */
static heddle_status attention_back(hd_on_call *call, const hd_on_crossed *a, const gradients *g, int64_t first,
                                    int64_t count)
{
    const int64_t rows = call->view->sample_rows;
    heddle_status st = HEDDLE_OK;
    const hd_on_crossed d = {.kv = g->dkv, .q = g->dq, .o = g->d_o};
    const int64_t tokens = call->block->options.text_tokens, begin = first * rows * call->c;
    hd_device_attention to = hd_on_cross_of(call, &d, first, count);
    to.k.data = g->dkv + first * tokens * 2 * call->c;
    to.v.data = g->dkv + first * tokens * 2 * call->c + call->c;
    to.q.data = call->dtype == HEDDLE_F32 ? to.q.data : g->change; /* dq comes in f32, too, and is rounded once */
    const hd_device_attention of = hd_on_cross_of(call, a, first, count);
    const int64_t bytes = (int64_t)call->on->kernels->attention_back_bytes(&of);
    const size_t before = call->used;
    const hd_device_attention_back back = {.of = of,
                                           .d_o = to.o,
                                           .dq = to.q,
                                           .dk = to.k,
                                           .dv = to.v,
                                           .gives_f32 = 1,
                                           .delta = g->delta + first * call->block->options.heads * rows,
                                           .part = hd_on_take(call, bytes, 1)};
    call->used = before; /* of the launch alone */
    HD_TRY(HD_ON_LAUNCH(call, attention_back, &back));
    HD_TRY(call->dtype == HEDDLE_F32 ? HEDDLE_OK
                                     : HD_ON_LAUNCH(call, convert, at(call, g->dq, begin), call->dtype, g->change,
                                                    HEDDLE_F32, count * rows * call->c));
out:
    return st;
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
    HD_TRY(hd_on_through(call, HD_LAYER_CROSS_PROJ, at(call, g->d_o, begin), dx, rows));
    HD_TRY(hd_on_weight(call, HD_LAYER_CROSS_PROJ, dx, at(call, a->o, begin), rows));
    for (int64_t s = first; s < first + samples; s += count) {
        count = hd_on_run_of(call, s, 0);
        HD_TRY(attention_back(call, a, g, s, count));
    }
    HD_TRY(hd_on_weight(call, HD_LAYER_Q, at(call, g->dq, begin), at(call, call->kept.x, begin), rows));
    HD_TRY(hd_on_through(call, HD_LAYER_Q, g->change, at(call, g->dq, begin), rows));
    st = HD_ON_LAUNCH(call, gate_residual, &of, dx, g->change, HEDDLE_F32, NULL, NULL);
out:
    return st;
}

/* What a layer's gradients are made of: rows of its result's gradient, and those that it was given. */
typedef struct pairs {
    const void *dy, *x;
    int64_t rows;
} pairs;

/* `rows` rows of the text, as many times as its gradients have terms. */
static heddle_status words_of(hd_on_call *call, pairs *out, const float *dkv, const float *text, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    const int terms = hd_on_terms(call->block, HD_LAYER_KV, HEDDLE_PRODUCT_OUTER);
    const int64_t elems = rows * call->c;
    *out = (pairs){dkv, text, terms * rows};
    if (terms > 1) {
        const size_t elem = hd_block_elem_bytes(call->block);
        void *dy = hd_on_take(call, terms * 2 * elems, elem), *x = hd_on_take(call, terms * elems, elem);
        *out = (pairs){dy, x, terms * rows};
        HD_TRY(HD_ON_LAUNCH(call, split, dy, call->dtype, dkv, 2 * elems));
        for (int i = 0; i < terms; i++) {
            HD_TRY(HD_ON_LAUNCH(call, convert, at(call, x, i * elems), call->dtype, text, HEDDLE_F32, elems));
        }
    }
out:
    return st;
}

/* `rows` rows of the text from `row` on. */
static heddle_status words_back(hd_on_call *call, const hd_on_crossed *a, const gradients *g, int64_t row, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    const int64_t c = call->c;
    const size_t before = call->used;
    float *dtext = call->wanted != NULL ? call->wanted->text : NULL;
    const hd_device_rows of = {.dtype = HEDDLE_F32, .rows = rows, .c = c};
    pairs words;
    HD_TRY(words_of(call, &words, g->dkv + row * 2 * c, (const float *)(const void *)a->text + row * c, rows));
    HD_TRY(hd_on_weight(call, HD_LAYER_KV, words.dy, words.x, words.rows));
    if (dtext != NULL) {
        dtext += (call->view->first_sample * call->block->options.text_tokens + row) * c;
        HD_TRY(hd_on_through(call, HD_LAYER_KV, g->change, words.dy, words.rows));
        for (int64_t r = 0; r < words.rows; r += rows) {
            HD_TRY(HD_ON_LAUNCH(call, gate_residual, &of, dtext, g->change + r * c, HEDDLE_F32, NULL, NULL));
        }
    }
    call->used = before;
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
    const int64_t changed = hd_on_terms(call->block, HD_LAYER_KV, HEDDLE_PRODUCT_BACK) * words;
    hd_on_crossed a;
    int64_t count;
    HD_TRY(restore(call, &a));
    const gradients g = {.dq = hd_on_take(call, elems, elem),
                         .d_o = hd_on_take(call, elems, elem),
                         .dkv = hd_on_take(call, 2 * words, sizeof(float)),
                         .delta = hd_on_take(call, call->rows * call->block->options.heads, sizeof(float)),
                         .change = hd_on_take(call, elems > changed ? elems : changed, sizeof(float))};
    for (int64_t s = 0; s < call->view->samples; s += count) {
        count = hd_on_run_of(call, s, 1);
        HD_TRY(hd_cross_length(call->block, call->view, s) > 0 ? rows_back(call, &a, &g, s, count) : HEDDLE_OK);
    }
    st = text_back(call, &a, &g);
out:
    return st;
}
