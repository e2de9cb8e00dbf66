/* Files of schedules: planning one, saving it, and copies that do not tell the truth. */
#ifndef SCHEDULE_FILES_H
#define SCHEDULE_FILES_H

#include "case.h"

#include <heddle/planner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 1 << 16 };

/* Attention, another stage, an MLP. */
#define SMALL_MODEL(stage)                                                                                             \
    "model: 'small'\n"                                                                                                 \
    "dtype: bf16\n"                                                                                                    \
    "dims: {b: {size: 1, role: batch}, t: 6, s: 10, c: {size: 8, role: channel}}\n"                                    \
    "tensors: {x: [b, t, s, c]}\n"                                                                                     \
    "repeat: 2\n"                                                                                                      \
    "stages:\n"                                                                                                        \
    "  - {name: s.attn, kind: attention, over: s, heads: 2}\n" stage "  - {name: mlp, kind: mlp, ratio: 4}\n"

/* Prologue and methods may be NULL: the planner's. */
static inline heddle_schedule *planned(const char *model_text, const char *mesh_text, const char *prologue,
                                       const char *methods)
{
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    heddle_mesh mesh;
    heddle_plan_options options;
    heddle_plan_options_init(&options);
    options.prologue = prologue;
    options.methods = methods;
    HD_OK(heddle_model_parse(&model, model_text, strlen(model_text), "m"));
    HD_OK(heddle_mesh_parse(&mesh, mesh_text));
    HD_OK(heddle_plan(&schedule, model, &mesh, &options));
    heddle_model_destroy(model);
    return schedule;
}

static inline void assert_same(const heddle_schedule *a, const heddle_schedule *b)
{
    heddle_schedule_info ia = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_schedule_info ib = HEDDLE_EMPTY(heddle_schedule_info);
    HD_OK(heddle_schedule_get_info(&ia, a));
    HD_OK(heddle_schedule_get_info(&ib, b));
    assert_string_equal(ia.model, ib.model);
    assert_string_equal(ia.note, ib.note);
    assert_memory_equal(&ia.shape, &ib.shape, sizeof ia.shape);
    assert_int_equal(ia.mesh.naxes, ib.mesh.naxes);
    assert_int_equal(ia.period, ib.period);
    assert_int_equal(ia.repeat, ib.repeat);
    assert_int_equal(ia.switches, ib.switches);
    assert_int_equal(ia.bytes_per_rank_max, ib.bytes_per_rank_max);
    assert_int_equal(ia.bytes_total, ib.bytes_total);
    assert_int_equal(ia.backward_bytes_per_rank_max, ib.backward_bytes_per_rank_max);
    assert_int_equal(ia.backward_bytes_total, ib.backward_bytes_total);
    for (int i = 0; i < ia.nstages; i++) {
        heddle_schedule_stage sa = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_schedule_stage sb = HEDDLE_EMPTY(heddle_schedule_stage);
        HD_OK(heddle_schedule_stage_at(&sa, a, i));
        HD_OK(heddle_schedule_stage_at(&sb, b, i));
        assert_string_equal(sa.name, sb.name);
        assert_string_equal(sa.method, sb.method);
        assert_int_equal(sa.repetition, sb.repetition);
        assert_int_equal(sa.kind, sb.kind);
        assert_int_equal(sa.mixed_dim, sb.mixed_dim);
        assert_int_equal(sa.forward_bytes_per_rank_max, sb.forward_bytes_per_rank_max);
        assert_int_equal(sa.forward_bytes_total, sb.forward_bytes_total);
        assert_int_equal(sa.forward_messages, sb.forward_messages);
        assert_int_equal(sa.backward_bytes_per_rank_max, sb.backward_bytes_per_rank_max);
        assert_int_equal(sa.backward_bytes_total, sb.backward_bytes_total);
        assert_int_equal(sa.backward_messages, sb.backward_messages);
        assert_true(heddle_layout_equal(&sa.layout, &sb.layout, &ia.mesh));
    }
    for (int i = 0; i < ia.nedges; i++) {
        heddle_schedule_edge ea = HEDDLE_EMPTY(heddle_schedule_edge);
        heddle_schedule_edge eb = HEDDLE_EMPTY(heddle_schedule_edge);
        HD_OK(heddle_schedule_edge_at(&ea, a, i));
        HD_OK(heddle_schedule_edge_at(&eb, b, i));
        assert_string_equal(ea.kind, eb.kind);
        assert_true(heddle_layout_equal(&ea.from, &eb.from, &ia.mesh));
        assert_true(heddle_layout_equal(&ea.to, &eb.to, &ia.mesh));
        assert_int_equal(ea.bytes_per_rank_max, eb.bytes_per_rank_max);
        assert_int_equal(ea.bytes_received_max, eb.bytes_received_max);
        assert_int_equal(ea.bytes_total, eb.bytes_total);
        assert_int_equal(ea.messages, eb.messages);
    }
}

static inline void temporary_path(char *out, size_t out_bytes)
{
    const char *folder = getenv("TMPDIR");
    snprintf(out, out_bytes, "%s/heddle-schedule-%ld.json", folder != NULL ? folder : "/tmp", (long)getpid());
}

/* Saves and reads the text back; the file is gone afterwards. */
static inline void saved_text(char *out, const heddle_schedule *schedule)
{
    char path[512];
    temporary_path(path, sizeof path);
    HD_OK(heddle_schedule_save(schedule, path));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t bytes = fread(out, 1, FILE_BYTES - 1, f);
    out[bytes] = '\0';
    fclose(f);
    unlink(path);
    assert_true(bytes > 0 && bytes < FILE_BYTES - 1);
}

/* The same again, from a file; and its file is that file. */
static inline heddle_schedule *saved_and_loaded(const heddle_schedule *schedule)
{
    static char first[FILE_BYTES];
    static char second[FILE_BYTES];
    heddle_schedule *loaded = NULL;
    saved_text(first, schedule);
    HD_OK(heddle_schedule_parse(&loaded, first, strlen(first), "s.json"));
    assert_same(schedule, loaded);
    saved_text(second, loaded);
    assert_string_equal(first, second);
    return loaded;
}

typedef struct lie {
    const char *from, *to; /* the first occurrence is replaced */
    heddle_status status;
    const char *sentence;
} lie;

/* Every lie in the text of `schedule` is refused with its status and sentence, naming the file. */
static inline void refuse_lies(const heddle_schedule *schedule, const lie *lies, size_t count)
{
    static char text[FILE_BYTES];
    static char changed[FILE_BYTES];
    int wrong = 0;
    saved_text(text, schedule);
    for (size_t i = 0; i < count; i++) {
        heddle_schedule *loaded = NULL;
        char *at = strstr(text, lies[i].from);
        if (at == NULL) {
            fail_msg("'%s' is not in %s", lies[i].from, text);
        }
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, lies[i].to, at + strlen(lies[i].from));
        heddle_status st = heddle_schedule_parse(&loaded, changed, strlen(changed), "s.json");
        if (st != lies[i].status || strstr(heddle_last_error(), lies[i].sentence) == NULL ||
            strncmp(heddle_last_error(), "s.json:", 7) != 0) {
            print_error("lie %zu, %s: %s: %s\n", i, lies[i].to, heddle_status_name(st), heddle_last_error());
            wrong++;
        }
        assert_null(loaded);
    }
    assert_int_equal(wrong, 0);
}

static inline void refuse_changed_digits(const heddle_schedule *schedule)
{
    static char text[FILE_BYTES];
    saved_text(text, schedule);
    size_t end = (size_t)(strstr(text, "\"note\"") - text);
    size_t plan = (size_t)(strstr(text, "\"objective\"") - text); /* a line that is kept as it is */
    size_t behind = plan + strcspn(text + plan, "\n");
    for (size_t i = 0; i < end; i++) {
        heddle_schedule *loaded = NULL;
        if (text[i] < '0' || text[i] > '9' || (i >= plan && i < behind)) {
            continue;
        }
        char old = text[i];
        text[i] = old == '9' ? '8' : (char)(old + 1);
        heddle_status st = heddle_schedule_parse(&loaded, text, strlen(text), "s.json");
        if (st == HEDDLE_OK) {
            fail_msg("a changed digit at byte %zu is taken: %.60s", i, text + (i > 30 ? i - 30 : 0));
        }
        text[i] = old;
    }
}

#endif
