/* A clip of any bytes is read or refused; every sample of a clip that is read can be looked at. */
#include "runtime/files/y4m.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[256];
    y4m_clip clip;
    if (y4m_parse(&clip, data, size, error, sizeof(error)) == 0) {
        unsigned sum = 0;
        for (int64_t f = 0; f < clip.frames; f++) {
            for (int plane = 0; plane < Y4M_PLANES; plane++) {
                sum += y4m_sample(&clip, f, plane, 0, 0);
                sum += y4m_sample(&clip, f, plane, clip.height - 1, clip.width - 1);
            }
        }
        if (sum > 255U * 6U * (unsigned)clip.frames) {
            abort();
        }
    } else if (error[0] == '\0') {
        abort();
    }
    y4m_close(&clip);
    return 0;
}
