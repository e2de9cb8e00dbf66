/* libFuzzer: a model file of any bytes; what is taken must also plan, save and resize without a crash. Start it with
 * examples/models as the corpus. */
#include <heddle/planner.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_RUNS = 512 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heddle_model *model = NULL;
    heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
    if (heddle_model_parse(&model, (const char *)data, size, "fuzz") != HEDDLE_OK) {
        return 0;
    }
    if (heddle_model_get_info(&info, model) == HEDDLE_OK && info.nstages <= MAX_RUNS &&
        heddle_model_resize(model, NULL, 2) == HEDDLE_OK) {
        static const char *const meshes[] = {"[sp=3]", "[node=2 gpu=2]"};
        for (int i = 0; i < 2; i++) {
            heddle_schedule *schedule = NULL;
            heddle_mesh mesh;
            if (heddle_mesh_parse(&mesh, meshes[i]) == HEDDLE_OK &&
                heddle_plan(&schedule, model, &mesh, NULL) == HEDDLE_OK) {
                heddle_schedule_destroy(schedule);
            }
        }
    }
    heddle_model_destroy(model);
    return 0;
}
