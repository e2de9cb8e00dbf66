/* What a rank asks for, field by field with its name, for comparing with what other ranks ask for. */
#ifndef HD_FIELDS_H
#define HD_FIELDS_H

#include <stdint.h>

enum { HD_FIELD_BYTES = 200, HD_MAX_FIELDS = 24 };

typedef struct hd_field {
    const char *name;
    uint64_t hash;             /* of the whole text */
    char text[HD_FIELD_BYTES]; /* its beginning, for sentences */
} hd_field;

typedef struct hd_fields {
    const char *what; /* "attention": what is asked for */
    const char *line; /* as one text, for sentences; NULL: by its fields */
    int64_t team;     /* any number: ranks of one team must ask for the same */
    int count;
    hd_field field[HD_MAX_FIELDS];
} hd_fields;

void hd_fields_add(hd_fields *fields, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
uint64_t hd_fields_kind(const hd_fields *fields); /* of `what` */
uint64_t hd_fields_hash(const hd_fields *fields);

#endif
