/* Texts of reports. */
#ifndef HD_REPORT_TEXT_H
#define HD_REPORT_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* `text` as a JSON string in its quotes. */
void report_json_text(FILE *to, const char *text);
/* "key": "text", then what is behind it, to standard output. */
void report_json_string(const char *key, const char *text, const char *behind);

enum { REPORT_COLUMNS = 100 };

/* `text` in lines of at most `width` columns, broken at its spaces; the first goes on at column `at`, the others are
 * indented. No newline ends the last; returns its column. */
int report_wrap(FILE *to, const char *text, int at, int indent, int width);

/* `text` in a column of a table, which begins at `at`; behind a longer one the row goes on in the next line. */
void report_cell(const char *text, int at, int width);

/* "" or "s" behind a counted word. */
static inline const char *report_s(long long count)
{
    return count == 1 ? "" : "s";
}

/* Three figures and an SI unit; whole bytes below 1 kB. Returns `out`. */
const char *report_si(char *out, size_t out_bytes, double bytes);

/* Three figures and a unit of time. Returns `out`. */
const char *report_seconds(char *out, size_t out_bytes, double seconds);

#endif
