/* libFuzzer: any bytes as another host's hwloc export; what is taken is a host, and a machine with ranks. */
#include <heddle/machine.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    heddle_host_info host = HEDDLE_EMPTY(heddle_host_info);
    heddle_machine_info info = HEDDLE_EMPTY(heddle_machine_info);
    heddle_machine *machine = NULL;
    const int fd = memfd_create("topology", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (heddle_host_get_info(&host, path) == HEDDLE_OK && (host.cores < 1 || host.memory_bytes < 0)) {
        abort();
    }
    if (heddle_machine_discover(&machine, path, NULL, NULL) == HEDDLE_OK &&
        (heddle_machine_get_info(&info, machine) != HEDDLE_OK || info.ranks < 1)) {
        abort();
    }
    heddle_machine_destroy(machine);
    close(fd);
    return 0;
}
