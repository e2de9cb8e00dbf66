/* Models that are part of the library: texts that have a name. */
#ifndef HD_MODEL_PRESET_H
#define HD_MODEL_PRESET_H

#include <stddef.h>

typedef struct hd_model_preset {
    const char *name, *text; /* NULL behind the last */
} hd_model_preset;

/* Made of planner/presets and examples/models when the library is built, by name. */
extern const hd_model_preset hd_model_presets[];

/* The one of that name, or the only one whose name goes on behind it with '-'; NULL: none, or several. */
const hd_model_preset *hd_model_preset_find(const char *name);
/* "did you mean ...?" for a name that none has; "" where none is near. Returns `out`. */
const char *hd_model_preset_hint(char *out, size_t out_bytes, const char *name);

#endif
