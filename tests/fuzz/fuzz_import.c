/* libFuzzer: a config.json of any bytes; what is taken is a model file that plans. */
#include "fuzz.h"

#include <heddle/planner.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[HEDDLE_IMPORT_BYTES], path[FUZZ_PATH_BYTES];
    heddle_model *model = NULL;
    const int fd = fuzz_file(path, data, size);
    const heddle_status st = heddle_model_import(text, sizeof text, path, NULL);
    close(fd);
    if (st == HEDDLE_OK && heddle_model_parse(&model, text, strlen(text), "import") != HEDDLE_OK) {
        abort();
    }
    heddle_model_destroy(model);
    return 0;
}
