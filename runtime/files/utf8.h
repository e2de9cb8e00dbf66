/* What is UTF-8 and what is not. */
#ifndef HD_FILES_UTF8_H
#define HD_FILES_UTF8_H

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

#endif
