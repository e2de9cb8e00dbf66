#include "pen.h"

#include "runtime/base/utf8.h"

#include <math.h>
#include <stdarg.h>

/* Hundredths of the size that the characters from the blank to the tilde take in DejaVu Sans Bold. */
static const unsigned char advance[] = {
    35, 46, 52, 84, 70, 100, 87, 31,  46,  46, 52, 84, 38, 42, 38, 37, 70, 70, 70, 70, 70, 70,  70, 70,
    70, 70, 40, 40, 84, 84,  84, 58,  100, 77, 76, 73, 83, 68, 68, 82, 84, 37, 37, 77, 64, 100, 84, 85,
    73, 85, 77, 72, 68, 81,  77, 110, 77,  72, 73, 46, 37, 46, 84, 50, 50, 67, 72, 59, 72, 68,  44, 72,
    71, 34, 34, 67, 34, 104, 71, 69,  72,  72, 49, 60, 48, 71, 65, 92, 65, 65, 58, 71, 37, 71,  84};

/* Okabe and Ito's colours, which the colour-blind tell apart, and whether dark or light text stands out on them. */
static const struct {
    const char *fill;
    int dark_text;
} colours[PEN_COLOURS] = {{"#56b4e9", 1}, {"#0072b2", 0}, {"#e69f00", 1}, {"#009e73", 1},
                          {"#cc79a7", 1}, {"#d55e00", 1}, {"#f0e442", 1}, {"#8a8a8a", 1}};

void pen_escape(FILE *to, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0';) {
        unsigned code = 0;
        const int length = utf8_length(&code, p);
        if (length == 0 || utf8_is_control(code) || code == 0xfffe || code == 0xffff) {
            fputs("\xef\xbf\xbd", to);
        } else if (strchr("&<>\"'", *p) != NULL) {
            fprintf(to, "&#%d;", *p);
        } else {
            fwrite(p, 1, (size_t)length, to);
        }
        p += length > 0 ? length : 1;
    }
}

void pen_print(FILE *to, const char *format, ...)
{
    char text[PEN_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pen_escape(to, text);
}

static double width_of(unsigned code)
{
    const unsigned narrow = 0x00b7; /* the middle dot */
    return code < 0x20 ? 1.0 : code < 0x7f ? advance[code - 0x20] * 0.01 : code == narrow ? 0.4 : 1.0;
}

double pen_width(const char *text, double size)
{
    double ems = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0';) {
        unsigned code = 0;
        const int length = utf8_length(&code, p);
        ems += length > 0 ? width_of(code) : 1.0;
        p += length > 0 ? length : 1;
    }
    return ems * size;
}

const char *pen_fit(char *out, size_t out_bytes, const char *text, double size, double width)
{
    static const char ellipsis[] = "\xe2\x80\xa6";
    const double room = width - size;
    size_t n = 0;
    double taken = 0;
    if (pen_width(text, size) <= width && strlen(text) < out_bytes) {
        snprintf(out, out_bytes, "%s", text);
        return out;
    }
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0';) {
        unsigned code = 0;
        const int valid = utf8_length(&code, p), length = valid > 0 ? valid : 1;
        taken += size * (valid > 0 ? width_of(code) : 1.0);
        if (taken > room || n + (size_t)length + sizeof ellipsis > out_bytes) {
            break;
        }
        memcpy(out + n, p, (size_t)length);
        n += (size_t)length;
        p += length;
    }
    snprintf(out + n, out_bytes - n, "%s", ellipsis);
    return out;
}

void pen_label(FILE *to, double x, double y, const char *style, const char *format, ...)
{
    char text[PEN_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(to, "<text x=\"%.5g\" y=\"%.5g\" class=\"%s\">", x, y, style);
    pen_escape(to, text);
    fputs("</text>\n", to);
}

void pen_rect(FILE *to, double x, double y, double width, double height, const char *style)
{
    fprintf(to, "<rect x=\"%.5g\" y=\"%.5g\" width=\"%.5g\" height=\"%.5g\" class=\"%s\"/>\n", x, y, width, height,
            style);
}

const char *pen_seconds(char *out, size_t out_bytes, double seconds)
{
    static const char *const units[] = {"s", "ms", "\xc2\xb5s", "ns"};
    int unit = 0;
    while (seconds < 0.9995 && seconds > 0 && unit < 3) {
        seconds *= 1e3;
        unit++;
    }
    const int places = seconds <= 0 || seconds >= 99.95 ? 0 : seconds >= 9.995 ? 1 : 2;
    snprintf(out, out_bytes, "%.*f %s", places, seconds, units[unit]);
    return out;
}

const char *pen_colour(int dim)
{
    return dim >= 0 && dim < PEN_COLOURS ? colours[dim].fill : "#9aa5b1";
}

const char *pen_lane(char *out, size_t out_bytes, int dim)
{
    snprintf(out, out_bytes, dim == HEDDLE_REPLICATED ? "whole" : dim == HEDDLE_PARTIAL ? "sums" : "d%d", dim);
    return out;
}

void pen_style(FILE *to)
{
    fputs("text{font-family:Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif;font-size:12px;fill:#1f2328}\n"
          ".title{font-size:21px;font-weight:bold}.name{font-size:13px;font-weight:bold}.bytes{font-weight:bold}\n"
          ".big{font-size:16px;font-weight:bold}.note{font-size:11px}.soft{fill:#57606a}\n"
          ".mid{text-anchor:middle}.end{text-anchor:end}\n"
          ".paper{fill:#fff}.panel{fill:#f4f6f8}.line,.loop,.arrow,.cut{fill:none;stroke:#57606a}.cut{stroke:#fff}\n"
          ".loop{stroke-width:1.6}.arrow{stroke:#1f2328;stroke-width:1.8}.tip{fill:#1f2328}.looptip{fill:#57606a}\n"
          ".pill{fill:#fff;stroke:#57606a}.work{fill:#9aa5b1}.moves{fill:#1f2328}.ground{fill:#e6eaee}\n"
          ".thread{stroke:#fff;stroke-opacity:.28}.stub{opacity:.55}\n",
          to);
    for (int i = 0; i < PEN_COLOURS; i++) {
        fprintf(to, ".d%d{fill:%s}.on%d{fill:%s}\n", i, colours[i].fill, i, colours[i].dark_text ? "#1f2328" : "#fff");
    }
    fputs(
        "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9da7b3}.paper{fill:#0d1117}\n"
        ".panel{fill:#161b22}.line,.loop{stroke:#9da7b3}.cut{stroke:#0d1117}.arrow{stroke:#e6edf3}.tip{fill:#e6edf3}\n"
        ".looptip{fill:#9da7b3}.pill{fill:#0d1117;stroke:#9da7b3}.work{fill:#6e7a87}.moves{fill:#e6edf3}\n"
        ".ground{fill:#30363d}\n",
        to);
    for (int i = 0; i < PEN_COLOURS; i++) { /* text on a lane is for the lane's colour, not for the page's */
        fprintf(to, ".on%d{fill:%s}", i, colours[i].dark_text ? "#1f2328" : "#fff");
    }
    fputs("}\n", to);
}
