/* Schedules with methods: JSON there and back, files of the first version, and files that do not tell the truth. */
#include "case.h"
#include "schedule_files.h"

#include <heddle/planner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char model_text[] =
    SMALL_MODEL("  - {name: t.lin, kind: linear-attention, over: t, heads: 4, causal: true, decay: 0.9}\n");

static heddle_schedule *make_schedule(const char *mesh_text, const char *methods)
{
    return planned(model_text, mesh_text, NULL, methods);
}

HD_CASE(saves_and_loads)
{
    static const struct {
        const char *mesh, *methods;
    } cases[] = {{"[sp=4]", "s.attn=ring"},
                 {"[sp=4]", "s.attn=rsa,t.lin=lasp"},
                 {"[a=2 b=2]", "s.attn=usp,t.lin=scan"},
                 {"[sp=20]", "s.attn=gather-kv,t.lin=lasp2"},
                 {"[sp=3]", "*=ulysses"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heddle_schedule *schedule = make_schedule(cases[i].mesh, cases[i].methods);
        heddle_schedule *loaded = saved_and_loaded(schedule);
        heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
        HD_OK(heddle_schedule_get_info(&info, schedule));
        for (int k = 0; k < info.nstages; k++) {
            heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
            HD_OK(heddle_schedule_stage_at(&stage, loaded, k));
            assert_int_equal(strcmp(stage.method, "local") != 0, stage.forward_bytes_total > 0);
        }
        heddle_schedule_destroy(schedule);
        heddle_schedule_destroy(loaded);
    }
}

/* Without the keys that came with methods, as the first version wrote it. */
HD_CASE(reads_files_without_backward_bytes)
{
    static char text[FILE_BYTES];
    heddle_schedule *schedule = make_schedule("[sp=3]", "*=local");
    heddle_schedule *loaded = NULL;
    saved_text(text, schedule);
    char *from = strstr(text, "  \"backward_bytes_per_rank_max\"");
    char *to = strstr(text, "  \"note\"");
    assert_non_null(from);
    assert_null(strstr(text, "\"heads\""));
    memmove(from, to, strlen(to) + 1);
    HD_OK(heddle_schedule_parse(&loaded, text, strlen(text), "s.json"));
    heddle_schedule_destroy(schedule);
    heddle_schedule_destroy(loaded);
}

static const lie lies[] = {
    {"\"method\": \"ring\"", "\"method\": \"lasp\"", HEDDLE_ERR_PARSE, "'lasp'"},
    {"\"method\": \"lasp\"", "\"method\": \"ring\"", HEDDLE_ERR_PARSE, "'ring'"},
    {"\"method\": \"ring\"", "\"method\": \"usp\"", HEDDLE_ERR_LAYOUT, "usp wants the dim sharded over two mesh axes"},
    {"\"method\": \"ring\"", "\"method\": \"ulysses\"", HEDDLE_ERR_MISMATCH, "'forward_bytes"},
    {"\"method\": \"ring\"", "\"method\": \"local\"", HEDDLE_ERR_PARSE, "takes no 'heads'"},
    {"\"method\": \"local\"", "\"method\": \"ring\"", HEDDLE_ERR_PARSE, "'ring'"},
    {"\"over\": \"s\"", "\"over\": \"t\"", HEDDLE_ERR_LAYOUT, "dim 't' is whole on every rank"},
    {"\"over\": \"s\"", "\"over\": null", HEDDLE_ERR_LAYOUT, "attends over no dim"},
    {"\"over\": \"s\"", "\"over\": \"c\"", HEDDLE_ERR_LAYOUT, "dim 'c' is whole"},
    {"\"layout\": \"s@sp\"", "\"layout\": \"t@sp\"", HEDDLE_ERR_LAYOUT, "dim 's' is whole"},
    {"\"layout\": \"s@sp\"", "\"layout\": \"sum@sp\"", HEDDLE_ERR_LAYOUT, "cannot run"},
    {"\"layout\": \"s@sp\"", "\"layout\": \"s@sp(10 0 0)\"", HEDDLE_ERR_MISMATCH, "'forward_bytes"},
    {"\"heads\": 2", "\"heads\": 3", HEDDLE_ERR_LAYOUT, "3 heads do not divide 8 channels"},
    {"\"heads\": 2", "\"heads\": 0", HEDDLE_ERR_PARSE, "from 1 to"},
    {"\"heads\": 2", "\"heads\": 4", HEDDLE_ERR_MISMATCH, "or differs in kind, over or heads"},
    {", \"heads\": 2", "", HEDDLE_ERR_PARSE, "has no 'heads'"},
    {"\"heads\": 2", "\"heads\": 2, \"causal\": true", HEDDLE_ERR_MISMATCH, "differs in kind"},
    {"\"causal\": true", "\"causal\": false", HEDDLE_ERR_MISMATCH, "but the layouts give"},
    {"\"causal\": true", "\"causal\": 1", HEDDLE_ERR_PARSE, "true or false"},
    {"\"decays\": true, ", "", HEDDLE_ERR_PARSE, "has no 'decays'"},
    {"bf16", "f16", HEDDLE_ERR_LAYOUT, "f32, bf16 or f64, not f16"},
    {"bf16", "f32", HEDDLE_ERR_MISMATCH, "but the layouts give"},
};

HD_CASE(refuses_lies)
{
    heddle_schedule *schedule = make_schedule("[sp=3]", "s.attn=ring,t.lin=lasp");
    refuse_lies(schedule, lies, sizeof lies / sizeof lies[0]);
    heddle_schedule_destroy(schedule);
}

/* Whatever number is changed, the load notices. */
HD_CASE(notices_every_changed_digit)
{
    heddle_schedule *schedule = make_schedule("[sp=3]", "s.attn=ring,t.lin=lasp");
    refuse_changed_digits(schedule);
    heddle_schedule_destroy(schedule);
}
