/* What is constant in a caller becomes constant in the function that it calls. Builds by sanitizers of memory look for
 * errors, not for speed: there this would take most of the time of compiling. */
#ifndef HD_KERNELS_INLINE_H
#define HD_KERNELS_INLINE_H

#ifdef HD_FEW_INLINED
#define HD_ALWAYS_INLINE
#else
#define HD_ALWAYS_INLINE __attribute__((always_inline))
#endif

#endif
