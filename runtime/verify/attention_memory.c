/* What the reference takes on all ranks of a machine against what that machine has. */
#include "runtime/verify/attention_check.h"

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

heddle_status attention_check_memory(const attention_case *c)
{
    attention_extents n = attention_extents_of(c);
    int ranks = heddle_mesh_size(&c->mesh);
    double wanted = 2 * ranks * attention_bytes(&n), available = available_bytes();
    if (available < 0 || wanted <= available) {
        return HEDDLE_OK;
    }
    return heddle_set_error(HEDDLE_ERR_ARG,
                            "the reference of %lld rows, %lld heads of %lld, projected length %lld, takes %.0f bytes "
                            "on %d ranks, available are %.0f",
                            (long long)(n.batch * n.sequence), (long long)n.heads, (long long)n.width,
                            (long long)n.projected, wanted, ranks, available);
}
