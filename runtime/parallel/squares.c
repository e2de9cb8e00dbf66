/* Sums of squares without rounding.
 *
 * The norm that clips gradients must be the same bits on every rank, and the same whether the optimiser's state is
 * sharded or not. A sum in floating point would depend on where the blocks are cut; a sum in integers does not.
 */
#include "runtime/parallel/parallel_internal.h"

#include <math.h>

double hd_squares_root(const hd_squares *squares)
{
    if (squares->lane[HD_SQUARES_NANS] > 0) {
        return NAN;
    }
    if (squares->lane[HD_SQUARES_INFINITIES] > 0) {
        return INFINITY;
    }
    hd_squares sum = *squares;
    double total = 0;
    hd_squares_carry(&sum);
    for (int d = HD_SQUARES_DIGITS - 1; d >= 0; d--) {
        total += ldexp((double)sum.lane[d], d * HD_SQUARES_DIGIT_BITS - 2 * HD_SQUARES_SMALLEST);
    }
    return sqrt(total);
}
