/* libFuzzer: any bytes as a machine file, as a table of links and as measured times; a machine that is taken must give
 * finite times, however many ranks it has, and come back from its own file. */
#include "planner/machine/machine.h"

#include "fuzz.h"

#include <math.h>

static void look(heddle_machine *machine)
{
    static const int sizes[] = {1, 3, 1 << 20};
    for (int i = 0; i < 3; i++) {
        heddle_machine_info info = HEDDLE_EMPTY(heddle_machine_info);
        if (heddle_machine_resize(machine, sizes[i]) != HEDDLE_OK ||
            heddle_machine_get_info(&info, machine) != HEDDLE_OK || info.nlinks < 1 || info.ranks != sizes[i]) {
            abort();
        }
        for (double amount = 1e-3; amount < 1e30; amount *= 1e6) {
            for (int l = 0; l < machine->nlinks; l++) {
                for (hd_exchange e = 0; e < HD_EXCHANGES; e++) {
                    if (!isfinite(hd_machine_exchange_s(machine, l, e, sizes[i], amount))) {
                        abort();
                    }
                }
            }
            for (hd_work w = 0; w < HD_WORKS; w++) {
                if (!isfinite(hd_machine_work_s(machine, w, HEDDLE_BF16, amount, amount))) {
                    abort();
                }
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_BYTES];
    heddle_machine *machine = NULL;
    if (heddle_machine_parse(&machine, (const char *)data, size, "fuzz") == HEDDLE_OK) {
        fuzz_write_and_read(machine);
        look(machine);
        heddle_machine_destroy(machine);
        return 0;
    }
    const int fd = fuzz_file(path, data, size);
    if (heddle_machine_discover(&machine, NULL, path, NULL) == HEDDLE_OK) {
        look(machine);
        heddle_machine_destroy(machine);
    }
    if (heddle_machine_load(&machine, "2x8xl20-pcie+eth100") != HEDDLE_OK) {
        abort();
    }
    if (heddle_machine_import(machine, "nccl-tests", path, NULL) == HEDDLE_OK) {
        look(machine);
    }
    if (heddle_machine_import(machine, "galvatron", path, NULL) == HEDDLE_OK) {
        look(machine);
    }
    heddle_machine_destroy(machine);
    close(fd);
    return 0;
}
