/* Files of schedules: saving one, and copies of it that do not tell the truth. */
#ifndef SCHEDULE_FILES_H
#define SCHEDULE_FILES_H

#include "case.h"

#include <heddle/schedule.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 1 << 16 };

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
    for (size_t i = 0; i < end; i++) {
        heddle_schedule *loaded = NULL;
        if (text[i] < '0' || text[i] > '9') {
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
