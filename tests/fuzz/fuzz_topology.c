/* libFuzzer: any bytes as another host's hwloc export. hwloc does not survive all of them, so it reads them in a
 * process of its own; what comes back from there must make a host, and a machine that comes back from its own file. */
#include "planner/machine/machine.h"

#include "fuzz.h"

#include <string.h>

static void look(const heddle_host_info *host)
{
    fuzz_need(host->cores > 0 && host->packages >= 0 && host->numa_nodes >= 0 && host->threads >= 0 && host->gpus >= 0);
    fuzz_need(host->memory_bytes >= 0 && host->l2_bytes >= 0 && host->l3_bytes >= 0);
    fuzz_need(strnlen(host->cpu, sizeof host->cpu) < sizeof host->cpu);
    fuzz_need(strnlen(host->gpu, sizeof host->gpu) < sizeof host->gpu);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_BYTES];
    heddle_host_info host = HEDDLE_EMPTY(heddle_host_info);
    heddle_machine *machine = NULL;
    const int fd = fuzz_file(path, data, size);
    if (heddle_host_get_info(&host, path) == HEDDLE_OK) {
        look(&host);
        if (heddle_machine_discover(&machine, path, NULL, NULL) == HEDDLE_OK) {
            fuzz_write_and_read(machine);
            heddle_machine_destroy(machine);
        }
    }
    close(fd);
    return 0;
}
