/* libFuzzer: any bytes as another host's hwloc export. hwloc does not survive all of them, so it reads them in a
 * process of its own; what comes back from there must make a host, and a machine that comes back from its own file. */
#include "planner/machine/machine.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int is_so)
{
    if (!is_so) {
        abort();
    }
}

static void look(const heddle_host_info *host)
{
    need(host->cores > 0 && host->packages >= 0 && host->numa_nodes >= 0 && host->threads >= 0 && host->gpus >= 0);
    need(host->memory_bytes >= 0 && host->l2_bytes >= 0 && host->l3_bytes >= 0);
    need(strnlen(host->cpu, sizeof host->cpu) < sizeof host->cpu);
    need(strnlen(host->gpu, sizeof host->gpu) < sizeof host->gpu);
}

static void write_and_read(const heddle_machine *machine)
{
    static const char path[] = "fuzz_topology-written.yaml";
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
    heddle_host_info host = HEDDLE_EMPTY(heddle_host_info);
    heddle_machine *machine = NULL;
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    need(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (heddle_host_get_info(&host, path) == HEDDLE_OK) {
        look(&host);
        if (heddle_machine_discover(&machine, path, NULL, NULL) == HEDDLE_OK) {
            write_and_read(machine);
            heddle_machine_destroy(machine);
        }
    }
    close(fd);
    return 0;
}
