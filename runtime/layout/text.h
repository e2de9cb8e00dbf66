/* Text forms: a scanner whose errors give the column, a bounded writer, and the pieces that lines are made of. */
#ifndef HD_TEXT_H
#define HD_TEXT_H

#include "runtime/base/base.h"
#include <heddle/layout.h>

typedef struct hd_scan {
    const char *what; /* what the text is, for error sentences: "reshard line" */
    const char *text; /* all of it */
    const char *at;   /* next character */
} hd_scan;

/* "WHAT, column N: SENTENCE", N counted from 1 for the character at `at`. */
heddle_status hd_scan_fail(const hd_scan *scan, heddle_status status, const char *at, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void hd_scan_space(hd_scan *scan);
/* Skip blanks, then take `token` if it is next. Words must not be followed by more word characters. */
int hd_scan_accept(hd_scan *scan, const char *token);
/* The same, but HEDDLE_ERR_PARSE "expected TOKEN WHERE, found X" when it is not next. */
heddle_status hd_scan_expect(hd_scan *scan, const char *token, const char *where);
heddle_status hd_scan_end(hd_scan *scan);
/* [a-z][a-z0-9_]*; *at gets its place. */
heddle_status hd_scan_name(char name[HEDDLE_NAME_BYTES], const char **at, hd_scan *scan, const char *what);
heddle_status hd_scan_number(int64_t *out, const char **at, hd_scan *scan, const char *what);

heddle_status hd_scan_shape(heddle_shape *out, hd_scan *scan);
heddle_status hd_scan_mesh(heddle_mesh *out, hd_scan *scan);
heddle_status hd_scan_layout(heddle_layout *out, hd_scan *scan, const heddle_shape *shape, const heddle_mesh *mesh);
/* "b,s,t,c"; an order that is the shape's own becomes ndim 0. */
heddle_status hd_scan_order(heddle_order *out, hd_scan *scan, const heddle_shape *shape);

/* Appends; remembers that it ran over. */
typedef struct hd_writer {
    char *out;
    size_t capacity_bytes, length;
    int full;
} hd_writer;

void hd_write(hd_writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* HEDDLE_ERR_ARG when it ran over. */
heddle_status hd_writer_end(const hd_writer *writer, const char *what);

/* Values must have been checked. */
void hd_write_shape(hd_writer *writer, const heddle_shape *shape);
void hd_write_mesh(hd_writer *writer, const heddle_mesh *mesh);
void hd_write_layout(hd_writer *writer, const heddle_layout *layout, const heddle_shape *shape,
                     const heddle_mesh *mesh);
void hd_write_order(hd_writer *writer, const heddle_order *order, const heddle_shape *shape);

#endif
