/* What every rank does alike once per sample: its seconds grow with the tokens of a sample, and with nothing else. */
#include "case.h"

#include "planner/machine/machine.h"

#include <heddle/forecast.h>
#include <stdio.h>
#include <string.h>

static const int64_t once = INT64_C(8000000000000), by_token = INT64_C(7000000000);

/* A model of 5 x 12 tokens and a text of 30 rows that joins them; `serial` are lines of its file. */
static heddle_model *model_with(const char *serial)
{
    char text[1024];
    heddle_model *model = NULL;
    snprintf(text, sizeof text,
             "model: m\ndtype: bf16\ndims: {b: {size: 2, role: batch}, t: 5, s: 12, c: {size: 64, role: channel},\n"
             "  l: {size: 30, role: text}}\ntensors: {x: [b, t, s, c], y: {dims: [b, l, c], const: true}}\n"
             "guidance: 2\nsteps: 10\n%s"
             "stages: [{name: a, kind: attention, over: s, heads: 4, joins: y}, {name: m, kind: mlp, ratio: 4}]\n",
             serial);
    HD_OK(heddle_model_parse(&model, text, strlen(text), "text"));
    return model;
}

static heddle_status forecast(heddle_forecast_info *out, const heddle_model *model, const heddle_machine *machine,
                              const char *mesh_text)
{
    heddle_mesh mesh;
    heddle_schedule *schedule = NULL;
    heddle_forecast *f = NULL;
    HD_OK(heddle_mesh_parse(&mesh, mesh_text));
    HD_OK(heddle_plan(&schedule, model, &mesh, NULL));
    const heddle_status st = heddle_forecast_create(&f, model, schedule, machine, NULL);
    if (st == HEDDLE_OK) {
        *out = (heddle_forecast_info)HEDDLE_EMPTY(heddle_forecast_info);
        HD_OK(heddle_forecast_get_info(out, f));
    }
    heddle_forecast_destroy(f);
    heddle_schedule_destroy(schedule);
    return st;
}

static double product_s(const heddle_machine *machine, double flops, double rows)
{
    return hd_machine_work_s(machine, HD_WORK_PRODUCT, HEDDLE_BF16, flops, rows);
}

HD_CASE(serial_part_grows_with_the_tokens_of_a_sample)
{
    static const struct {
        const char *sizes, *mesh;
        double tokens, text;
    } samples[] = {
        {"", "[sp=4]", 60, 30},     {"", "[sp=1]", 60, 30},       {"b=1", "[sp=4]", 60, 30},
        {"b=8", "[sp=4]", 60, 30},  {"t=15", "[sp=4]", 180, 30},  {"t=15,s=4096", "[cfg=2 sp=4]", 15 * 4096, 30},
        {"l=77", "[sp=4]", 60, 77}, {"t=1,s=1", "[sp=1]", 1, 30},
    };
    heddle_model *models[] = {model_with(""), model_with("serial_flops: 8000000000000\n"),
                              model_with("serial_token_flops: 7000000000\n"),
                              model_with("serial_flops: 8000000000000\nserial_token_flops: 7000000000\n")};
    heddle_machine *machine = NULL;
    HD_OK(heddle_machine_load(&machine, "8xh100-nvlink"));
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        const double tokens = samples[i].tokens;
        const double text_s = product_s(machine, (double)once, samples[i].text);
        const double tokens_s = product_s(machine, (double)by_token * tokens, tokens);
        const double wanted[] = {0, text_s, tokens_s, text_s + tokens_s};
        double time_s = 0;
        for (int k = 0; k < 4; k++) {
            heddle_forecast_info info;
            heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
            HD_OK(heddle_model_resize(models[k], i == 0 ? "" : "b=2,t=5,s=12,l=30", 0));
            HD_OK(heddle_model_resize(models[k], samples[i].sizes, 0));
            HD_OK(heddle_model_get_info(&model, models[k]));
            HD_OK(forecast(&info, models[k], machine, samples[i].mesh));
            time_s = k == 0 ? info.time_s : time_s;
            assert_true(info.time_s == time_s); /* passes do not notice */
            if (info.serial_s != wanted[k] || info.sample_s != (double)model.passes * time_s + wanted[k]) {
                fail_msg("%s on %s, model %d: %g s of %g, a sample %g s", samples[i].sizes, samples[i].mesh, k,
                         info.serial_s, wanted[k], info.sample_s);
            }
        }
    }
    for (int k = 0; k < 4; k++) {
        heddle_model_destroy(models[k]);
    }
    heddle_machine_destroy(machine);
}

/* Of 2^63 - 1 flops for each of 2^40 tokens 64 bits know nothing, nor picoseconds of their seconds. */
HD_CASE(serial_part_that_is_too_long_is_refused)
{
    heddle_model *model = model_with("serial_token_flops: 9223372036854775807\n");
    heddle_machine *machine = NULL;
    heddle_forecast_info info;
    HD_OK(heddle_machine_load(&machine, "8xh100-nvlink"));
    HD_OK(heddle_model_resize(model, "t=1,s=1", 0));
    HD_OK(forecast(&info, model, machine, "[sp=1]"));
    assert_true(info.serial_s > 9223372036854775807.0 / 990e12);
    HD_OK(heddle_model_resize(model, "t=1099511627776,s=1", 0));
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, forecast(&info, model, machine, "[sp=8]"));
    assert_non_null(strstr(heddle_last_error(), "the serial part of a sample would take a rank more than 2^63"));
    heddle_model_destroy(model);
    heddle_machine_destroy(machine);
}
