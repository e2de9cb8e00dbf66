/* The files: one, or shards that an index names. They stay mapped, so that ranks of one host have them once. */
#include "latte.h"
#include "runtime/files/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char one_file[] = "diffusion_pytorch_model.safetensors";
static const char index_file[] = "diffusion_pytorch_model.safetensors.index.json";

heddle_status no_memory(const char *what, int64_t values)
{
    return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %s: %" PRId64 " values", what, values);
}

heddle_status map_file(mapped *out, const char *folder, const char *name)
{
    struct stat about;
    memset(out, 0, sizeof(*out));
    if (snprintf(out->path, sizeof(out->path), "%s/%s", folder, name) >= (int)sizeof(out->path)) {
        return heddle_set_error(HEDDLE_ERR_ARG, "a path of more than %d bytes: %.60s...", PATH_BYTES, folder);
    }
    const int fd = open(out->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return heddle_set_error(HEDDLE_ERR_IO, "%s: cannot be opened: %s", out->path, strerror(errno));
    }
    heddle_status st = HEDDLE_OK;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size == 0) {
        st = heddle_set_error(HEDDLE_ERR_PARSE, "%s: not a file with anything in it", out->path);
    } else {
        void *bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            st = heddle_set_error(HEDDLE_ERR_IO, "%s: cannot be mapped: %s", out->path, strerror(errno));
        } else {
            out->bytes = bytes;
            out->size = (size_t)about.st_size;
        }
    }
    close(fd);
    return st;
}

void unmap_file(mapped *file)
{
    if (file->bytes != NULL) {
        munmap((void *)(uintptr_t)file->bytes, file->size);
    }
    file->bytes = NULL;
}

static heddle_status open_shard(weights *w, const char *name)
{
    char error[512];
    if (w->nshards == MAX_FILES) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s/%s: more than %d files", w->folder, index_file, MAX_FILES);
    }
    shard *s = &w->shards[w->nshards++];
    heddle_status st = map_file(&s->file, w->folder, name);
    if (st == HEDDLE_OK && safetensors_parse(&s->tensors, s->file.bytes, s->file.size, error, sizeof(error)) != 0) {
        st = heddle_set_error(HEDDLE_ERR_PARSE, "%s: %s", s->file.path, error);
    }
    s->used = st == HEDDLE_OK ? calloc(s->tensors.count + 1, 1) : NULL;
    return st == HEDDLE_OK && s->used == NULL ? no_memory("a table of tensors", (int64_t)s->tensors.count) : st;
}

/* --- the index: {"metadata": {...}, "weight_map": {"TENSOR": "FILE", ...}} -------------------------------------- */

static shard *shard_called(weights *w, const char *name)
{
    for (int i = 0; i < w->nshards; i++) {
        const char *slash = strrchr(w->shards[i].file.path, '/');
        if (strcmp(slash + 1, name) == 0) {
            return &w->shards[i];
        }
    }
    return NULL;
}

/* A file is opened when it is first named. */
static int take_place(json_reader *r, weights *w, const char *tensor, const char *file)
{
    const size_t length = strlen(file);
    if (strchr(file, '/') != NULL || length < 13 || strcmp(file + length - 12, ".safetensors") != 0) {
        return json_complain(r, "'%.60s' is no name of a safetensors file beside it", file);
    }
    shard *s = shard_called(w, file);
    if (s == NULL) {
        if (open_shard(w, file) != HEDDLE_OK) {
            return json_complain(r, "%s", heddle_last_error());
        }
        s = &w->shards[w->nshards - 1];
    }
    return safetensors_find(&s->tensors, tensor) != NULL
               ? 0
               : json_complain(r, "'%.80s' is not in %.80s, where it should be", tensor, file);
}

static int take_map(json_reader *r, weights *w)
{
    if (json_expect(r, '{') != 0) {
        return -1;
    }
    int more = json_peek(r) != '}';
    while (more) {
        char *tensor = NULL, *file = NULL;
        const int bad = json_string(r, &tensor) != 0 || json_expect(r, ':') != 0 || json_string(r, &file) != 0 ||
                        take_place(r, w, tensor, file) != 0;
        free(tensor);
        free(file);
        if (bad || json_more(r, &more, '}') != 0) {
            return -1;
        }
    }
    r->at++;
    return 0;
}

static int take_index(json_reader *r, weights *w)
{
    if (json_expect(r, '{') != 0) {
        return -1;
    }
    int more = json_peek(r) != '}';
    while (more) {
        char *name = NULL;
        int bad = json_string(r, &name) != 0 || json_expect(r, ':') != 0;
        bad = bad || (strcmp(name, "weight_map") == 0 ? take_map(r, w) : json_skip(r, 4)) != 0;
        free(name);
        if (bad || json_more(r, &more, '}') != 0) {
            return -1;
        }
    }
    return w->nshards > 0 ? 0 : json_complain(r, "'weight_map' is missing or empty");
}

heddle_status index_parse(weights *w, const char *text, size_t size, const char *name)
{
    char error[1024];
    json_reader r = {.text = text, .size = size, .part = "the file", .error = error, .error_bytes = sizeof(error)};
    return take_index(&r, w) == 0 ? HEDDLE_OK : heddle_set_error(HEDDLE_ERR_PARSE, "%s: %s", name, error);
}

heddle_status weights_open(weights *out, const char *folder)
{
    char path[PATH_BYTES];
    mapped index;
    memset(out, 0, sizeof(*out));
    out->folder = folder;
    snprintf(path, sizeof(path), "%s/%s", folder, index_file);
    if (access(path, F_OK) != 0) {
        return open_shard(out, one_file);
    }
    heddle_status st = map_file(&index, folder, index_file);
    st = st ? st : index_parse(out, (const char *)index.bytes, index.size, index.path);
    unmap_file(&index);
    return st;
}

void weights_close(weights *w)
{
    for (int i = 0; i < w->nshards; i++) {
        safetensors_close(&w->shards[i].tensors);
        unmap_file(&w->shards[i].file);
        free(w->shards[i].used);
    }
    w->nshards = 0;
}

/* --- tensors ------------------------------------------------------------------------------------------------------ */

static heddle_status remember_missing(weights *w, const char *name)
{
    const size_t used = strlen(w->missing);
    if (w->nmissing++ < 4) {
        snprintf(w->missing + used, sizeof(w->missing) - used, "%s%s", used > 0 ? ", " : "", name);
    }
    return HEDDLE_OK;
}

heddle_status weights_take(float *out, weights *w, const char *name, int ndim, const int64_t *extent)
{
    char error[512];
    const safetensors_entry *e = NULL;
    int i = 0;
    while (i < w->nshards && (e = safetensors_find(&w->shards[i].tensors, name)) == NULL) {
        i++;
    }
    if (e == NULL) {
        return out == NULL ? remember_missing(w, name)
                           : heddle_set_error(HEDDLE_ERR_PARSE, "%s: tensor '%s' is missing", w->folder, name);
    }
    shard *s = &w->shards[i];
    if (safetensors_read_f32(out, &s->tensors, name, ndim, extent, error, sizeof(error)) != 0) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: %s", s->file.path, error);
    }
    if (out == NULL) { /* ranks that are threads read at the same time, and write nothing */
        s->used[e - s->tensors.entry] = 1;
    }
    return HEDDLE_OK;
}

heddle_status weights_all_used(const weights *w)
{
    if (w->nmissing > 0) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: %d tensors are missing: %s%s", w->folder, w->nmissing,
                                w->missing, w->nmissing > 4 ? ", ..." : "");
    }
    for (int i = 0; i < w->nshards; i++) {
        const shard *s = &w->shards[i];
        size_t k = 0;
        while (k < s->tensors.count && s->used[k]) {
            k++;
        }
        if (k < s->tensors.count) {
            return heddle_set_error(HEDDLE_ERR_PARSE, "%s: tensor '%.80s' is nothing of this model%s", s->file.path,
                                    s->tensors.entry[k].name, w->nshards > 1 ? ", or stands in another file, too" : "");
        }
    }
    return HEDDLE_OK;
}
