/* A NumPy file of any bytes is read or refused with exit code 2; the reader wants a file, so it gets one in memory. */
#include "npy.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The command line's, without printing. */
int cli_usage_error(const char *format, ...)
{
    char sentence[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof(sentence), format, arguments);
    va_end(arguments);
    return sentence[0] == '\0' ? CLI_FAILED : CLI_BAD_INPUT;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    npy_array array = {0};
    int fd = memfd_create("fuzz-npy", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (npy_read(&array, path) == CLI_OK) {
        unsigned sum = 0;
        for (size_t i = 0; i < array.data_bytes; i++) {
            sum += ((const uint8_t *)array.data)[i];
        }
        if (sum > 255U * array.data_bytes) {
            abort();
        }
    }
    npy_free(&array);
    close(fd);
    return 0;
}
