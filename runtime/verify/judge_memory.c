/* What the reference takes on all ranks of a machine against what that machine has. */
#include "runtime/verify/judge.h"

#include <stdio.h>

/* Negative: this system does not say. */
static double available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    double kib = -1;
    while (file != NULL && kib < 0 && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "MemAvailable: %lf", &kib) != 1) {
            kib = -1;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib * 1024;
}

heddle_status judge_check_memory(const char *problem, double bytes_of_rank, int ranks)
{
    const double wanted = ranks * bytes_of_rank, available = available_bytes();
    if (available < 0 || wanted <= available) {
        return HEDDLE_OK;
    }
    return heddle_set_error(HEDDLE_ERR_ARG, "the reference of %s takes %.0f bytes on %d ranks, available are %.0f",
                            problem, wanted, ranks, available);
}
