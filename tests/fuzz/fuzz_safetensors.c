/* Any bytes are read or refused; every tensor of a file that is read can be converted. */
#include "runtime/files/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[512] = "";
    safetensors_file file;
    if (safetensors_parse(&file, data, size, error, sizeof(error)) != 0) {
        if (error[0] == '\0') {
            abort();
        }
    } else {
        for (size_t i = 0; i < file.count; i++) {
            const safetensors_entry *e = &file.entry[i];
            float *out = malloc(e->bytes * 2 + 1);
            if (safetensors_find(&file, e->name) != e) {
                abort();
            }
            if (out != NULL) {
                safetensors_read_f32(out, &file, e->name, e->ndim, e->extent, error, sizeof(error));
            }
            free(out);
        }
    }
    safetensors_close(&file);
    return 0;
}
