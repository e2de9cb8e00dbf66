/* Texts, sizes and colours of pictures (SVG) and pages (HTML). Names from files may hold anything: all of them are
 * escaped here. */
#ifndef HD_DRAW_PEN_H
#define HD_DRAW_PEN_H

#include <heddle/layout.h>
#include <stdio.h>

enum { PEN_TEXT_BYTES = 512, PEN_COLOURS = HEDDLE_MAX_DIMS };

/* `text` as character data or as the value of an attribute: signs of markup as entities, what is no text as U+FFFD. */
void pen_escape(FILE *to, const char *text);
/* The same of a format; the text is cut at PEN_TEXT_BYTES. */
void pen_print(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Pixels that a line of `size` pixels takes in the widest font of the list, bold. */
double pen_width(const char *text, double size);
/* `text` cut, with an ellipsis, to `width` pixels. Returns `out`. */
const char *pen_fit(char *out, size_t out_bytes, const char *text, double size, double width);

/* A text element. `style`: its classes (pen_style), "name" or "note mid". */
void pen_label(FILE *to, double x, double y, const char *style, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void pen_rect(FILE *to, double x, double y, double width, double height, const char *style);

/* Three figures and a unit, "1.23 ms". Returns `out`. */
const char *pen_seconds(char *out, size_t out_bytes, double seconds);

/* Rules of all classes, light and dark. */
void pen_style(FILE *to);
/* "#0072b2": of the dim with this index. */
const char *pen_colour(int dim);
/* "d2" for a sharded dim, "whole" for replicated, "sums" for partial sums: the class that fills a lane. */
const char *pen_lane(char *out, size_t out_bytes, int dim);

#endif
