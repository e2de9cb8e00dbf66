/* What goes in: a clip, an array, or nothing; and what that means for the model's extents. */
#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int input_is_y4m(const char *path)
{
    const size_t length = strlen(path);
    return length < 4 || strcmp(path + length - 4, ".npy") != 0;
}

static int read_failed(const char *path, const char *what)
{
    return cli_usage_error("%s: cannot %s: %s", strcmp(path, "-") == 0 ? "standard input" : path, what,
                           strerror(errno));
}

/* Growing by doubling, since a pipe does not tell its length. Stops at the first piece of what does not begin as it
 * must (/dev/zero does not end): the parser complains about it. */
static int read_all(run_file *out, FILE *file, const char *path, const char *start, size_t start_at)
{
    size_t capacity = 0;
    for (;;) {
        if (out->size == capacity) {
            capacity = capacity == 0 ? (size_t)1 << 20 : capacity * 2;
            uint8_t *bigger = realloc(out->bytes, capacity);
            if (bigger == NULL) {
                return cli_usage_error("%s: no memory for more than %zu bytes", path, out->size);
            }
            out->bytes = bigger;
        }
        const size_t got = fread(out->bytes + out->size, 1, capacity - out->size, file);
        out->size += got;
        if (got == 0) {
            return ferror(file) ? read_failed(path, "read") : CLI_OK;
        }
        if (out->size >= start_at + strlen(start) && memcmp(out->bytes + start_at, start, strlen(start)) != 0) {
            return CLI_OK;
        }
    }
}

int run_read_file(run_file *out, const char *path, const char *start, size_t start_at)
{
    struct stat status;
    memset(out, 0, sizeof(*out));
    if (strcmp(path, "-") == 0) {
        return read_all(out, stdin, path, start, start_at);
    }
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return read_failed(path, "open");
    }
    int code = CLI_OK;
    if (fstat(fileno(file), &status) != 0) {
        code = read_failed(path, "look at");
    } else if (S_ISDIR(status.st_mode)) {
        code = cli_usage_error("%s is a folder, not a file", path);
    } else {
        code = read_all(out, file, path, start, start_at);
    }
    fclose(file);
    if (code != CLI_OK) {
        run_release_file(out);
    }
    return code;
}

void run_release_file(run_file *file)
{
    free(file->bytes);
    memset(file, 0, sizeof(*file));
}

static int open_clip(run_job *job, const char *path)
{
    char error[512];
    int code = run_read_file(&job->clip_file, path, "YUV4MPEG2", 0);
    if (code != CLI_OK) {
        return code;
    }
    if (y4m_parse(&job->clip, job->clip_file.bytes, job->clip_file.size, error, sizeof(error)) != 0) {
        return cli_usage_error("%s: %s", strcmp(path, "-") == 0 ? "standard input" : path, error);
    }
    run_patches *p = &job->patches;
    p->frames = job->info.patch[0];
    p->height = job->info.patch[1];
    p->width = job->info.patch[2];
    if (p->frames < 1 || p->height < 1 || p->width < 1) {
        return cli_usage_error("model '%s' gives no patch size, so it takes no clip", job->info.name);
    }
    p->t = job->clip.frames / p->frames;
    p->y = job->clip.height / p->height;
    p->x = job->clip.width / p->width;
    if (p->t < 1 || p->y < 1 || p->x < 1) {
        return cli_usage_error("%s: %" PRId64 " frames of %" PRId64 " x %" PRId64
                               " are smaller than one patch of %" PRId64 " frames of %" PRId64 " x %" PRId64,
                               path, job->clip.frames, job->clip.width, job->clip.height, p->frames, p->width,
                               p->height);
    }
    p->values = Y4M_PLANES * p->frames * p->height * p->width;
    job->input = RUN_CLIP;
    return CLI_OK;
}

int run_open_input(run_job *job)
{
    const char *path = job->options->input;
    if (path == NULL) {
        return CLI_OK;
    }
    if (input_is_y4m(path)) {
        return open_clip(job, path);
    }
    int code = cli_report(npy_read(&job->array, path));
    if (code == CLI_OK && strcmp(job->array.type, "<f4") != 0 && strcmp(job->array.type, "<f8") != 0 &&
        strcmp(job->array.type, "<f2") != 0) {
        code = cli_usage_error("%s: elements are '%s'; '<f2', '<f4' and '<f8' are taken as an activation", path,
                               job->array.type);
    }
    job->input = RUN_ARRAY;
    return code;
}

/* The extent that --size gives a dim, 0 for none. */
static int64_t asked_extent(const char *sizes, const char *name)
{
    const size_t length = strlen(name);
    for (const char *p = sizes; p != NULL && *p != '\0'; p = strchr(p, ','), p = p == NULL ? NULL : p + 1) {
        if (strncmp(p, name, length) == 0 && p[length] == '=') {
            return strtoll(p + length + 1, NULL, 10);
        }
    }
    return 0;
}

/* Give a dim the input's extent. Time may be cut by --size; anything else that --size says must agree. */
static int fit_dim(run_job *job, const char *name, int64_t *extent, int may_cut)
{
    char sizes[64];
    const int64_t asked = asked_extent(job->options->sizes, name);
    if (asked != 0 && asked != *extent && !(may_cut && asked < *extent)) {
        return cli_usage_error("--size says %s=%" PRId64 ", but %s gives %" PRId64, name, asked, job->options->input,
                               *extent);
    }
    if (asked != 0) {
        *extent = asked;
    }
    snprintf(sizes, sizeof(sizes), "%s=%" PRId64, name, *extent);
    return cli_report(heddle_model_resize(job->model, sizes, 0));
}

static void say_leftovers(const run_job *job)
{
    const run_patches *p = &job->patches;
    const int64_t frames = job->clip.frames - p->t * p->frames, rows = job->clip.height - p->y * p->height;
    const int64_t columns = job->clip.width - p->x * p->width;
    if (frames + rows + columns > 0) {
        cli_say("of the clip %" PRId64 " frames, %" PRId64 " rows and %" PRId64 " columns are not used", frames, rows,
                columns);
    }
}

static int fit_clip(run_job *job)
{
    run_patches *p = &job->patches;
    const heddle_shape *shape = &job->info.shape;
    int code = CLI_OK;
    if (heddle_dim_index(shape, "t") < 0 ||
        (heddle_dim_index(shape, "s") < 0 && (heddle_dim_index(shape, "h") < 0 || heddle_dim_index(shape, "w") < 0))) {
        return cli_usage_error("a clip needs a model with dims t and s, or t, h and w; '%s' has others",
                               job->info.name);
    }
    const int64_t model_t = shape->dim[heddle_dim_index(shape, "t")].extent;
    code = fit_dim(job, "t", &p->t, 1);
    if (code == CLI_OK && heddle_dim_index(shape, "s") >= 0) {
        int64_t tokens = p->y * p->x;
        code = fit_dim(job, "s", &tokens, 0);
    } else if (code == CLI_OK) {
        code = fit_dim(job, "h", &p->y, 0);
        code = code == CLI_OK ? fit_dim(job, "w", &p->x, 0) : code;
    }
    if (code == CLI_OK && cli_speaks() && !cli_will_exec(job->options->transport)) {
        cli_say("clip of %" PRId64 " frames of %" PRId64 " x %" PRId64 ": t=%" PRId64 " (model: %" PRId64 "), %" PRId64
                " x %" PRId64 " tokens per frame",
                job->clip.frames, job->clip.width, job->clip.height, p->t, model_t, p->y, p->x);
        say_leftovers(job);
    }
    return code;
}

static int fit_array(run_job *job)
{
    const heddle_shape shape = job->info.shape;
    if (job->array.ndim != shape.ndim) {
        return cli_usage_error("%s has %d dims, the activation of '%s' has %d", job->options->input, job->array.ndim,
                               job->info.name, shape.ndim);
    }
    for (int d = 0; d < shape.ndim; d++) {
        int64_t extent = job->array.extent[d];
        if (d == job->info.channel_dim && extent != shape.dim[d].extent &&
            asked_extent(job->options->sizes, shape.dim[d].name) == 0) {
            return cli_usage_error("%s has %" PRId64 " channels, model '%s' has %" PRId64, job->options->input, extent,
                                   job->info.name, shape.dim[d].extent);
        }
        int code = fit_dim(job, shape.dim[d].name, &extent, 0);
        if (code != CLI_OK) {
            return code;
        }
    }
    return CLI_OK;
}

int run_fit_model(run_job *job)
{
    int code = cli_report(heddle_model_resize(job->model, job->options->sizes, (int)job->options->layers));
    if (code == CLI_OK && job->options->dtype != 0) {
        const heddle_dtype dtype = job->options->dtype == CLI_FIRST ? HEDDLE_F32 : HEDDLE_BF16;
        code = cli_report(heddle_model_set_dtype(job->model, dtype));
    }
    if (code == CLI_OK && job->input == RUN_CLIP) {
        code = fit_clip(job);
    } else if (code == CLI_OK && job->input == RUN_ARRAY) {
        code = fit_array(job);
    }
    job->info.struct_bytes = sizeof(job->info);
    return code != CLI_OK ? code : cli_report(heddle_model_get_info(&job->info, job->model));
}
