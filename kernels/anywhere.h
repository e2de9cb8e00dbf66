/* Functions that compilers of host code and of device code both take. */
#ifndef HD_KERNELS_ANYWHERE_H
#define HD_KERNELS_ANYWHERE_H

#ifdef __CUDACC__
#define HD_ANYWHERE static inline __host__ __device__
#else
#define HD_ANYWHERE static inline
#endif

#endif
