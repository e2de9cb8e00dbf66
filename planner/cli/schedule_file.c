/* Schedules in files: what heddle plan --output saved, or what heddle plan --json printed, which has one in it. */
#include "ask.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 96 << 20 };

/* The value of the outermost "schedule" of a JSON text, an object; its length, 0: there is none. */
static size_t find_schedule(const char **value, const char *text)
{
    static const char key[] = "\"schedule\":";
    int depth = 0;
    *value = NULL;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '"') {
            if (depth == 1 && *value == NULL && strncmp(p, key, sizeof key - 1) == 0) {
                p += sizeof key - 1;
                p += strspn(p, " \n\r\t");
                *value = p--;
                continue;
            }
            for (p++; *p != '"' && *p != '\0'; p++) {
                p += *p == '\\' && p[1] != '\0';
            }
            if (*p == '\0') {
                return 0;
            }
        }
        depth += *p == '{' || *p == '[' ? 1 : *p == '}' || *p == ']' ? -1 : 0;
        if (depth == 1 && *value != NULL && *p == '}') {
            return (size_t)(p - *value) + 1;
        }
    }
    return 0;
}

/* The text, ended by a zero; NULL: no such file, or it is too long or no regular one (heddle_schedule_load says so). */
static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    long bytes = file != NULL && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    char *text = bytes >= 0 && bytes <= FILE_BYTES ? malloc((size_t)bytes + 1) : NULL;
    if (text != NULL) {
        rewind(file);
        text[fread(text, 1, (size_t)bytes, file)] = '\0';
    }
    if (file != NULL) {
        fclose(file);
    }
    return text;
}

int cli_load_schedule(heddle_schedule **out, const char *path)
{
    char *text = read_text(path);
    const char *value = NULL;
    const size_t bytes = text != NULL && strstr(text, "\"heddle-plan-1\"") != NULL ? find_schedule(&value, text) : 0;
    heddle_status st = bytes > 0 ? heddle_schedule_parse(out, value, bytes, path) : heddle_schedule_load(out, path);
    const int code = cli_report(st);
    free(text);
    return st == HEDDLE_ERR_MISMATCH ? CLI_BAD_INPUT : code;
}
