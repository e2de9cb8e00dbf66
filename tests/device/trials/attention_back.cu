/* A trial of attention's gradients: a block has all queries and keys of a head of a fibre, at most `rows`, and computes
 * weights once, where the library computes them twice. A warp has 16 keys for dk and dv, and leaves the gradients of
 * its scores in the block's memory; then it has 16 queries for dq. The bits are the library's. */
#include "tile.h"
#include "trials.h"

enum { TURN = 4 /* times 8 queries */ };

typedef struct whole {
    uint16_t *q, *k, *v, *d_o, *ds; /* ds[key][query] */
    hd_known_query *known;
} whole;

#define DS_STRIDE(rows) ((rows) + 8)
#define WHOLE_BYTES(width, rows) (4 * (rows)*STRIDE(width) * 2 + (rows)*DS_STRIDE(rows) * 2 + (rows)*8)

HD_DEV whole whole_of(uint16_t *memory, int width, int rows)
{
    const int elems = rows * STRIDE(width);
    whole w = {memory, memory + elems, memory + 2 * elems, memory + 3 * elems, memory + 4 * elems, 0};
    w.known = (hd_known_query *)(void *)(w.ds + rows * DS_STRIDE(rows));
    return w;
}

HD_DEV void ask_all(const whole *w, const hd_attention_args *a, const hd_attention_part *p, int width, int rows)
{
    trial_ask(w->q, &a->of.q, p, p->head, 0, a->nq, a->d, rows, width);
    trial_ask(w->k, &a->of.k, p, p->head, 0, p->nk, a->d, rows, width);
    trial_ask(w->v, &a->of.v, p, p->head, 0, p->nk, a->d, rows, width);
    trial_ask(w->d_o, &a->d_o, p, p->head, 0, a->nq, a->d, rows, width);
    hd_copy_commit();
}

/* What backward knows of each query; 8 lanes share one, as the library's delta has it, and 4 go through all. */
HD_DEV void know_all(const whole *w, const hd_attention_args *a, const hd_attention_part *p, int width)
{
    const int32_t step = (int32_t)HD_THREADS / 8, begin = (int32_t)HD_THREAD / 8, at = (int32_t)(HD_LANE % 8) * 8;
    hd_lane_piece o[4][2], d_o;
    HD_UNROLL
    for (int i = 0; i < 8; i++) {
        const int32_t row = begin + i / 2 * step, column = at + i % 2 * 64;
        o[i / 2][i % 2].whole = hd_zero_16();
        if (row < a->nq && column < a->d) {
            o[i / 2][i % 2].whole =
                hd_load_16(hd_tokens_at(&a->of.o, p, p->head, HEDDLE_BF16) + (row * a->of.o.token + column) * 2);
        }
    }
    hd_copy_wait_0();
    hd_sync(); /* all have what they asked for */
    HD_UNROLL
    for (int i = 0; i < 4; i++) {
        const int32_t row = begin + i * step;
        float sum = 0;
        HD_UNROLL
        for (int j = 0; j < 2; j++) {
            if (at + j * 64 < a->d) {
                memcpy(&d_o, w->d_o + row * STRIDE(width) + at + j * 64, sizeof d_o);
                HD_UNROLL
                for (int e = 0; e < 8; e++) {
                    sum = hd_fma(hd_piece_get(&o[i][j], e, HEDDLE_BF16), hd_piece_get(&d_o, e, HEDDLE_BF16), sum);
                }
            }
        }
        sum = hd_group_sum(sum, 8);
        if (HD_LANE % 8 == 0) {
            hd_known_query known = {0, sum};
            if (row < a->nq) {
                const float *stats = a->of.stats + 2 * hd_attention_row(a, p, p->head, row);
                known.level = hd_fma(hd_float_load(stats), a->scale_log2, hd_float_load(stats + 1));
            }
            w->known[row] = known;
        }
    }
    hd_sync(); /* all of it is there */
}

/* dk and dv get what some of the queries give. */
HD_DEV void turn_of(float (*dk)[4], float (*dv)[4], const whole *w, const hd_attention_args *a,
                    const hd_attention_part *p, int32_t first, int is_all_seen, int width, int rows)
{
    const int32_t own = (int32_t)HD_WARP * 16, key = own + (int32_t)HD_LANE / 4;
    const hd_known_query *known = w->known + first + HD_LANE % 4 * 2;
    float s[TURN][4] = {{0}}, ds[TURN][4] = {{0}};
    uint32_t part[TURN / 2][4];
    trial_dots(s, w->k + own * STRIDE(width), 0, w->q + first * STRIDE(width), TURN, 1, width);
    HD_UNROLL
    for (int i = 0; i < TURN * 4; i++) {
        s[i / 4][i % 4] = hd_exp2(hd_fma(s[i / 4][i % 4], a->scale_log2, -known[i / 4 * 8 + i % 2].level));
    }
    if (!is_all_seen) {
        HD_UNROLL
        for (int i = 0; i < TURN * 4; i++) {
            const int32_t query = first + i / 4 * 8 + (int32_t)(HD_LANE % 4) * 2 + i % 2;
            s[i / 4][i % 4] = hd_is_seen(a, p, query, key + i % 4 / 2 * 8) ? s[i / 4][i % 4] : 0;
        }
    }
    trial_round(part, s, TURN, 1);
    trial_mix(dv, part, w->d_o + first * STRIDE(width), TURN, 1, width);
    trial_dots(ds, w->v + own * STRIDE(width), 0, w->d_o + first * STRIDE(width), TURN, 1, width);
    HD_UNROLL
    for (int i = 0; i < TURN * 4; i++) {
        ds[i / 4][i % 4] = hd_mul(s[i / 4][i % 4], ds[i / 4][i % 4] - known[i / 4 * 8 + i % 2].delta);
    }
    trial_round(part, ds, TURN, 1);
    HD_UNROLL
    for (int i = 0; i < TURN * 2; i++) {
        uint16_t *to = w->ds + (key + i % 2 * 8) * DS_STRIDE(rows) + first + i / 2 * 8 + (int)(HD_LANE % 4) * 2;
        memcpy(to, &part[i / 4][i % 4], 4);
    }
    trial_mix(dk, part, w->q + first * STRIDE(width), TURN, 1, width);
}

HD_DEV void queries_of(const whole *w, const hd_attention_args *a, const hd_attention_part *p, int width, int rows)
{
    const int own = (int)HD_WARP * 16, key = (int)HD_LANE / 16 * 8 + (int)HD_LANE % 8;
    float dq[HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    HD_NOT_UNROLLED
    for (int i = 0; i < rows; i += 32) {
        uint32_t part[2][4];
        const uint16_t *from = w->ds + (i + key) * DS_STRIDE(rows) + own + (int)HD_LANE / 8 % 2 * 8;
        hd_load_matrix_4_turned(part[0], from);
        hd_load_matrix_4_turned(part[1], from + 16 * DS_STRIDE(rows));
        trial_mix(dq, part, w->k + i * STRIDE(width), 4, 1, width);
    }
    hd_scale_all(dq, a, width);
    trial_store(&a->dq, p, own, a->nq, a->d, w->q + own * STRIDE(width), dq, width);
}

HD_DEV void whole_back(const hd_attention_args *a, int width, int rows)
{
    HD_DYNAMIC_SHARED(uint16_t, memory);
    const whole w = whole_of(memory, width, rows);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const int32_t own = (int32_t)HD_WARP * 16;
    float dk[HD_DEVICE_MOST_HEAD / 8][4] = {{0}}, dv[HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    ask_all(&w, a, &p, width, rows);
    know_all(&w, a, &p, width);
    const int is_all_seen = rows <= a->nq && hd_is_seen(a, &p, 0, rows - 1);
    HD_NOT_UNROLLED
    for (int32_t first = 0; first < a->nq; first += TURN * 8) {
        turn_of(dk, dv, &w, a, &p, first, is_all_seen, width, rows);
    }
    hd_sync(); /* all of ds is there, and nobody reads q, v and d_o any more */
    hd_scale_all(dk, a, width);
    trial_store(&a->dv, &p, own, a->nk, a->d, w.v + own * STRIDE(width), dv, width);
    trial_store(&a->dk, &p, own, a->nk, a->d, w.d_o + own * STRIDE(width), dk, width);
    queries_of(&w, a, &p, width, rows);
}

/* --- number of the form, its name, rows, and blocks of a multiprocessor that registers are for */
#define FORMS(form)                                                                                                    \
    form(0, "a block a fibre of 128, 2 beside", 128, 2) form(1, "a block a fibre of 128, 1 beside", 128, 1)            \
        form(2, "a block a fibre of 64, 4 beside", 64, 4)
#define KERNEL(i, name, rows, blocks)                                                                                  \
    TRIAL_KERNEL(trial_backward_##i, hd_attention_args, a, 2 * (rows), blocks)                                         \
    {                                                                                                                  \
        whole_back(&a, 72, rows);                                                                                      \
    }
FORMS(KERNEL)

#define ABOUT(i, name, rows, blocks) {name, HD_KERNEL_ADDRESS(trial_backward_##i), rows},
typedef struct form {
    const char *name;
    const void *kernel;
    int rows;
} form;
static const form about[] = {FORMS(ABOUT)};

int trial_backward(int i, const hd_device_attention_back *back, const char **name)
{
    if (i >= (int)(sizeof about / sizeof(form))) {
        return TRIAL_NONE;
    }
    const hd_device_attention *of = &back->of;
    const int rows = about[i].rows, bytes = WHOLE_BYTES(72, rows);
    const int64_t longer = of->nq > of->nk ? of->nq : of->nk;
    const hd_attention_args a = hd_back_args_of(back, 1);
    static int loaded[sizeof about / sizeof(form)];
    *name = about[i].name;
    if (of->d > 72 || longer > rows || longer <= rows / 2) {
        return TRIAL_OTHER;
    }
    const int error = loaded[i] ? 0 : hd_load_kernel(about[i].kernel, bytes);
    loaded[i] = 1;
#define LAUNCH(number, text, ...)                                                                                      \
    if (i == (number)) {                                                                                               \
        HD_LAUNCH_SHARED(trial_backward_##number, hd_attention_blocks(of, 1, of->heads), 2 * rows, bytes, 0, &a);      \
    }
    FORMS(LAUNCH)
    return error != 0 ? error : (int)cudaGetLastError();
}
