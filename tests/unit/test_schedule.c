/* Schedules: accessors, JSON there and back, and files that do not tell the truth. */
#include "case.h"
#include "no_folder.h"
#include "schedule_files.h"

#include "runtime/base/base.h"

#include <heddle/planner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char model_text[] = SMALL_MODEL("  - {name: t.attn, kind: attention, over: t, heads: 2}\n");

static heddle_schedule *make_schedule(const char *mesh_text, const char *prologue)
{
    return planned(model_text, mesh_text, prologue, NULL);
}

HD_CASE(saves_and_loads)
{
    static const char *const meshes[] = {"[sp=4]", "[sp=1]", "[sp=20]", "[node=2 gpu=3]"};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        heddle_schedule *schedule = make_schedule(meshes[i], i == 0 ? "t@sp(3 1 1 1)" : NULL);
        heddle_schedule *loaded = saved_and_loaded(schedule);
        heddle_schedule_destroy(schedule);
        heddle_schedule_destroy(loaded);
    }
}

HD_CASE(finds_stages)
{
    heddle_schedule *schedule = make_schedule("[sp=2]", NULL);
    assert_int_equal(heddle_schedule_find(schedule, "s.attn", 0), 0);
    assert_int_equal(heddle_schedule_find(schedule, "mlp", 0), 2);
    assert_int_equal(heddle_schedule_find(schedule, "t.attn", 1), 4);
    assert_int_equal(heddle_schedule_find(schedule, "t.attn", 2), -1);
    assert_int_equal(heddle_schedule_find(schedule, "t.attn", -1), -1);
    assert_int_equal(heddle_schedule_find(schedule, "end", 0), -1);
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_schedule_stage_at(&stage, schedule, 6));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_schedule_stage_at(&stage, schedule, -1));
    HD_OK(heddle_schedule_edge_at(&edge, schedule, 6));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_schedule_edge_at(&edge, schedule, 7));
    heddle_schedule_destroy(schedule);
    heddle_schedule_destroy(NULL);
}

static const lie lies[] = {
    {"heddle-schedule-1", "heddle-schedule-9", HEDDLE_ERR_PARSE, "this version reads heddle-schedule-1"},
    {"\"schema\"", "\"shcema\"", HEDDLE_ERR_PARSE, "s.json:2:3: unknown key 'shcema' in the schedule; did you mean"},
    {"\"model\": \"small\",", "", HEDDLE_ERR_PARSE, "has no 'model'"},
    {"bf16[", "bf17[", HEDDLE_ERR_PARSE, "s.json:4:"},
    {"s=10", "s=11", HEDDLE_ERR_MISMATCH, "but the layouts give"},
    {"[sp=3]", "[sp=4]", HEDDLE_ERR_MISMATCH, "but the layouts give"},
    {"[sp=3]", "[sq=3]", HEDDLE_ERR_LAYOUT, "s.json:"},
    {"\"period\": 3", "\"period\": 2", HEDDLE_ERR_PARSE, "4 to 4 entries, found 6"},
    {"\"period\": 3", "\"period\": -3", HEDDLE_ERR_PARSE, "from 1 to"},
    {"\"repeat\": 2", "\"repeat\": 3", HEDDLE_ERR_PARSE, "entries"},
    {"\"repeat\": 2", "\"repeat\": 2.0", HEDDLE_ERR_PARSE, "whole number"},
    {"\"name\": \"s.attn\"", "\"name\": \"\"", HEDDLE_ERR_PARSE, "1 to 63"},
    {"\"name\": \"s.attn\"", "\"name\": \"mlp\"", HEDDLE_ERR_PARSE, "taken"},
    {"\"name\": \"s.attn\"", "\"name\": \"x\"", HEDDLE_ERR_MISMATCH, "first repetition has 'x'"},
    {"\"repetition\": 1", "\"repetition\": 0", HEDDLE_ERR_MISMATCH, "belongs to repetition 1"},
    {"\"kind\": \"attention\"", "\"kind\": \"mlp\"", HEDDLE_ERR_MISMATCH, "differs in kind"},
    {"\"over\": \"s\"", "\"over\": \"t\"", HEDDLE_ERR_LAYOUT, "cannot run in layout 't@sp'"},
    {"\"over\": \"s\"", "\"over\": \"q\"", HEDDLE_ERR_PARSE, "names no dim"},
    {"\"method\": \"local\"", "\"method\": \"magic\"", HEDDLE_ERR_PARSE, "'magic'"},
    {"\"layout\": \"t@sp\"", "\"layout\": \"s@sp\"", HEDDLE_ERR_LAYOUT, "cannot run"},
    {"\"layout\": \"t@sp\"", "\"layout\": \"sum@sp\"", HEDDLE_ERR_LAYOUT, "cannot run"},
    {"\"layout\": \"t@sp\"", "\"layout\": \"*\"", HEDDLE_ERR_MISMATCH, "not in the layout of stage 0"},
    {"\"kind\": \"switch\"", "\"kind\": \"gather\"", HEDDLE_ERR_MISMATCH, "the layouts give switch"},
    {"\"kind\": \"switch\"", "\"kind\": \"free\"", HEDDLE_ERR_MISMATCH, "only the first and the last edge"},
    {"\"kind\": \"gather\"", "\"kind\": \"free\"", HEDDLE_ERR_MISMATCH, "only the first and the last edge"},
    {"\"messages\": 6", "\"messages\": 7", HEDDLE_ERR_MISMATCH, "'messages' says 7, but the layouts give 6"},
    {"\"messages\": 6", "\"messages\": -6", HEDDLE_ERR_PARSE, "from 0 to"},
    {"\"messages\": 6", "\"messages\": 99999999999999999999", HEDDLE_ERR_PARSE, "from 0 to"},
    {"\"messages\": 6", "\"messages\": \"6\"", HEDDLE_ERR_PARSE, "whole number"},
    {"\"switches\": 4", "\"switches\": 3", HEDDLE_ERR_MISMATCH, "'switches' says 3"},
    {"\"value\": ", "\"value\": -", HEDDLE_ERR_PARSE, "'value' must be a number of at least 0, found '-"},
    {"\"value\": ", "\"value\": 1e999", HEDDLE_ERR_PARSE, "'value' must be a number"},
    {"\"value\": ", "\"value\": 0x", HEDDLE_ERR_PARSE, "'value' must be a number"},
    {"\"objective\": \"bytes\"", "\"objective\": \"\"", HEDDLE_ERR_PARSE, "1 to 63"},
    {"\"note\": \"", "\"note\": [\"", HEDDLE_ERR_PARSE, "s.json"},
    {"  \"note\"", "  \"model\": \"x\",\n  \"note\"", HEDDLE_ERR_PARSE, "duplicate key 'model'"},
};

HD_CASE(refuses_lies)
{
    heddle_schedule *schedule = make_schedule("[sp=3]", NULL);
    refuse_lies(schedule, lies, sizeof lies / sizeof lies[0]);
    heddle_schedule_destroy(schedule);
}

/* Whatever byte count is changed, the load notices: none is taken on trust; only what the planner said is. */
HD_CASE(notices_every_changed_digit)
{
    heddle_schedule *schedule = make_schedule("[sp=3]", NULL);
    refuse_changed_digits(schedule);
    heddle_schedule_destroy(schedule);
}

/* Names are compared by sorting: the longest list that is read takes a second, where pairs took half a minute. */
HD_CASE(reads_many_names)
{
    enum { STAGES = 65536 };
    char *text = NULL;
    size_t bytes = 0;
    heddle_schedule *schedule = NULL;
    FILE *file = open_memstream(&text, &bytes);
    fprintf(file, "{\"schema\": \"heddle-schedule-1\", \"model\": \"m\", \"shape\": \"f32[t=2 c=2]\", \"mesh\": "
                  "\"[sp=2]\", \"period\": 65536, \"repeat\": 1, \"switches\": 0, \"bytes_per_rank_max\": 0, "
                  "\"bytes_total\": 0, \"stages\": [");
    for (int i = 0; i < STAGES; i++) {
        fprintf(file,
                "%s{\"name\": \"a%d\", \"repetition\": 0, \"kind\": \"mlp\", \"over\": null, \"method\": \"local\", "
                "\"layout\": \"t@sp\"}",
                i > 0 ? ", " : "", i);
    }
    fprintf(file, "], \"edges\": [");
    for (int i = 0; i <= STAGES; i++) {
        fprintf(file,
                "%s{\"from\": \"t@sp\", \"to\": \"t@sp\", \"kind\": \"keep\", \"bytes_per_rank_max\": 0, "
                "\"bytes_total\": 0, \"messages\": 0}",
                i > 0 ? ", " : "");
    }
    fprintf(file, "]}");
    fclose(file);
    clock_t start = clock();
    HD_OK(heddle_schedule_parse(&schedule, text, bytes, "s.json"));
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("65536 stages read in %.2f s\n", seconds);
    assert_true(seconds < 12);
    assert_int_equal(heddle_schedule_find(schedule, "a65535", 0), 65535);
    heddle_schedule_destroy(schedule);
    free(text);
}

HD_CASE(no_text_is_refused)
{
    heddle_schedule *schedule = NULL;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_schedule_parse(&schedule, NULL, 0, "s.json"));
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_schedule_parse(&schedule, "", 0, "s.json"));
    assert_null(schedule);
}

HD_CASE(survives_truncation)
{
    static char text[FILE_BYTES];
    heddle_schedule *schedule = make_schedule("[sp=3]", NULL);
    saved_text(text, schedule);
    size_t bytes = strlen(text) - 2;
    for (size_t n = 0; n < bytes; n += n % 7 + 1) {
        heddle_schedule *loaded = NULL;
        HD_FAILS(HEDDLE_ERR_PARSE, heddle_schedule_parse(&loaded, text, n, "s.json"));
    }
    heddle_schedule *loaded = NULL;
    char none[128];
    hd_no_folder(none, "s.json");
    HD_FAILS(HEDDLE_ERR_IO, heddle_schedule_load(&loaded, none));
    HD_FAILS(HEDDLE_ERR_IO, heddle_schedule_save(schedule, none));
    hd_no_folder_end(none);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_schedule_save(schedule, ""));
    assert_non_null(strstr(heddle_last_error(), "heddle_schedule_save: path is empty"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_schedule_save(NULL, "x"));
    heddle_schedule_destroy(schedule);
}

/* Every allocation on the way fails once; nothing leaks (the address sanitizer looks) and nothing is returned. */
HD_CASE(survives_lack_of_memory)
{
    static char text[FILE_BYTES];
    heddle_schedule *schedule = make_schedule("[sp=3]", NULL);
    saved_text(text, schedule);
    heddle_schedule_destroy(schedule);
    int failures = 0;
    for (long n = 1;; n++) {
        heddle_model *model = NULL;
        heddle_schedule *loaded = NULL;
        schedule = NULL;
        heddle_mesh mesh;
        HD_OK(heddle_mesh_parse(&mesh, "[sp=3]"));
        hd_alloc_fail_at(n);
        heddle_status st = heddle_model_parse(&model, model_text, sizeof model_text - 1, "m");
        if (st == HEDDLE_OK) {
            st = heddle_plan(&schedule, model, &mesh, NULL);
        }
        if (st == HEDDLE_OK) {
            st = heddle_schedule_parse(&loaded, text, strlen(text), "s.json");
        }
        hd_alloc_fail_at(0);
        heddle_model_destroy(model);
        heddle_schedule_destroy(schedule);
        heddle_schedule_destroy(loaded);
        if (st == HEDDLE_OK) {
            break;
        }
        assert_int_equal(st, HEDDLE_ERR_NOMEM);
        failures++;
    }
    assert_true(failures > 100);
}
