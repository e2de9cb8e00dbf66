/* What targets share: bytes as a file, a machine as a file of its own. */
#ifndef HD_FUZZ_H
#define HD_FUZZ_H

#include <fcntl.h>
#include <heddle/machine.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FUZZ_PATH_BYTES = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void fuzz_need(int is_so)
{
    if (!is_so) {
        abort();
    }
}

/* A file of these bytes that no disk has; close it. */
static inline int fuzz_file(char path[FUZZ_PATH_BYTES], const uint8_t *data, size_t size)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    fuzz_need(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, FUZZ_PATH_BYTES, "/proc/self/fd/%d", fd);
    return fd;
}

/* A machine comes back from its own file. */
static inline void fuzz_write_and_read(const heddle_machine *machine)
{
    char path[FUZZ_PATH_BYTES];
    heddle_machine *back = NULL;
    snprintf(path, sizeof path, "fuzz-%d-written.yaml", (int)getpid());
    if (heddle_machine_save(machine, path) != HEDDLE_OK || heddle_machine_load(&back, path) != HEDDLE_OK) {
        fprintf(stderr, "%s\n", heddle_last_error());
        abort();
    }
    heddle_machine_destroy(back);
    unlink(path);
}

#endif
