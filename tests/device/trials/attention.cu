/* Trials of attention's forward. `once`: all of at most 128 keys in one pass, without a running maximum, 16 queries a
 * warp; blocks may stay, and copy their next tile while they compute. `turns`: as the library's, with rows of 72 that
 * are not padded, and wide heads by other numbers of keys, or with queries in registers. */
#include "tile.h"
#include "trials.h"

typedef struct once_args {
    hd_attention_args a;
    uint32_t all; /* tiles */
} once_args;

/* Scores of keys that a query does not see; key: the first column. */
HD_DEV void hide(float (*s)[4], const hd_attention_args *a, int32_t query, int32_t key, int32_t nk, int n, int wide)
{
    HD_UNROLL
    for (int i = 0; i < wide * n * 4; i++) {
        const int32_t end = hd_last_key(a, nk, query + i / 4 / n * 16 + i % 4 / 2 * 8) - key;
        const int32_t column = i / 4 % n * 8 + (int32_t)(HD_LANE % 4) * 2 + i % 2;
        s[i / 4][i % 4] = column < end ? s[i / 4][i % 4] : -INFINITY;
    }
}

/* Scores of one of this lane's rows become weights of its maximum; what was summed before is fewer times as much. */
HD_DEV float weigh(float (*s)[4], int half, float *top, float *sum, const hd_attention_args *a, int n)
{
    float most = *top, all = 0;
    HD_UNROLL
    for (int i = 0; i < n * 2; i++) {
        most = fmaxf(most, s[i / 2][half * 2 + i % 2]);
    }
    most = hd_group_max(most, 4);
    const float from = most == -INFINITY ? 0 : hd_mul(most, a->scale_log2);
    HD_UNROLL
    for (int i = 0; i < n * 2; i++) {
        float *score = &s[i / 2][half * 2 + i % 2];
        *score = hd_exp2(hd_fma(*score, a->scale_log2, -from));
        all = all + *score;
    }
    const float fewer = *top == most ? 1 : hd_exp2(hd_fma(*top, a->scale_log2, -from));
    *sum = hd_fma(*sum, fewer, all);
    *top = most;
    return fewer;
}

/* o and stats of 16 rows, of which this lane has two. */
HD_DEV void leave(float (*o)[4], const float *top, const float *sum, const hd_attention_args *a,
                  const hd_attention_part *p, int32_t row, uint16_t *own, int width)
{
    HD_UNROLL
    for (int half = 0; half < 2; half++) {
        const float all = hd_group_sum(sum[half], 4), inverse = all > 0 ? 1.0f / all : all;
        const int32_t query = row + (int32_t)HD_LANE / 4 + half * 8;
        HD_UNROLL
        for (int i = 0; i < width / 4; i++) {
            o[i / 2][half * 2 + i % 2] = hd_mul(o[i / 2][half * 2 + i % 2], inverse);
        }
        if (HD_LANE % 4 == 0 && query < a->nq) {
            float *stats = a->of.stats + 2 * hd_attention_row(a, p, p->head, query);
            hd_float_store(stats, top[half]);
            hd_float_store(stats + 1, all > 0 ? hd_log2(all) : all);
        }
    }
    trial_store(&a->of.o, p, row, a->nq, a->d, own, o, width);
}

/* Queries and all keys of a tile. */
HD_DEV void once_ask(uint16_t *place, const hd_attention_args *a, uint32_t number, int n, int width)
{
    const hd_attention_part p = hd_attention_part_of(a, number, a->heads);
    const int rows = (int)HD_WARPS * 16;
    uint16_t *k = place + rows * STRIDE(width), *v = k + n * 8 * STRIDE(width);
    trial_ask(place, &a->of.q, &p, p.head, (int32_t)p.tile * rows, a->nq, a->d, rows, width);
    trial_ask(k, &a->of.k, &p, hd_key_head(a, p.head), 0, p.nk, a->d, n * 8, width);
    hd_copy_commit();
    trial_ask(v, &a->of.v, &p, hd_key_head(a, p.head), 0, p.nk, a->d, n * 8, width);
    hd_copy_commit();
}

/* v_is_there: else it is awaited behind the scores. */
HD_DEV void once_tile(uint16_t *place, const hd_attention_args *a, uint32_t number, int v_is_there, int n, int width)
{
    const hd_attention_part p = hd_attention_part_of(a, number, a->heads);
    const int32_t rows = (int32_t)HD_WARPS * 16, first = (int32_t)p.tile * rows, row = first + (int32_t)HD_WARP * 16;
    uint16_t *own = place + HD_WARP * 16 * STRIDE(width);
    const uint16_t *k = place + rows * STRIDE(width);
    float s[16][4] = {{0}}, o[HD_DEVICE_MOST_HEAD / 8][4] = {{0}}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    uint32_t part[8][4];
    trial_dots(s, own, 0, k, n, 1, width);
    if (hd_last_key(a, p.nk, first) < n * 8) {
        hide(s, a, row + (int32_t)HD_LANE / 4, 0, p.nk, n, 1);
    }
    weigh(s, 0, &top[0], &sum[0], a, n);
    weigh(s, 1, &top[1], &sum[1], a, n);
    trial_round(part, s, n, 1);
    if (!v_is_there) {
        hd_copy_wait_0();
        hd_sync();
    }
    trial_mix(o, part, k + n * 8 * STRIDE(width), n, 1, width);
    leave(o, top, sum, a, &p, row, own, width);
}

HD_DEV void once(const once_args *x, int stays, int n, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, places);
    const int elems = ((int)HD_WARPS * 16 + 2 * n * 8) * STRIDE(width);
    once_ask(places, &x->a, HD_BLOCK, n, width);
    if (!stays) {
        hd_copy_wait_1();
        hd_sync();
        once_tile(places, &x->a, HD_BLOCK, 0, n, width);
        return;
    }
    int turn = 0;
    HD_NOT_UNROLLED
    for (uint32_t number = HD_BLOCK; number < x->all; number += HD_BLOCKS) {
        hd_copy_wait_0();
        hd_sync(); /* all have what they asked for, and are through with the other place */
        if (number + HD_BLOCKS < x->all) {
            once_ask(places + (1 - turn) * elems, &x->a, number + HD_BLOCKS, n, width);
        }
        once_tile(places + turn * elems, &x->a, number, 1, n, width);
        turn = 1 - turn;
    }
}

HD_DEV void turns_ask(uint16_t *keys, const hd_attention_args *a, const hd_attention_part *p, int32_t turn, int n,
                      int width)
{
    uint16_t *place = keys + turn % 2 * 2 * n * 8 * STRIDE(width);
    trial_ask(place, &a->of.k, p, hd_key_head(a, p->head), turn * n * 8, p->nk, a->d, n * 8, width);
    trial_ask(place + n * 8 * STRIDE(width), &a->of.v, p, hd_key_head(a, p->head), turn * n * 8, p->nk, a->d, n * 8,
              width);
    hd_copy_commit();
}

HD_DEV void turn_of(float (*s)[4], float *top, float *sum, float (*o)[4], const hd_attention_args *a,
                    const uint16_t *values, int n, int width)
{
    float fewer[4];
    int grew = 0;
    uint32_t part[8][4];
    HD_UNROLL
    for (int row = 0; row < 4; row++) {
        const float before = top[row];
        fewer[row] = weigh(s + row / 2 * n, row % 2, &top[row], &sum[row], a, n);
        grew |= before != top[row];
    }
    if (hd_any(grew)) {
        HD_UNROLL
        for (int i = 0; i < width; i++) {
            o[i / 4][i % 4] = hd_mul(o[i / 4][i % 4], fewer[i / (width / 2) * 2 + i % 4 / 2]);
        }
    }
    trial_round(part, s, n, 2);
    trial_mix(o, part, values, n, 2, width);
}

HD_DEV void turns(const hd_attention_args *a, int is_held, int n, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, places);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const int32_t rows = (int32_t)HD_WARPS * 32, first = (int32_t)p.tile * rows, row = first + (int32_t)HD_WARP * 32;
    uint16_t *own = places + HD_WARP * 32 * STRIDE(width), *keys = places + rows * STRIDE(width);
    const int32_t number = (hd_last_key(a, p.nk, first + rows - 1) + n * 8 - 1) / (n * 8);
    const int32_t seen_by_all = hd_last_key(a, p.nk, first);
    float o[HD_DEVICE_MOST_HEAD / 4][4] = {{0}}, sum[4] = {0, 0, 0, 0};
    float top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    uint32_t held[HD_DEVICE_MOST_HEAD / 8][4];
    trial_ask(places, &a->of.q, &p, p.head, first, a->nq, a->d, rows, width);
    turns_ask(keys, a, &p, 0, n, width);
    if (is_held) {
        hd_copy_wait_0();
        hd_sync();
        HD_UNROLL
        for (int i = 0; i < width / 8; i++) {
            trial_part(held[i], own + i / (width / 16) * 16 * STRIDE(width), i % (width / 16), width);
        }
    }
    HD_NOT_UNROLLED
    for (int32_t turn = 0; turn < number; turn++) {
        const uint16_t *place = keys + turn % 2 * 2 * n * 8 * STRIDE(width);
        float s[16][4] = {{0}};
        hd_copy_wait_0();
        hd_sync(); /* all have what they asked for, and are through with the other place */
        if (turn + 1 < number) {
            turns_ask(keys, a, &p, turn + 1, n, width);
        }
        trial_dots(s, own, is_held ? (const uint32_t(*)[4])held : 0, place, n, 2, width);
        if ((turn + 1) * n * 8 > seen_by_all) {
            hide(s, a, row + (int32_t)HD_LANE / 4, turn * n * 8, p.nk, n, 2);
        }
        turn_of(s, top, sum, o, a, place + n * 8 * STRIDE(width), n, width);
    }
    hd_copy_wait_0();
    hd_sync(); /* where there were no turns, others' copies were on their way */
    leave(o, top, sum, a, &p, row, own, width);
    leave(o + width / 8, top + 2, sum + 2, a, &p, row + 16, own + 16 * STRIDE(width), width);
}

/* --- number of the form, its kernel, its name, warps, wide, n, width, places of tiles, blocks of a multiprocessor that
 * stay (0: one a tile), and as many as registers are for */
#define FORMS(form)                                                                                                    \
    form(0, once(&x, 0, 16, 72), "one pass of 128 keys, 72", 8, 1, 16, 72, 1, 0, 2)                                    \
        form(1, once(&x, 1, 16, 72), "one pass of 128 keys, 72, blocks stay", 8, 1, 16, 72, 2, 2, 2)                   \
            form(2, once(&x, 0, 8, 72), "one pass of 64 keys, 72", 4, 1, 8, 72, 1, 0, 4)                               \
                form(3, turns(&x.a, 0, 8, 72), "turns of 64 keys, 72", 4, 2, 8, 72, 0, 0, 2)                           \
                    form(4, turns(&x.a, 0, 8, 128), "turns of 64 keys, 128", 4, 2, 8, 128, 0, 0, 2)                    \
                        form(5, turns(&x.a, 1, 4, 128), "turns of 32 keys, queries held, 128", 4, 2, 4, 128, 0, 0, 2)
#define KERNEL(i, call, name, warps, wide, n, width, places, stay, blocks)                                             \
    TRIAL_KERNEL(trial_forward_##i, once_args, x, 32 * (warps), blocks)                                                \
    {                                                                                                                  \
        call;                                                                                                          \
    }
FORMS(KERNEL)

#define ABOUT(i, call, name, warps, wide, n, width, places, stay, blocks)                                              \
    {name, HD_KERNEL_ADDRESS(trial_forward_##i), warps, wide, n, width, places, stay},
typedef struct form {
    const char *name;
    const void *kernel;
    int warps, wide, n, width, places, stay;
} form;
static const form about[] = {FORMS(ABOUT)};

int trial_forward(int i, const hd_device_attention *of, const char **name)
{
    if (i >= (int)(sizeof about / sizeof(form))) {
        return TRIAL_NONE;
    }
    const int warps = about[i].warps, width = about[i].width, keys = about[i].n * 8, rows = warps * 16 * about[i].wide;
    const int64_t tiles = (of->nq + rows - 1) / rows;
    const int bytes = about[i].places > 0 ? about[i].places * (rows + 2 * keys) * STRIDE(width) * 2
                                          : (rows + 4 * keys) * STRIDE(width) * 2;
    once_args x = {hd_attention_args_of(of, tiles), hd_attention_blocks(of, tiles, of->heads)};
    unsigned blocks = x.all;
    *name = about[i].name;
    if (of->d > width || (width == 128 && of->d <= 80) ||
        (about[i].places > 0 && (of->nk > keys || of->nk <= keys / 2))) {
        return TRIAL_OTHER;
    }
    static int loaded[sizeof about / sizeof(form)];
    const int error = loaded[i] ? 0 : hd_load_kernel(about[i].kernel, bytes);
    loaded[i] = 1;
    if (about[i].stay > 0 && blocks > (unsigned)(about[i].stay * trial_multiprocessors)) {
        blocks = (unsigned)(about[i].stay * trial_multiprocessors);
    }
#define LAUNCH(number, call, text, ...)                                                                                \
    if (i == (number)) {                                                                                               \
        HD_LAUNCH_SHARED(trial_forward_##number, blocks, 32 * warps, bytes, 0, &x);                                    \
    }
    FORMS(LAUNCH)
    return error != 0 ? error : (int)cudaGetLastError();
}
