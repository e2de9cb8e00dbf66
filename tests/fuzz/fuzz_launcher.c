/* libFuzzer: lines as the variables of launchers. A rank is one of the job's, or its process is alone, or a sentence
 * says what contradicts what. */
#include "runtime/comm/ground/launcher.h"

#include "fuzz.h"

#include <heddle/comm.h>
#include <string.h>

static const char *const names[] = {"HEDDLE_RANK",
                                    "HEDDLE_SIZE",
                                    "HEDDLE_KEY",
                                    "RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_WORLD_SIZE",
                                    "TORCHELASTIC_RUN_ID",
                                    "TORCHELASTIC_RESTART_COUNT",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "HEDDLE_PORT",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "PMIX_RANK",
                                    "MPI_LOCALRANKID",
                                    "SLURM_STEP_ID",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS"};
enum { NAMES = sizeof names / sizeof names[0], VALUE_BYTES = 256 };

/* A line is a letter, which tells the variable, and its value. */
static void set_variables(const uint8_t *data, size_t size)
{
    for (size_t i = 0, end = 0; i < size; i = end + 1) {
        const uint8_t *line = memchr(data + i, '\n', size - i);
        char value[VALUE_BYTES];
        end = line != NULL ? (size_t)(line - data) : size;
        if (end > i) {
            snprintf(value, sizeof value, "%.*s", (int)(end - i - 1), (const char *)data + i + 1);
            fuzz_need(setenv(names[data[i] % NAMES], value, 1) == 0);
        }
    }
}

static void judge(heddle_status st, const hd_launch *l)
{
    if (st != HEDDLE_OK) {
        fuzz_need(st == HEDDLE_ERR_ARG && strstr(heddle_last_error(), "the environment says ") != NULL);
        return;
    }
    fuzz_need(l->rank >= 0 && l->size >= 0 && l->size <= HEDDLE_COMM_MAX_RANKS);
    fuzz_need(l->name != NULL || (l->rank == 0 && l->size == 1));
    fuzz_need(l->size == 0 ? l->by_mpi : l->rank < l->size);
    fuzz_need(l->by_mpi || (l->here >= 1 && l->here <= l->size));
    fuzz_need(l->name == NULL || l->by_mpi || strlen(l->key) == HD_KEY_BYTES - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    hd_launch launch;
    hd_launch_place place;
    for (int i = 0; i < NAMES; i++) {
        fuzz_need(unsetenv(names[i]) == 0);
    }
    set_variables(data, size);
    judge(hd_launch_read(&launch), &launch);
    judge(hd_launch_read_local(&launch), &launch);
    if (hd_launch_read_place(&place) == HEDDLE_OK) {
        fuzz_need(place.host != NULL && place.host[0] != '\0' && place.port > 0 && place.port <= UINT16_MAX);
    }
    return 0;
}
