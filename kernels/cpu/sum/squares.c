/* Squares into counters that do not round. */
#include "kernels/cpu/slots.h"

#include <string.h>

/* A step adds less than 2^34 to a counter, so that this many cannot overflow it. */
static const int64_t CARRY_EVERY = (int64_t)1 << 26;

static void add_one(hd_squares *squares, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    unsigned exponent = bits >> 23 & 0xffu;
    uint64_t mantissa = bits & 0x7fffffu;
    if (exponent == 0xffu) {
        squares->lane[mantissa != 0 ? HD_SQUARES_NANS : HD_SQUARES_INFINITIES]++;
        return;
    }
    mantissa |= exponent > 0 ? 0x800000u : 0;
    /* value = mantissa * 2^(shift - HD_SQUARES_SMALLEST) */
    unsigned shift = exponent > 0 ? exponent - 1 : 0;
    unsigned place = 2 * shift;
    uint64_t square = mantissa * mantissa; /* below 2^48 */
    uint64_t low = (square & 0xffffffff) << place % HD_SQUARES_DIGIT_BITS;
    uint64_t high = (square >> HD_SQUARES_DIGIT_BITS) << place % HD_SQUARES_DIGIT_BITS;
    int64_t *digit = squares->lane + place / HD_SQUARES_DIGIT_BITS;
    digit[0] += (int64_t)(low & 0xffffffff);
    digit[1] += (int64_t)((low >> HD_SQUARES_DIGIT_BITS) + (high & 0xffffffff));
    digit[2] += (int64_t)(high >> HD_SQUARES_DIGIT_BITS);
}

static void add_squares(hd_squares *squares, const float *values, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        if (i % CARRY_EVERY == 0) {
            hd_squares_carry(squares);
        }
        add_one(squares, values[i]);
    }
    hd_squares_carry(squares);
}

const hd_kernels hd_squares_slots = {
    .add_squares = add_squares,
};
