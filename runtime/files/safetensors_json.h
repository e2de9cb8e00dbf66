/* The JSON of a safetensors header: strings, whole numbers and what stands between them, as strict as RFC 8259. */
#ifndef HD_FILES_SAFETENSORS_JSON_H
#define HD_FILES_SAFETENSORS_JSON_H

#include <stddef.h>
#include <stdint.h>

/* The JSON header, read once from left to right. */
typedef struct json_reader {
    const char *text;
    size_t size, at;
    const uint8_t *data; /* behind the header */
    size_t data_bytes;
    char *error;
    size_t error_bytes;
    int has_metadata;
} json_reader;

/* All of these return 0, or -1 behind one sentence in r->error. */
int json_complain(json_reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The next character that is no blank, -1 at the end; it is not taken. */
int json_peek(json_reader *r);
int json_expect(json_reader *r, char wanted);
/* Behind an entry of a list or map that `closing` ends: takes a comma, and *more is 1, or leaves `closing`, and it is
 * 0.
 */
int json_more(json_reader *r, int *more, char closing);
/* A string on the heap, UTF-8 without zero bytes. */
int json_string(json_reader *r, char **out);
/* [1, 2, 3]; *count gets their number, at most `capacity`. */
int json_numbers(json_reader *r, int64_t *out, int capacity, int *count, const char *what);

#endif
