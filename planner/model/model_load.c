/* Where a model's text comes from: memory, a file, or the presets. */
#include "planner/model/model_read.h"
#include "planner/model/preset.h"
#include "runtime/base/base.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

heddle_status heddle_model_parse(heddle_model **out, const char *text, size_t text_bytes, const char *name)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, text, name));
    st = hd_document_read(hd_model_read, out, text, text_bytes, name, HD_MODEL_LIMIT_BYTES);
out:
    return st;
}

/* A folder is no file: "latte" may be one beside the programs. */
static int is_file(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && !S_ISDIR(about.st_mode);
}

heddle_status heddle_model_load(heddle_model **out, const char *name)
{
    heddle_status st = HEDDLE_OK;
    char hint[512];
    HD_TRY(HD_NEED(out, name));
    const hd_model_preset *preset = is_file(name) ? NULL : hd_model_preset_find(name);
    if (preset != NULL) {
        return heddle_model_parse(out, preset->text, strlen(preset->text), preset->name);
    }
    errno = 0;
    st = hd_document_load(hd_model_read, out, name, HD_MODEL_LIMIT_BYTES);
    if (st == HEDDLE_ERR_IO && errno == ENOENT) {
        const hd_sentence opening = hd_sentence_keep();
        hd_model_preset_hint(hint, sizeof hint, name);
        st = hd_fail(st, "%s, and no model of the library has that name%s%s (heddle presets lists them)", opening.text,
                     hint[0] != '\0' ? ": " : "", hint);
    }
out:
    return st;
}

heddle_status heddle_model_preset(heddle_preset_info *out, int index)
{
    heddle_status st = HEDDLE_OK;
    int count = 0;
    HD_TRY(HD_NEED(out));
    for (; hd_model_presets[count].name != NULL; count++) {
        if (count == index) {
            heddle_preset_info made = {.name = hd_model_presets[index].name, .text = hd_model_presets[index].text};
            return hd_struct_give(out, &made, HD_STRUCT(heddle_preset_info, text));
        }
    }
    st = hd_fail(HEDDLE_ERR_ARG, "preset %d of %d", index, count);
out:
    return st;
}

heddle_status heddle_model_find_preset(int *index, const char *name)
{
    heddle_status st = HEDDLE_OK;
    char hint[512];
    HD_TRY(HD_NEED(index, name));
    const hd_model_preset *preset = hd_model_preset_find(name);
    if (preset == NULL) {
        hd_model_preset_hint(hint, sizeof hint, name);
        return hd_fail(HEDDLE_ERR_ARG, "no model of the library has the name '%.60s'%s%s (heddle presets lists them)",
                       name, hint[0] != '\0' ? ": " : "", hint);
    }
    *index = (int)(preset - hd_model_presets);
out:
    return st;
}

int heddle_model_presets(void)
{
    int count = 0;
    while (hd_model_presets[count].name != NULL) {
        count++;
    }
    return count;
}
