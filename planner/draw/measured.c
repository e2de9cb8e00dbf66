/* What `heddle run --json` printed, read back. */
#include "planner/draw/draw.h"
#include "runtime/files/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 16 << 20, STAGES_MOST = 1 << 20, DEPTH = 16 };

/* One member of a stage; what is not asked for is skipped. */
static int read_member(json_reader *r, draw_measured_stage *s, double *runs, const char *key)
{
    char **text = strcmp(key, "stage") == 0    ? &s->name
                  : strcmp(key, "layout") == 0 ? &s->layout
                  : strcmp(key, "method") == 0 ? &s->method
                                               : NULL;
    double *number = strcmp(key, "switch_ms") == 0  ? &s->switch_s
                     : strcmp(key, "block_ms") == 0 ? &s->block_s
                     : strcmp(key, "runs") == 0     ? runs
                                                    : NULL;
    char *scalar = NULL;
    int is_quoted = 0;
    if (text != NULL && *text == NULL) {
        return json_string(r, text);
    }
    if (number == NULL) {
        return json_skip(r, DEPTH);
    }
    if (json_scalar(r, &scalar, &is_quoted) != 0) {
        return -1;
    }
    char *end = NULL;
    *number = strtod(scalar, &end);
    const int is_number = !is_quoted && *end == '\0' && *number >= 0 && *number < 1e15;
    free(scalar);
    return is_number ? 0 : json_complain(r, "'%s' is no number of a run", key);
}

static int read_stage(json_reader *r, draw_measured_stage *s)
{
    double runs = 0;
    int more = 1;
    if (json_expect(r, '{') != 0) {
        return -1;
    }
    while (more) {
        char *key = NULL;
        const int failed = json_string(r, &key) != 0 || json_expect(r, ':') != 0 || read_member(r, s, &runs, key) != 0;
        free(key);
        if (failed || json_more(r, &more, '}') != 0) {
            return -1;
        }
    }
    if (json_expect(r, '}') != 0) {
        return -1;
    }
    if (s->name == NULL || s->layout == NULL || s->method == NULL || runs < 1) {
        return json_complain(r, "a stage wants 'stage', 'layout', 'method' and 'runs'");
    }
    s->switch_s *= 1e-3 / runs;
    s->block_s *= 1e-3 / runs;
    return 0;
}

static int read_stages(json_reader *r, draw_measured *out)
{
    int more = 1;
    if (json_expect(r, '[') != 0) {
        return -1;
    }
    while (more) {
        draw_measured_stage *larger = realloc(out->stage, ((size_t)out->nstages + 1) * sizeof *larger);
        if (larger == NULL || out->nstages >= STAGES_MOST) {
            out->stage = larger != NULL ? larger : out->stage;
            return json_complain(r, "no memory for more than %d stages", out->nstages);
        }
        out->stage = larger;
        memset(&larger[out->nstages], 0, sizeof *larger);
        if (read_stage(r, &larger[out->nstages++]) != 0 || json_more(r, &more, ']') != 0) {
            return -1;
        }
    }
    return json_expect(r, ']');
}

static int read_part(json_reader *r, draw_measured *out, const char *key)
{
    static const char *const of[] = {"model", "shape", "mesh"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(key, of[i]) == 0 && out->of[i] == NULL) {
            return json_string(r, &out->of[i]);
        }
    }
    return strcmp(key, "stages") == 0 && out->nstages == 0 ? read_stages(r, out) : json_skip(r, DEPTH);
}

static int read_run(json_reader *r, draw_measured *out)
{
    int more = 1;
    if (json_expect(r, '{') != 0) {
        return -1;
    }
    while (more) {
        char *key = NULL;
        const int failed = json_string(r, &key) != 0 || json_expect(r, ':') != 0 || read_part(r, out, key) != 0;
        free(key);
        if (failed || json_more(r, &more, '}') != 0) {
            return -1;
        }
    }
    return out->nstages > 0 && out->of[0] != NULL && out->of[1] != NULL && out->of[2] != NULL
               ? 0
               : json_complain(r, "no model, shape, mesh and stages: not what heddle run --json prints");
}

heddle_status draw_measured_load(draw_measured *out, const char *path)
{
    char error[PEN_TEXT_BYTES] = "";
    json_reader r = {.part = "the run", .error = error, .error_bytes = sizeof error};
    memset(out, 0, sizeof *out);
    FILE *file = fopen(path, "rb");
    char *text = malloc(FILE_BYTES);
    if (file == NULL || text == NULL) {
        const int why = errno;
        if (file != NULL) {
            fclose(file);
        }
        free(text);
        return file == NULL ? heddle_set_error(HEDDLE_ERR_IO, "%s: cannot be opened: %s", path, strerror(why))
                            : heddle_set_error(HEDDLE_ERR_NOMEM, "no memory to read %s", path);
    }
    r.text = text;
    r.size = fread(text, 1, FILE_BYTES, file);
    const int failed = read_run(&r, out);
    fclose(file);
    free(text);
    return failed ? heddle_set_error(HEDDLE_ERR_PARSE, "%s: %s", path, error) : HEDDLE_OK;
}

void draw_measured_free(draw_measured *measured)
{
    for (int i = 0; i < measured->nstages; i++) {
        free(measured->stage[i].name);
        free(measured->stage[i].layout);
        free(measured->stage[i].method);
    }
    for (int i = 0; i < 3; i++) {
        free(measured->of[i]);
    }
    free(measured->stage);
    memset(measured, 0, sizeof *measured);
}
