/* Sentences by heddle_set_error of the one that loaded the library. Compiled into each library that calls CUDA: they
 * link nothing of heddle. */
#ifndef HD_DEVICE_CUDA_FAIL_H
#define HD_DEVICE_CUDA_FAIL_H

#include <heddle/sys/device.h>

/* Threads that are ranks load a library at the same time. */
void hd_cuda_fail_by(heddle_device_fail_fn fail);
heddle_status hd_cuda_fail(heddle_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
