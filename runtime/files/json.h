/* JSON read once from left to right, as strict as RFC 8259: headers of safetensors files, small files beside them. */
#ifndef HD_FILES_JSON_H
#define HD_FILES_JSON_H

#include <stddef.h>
#include <stdint.h>

typedef struct json_reader {
    const char *text;
    size_t size, at;
    const char *part;    /* "the header": what the text is called in sentences */
    size_t before;       /* bytes of the file that come before the text */
    const uint8_t *data; /* of a safetensors file: behind the header */
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
/* A string, a number, true, false or null as text on the heap; *quoted: it was a string. */
int json_scalar(json_reader *r, char **out, int *quoted);
/* Over any value, at most `depth` lists and maps deep. */
int json_skip(json_reader *r, int depth);

#endif
