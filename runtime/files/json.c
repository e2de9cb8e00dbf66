#include "runtime/files/json.h"
#include "runtime/base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int json_complain(json_reader *r, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->error, r->error_bytes, format, arguments);
    va_end(arguments);
    return -1;
}

static void skip_space(json_reader *r)
{
    while (r->at < r->size && strchr(" \t\r\n", r->text[r->at]) != NULL && r->text[r->at] != '\0') {
        r->at++;
    }
}

int json_peek(json_reader *r)
{
    skip_space(r);
    return r->at < r->size ? (unsigned char)r->text[r->at] : -1;
}

int json_expect(json_reader *r, char wanted)
{
    int found = json_peek(r);
    if (found != wanted) {
        return found < 0
                   ? json_complain(r, "%s ends at byte %zu where '%c' should stand", r->part, r->before + r->at, wanted)
                   : json_complain(r, "byte %zu of %s is 0x%02x where '%c' should stand", r->before + r->at, r->part,
                                   (unsigned)found, wanted);
    }
    r->at++;
    return 0;
}

int json_more(json_reader *r, int *more, char closing)
{
    *more = json_peek(r) == ',';
    if (!*more) {
        return json_peek(r) == closing ? 0 : json_expect(r, closing);
    }
    r->at++;
    return json_peek(r) == closing
               ? json_complain(r, "byte %zu of %s: a comma before '%c'", r->before + r->at, r->part, closing)
               : 0;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The four digits behind \u. */
static int take_code(json_reader *r, unsigned *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++) {
        int digit = r->at < r->size ? hex(r->text[r->at]) : -1;
        if (digit < 0) {
            return json_complain(r, "byte %zu of %s: \\u wants four hexadecimal digits", r->before + r->at, r->part);
        }
        *code = *code * 16 + (unsigned)digit;
        r->at++;
    }
    return 0;
}

/* A character of one or two \uXXXX, the first \u taken. */
static int take_unicode(json_reader *r, char *out, size_t *length)
{
    const size_t start = r->at - 2;
    unsigned code = 0, low = 0;
    if (take_code(r, &code) != 0) {
        return -1;
    }
    if (code >= 0xd800 && code < 0xdc00 && r->size - r->at >= 2 && memcmp(r->text + r->at, "\\u", 2) == 0) {
        r->at += 2;
        if (take_code(r, &low) != 0) {
            return -1;
        }
        code = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : code;
    }
    if (code == 0 || (code >= 0xd800 && code < 0xe000)) {
        return json_complain(r, "byte %zu of %s: \\u%04x is %s", r->before + start, r->part, code,
                             code == 0 ? "a zero byte, which ends a name" : "one half of a pair");
    }
    char *at = out + *length;
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned lead[] = {0, 0xc0, 0xe0, 0xf0};
    at[0] = (char)(lead[more] | code >> 6 * more);
    for (int i = 1; i <= more; i++) {
        at[i] = (char)(0x80 | (code >> 6 * (more - i) & 63));
    }
    *length += (size_t)more + 1;
    return 0;
}

static int take_escape(json_reader *r, char *out, size_t *length)
{
    static const char plain[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
    if (r->at >= r->size) {
        return json_complain(r, "%s ends within a string", r->part);
    }
    const char c = r->text[r->at++];
    const char *found = c == '\0' ? NULL : strchr(plain, c);
    if (found != NULL) {
        out[(*length)++] = meaning[found - plain];
        return 0;
    }
    return c == 'u' ? take_unicode(r, out, length)
                    : json_complain(r, "byte %zu of %s: unknown escape in a string", r->before + r->at - 1, r->part);
}

/* Does the text consist of UTF-8? */
static int is_text(const char *text)
{
    unsigned code = 0;
    for (int length = 0; *text != '\0'; text += length) {
        length = utf8_length(&code, (const unsigned char *)text);
        if (length == 0) {
            return 0;
        }
    }
    return 1;
}

/* A string on the heap; it never grows longer than its text. */
int json_string(json_reader *r, char **out)
{
    *out = NULL;
    if (json_expect(r, '"') != 0) {
        return -1;
    }
    const size_t start = r->at - 1;
    size_t end = r->at;
    while (end < r->size && r->text[end] != '"') {
        end += r->text[end] == '\\' ? 2 : 1;
    }
    if (end >= r->size) {
        return json_complain(r, "the string at byte %zu of %s does not end", r->before + r->at - 1, r->part);
    }
    char *text = malloc(end - r->at + 1);
    size_t length = 0;
    if (text == NULL) {
        return json_complain(r, "no memory for a name of %zu bytes", end - r->at);
    }
    while (r->at < end) {
        const char c = r->text[r->at++];
        if ((unsigned char)c < 0x20) {
            free(text);
            return json_complain(r, "byte %zu of %s: a string has the control character 0x%02x", r->before + r->at - 1,
                                 r->part, (unsigned)(unsigned char)c);
        }
        if (c != '\\') {
            text[length++] = c;
        } else if (take_escape(r, text, &length) != 0) {
            free(text);
            return -1;
        }
    }
    text[length] = '\0';
    if (!is_text(text)) {
        free(text);
        return json_complain(r, "the string at byte %zu of %s is not UTF-8", r->before + start, r->part);
    }
    r->at = end + 1;
    *out = text;
    return 0;
}

static int take_number(json_reader *r, int64_t *out, const char *what)
{
    int64_t value = 0;
    json_peek(r);
    const size_t start = r->at;
    while (r->at < r->size && r->text[r->at] >= '0' && r->text[r->at] <= '9') {
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, r->text[r->at] - '0', &value)) {
            return json_complain(r, "%s at byte %zu of %s is larger than 2^63", what, r->before + start, r->part);
        }
        r->at++;
    }
    if (r->at == start || (r->text[start] == '0' && r->at > start + 1)) {
        return json_complain(r, "%s at byte %zu of %s is not a whole number", what, r->before + start, r->part);
    }
    *out = value;
    return 0;
}

/* [1, 2, 3]; *count gets their number, at most `capacity`. */
int json_numbers(json_reader *r, int64_t *out, int capacity, int *count, const char *what)
{
    *count = 0;
    if (json_expect(r, '[') != 0) {
        return -1;
    }
    if (json_peek(r) == ']') {
        r->at++;
        return 0;
    }
    for (;;) {
        if (*count == capacity) {
            return json_complain(r, "%s at byte %zu of %s has more than %d numbers", what, r->before + r->at, r->part,
                                 capacity);
        }
        if (take_number(r, &out[*count], what) != 0) {
            return -1;
        }
        (*count)++;
        if (json_peek(r) != ',') {
            return json_expect(r, ']');
        }
        r->at++;
    }
}

static const char *behind_digits(const char *at)
{
    while (*at >= '0' && *at <= '9') {
        at++;
    }
    return at;
}

/* -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)? */
static int is_number(const char *word)
{
    const char *start = word + (word[0] == '-'), *at = behind_digits(start);
    int good = at > start && (start[0] != '0' || at == start + 1);
    if (*at == '.') {
        start = at + 1;
        at = behind_digits(start);
        good = good && at > start;
    }
    if (*at == 'e' || *at == 'E') {
        start = at + 1 + (at[1] == '+' || at[1] == '-');
        at = behind_digits(start);
        good = good && at > start;
    }
    return good && *at == '\0';
}

static int is_word(const char *word)
{
    return strcmp(word, "true") == 0 || strcmp(word, "false") == 0 || strcmp(word, "null") == 0 || is_number(word);
}

int json_scalar(json_reader *r, char **out, int *quoted)
{
    char word[64];
    size_t length = 0;
    *quoted = json_peek(r) == '"';
    if (*quoted) {
        return json_string(r, out);
    }
    *out = NULL;
    const size_t start = r->at;
    while (r->at < r->size && length + 1 < sizeof(word) && r->text[r->at] != '\0' &&
           strchr("+-.0123456789aeflnrstuE", r->text[r->at]) != NULL) {
        word[length++] = r->text[r->at++];
    }
    word[length] = '\0';
    if (!is_word(word)) {
        return json_complain(r, "byte %zu of %s begins no string, number, true, false or null", r->before + start,
                             r->part);
    }
    *out = strdup(word);
    return *out != NULL ? 0 : json_complain(r, "no memory for a word of %zu bytes", length);
}

int json_skip(json_reader *r, int depth)
{
    const int opening = json_peek(r), closing = opening == '{' ? '}' : ']';
    char *text = NULL;
    int quoted = 0, more = 1;
    if (opening != '{' && opening != '[') {
        const int bad = json_scalar(r, &text, &quoted);
        free(text);
        return bad;
    }
    if (depth == 0) {
        return json_complain(r, "byte %zu of %s: too many lists within lists", r->before + r->at, r->part);
    }
    r->at++;
    more = json_peek(r) != closing;
    r->at += !more;
    while (more) {
        if (opening == '{') {
            const int bad = json_string(r, &text) != 0 || json_expect(r, ':') != 0;
            free(text);
            if (bad) {
                return -1;
            }
        }
        if (json_skip(r, depth - 1) != 0 || json_more(r, &more, (char)closing) != 0) {
            return -1;
        }
        r->at += !more;
    }
    return 0;
}
