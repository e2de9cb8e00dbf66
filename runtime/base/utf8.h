/* What is UTF-8 and what is not, and what of it is fit to be shown: names from files, arguments and other ranks may
 * hold anything, and a terminal obeys control bytes. All of it stands here, so that programs have it too. */
#ifndef HD_BASE_UTF8_H
#define HD_BASE_UTF8_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Length of the UTF-8 sequence at `text`, which ends with a 0 byte; 0 if it is none; *code gets its value. */
static inline int utf8_length(unsigned *code, const unsigned char *text)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    int length = text[0] < 0x80   ? 1
                 : text[0] < 0xc2 ? 0
                 : text[0] < 0xe0 ? 2
                 : text[0] < 0xf0 ? 3
                 : text[0] < 0xf5 ? 4
                                  : 0;
    *code = length == 1 ? text[0] : length > 1 ? text[0] & (0x7fU >> length) : 0;
    for (int i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
        *code = *code << 6 | (text[i] & 0x3f);
    }
    return length > 0 && *code >= least[length] && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff) ? length : 0;
}

/* Control characters of ASCII and of ISO 8859 (a terminal takes U+009B for ESC [), and those that turn the direction of
 * writing round. */
static inline int utf8_is_control(unsigned code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x202a && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069);
}

/* Control characters and what is no UTF-8 as \xNN, the rest as it is; cut to fit, between characters. Returns how many
 * bytes of `text` that is. */
static inline size_t utf8_show(char *out, size_t out_bytes, const char *text)
{
    size_t n = 0;
    const unsigned char *p = (const unsigned char *)text;
    while (*p != '\0') {
        unsigned code = 0;
        const int length = utf8_length(&code, p);
        const int is_text = length > 0 && !utf8_is_control(code);
        const size_t taken = is_text ? (size_t)length : 1, shown = is_text ? taken : 4;
        if (n + shown + 1 > out_bytes) {
            break;
        }
        if (is_text) {
            memcpy(out + n, p, taken);
        } else { /* the bytes of one that is longer go on as no UTF-8 */
            (void)snprintf(out + n, out_bytes - n, "\\x%02x", *p);
        }
        n += shown;
        p += taken;
    }
    out[n] = '\0';
    return (size_t)(p - (const unsigned char *)text);
}

#endif
