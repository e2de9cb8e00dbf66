/* libFuzzer: any bytes as what `heddle run --json` printed; what is taken has names and seconds. */
#include "planner/draw/draw.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    draw_measured measured;
    const int fd = memfd_create("measured", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (draw_measured_load(&measured, path) == HEDDLE_OK) {
        for (int i = 0; i < measured.nstages; i++) {
            const draw_measured_stage *s = &measured.stage[i];
            if (s->name == NULL || s->method == NULL || !isfinite(s->block_s) || !(s->switch_s >= 0)) {
                abort();
            }
        }
    }
    draw_measured_free(&measured);
    close(fd);
    return 0;
}
