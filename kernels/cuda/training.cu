/* What training does with parameters and their gradients (kernels/training.h): the bits of kernels/cpu/block/adamw.c
 * and of kernels/cpu/sum/squares.c. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/piece.h"
#include "kernels/cuda/rows.h"

#include <string.h>

enum {
    THREADS = 128,
    PER = 4, /* numbers of a thread: 16 bytes */
    BATCH = PER * THREADS,
    MOST_ELEMENTS = 1 << 28 /* of a launch; more are several */
};

HD_DEV double f64_at(const void *at)
{
    const uint64_t bits = hd_load_constant_8(at);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

HD_DEV double f64_of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Where this thread's numbers begin. */
HD_DEV int32_t thread_at(void)
{
    return (int32_t)HD_BLOCK * BATCH + (int32_t)HD_THREAD * PER;
}

/* --- AdamW: f64, each operation rounded by itself, as the CPU's */

/* Where is_whole, arrays begin at multiples of 16 bytes, `skip` elements in front of the first one that is meant. */
typedef struct adamw_args {
    hd_adamw_step step;
    const double *clip; /* NULL: the step's */
    char *param, *mean, *square;
    const char *grad;
    int32_t skip, elems; /* elems: with those skipped */
    int is_whole;
} adamw_args;

HD_DEV void step_element(float *param, float grad, float *mean, float *square, const hd_adamw_step *s, double clip)
{
    const double g = hd_mul_64((double)grad, clip);
    *mean = (float)hd_add_64(hd_mul_64(s->beta1, (double)*mean), hd_mul_64(1 - s->beta1, g));
    *square = (float)hd_add_64(hd_mul_64(s->beta2, (double)*square), hd_mul_64(hd_mul_64(1 - s->beta2, g), g));
    const double root = hd_add_64(hd_mul_64(hd_sqrt_64((double)*square), s->root_scale), s->epsilon);
    const double change = hd_div_64(hd_mul_64((double)*mean, s->mean_scale), root);
    *param = (float)hd_add_64(hd_mul_64((double)*param, s->keep), -hd_mul_64(s->rate, change));
}

HD_DEV float f32_at(const char *all, int32_t at)
{
    return hd_f32_from_bits(hd_load_4(all + 4 * (int64_t)at));
}

HD_DEV void f32_put(char *all, int32_t at, float value)
{
    hd_store_4(all + 4 * (int64_t)at, hd_f32_bits(value));
}

HD_DEV void adamw_one(const adamw_args *a, int32_t at, double clip)
{
    float param = f32_at(a->param, at), mean = f32_at(a->mean, at), square = f32_at(a->square, at);
    step_element(&param, f32_at(a->grad, at), &mean, &square, &a->step, clip);
    f32_put(a->mean, at, mean);
    f32_put(a->square, at, square);
    f32_put(a->param, at, param);
}

HD_KERNEL(adamw, adamw_args, a)
{
    const int32_t at = thread_at(), left = a.elems - at;
    const double clip = a.clip != 0 ? f64_at(a.clip) : a.step.clip;
    if (a.is_whole && at >= a.skip && left >= PER) {
        float param[PER], grad[PER], mean[PER], square[PER];
        hd_values_load(grad, a.grad, at, left, PER, HEDDLE_F32, 1);
        hd_values_load(mean, a.mean, at, left, PER, HEDDLE_F32, 1);
        hd_values_load(square, a.square, at, left, PER, HEDDLE_F32, 1);
        hd_values_load(param, a.param, at, left, PER, HEDDLE_F32, 1);
        HD_UNROLL
        for (int i = 0; i < PER; i++) {
            step_element(&param[i], grad[i], &mean[i], &square[i], &a.step, clip);
        }
        hd_values_store(a.mean, mean, at, left, PER, HEDDLE_F32, 1);
        hd_values_store(a.square, square, at, left, PER, HEDDLE_F32, 1);
        hd_values_store(a.param, param, at, left, PER, HEDDLE_F32, 1);
        return;
    }
    HD_NOT_UNROLLED
    for (int32_t i = at < a.skip ? a.skip : at; i < at + PER && i < a.elems; i++) {
        adamw_one(&a, i, clip);
    }
}

/* --- dst = src / divisor, or zeros where there is no src */

typedef struct divide_args {
    char *dst;
    const char *src;
    float divisor;
    int32_t elems;
    int is_whole;
} divide_args;

HD_KERNEL(divide, divide_args, a)
{
    const int32_t at = thread_at(), left = a.elems - at;
    const int is_whole = a.is_whole && left >= PER;
    float value[PER] = {0};
    if (left <= 0) {
        return;
    }
    if (a.src != 0) {
        hd_values_load(value, a.src, at, left, PER, HEDDLE_F32, is_whole);
        HD_UNROLL
        for (int i = 0; i < PER; i++) {
            value[i] = value[i] / a.divisor;
        }
    }
    hd_values_store(a.dst, value, at, left, PER, HEDDLE_F32, is_whole);
}

/* --- sums of squares, in integers: each thread has counters of its own; the block's are added, then all of them */

enum { SQUARES_BLOCKS = 1024, SQUARES_AT_ONCE = 4 };

typedef struct squares_args {
    const char *values;
    int64_t *part; /* [blocks][HD_SQUARES_LANES] */
    int32_t elems;
    int is_whole;
} squares_args;

typedef struct squares_memory {
    int64_t of[HD_SQUARES_LANES][THREADS + 1]; /* who adds them up walks along a row beside others */
} squares_memory;

HD_DEV void add_square(squares_memory *memory, float value)
{
    const uint32_t thread = HD_THREAD, bits = hd_f32_bits(value);
    const uint32_t exponent = bits >> 23 & 0xffu, fraction = bits & 0x7fffffu;
    if (exponent == 0xffu) {
        memory->of[fraction != 0 ? HD_SQUARES_NANS : HD_SQUARES_INFINITIES][thread] += 1;
        return;
    }
    /* value = mantissa 2^(place / 2 - HD_SQUARES_SMALLEST) */
    const uint64_t mantissa = exponent > 0 ? fraction | 0x800000u : fraction, square = mantissa * mantissa;
    const uint32_t place = exponent > 0 ? 2 * (exponent - 1) : 0, shift = place % HD_SQUARES_DIGIT_BITS;
    const uint64_t low = (square & 0xffffffffu) << shift, high = (square >> HD_SQUARES_DIGIT_BITS) << shift;
    const uint32_t digit = place / HD_SQUARES_DIGIT_BITS;
    memory->of[digit][thread] += (int64_t)(low & 0xffffffffu);
    memory->of[digit + 1][thread] += (int64_t)((low >> HD_SQUARES_DIGIT_BITS) + (high & 0xffffffffu));
    memory->of[digit + 2][thread] += (int64_t)(high >> HD_SQUARES_DIGIT_BITS);
}

HD_DEV void add_my_squares(squares_memory *memory, const squares_args *a)
{
    for (int64_t first = (int64_t)HD_BLOCK * BATCH; first < a->elems;
         first += (int64_t)HD_BLOCKS * BATCH * SQUARES_AT_ONCE) {
        float value[SQUARES_AT_ONCE][PER];
        HD_UNROLL
        for (int u = 0; u < SQUARES_AT_ONCE; u++) {
            const int64_t at = first + (int64_t)u * HD_BLOCKS * BATCH + (int64_t)HD_THREAD * PER, left = a->elems - at;
            if (left > 0) {
                hd_values_load(value[u], a->values, (int32_t)at, left < PER ? (int32_t)left : PER, PER, HEDDLE_F32,
                               a->is_whole && left >= PER);
            } else {
                value[u][0] = value[u][1] = value[u][2] = value[u][3] = 0;
            }
        }
        HD_UNROLL
        for (int u = 0; u < SQUARES_AT_ONCE; u++) {
            HD_UNROLL
            for (int i = 0; i < PER; i++) { /* what is behind the end is 0 */
                add_square(memory, value[u][i]);
            }
        }
    }
}

HD_KERNEL(squares_of_pieces, squares_args, a)
{
    HD_SHARED(squares_memory, memory);
    for (int d = 0; d < HD_SQUARES_LANES; d++) {
        memory->of[d][HD_THREAD] = 0;
    }
    add_my_squares(memory, &a);
    hd_sync();
    if (HD_THREAD < HD_SQUARES_LANES) {
        int64_t sum = 0;
        for (int i = 0; i < THREADS; i++) {
            sum += memory->of[HD_THREAD][i];
        }
        hd_store_8(a.part + (int64_t)HD_BLOCK * HD_SQUARES_LANES + HD_THREAD, (uint64_t)sum);
    }
}

enum { SUM_GROUPS = HD_CUDA_GROUPS };

typedef struct squares_sum_args {
    const int64_t *part;
    hd_squares *dst;
    int parts, adds; /* adds: to what dst has */
} squares_sum_args;

typedef struct squares_sum_memory {
    int64_t of[SUM_GROUPS][HD_SQUARES_LANES];
} squares_sum_memory;

/* One block: every group has each SUM_GROUPS-th of the parts. Digits are below 2^32 in the end, so that more can be
 * added. */
HD_KERNEL(squares_sum, squares_sum_args, a)
{
    HD_SHARED(squares_sum_memory, memory);
    const int lane = (int)(HD_THREAD % HD_SQUARES_LANES), group = (int)(HD_THREAD / HD_SQUARES_LANES);
    int64_t sum = 0;
    for (int i = group; i < a.parts; i += SUM_GROUPS) {
        sum += (int64_t)hd_load_constant_8(a.part + (int64_t)i * HD_SQUARES_LANES + lane);
    }
    memory->of[group][lane] = sum;
    hd_sync();
    if (HD_THREAD != 0) {
        return;
    }
    int64_t carry = 0;
    HD_NOT_UNROLLED
    for (int d = 0; d < HD_SQUARES_LANES; d++) {
        int64_t *to = a.dst->lane + d;
        int64_t all = a.adds ? (int64_t)hd_load_8(to) : 0;
        for (int g = 0; g < SUM_GROUPS; g++) {
            all += memory->of[g][d];
        }
        const int carries = d < HD_SQUARES_DIGITS - 1;
        all += d < HD_SQUARES_DIGITS ? carry : 0;
        carry = carries ? all >> HD_SQUARES_DIGIT_BITS : 0;
        hd_store_8(to, (uint64_t)(carries ? all & 0xffffffff : all));
    }
}

/* --- what gradients are multiplied by so that their norm is at most max_norm */

typedef struct clip_args {
    double *dst;
    const hd_squares *squares; /* of all ranks */
    double max_norm;
} clip_args;

/* As hd_squares_root: the digits, the highest first; each times a power of two, without rounding. */
HD_DEV double root_of(const hd_squares *squares)
{
    int64_t digit[HD_SQUARES_DIGITS];
    int64_t carry = 0;
    double total = 0;
    HD_UNROLL
    for (int d = 0; d < HD_SQUARES_DIGITS; d++) {
        const int64_t all = (int64_t)hd_load_8(squares->lane + d) + carry;
        carry = all >> HD_SQUARES_DIGIT_BITS;
        digit[d] = d < HD_SQUARES_DIGITS - 1 ? all & 0xffffffff : all;
    }
    HD_UNROLL
    for (int d = HD_SQUARES_DIGITS - 1; d >= 0; d--) {
        const uint64_t exponent = (uint64_t)(1023 + d * HD_SQUARES_DIGIT_BITS - 2 * HD_SQUARES_SMALLEST);
        total = hd_add_64(total, hd_mul_64((double)digit[d], f64_of_bits(exponent << 52)));
    }
    return hd_sqrt_64(total);
}

HD_KERNEL(clip, clip_args, a)
{
    const int64_t infinities = (int64_t)hd_load_8(a.squares->lane + HD_SQUARES_INFINITIES);
    const int64_t nans = (int64_t)hd_load_8(a.squares->lane + HD_SQUARES_NANS);
    double factor = 1;
    if (nans == 0) {
        const double norm = infinities > 0 ? f64_of_bits((uint64_t)0x7ff << 52) : root_of(a.squares);
        factor = norm > a.max_norm ? hd_div_64(a.max_norm, norm) : 1;
    }
    uint64_t bits;
    memcpy(&bits, &factor, sizeof bits);
    hd_store_8(a.dst, bits);
}

/* --- launchers */

static unsigned blocks_of(int64_t elems)
{
    return (unsigned)((elems + BATCH - 1) / BATCH);
}

static int64_t of_launch(int64_t left)
{
    return left < MOST_ELEMENTS ? left : (int64_t)MOST_ELEMENTS;
}

int hd_training_adamw(const hd_adamw_step *step, const double *clip, float *param, const float *grad, float *mean,
                      float *square, int64_t elems, void *stream)
{
    const uintptr_t behind = (uintptr_t)param % 16;
    const int is_whole = behind % 4 == 0 && (uintptr_t)grad % 16 == behind && (uintptr_t)mean % 16 == behind &&
                         (uintptr_t)square % 16 == behind;
    const int64_t skip = is_whole ? (int64_t)behind / 4 : 0;
    int error = elems >= 0 ? 0 : (int)cudaErrorInvalidValue;
    for (int64_t at = 0; at < elems && error == 0; at += MOST_ELEMENTS) {
        const int64_t from = 4 * (at - skip), n = of_launch(elems - at) + skip;
        const adamw_args a = {*step,
                              clip,
                              (char *)param + from,
                              (char *)mean + from,
                              (char *)square + from,
                              (const char *)grad + from,
                              (int32_t)skip,
                              (int32_t)n,
                              is_whole};
        HD_LAUNCH(adamw, blocks_of(n), THREADS, stream, &a);
        error = (int)cudaGetLastError();
    }
    return error;
}

int hd_training_divide(float *dst, const float *src, float divisor, int64_t elems, void *stream)
{
    int error = elems >= 0 ? 0 : (int)cudaErrorInvalidValue;
    for (int64_t at = 0; at < elems && error == 0; at += MOST_ELEMENTS) {
        const int64_t n = of_launch(elems - at);
        const divide_args a = {(char *)(dst + at), src != NULL ? (const char *)(src + at) : NULL, divisor, (int32_t)n,
                               hd_is_aligned(dst) && hd_is_aligned(src)};
        HD_LAUNCH(divide, blocks_of(n), THREADS, stream, &a);
        error = (int)cudaGetLastError();
    }
    return error;
}

int hd_training_zero(float *dst, int64_t elems, void *stream)
{
    return hd_training_divide(dst, NULL, 1, elems, stream);
}

static unsigned squares_blocks(int64_t elems)
{
    const unsigned blocks = blocks_of(elems);
    return blocks < SQUARES_BLOCKS ? blocks : (unsigned)SQUARES_BLOCKS;
}

size_t hd_training_squares_bytes(void)
{
    return (size_t)SQUARES_BLOCKS * sizeof(hd_squares);
}

int hd_training_add_squares(hd_squares *dst, const float *values, int64_t elems, int adds, void *scratch, void *stream)
{
    int error = elems >= 0 ? 0 : (int)cudaErrorInvalidValue;
    int64_t at = 0;
    do { /* of nothing there are zeros, too */
        const int64_t n = of_launch(elems - at);
        const squares_args pieces = {(const char *)(values + at), (int64_t *)scratch, (int32_t)n,
                                     hd_is_aligned(values)};
        const squares_sum_args sum = {(const int64_t *)scratch, dst, (int)squares_blocks(n), adds || at > 0};
        if (error == 0 && n > 0) {
            HD_LAUNCH(squares_of_pieces, sum.parts, THREADS, stream, &pieces);
            error = (int)cudaGetLastError();
        }
        if (error == 0) {
            HD_LAUNCH(squares_sum, 1, SUM_GROUPS * HD_SQUARES_LANES, stream, &sum);
            error = (int)cudaGetLastError();
        }
        at += n;
    } while (at < elems && error == 0);
    return error;
}

int hd_training_clip(double *dst, const hd_squares *squares, double max_norm, void *stream)
{
    const clip_args a = {dst, squares, max_norm};
    HD_LAUNCH(clip, 1, 1, stream, &a);
    return (int)cudaGetLastError();
}

int hd_training_load(void)
{
    const void *const kernel[] = {HD_KERNEL_ADDRESS(adamw), HD_KERNEL_ADDRESS(divide),
                                  HD_KERNEL_ADDRESS(squares_of_pieces), HD_KERNEL_ADDRESS(squares_sum),
                                  HD_KERNEL_ADDRESS(clip)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
