#include "runtime/layout/text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static int is_name_start(char c)
{
    return c >= 'a' && c <= 'z';
}

static int is_word(char c)
{
    return is_name_start(c) || (c >= '0' && c <= '9') || c == '_';
}

/* What stands at `at`, for error sentences. */
static void describe(char out[24], const char *at)
{
    if (*at == '\0') {
        snprintf(out, 24, "the end");
    } else if (*at >= ' ' && *at <= '~') {
        snprintf(out, 24, "'%c'", *at);
    } else {
        snprintf(out, 24, "byte 0x%02x", (unsigned char)*at);
    }
}

heddle_status hd_scan_fail(const hd_scan *scan, heddle_status status, const char *at, const char *format, ...)
{
    char sentence[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return hd_fail(status, "%s, column %lld: %s", scan->what, (long long)(at - scan->text) + 1, sentence);
}

void hd_scan_space(hd_scan *scan)
{
    while (is_blank(*scan->at)) {
        scan->at++;
    }
}

int hd_scan_accept(hd_scan *scan, const char *token)
{
    hd_scan_space(scan);
    size_t n = strlen(token);
    if (strncmp(scan->at, token, n) != 0 || (is_word(token[n - 1]) && is_word(scan->at[n]))) {
        return 0;
    }
    scan->at += n;
    return 1;
}

heddle_status hd_scan_expect(hd_scan *scan, const char *token, const char *where)
{
    if (hd_scan_accept(scan, token)) {
        return HEDDLE_OK;
    }
    char found[24];
    describe(found, scan->at);
    return hd_scan_fail(scan, HEDDLE_ERR_PARSE, scan->at, "expected '%s' %s, found %s", token, where, found);
}

heddle_status hd_scan_end(hd_scan *scan)
{
    hd_scan_space(scan);
    if (*scan->at != '\0') {
        char found[24];
        describe(found, scan->at);
        return hd_scan_fail(scan, HEDDLE_ERR_PARSE, scan->at, "expected nothing more, found %s", found);
    }
    return HEDDLE_OK;
}

heddle_status hd_scan_name(char name[HEDDLE_NAME_BYTES], const char **at, hd_scan *scan, const char *what)
{
    hd_scan_space(scan);
    const char *start = scan->at;
    *at = start;
    if (!is_name_start(*start)) {
        char found[24];
        describe(found, start);
        return hd_scan_fail(scan, HEDDLE_ERR_PARSE, start, "expected %s (a lower-case letter first), found %s", what,
                            found);
    }
    size_t n = 0;
    while (is_word(start[n])) {
        if (++n >= HEDDLE_NAME_BYTES) {
            return hd_scan_fail(scan, HEDDLE_ERR_PARSE, start, "%s '%.*s...' is longer than %d characters", what,
                                HEDDLE_NAME_BYTES - 1, start, HEDDLE_NAME_BYTES - 1);
        }
    }
    memcpy(name, start, n);
    memset(name + n, 0, HEDDLE_NAME_BYTES - n);
    scan->at = start + n;
    return HEDDLE_OK;
}

heddle_status hd_scan_number(int64_t *out, const char **at, hd_scan *scan, const char *what)
{
    const int64_t largest = (int64_t)1 << 62;
    hd_scan_space(scan);
    const char *start = scan->at;
    *at = start;
    if (*start < '0' || *start > '9') {
        char found[24];
        describe(found, start);
        return hd_scan_fail(scan, HEDDLE_ERR_PARSE, start, "expected %s (a whole number), found %s", what, found);
    }
    int64_t value = 0;
    for (; *scan->at >= '0' && *scan->at <= '9'; scan->at++) {
        int digit = *scan->at - '0';
        if (value > (largest - digit) / 10) {
            return hd_scan_fail(scan, HEDDLE_ERR_PARSE, start, "%s is larger than 2^62 = %lld", what,
                                (long long)largest);
        }
        value = value * 10 + digit;
    }
    *out = value;
    return HEDDLE_OK;
}

void hd_write(hd_writer *writer, const char *format, ...)
{
    if (writer->full) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    size_t room = writer->capacity_bytes - writer->length;
    int n = vsnprintf(writer->out ? writer->out + writer->length : NULL, writer->out ? room : 0, format, arguments);
    va_end(arguments);
    if (n < 0 || (size_t)n >= room) {
        writer->full = 1;
    } else {
        writer->length += (size_t)n;
    }
}

heddle_status hd_writer_end(const hd_writer *writer, const char *what)
{
    if (writer->full || writer->out == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "the text of a %s does not fit %zu bytes (%d always do)", what,
                       writer->capacity_bytes, HEDDLE_LINE_BYTES);
    }
    return HEDDLE_OK;
}
