/* What the fake cuBLASLt does on request, and the real one has not.
 *
 * How it works. A product becomes one function on its stream (cudaLaunchHostFunc), which sums in f32, so that it is
 * captured into graphs as other work is. What the real one may do and heddle must not fall for, it does: of the
 * algorithms that it recommends, in this order by default,
 *
 *   x  gives equal calls other bits          h  sums otherwise above 100 columns of d
 *   r  refuses columns that 8 does not divide    s  splits what it sums over
 *   p  sums odd columns otherwise            f  is not one for this device
 *   g  does all as it should
 *
 * Where a call names no algorithm it takes the first one. All want a workspace where there are 1000 columns of d or
 * more, and spoil it; pointers that are less aligned than was said when the algorithm was recommended are refused.
 *
 * Environment: HEDDLE_CUBLASSIM_VERSION (what cublasLtGetVersion says).
 */
#ifndef HD_CUBLASSIM_H
#define HD_CUBLASSIM_H

#include <cublasLt.h>
#include <stdint.h>

/* The n-th call from now on (1: the next one) of any thread fails with `status` and does nothing; 0: none. Questions
 * about versions and words, and what destroys, are no calls. */
CUBLASSIM_EXPORT void cublassim_fail_at(int64_t n, int status);
/* From now on it recommends these ("g": one that does all as it should). */
CUBLASSIM_EXPORT void cublassim_recommend(const char *kinds);
/* And these for up to 1024 rows; NULL: the same. */
CUBLASSIM_EXPORT void cublassim_recommend_few(const char *kinds);
CUBLASSIM_EXPORT int cublassim_objects(void);      /* handles and descriptors that are out */
CUBLASSIM_EXPORT int64_t cublassim_products(void); /* that ran */

#endif
