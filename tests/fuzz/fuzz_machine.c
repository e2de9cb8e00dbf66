/* libFuzzer: any bytes as a machine file, as a table of links and as measured times; a machine that is taken must give
 * finite times, however many ranks it has, and come back from its own file. */
#include "planner/machine/machine.h"

#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A file of these bytes that no disk has. */
static int file_of(char *path, size_t path_bytes, const uint8_t *data, size_t size)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    snprintf(path, path_bytes, "/proc/self/fd/%d", fd);
    return fd;
}

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

/* As a file of its own. */
static void write_and_read(const heddle_machine *machine)
{
    static const char path[] = "fuzz_machine-written.yaml";
    heddle_machine *back = NULL;
    if (heddle_machine_save(machine, path) != HEDDLE_OK || heddle_machine_load(&back, path) != HEDDLE_OK) {
        fprintf(stderr, "%s\n", heddle_last_error());
        abort();
    }
    heddle_machine_destroy(back);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    heddle_machine *machine = NULL;
    if (heddle_machine_parse(&machine, (const char *)data, size, "fuzz") == HEDDLE_OK) {
        write_and_read(machine);
        look(machine);
        heddle_machine_destroy(machine);
        return 0;
    }
    const int fd = file_of(path, sizeof path, data, size);
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
