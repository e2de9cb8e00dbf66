/* libFuzzer: a config.json of any bytes; what is taken is a model file that plans. */
#include <heddle/planner.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[HEDDLE_IMPORT_BYTES], path[64];
    heddle_model *model = NULL;
    const int fd = memfd_create("config", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const heddle_status st = heddle_model_import(text, sizeof text, path, NULL);
    close(fd);
    if (st == HEDDLE_OK && heddle_model_parse(&model, text, strlen(text), "import") != HEDDLE_OK) {
        abort();
    }
    heddle_model_destroy(model);
    return 0;
}
