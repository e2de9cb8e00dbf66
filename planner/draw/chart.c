/* One curve over one axis, as a picture within a page. */
#include "planner/draw/draw.h"

#include <math.h>

enum { LEFT = 86, RIGHT = 40, TOP = 34, BOTTOM = 48, WIDTH = 900, HEIGHT = 260, TICKS = 5 };

typedef struct scale {
    double low, high, from, to;
    int is_log;
} scale;

static double place_of(const scale *s, double value)
{
    const double low = s->is_log ? log(s->low) : s->low, high = s->is_log ? log(s->high) : s->high;
    const double at = s->is_log ? log(value > s->low ? value : s->low) : value;
    return high > low ? s->from + (s->to - s->from) * (at - low) / (high - low) : s->from;
}

static double tick_of(const scale *s, int i)
{
    const double part = (double)i / (TICKS - 1);
    return s->is_log ? s->low * pow(s->high / s->low, part) : s->low + (s->high - s->low) * part;
}

static void draw_axes(FILE *to, const draw_series *c, const scale *x, const scale *y)
{
    char text[32];
    for (int i = 0; i < TICKS; i++) {
        const double at = place_of(y, tick_of(y, i));
        fprintf(to, "<path class=\"line\" stroke-opacity=\".25\" d=\"M%d %.5gH%d\"/>\n", LEFT, at, WIDTH - RIGHT);
        pen_label(to, LEFT - 8, at + 4, "note soft end", "%s", c->format_y(text, sizeof text, tick_of(y, i)));
        const double across = c->is_log ? round(tick_of(x, i)) : tick_of(x, i);
        pen_label(to, place_of(x, across), HEIGHT - BOTTOM + 18, "note soft mid", "%s",
                  c->format_x(text, sizeof text, across));
    }
    pen_label(to, LEFT, 18, "bytes", "%s", c->y_words);
    pen_label(to, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10, "note soft mid", "%s", c->x_words);
}

void draw_chart(FILE *to, const draw_series *c)
{
    scale x = {c->x[0], c->x[c->count - 1], LEFT, WIDTH - RIGHT, c->is_log};
    scale y = {c->is_log ? c->y[0] : 0, c->ceiling, HEIGHT - BOTTOM, TOP, c->is_log};
    for (int i = 0; i < c->count; i++) {
        y.high = c->y[i] > y.high ? c->y[i] : y.high;
        y.low = c->is_log && c->y[i] < y.low ? c->y[i] : y.low;
    }
    fprintf(to, "<svg viewBox=\"0 0 %d %d\" role=\"img\" class=\"chart\">\n", WIDTH, HEIGHT);
    draw_axes(to, c, &x, &y);
    fputs("<path fill=\"none\" stroke=\"#0072b2\" stroke-width=\"2\" d=\"", to);
    for (int i = 0; i < c->count; i++) {
        const double px = place_of(&x, c->x[i]), py = place_of(&y, c->y[i]);
        if (i > 0 && c->is_steps) {
            fprintf(to, "H%.6g", px);
        }
        fprintf(to, "%c%.6g %.6g", i == 0 ? 'M' : 'L', px, py);
    }
    fputs("\"/>\n", to);
    for (int i = 0; i < c->count && !c->is_steps; i++) {
        fprintf(to, "<circle cx=\"%.6g\" cy=\"%.6g\" r=\"3.5\" fill=\"#0072b2\"/>\n", place_of(&x, c->x[i]),
                place_of(&y, c->y[i]));
    }
    if (c->ceiling > 0) {
        const double at = place_of(&y, c->ceiling);
        fprintf(to, "<path fill=\"none\" stroke=\"#d55e00\" stroke-dasharray=\"6 4\" d=\"M%d %.5gH%d\"/>\n", LEFT, at,
                WIDTH - RIGHT);
        pen_label(to, WIDTH - RIGHT, at - 6, "note end", "%s", c->ceiling_words);
    }
    fputs("</svg>\n", to);
}
