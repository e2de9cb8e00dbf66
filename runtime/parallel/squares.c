/* Sums of squares without rounding.
 *
 * The norm that clips gradients must be the same bits on every rank, and the same whether the optimiser's state is
 * sharded or not. A sum in floating point would depend on where the blocks are cut; a sum in integers does not.
 */
#include "runtime/parallel/parallel_internal.h"

#include <math.h>
#include <string.h>

enum { SMALLEST = 149, DIGIT_BITS = 32, INFINITIES = HD_SQUARES_DIGITS, NANS = HD_SQUARES_DIGITS + 1 };

/* A step adds less than 2^34 to a counter, so that this many cannot overflow it. */
static const int64_t CARRY_EVERY = (int64_t)1 << 26;

static void carry(hd_squares *squares)
{
    for (int d = 0; d < HD_SQUARES_DIGITS - 1; d++) {
        squares->lane[d + 1] += squares->lane[d] >> DIGIT_BITS;
        squares->lane[d] &= 0xffffffff;
    }
}

static void add_one(hd_squares *squares, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    unsigned exponent = bits >> 23 & 0xffu;
    uint64_t mantissa = bits & 0x7fffffu;
    if (exponent == 0xffu) {
        squares->lane[mantissa != 0 ? NANS : INFINITIES]++;
        return;
    }
    mantissa |= exponent > 0 ? 0x800000u : 0;
    /* value = mantissa * 2^(shift - SMALLEST) */
    unsigned shift = exponent > 0 ? exponent - 1 : 0;
    unsigned place = 2 * shift;
    uint64_t square = mantissa * mantissa; /* below 2^48 */
    uint64_t low = (square & 0xffffffff) << place % DIGIT_BITS;
    uint64_t high = (square >> DIGIT_BITS) << place % DIGIT_BITS;
    int64_t *digit = squares->lane + place / DIGIT_BITS;
    digit[0] += (int64_t)(low & 0xffffffff);
    digit[1] += (int64_t)((low >> DIGIT_BITS) + (high & 0xffffffff));
    digit[2] += (int64_t)(high >> DIGIT_BITS);
}

void hd_squares_add(hd_squares *squares, const float *values, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        if (i % CARRY_EVERY == 0) {
            carry(squares);
        }
        add_one(squares, values[i]);
    }
    carry(squares);
}

double hd_squares_root(const hd_squares *squares)
{
    if (squares->lane[NANS] > 0) {
        return NAN;
    }
    if (squares->lane[INFINITIES] > 0) {
        return INFINITY;
    }
    hd_squares sum = *squares;
    double total = 0;
    carry(&sum);
    for (int d = HD_SQUARES_DIGITS - 1; d >= 0; d--) {
        total += ldexp((double)sum.lane[d], d * DIGIT_BITS - 2 * SMALLEST);
    }
    return sqrt(total);
}
