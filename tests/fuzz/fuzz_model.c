/* libFuzzer: a model file of any bytes; what is taken must also resize and plan without a crash: by bytes and by
 * seconds, by every method, forward and back. A forecast agrees with the plan. Start it with examples/models as the
 * corpus. */
#include <heddle/forecast.h>
#include <heddle/planner.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_RUNS = 512 };

static void by_seconds(const heddle_model *model, const heddle_mesh *mesh, int training)
{
    heddle_machine *machine = NULL;
    heddle_schedule *schedule = NULL;
    heddle_forecast *forecast = NULL;
    heddle_plan_options options;
    heddle_forecast_options how;
    heddle_schedule_info planned = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_forecast_info info = HEDDLE_EMPTY(heddle_forecast_info);
    heddle_plan_options_init(&options);
    heddle_forecast_options_init(&how);
    options.methods = "";
    options.training = how.training = training;
    if (heddle_machine_load(&machine, "2x2xh100-nvlink+ib400") != HEDDLE_OK) {
        abort();
    }
    options.machine = machine;
    if (heddle_plan(&schedule, model, mesh, &options) == HEDDLE_OK) {
        if (heddle_schedule_get_info(&planned, schedule) != HEDDLE_OK || !(planned.lower_bound <= planned.value) ||
            heddle_forecast_create(&forecast, model, schedule, machine, &how) != HEDDLE_OK ||
            heddle_forecast_get_info(&info, forecast) != HEDDLE_OK) {
            abort();
        }
        /* Training sums the gradients of all ranks, too, whatever the plan. */
        const double more = info.time_s - planned.value, little = 1e-6 * planned.value + 1e-9;
        if (planned.value < 9e6 && (more < -little || (!training && more > little))) {
            fprintf(stderr, "planned %.17g, forecast %.17g\n", planned.value, info.time_s);
            abort();
        }
    }
    heddle_forecast_destroy(forecast);
    heddle_schedule_destroy(schedule);
    heddle_machine_destroy(machine);
}

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
            if (heddle_mesh_parse(&mesh, meshes[i]) != HEDDLE_OK) {
                abort();
            }
            if (heddle_plan(&schedule, model, &mesh, NULL) == HEDDLE_OK) {
                heddle_schedule_destroy(schedule);
            }
            by_seconds(model, &mesh, i);
        }
    }
    heddle_model_destroy(model);
    return 0;
}
