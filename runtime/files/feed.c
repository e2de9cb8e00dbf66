/* Opening what a model is fed from. */
#include "runtime/files/feed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static heddle_status read_failed(const char *path, const char *what)
{
    return heddle_set_error(HEDDLE_ERR_IO, "%s: cannot %s: %s", strcmp(path, "-") == 0 ? "standard input" : path, what,
                            strerror(errno));
}

/* Growing by doubling, since a pipe does not tell its length. Stops at the first piece of what does not begin as it
 * must (/dev/zero does not end): the parser complains about it. */
static heddle_status read_all(feed_file *out, FILE *file, const char *path, const char *start, size_t start_at)
{
    size_t capacity = 0;
    for (;;) {
        if (out->size == capacity) {
            capacity = capacity == 0 ? (size_t)1 << 20 : capacity * 2;
            uint8_t *bigger = realloc(out->bytes, capacity);
            if (bigger == NULL) {
                return heddle_set_error(HEDDLE_ERR_NOMEM, "%s: no memory for more than %zu bytes", path, out->size);
            }
            out->bytes = bigger;
        }
        const size_t got = fread(out->bytes + out->size, 1, capacity - out->size, file);
        out->size += got;
        if (got == 0) {
            return ferror(file) ? read_failed(path, "read") : HEDDLE_OK;
        }
        if (out->size >= start_at + strlen(start) && memcmp(out->bytes + start_at, start, strlen(start)) != 0) {
            return HEDDLE_OK;
        }
    }
}

heddle_status feed_file_read(feed_file *out, const char *path, const char *start, size_t start_at)
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
    heddle_status st = HEDDLE_OK;
    if (fstat(fileno(file), &status) != 0) {
        st = read_failed(path, "look at");
    } else if (S_ISDIR(status.st_mode)) {
        st = heddle_set_error(HEDDLE_ERR_ARG, "%s is a folder, not a file", path);
    } else {
        st = read_all(out, file, path, start, start_at);
    }
    fclose(file);
    if (st != HEDDLE_OK) {
        feed_file_free(out);
    }
    return st;
}

void feed_file_free(feed_file *file)
{
    free(file->bytes);
    memset(file, 0, sizeof(*file));
}

heddle_status feed_open_clip(feed *out, const char *path, const int patch[3])
{
    char error[512];
    heddle_status st = feed_file_read(&out->clip_file, path, "YUV4MPEG2", 0);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (y4m_parse(&out->clip, out->clip_file.bytes, out->clip_file.size, error, sizeof(error)) != 0) {
        return heddle_set_error(HEDDLE_ERR_ARG, "%s: %s", strcmp(path, "-") == 0 ? "standard input" : path, error);
    }
    feed_patches *p = &out->patches;
    p->frames = patch[0];
    p->height = patch[1];
    p->width = patch[2];
    p->t = out->clip.frames / p->frames;
    p->y = out->clip.height / p->height;
    p->x = out->clip.width / p->width;
    if (p->t < 1 || p->y < 1 || p->x < 1) {
        return heddle_set_error(HEDDLE_ERR_ARG,
                                "%s: %" PRId64 " frames of %" PRId64 " x %" PRId64
                                " are smaller than one patch of %" PRId64 " frames of %" PRId64 " x %" PRId64,
                                path, out->clip.frames, out->clip.width, out->clip.height, p->frames, p->width,
                                p->height);
    }
    p->values = Y4M_PLANES * p->frames * p->height * p->width;
    out->kind = FEED_CLIP;
    return HEDDLE_OK;
}

heddle_status feed_open_array(feed *out, const char *path)
{
    heddle_status st = npy_read(&out->array, path);
    const char *type = out->array.type;
    if (st == HEDDLE_OK && strcmp(type, "<f4") != 0 && strcmp(type, "<f8") != 0 && strcmp(type, "<f2") != 0) {
        st = heddle_set_error(HEDDLE_ERR_ARG,
                              "%s: elements are '%s'; '<f2', '<f4' and '<f8' are taken as an activation", path, type);
    }
    out->kind = FEED_ARRAY;
    return st;
}

void feed_close(feed *out)
{
    y4m_close(&out->clip);
    npy_free(&out->array);
    safetensors_close(&out->weights);
    feed_file_free(&out->clip_file);
    feed_file_free(&out->weights_file);
    free(out->embed_weight);
    free(out->final_weight);
    free(out->embed_bias);
    free(out->final_bias);
    memset(out, 0, sizeof(*out));
}
