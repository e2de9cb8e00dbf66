/* What kernels of optimisers are asked. */
#ifndef HD_KERNELS_TRAINING_H
#define HD_KERNELS_TRAINING_H

#include <stdint.h>

/* One step of AdamW; f64 from f32 numbers, each rounded once. */
typedef struct hd_adamw_step {
    double beta1, beta2, epsilon;
    double clip, rate, keep;       /* keep: 1 - rate * decay */
    double mean_scale, root_scale; /* 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
} hd_adamw_step;

/* The sum of squares of any number of f32 values without rounding, so that it does not depend on their order or on who
 * holds them: digits of 32 bits from 2^-298 upwards, in 64-bit counters that add up over ranks. */
enum { HD_SQUARES_DIGITS = 20, HD_SQUARES_LANES = HD_SQUARES_DIGITS + 2 };
enum { HD_SQUARES_INFINITIES = HD_SQUARES_DIGITS, HD_SQUARES_NANS = HD_SQUARES_DIGITS + 1 };
enum { HD_SQUARES_SMALLEST = 149, HD_SQUARES_DIGIT_BITS = 32 }; /* digit d counts 2^(32 d - 2 * 149) */

typedef struct hd_squares {
    int64_t lane[HD_SQUARES_LANES]; /* digits, then how many infinities, how many NaN */
} hd_squares;

/* Digits below 2^32 again, so that more can be added. */
static inline void hd_squares_carry(hd_squares *squares)
{
    for (int d = 0; d < HD_SQUARES_DIGITS - 1; d++) {
        squares->lane[d + 1] += squares->lane[d] >> HD_SQUARES_DIGIT_BITS;
        squares->lane[d] &= 0xffffffff;
    }
}

#endif
