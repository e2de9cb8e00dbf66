/* libFuzzer: any bytes as what `heddle run --json` printed; what is taken has names and seconds. */
#include "planner/draw/draw.h"

#include "fuzz.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_BYTES];
    draw_measured measured;
    const int fd = fuzz_file(path, data, size);
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
