/* libFuzzer: a schedule file of any bytes. What is taken is read through every accessor. Start it with a few files of
 * `heddle plan -o` as the corpus. */
#include <heddle/schedule.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heddle_schedule *schedule = NULL;
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    if (heddle_schedule_parse(&schedule, (const char *)data, size, "fuzz") != HEDDLE_OK) {
        return 0;
    }
    if (heddle_schedule_get_info(&info, schedule) != HEDDLE_OK) {
        abort();
    }
    for (int i = 0; i < info.nstages; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        if (heddle_schedule_stage_at(&stage, schedule, i) != HEDDLE_OK ||
            heddle_schedule_find(schedule, stage.name, stage.repetition) != i) {
            abort();
        }
    }
    for (int i = 0; i < info.nedges; i++) {
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        if (heddle_schedule_edge_at(&edge, schedule, i) != HEDDLE_OK || edge.bytes_per_rank_max > edge.bytes_total) {
            abort();
        }
    }
    heddle_schedule_destroy(schedule);
    return 0;
}
