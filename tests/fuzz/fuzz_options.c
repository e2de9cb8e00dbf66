/* libFuzzer: any lines as what a user asks of a plan: methods, force, the layouts at both ends, extents. What is taken
 * makes a schedule that reads back as it was written. */
#include "fuzz.h"

#include <heddle/planner.h>
#include <string.h>

enum { LINES = 5, LINE_BYTES = 256 };

static const char model_text[] = "model: small\ndtype: bf16\ndims: {b: {size: 2, role: batch}, t: 6, s: 12, "
                                 "c: {size: 64, role: channel}}\ntensors: {x: [b, t, s, c]}\nrepeat: 2\nstages:\n"
                                 "  - {name: s.attn, kind: attention, over: s, heads: 4}\n"
                                 "  - {name: t.attn, kind: attention, over: t, heads: 4}\n"
                                 "  - {name: mlp, kind: mlp, ratio: 4}\n";

static void split(char line[LINES][LINE_BYTES], const uint8_t *data, size_t size)
{
    int n = 0;
    size_t used = 0;
    for (size_t i = 0; i < size && n < LINES; i++) {
        if (data[i] == '\n') {
            n++;
            used = 0;
        } else if (used < LINE_BYTES - 1) {
            line[n][used++] = (char)data[i];
        }
    }
}

static const char *said(const char *line)
{
    return line[0] != '\0' ? line : NULL;
}

/* What is written is what is read. */
static void keep(const heddle_schedule *schedule)
{
    heddle_schedule *back = NULL;
    char path[FUZZ_PATH_BYTES];
    snprintf(path, sizeof path, "fuzz-%d-schedule.json", (int)getpid());
    if (heddle_schedule_save(schedule, path) != HEDDLE_OK || heddle_schedule_load(&back, path) != HEDDLE_OK) {
        fprintf(stderr, "%s\n", heddle_last_error());
        abort();
    }
    heddle_schedule_destroy(back);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char line[LINES][LINE_BYTES] = {{0}};
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    heddle_mesh mesh;
    heddle_plan_options options;
    split(line, data, size);
    heddle_plan_options_init(&options);
    options.methods = line[0];
    options.force = said(line[1]);
    options.prologue = said(line[2]);
    options.epilogue = said(line[3]);
    fuzz_need(heddle_model_parse(&model, model_text, sizeof model_text - 1, "small") == HEDDLE_OK &&
              heddle_mesh_parse(&mesh, "[a=2 b=2]") == HEDDLE_OK);
    const heddle_status st = heddle_model_resize(model, line[4], 0);
    if (st == HEDDLE_OK && heddle_plan(&schedule, model, &mesh, &options) == HEDDLE_OK) {
        keep(schedule);
    } else {
        fuzz_need(heddle_last_error()[0] != '\0');
    }
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(model);
    return 0;
}
