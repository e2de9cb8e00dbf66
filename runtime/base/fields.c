#include "runtime/base/fields.h"

#include "runtime/base/hash.h"

#include <heddle/layout.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void hd_fields_add(hd_fields *fields, const char *name, const char *format, ...)
{
    char whole[HEDDLE_LINE_BYTES];
    va_list arguments;
    if (fields->count == HD_MAX_FIELDS) {
        return;
    }
    hd_field *field = &fields->field[fields->count++];
    va_start(arguments, format);
    vsnprintf(whole, sizeof whole, format, arguments);
    va_end(arguments);
    field->name = name;
    field->hash = hd_hash(HD_HASH_BASIS, whole, strlen(whole));
    snprintf(field->text, sizeof field->text, "%s", whole);
}

uint64_t hd_fields_kind(const hd_fields *fields)
{
    return fields->what != NULL ? hd_hash(HD_HASH_BASIS, fields->what, strlen(fields->what)) : HD_HASH_BASIS;
}

uint64_t hd_fields_hash(const hd_fields *fields)
{
    uint64_t hash = hd_fields_kind(fields);
    for (int f = 0; f < fields->count; f++) {
        hash = hd_hash(hash, &fields->field[f].hash, sizeof fields->field[f].hash);
    }
    return hash;
}
