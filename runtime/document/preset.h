/* Texts that are part of the library and have a name: models, machines. */
#ifndef HD_PRESET_H
#define HD_PRESET_H

#include <heddle/status.h>
#include <stddef.h>

typedef struct hd_preset {
    const char *name, *text; /* of the last of a table: NULL */
} hd_preset;

/* The one of that name, or the only one whose name goes on behind it with '-'; NULL: none, or several. */
const hd_preset *hd_preset_find(const hd_preset *presets, const char *name);
/* "did you mean ...?" for a name that none has; "" where none is near. Returns `out`. */
const char *hd_preset_hint(char *out, size_t out_bytes, const hd_preset *presets, const char *name);

#endif
