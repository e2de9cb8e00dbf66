/* What a machine's file predicts of a schedule: seconds, of all and of every stage. tests/bench/predicted.py sets it
 * against `heddle run`.
 *
 *     bench_forecast MODEL SCHEDULE MACHINE
 */
#include <heddle/forecast.h>
#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>

static void must(heddle_status status)
{
    if (status != HEDDLE_OK) {
        fprintf(stderr, "bench_forecast: %s\n", heddle_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    heddle_model *model;
    heddle_schedule *schedule;
    heddle_machine *machine;
    heddle_forecast *forecast;
    heddle_schedule_info run = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_forecast_info info = HEDDLE_EMPTY(heddle_forecast_info);
    if (argc != 4) {
        fprintf(stderr, "usage: bench_forecast MODEL SCHEDULE MACHINE\n");
        return 2;
    }
    must(heddle_model_load(&model, argv[1]));
    must(heddle_schedule_load(&schedule, argv[2]));
    must(heddle_machine_load(&machine, argv[3]));
    must(heddle_forecast_create(&forecast, model, schedule, machine, NULL));
    must(heddle_forecast_get_info(&info, forecast));
    must(heddle_schedule_get_info(&run, schedule));
    printf("{\"time_s\": %.9g, \"compute_s\": %.9g, \"transfer_s\": %.9g, \"hidden_s\": %.9g, \"stages\": [",
           info.time_s, info.compute_s, info.transfer_s, info.hidden_s);
    for (int i = 0; i < run.nstages; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_forecast_step work = HEDDLE_EMPTY(heddle_forecast_step), edge = HEDDLE_EMPTY(heddle_forecast_step);
        must(heddle_schedule_stage_at(&stage, schedule, i));
        must(heddle_forecast_stage(&work, forecast, i));
        must(heddle_forecast_edge(&edge, forecast, i));
        printf("%s{\"stage\": \"%s\", \"block_s\": %.9g, \"switch_s\": %.9g}", i > 0 ? ", " : "", stage.name,
               work.time_s, edge.time_s);
    }
    printf("]}\n");
    heddle_forecast_destroy(forecast);
    heddle_machine_destroy(machine);
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(model);
    return 0;
}
