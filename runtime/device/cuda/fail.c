#include "runtime/device/cuda/fail.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

enum { SENTENCE_BYTES = 1024 };

static _Atomic(heddle_device_fail_fn) fail_of_heddle;

void hd_cuda_fail_by(heddle_device_fail_fn fail)
{
    atomic_store(&fail_of_heddle, fail);
}

heddle_status hd_cuda_fail(heddle_status status, const char *format, ...)
{
    char sentence[SENTENCE_BYTES];
    heddle_device_fail_fn say = atomic_load(&fail_of_heddle); /* called as it is, it would be a plain load */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return say(status, "%s", sentence);
}
