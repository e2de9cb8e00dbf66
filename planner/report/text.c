#include "planner/report/text.h"

#include "runtime/base/utf8.h"

#include <string.h>

void report_json_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0';) {
        unsigned code = 0;
        int length = utf8_length(&code, p);
        if (*p == '"' || *p == '\\') {
            fprintf(to, "\\%c", *p);
        } else if (length == 0 || utf8_is_control(code)) {
            fprintf(to, "\\u%04x", length == 0 ? *p : code); /* a byte that is no text: as ISO 8859-1 has it */
        } else {
            fwrite(p, 1, (size_t)length, to);
        }
        p += length > 0 ? length : 1;
    }
    fputc('"', to);
}

void report_json_string(const char *key, const char *text, const char *behind)
{
    printf("\"%s\": ", key);
    report_json_text(stdout, text);
    printf("%s", behind);
}

int report_wrap(FILE *to, const char *text, int at, int indent, int width)
{
    while (*text != '\0') {
        int spaces = (int)strspn(text, " ");
        const int word = (int)strcspn(text + spaces, " ");
        if (spaces > 0 && at > indent && at + spaces + word > width) {
            fprintf(to, "\n%*s", indent, "");
            at = indent;
            text += spaces;
            spaces = 0;
        }
        at += fprintf(to, "%.*s", spaces + word, text);
        text += spaces + word;
    }
    return at;
}

void report_cell(const char *text, int at, int width)
{
    if (printf("%-*s", width, text) > width) {
        printf("\n%*s", at + width, "");
    }
}

const char *report_si(char *out, size_t out_bytes, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    int unit = 0;
    while (bytes >= 999.5 && unit < 6) {
        bytes /= 1000.0;
        unit++;
    }
    int places = unit == 0 || bytes >= 99.95 ? 0 : (bytes >= 9.995 ? 1 : 2);
    snprintf(out, out_bytes, "%.*f %s", places, bytes, units[unit]);
    return out;
}

const char *report_seconds(char *out, size_t out_bytes, double seconds)
{
    static const char *const units[] = {"s", "ms", "us", "ns"};
    int unit = 0;
    if (seconds <= 0) {
        snprintf(out, out_bytes, "0 s");
        return out;
    }
    while (seconds < 0.9995 && unit < 3) {
        seconds *= 1000.0;
        unit++;
    }
    const int places = seconds >= 99.95 ? 0 : seconds >= 9.995 ? 1 : 2;
    snprintf(out, out_bytes, "%.*f %s", places, seconds, units[unit]);
    return out;
}
