/* What goes in: a clip, an array, or nothing; and what that means for the model's extents. */
#include "run.h"

#include "launch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int input_is_y4m(const char *path)
{
    const size_t length = strlen(path);
    return length < 4 || strcmp(path + length - 4, ".npy") != 0;
}

int run_open_input(run_job *job)
{
    const char *path = job->options->input;
    if (path == NULL) {
        return CLI_OK;
    }
    return cli_report(input_is_y4m(path) ? feed_open_clip(&job->feed, path, job->task.info.patch)
                                         : feed_open_array(&job->feed, path));
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
    const feed_patches *p = &job->feed.patches;
    const int64_t frames = job->feed.clip.frames - p->t * p->frames, rows = job->feed.clip.height - p->y * p->height;
    const int64_t columns = job->feed.clip.width - p->x * p->width;
    if (frames + rows + columns > 0) {
        cli_say("of the clip %" PRId64 " frames, %" PRId64 " rows and %" PRId64 " columns are not used", frames, rows,
                columns);
    }
}

static int fit_clip(run_job *job)
{
    feed_patches *p = &job->feed.patches;
    const heddle_shape *shape = &job->task.info.shape;
    int code = CLI_OK;
    if (heddle_dim_index(shape, "t") < 0 ||
        (heddle_dim_index(shape, "s") < 0 && (heddle_dim_index(shape, "h") < 0 || heddle_dim_index(shape, "w") < 0))) {
        return cli_usage_error("a clip needs a model with dims t and s, or t, h and w; '%s' has others",
                               job->task.info.name);
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
                job->feed.clip.frames, job->feed.clip.width, job->feed.clip.height, p->t, model_t, p->y, p->x);
        say_leftovers(job);
    }
    return code;
}

static int fit_array(run_job *job)
{
    const heddle_shape shape = job->task.info.shape;
    if (job->feed.array.ndim != shape.ndim) {
        return cli_usage_error("%s has %d dims, the activation of '%s' has %d", job->options->input,
                               job->feed.array.ndim, job->task.info.name, shape.ndim);
    }
    for (int d = 0; d < shape.ndim; d++) {
        int64_t extent = job->feed.array.extent[d];
        if (d == job->task.info.channel_dim && extent != shape.dim[d].extent &&
            asked_extent(job->options->sizes, shape.dim[d].name) == 0) {
            return cli_usage_error("%s has %" PRId64 " channels, model '%s' has %" PRId64, job->options->input, extent,
                                   job->task.info.name, shape.dim[d].extent);
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
    int code = cli_report(heddle_model_resize(job->model, cli_said(job->options->sizes), (int)job->options->layers));
    if (code == CLI_OK && job->options->dtype != 0) {
        const heddle_dtype dtype = job->options->dtype == CLI_FIRST ? HEDDLE_F32 : HEDDLE_BF16;
        code = cli_report(heddle_model_set_dtype(job->model, dtype));
    }
    if (code == CLI_OK && job->feed.kind == FEED_CLIP) {
        code = fit_clip(job);
    } else if (code == CLI_OK && job->feed.kind == FEED_ARRAY) {
        code = fit_array(job);
    }
    job->task.info = HEDDLE_EMPTY(heddle_model_info);
    return code != CLI_OK ? code : cli_report(heddle_model_get_info(&job->task.info, job->model));
}
