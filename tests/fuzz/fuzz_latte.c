/* Any bytes are a config.json that the example can run or are refused; so with an index of files, of which none is
 * there. */
#include "latte.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static weights files;
    config cfg;
    heddle_status st = config_parse(&cfg, (const char *)data, size, "config.json");
    if (st == HEDDLE_OK ? cfg.channels % 4 != 0 || cfg.channels / cfg.heads != cfg.head_dim ||
                              cfg.side % cfg.patch != 0 || cfg.out_channels < 1 || cfg.layers < 1
                        : heddle_last_error()[0] == '\0') {
        abort();
    }
    files.folder = "/nowhere";
    if (index_parse(&files, (const char *)data, size, "index.json") == HEDDLE_OK) {
        abort();
    }
    weights_close(&files);
    return 0;
}
