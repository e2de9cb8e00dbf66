#include "runtime/files/y4m.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const uint8_t *bytes;
    size_t size, at;
    char *error;
    size_t error_bytes;
} reader;

static int complain(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int complain(reader *r, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->error, r->error_bytes, format, arguments);
    va_end(arguments);
    return -1;
}

/* The bytes up to the next newline, as text in `line`; the reader stands behind it. */
static int take_line(reader *r, char *line, size_t line_bytes, const char *what)
{
    const size_t left = r->size - r->at;
    const size_t window = left < line_bytes ? left : line_bytes;
    const uint8_t *end = memchr(r->bytes + r->at, '\n', window);
    if (end == NULL) {
        return complain(r, "%s at byte %zu has no end of line within %zu bytes", what, r->at, window);
    }
    const size_t length = (size_t)(end - (r->bytes + r->at));
    memcpy(line, r->bytes + r->at, length);
    line[length] = '\0';
    if (strlen(line) != length) {
        return complain(r, "%s at byte %zu has a zero byte in it", what, r->at);
    }
    r->at += length + 1;
    return 0;
}

/* Digits and nothing else, up to 2^31; *end gets what is behind them. -1: none, or more. */
static int64_t digits(const char *text, const char **end)
{
    int64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && value <= INT32_MAX; at++) {
        value = value * 10 + (*at - '0');
    }
    *end = at;
    return at > text && value <= INT32_MAX ? value : -1;
}

static int side(reader *r, int64_t *out, const char *what, const char *text)
{
    const char *end = NULL;
    int64_t value = digits(text, &end);
    if (*end != '\0' || value < 1 || value > Y4M_MAX_SIDE) {
        return complain(r, "the header's %s is '%.20s', not 1 to %d", what, text, (int)Y4M_MAX_SIDE);
    }
    *out = value;
    return 0;
}

static int rate(reader *r, y4m_clip *clip, const char *text)
{
    const char *end = NULL;
    int64_t num = digits(text, &end), den = -1;
    if (*end == ':') {
        den = digits(end + 1, &end);
    }
    if (num < 0 || den < 0 || *end != '\0' || (num == 0) != (den == 0)) { /* 0:0: not known */
        return complain(r, "the header's frame rate is '%.40s', not like 25:1", text);
    }
    clip->rate_num = num;
    clip->rate_den = den;
    return 0;
}

static int colour(reader *r, y4m_clip *clip, const char *text)
{
    static const struct {
        const char *name;
        int mono, x, y;
    } known[] = {
        {"420", 0, 2, 2}, {"420jpeg", 0, 2, 2}, {"420paldv", 0, 2, 2}, {"420mpeg2", 0, 2, 2}, {"420mpeg1", 0, 2, 2},
        {"422", 0, 2, 1}, {"444", 0, 1, 1},     {"411", 0, 4, 1},      {"mono", 1, 1, 1},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(text, known[i].name) == 0) {
            clip->mono = known[i].mono;
            clip->chroma_x = known[i].x;
            clip->chroma_y = known[i].y;
            return 0;
        }
    }
    return complain(r,
                    "colour space 'C%.20s' is not read, only 8-bit C420, C422, C444, C411 and Cmono "
                    "(ffmpeg: -pix_fmt yuv420p)",
                    text);
}

static int take_header(reader *r, y4m_clip *clip)
{
    static const char magic[] = "YUV4MPEG2";
    char line[Y4M_MAX_HEADER + 1];
    if (r->size < sizeof(magic) - 1 || memcmp(r->bytes, magic, sizeof(magic) - 1) != 0) {
        return complain(r, "not a YUV4MPEG2 clip: its %zu bytes do not begin with '%s'", r->size, magic);
    }
    if (take_line(r, line, Y4M_MAX_HEADER, "the header") != 0) {
        return -1;
    }
    if (line[sizeof(magic) - 1] != '\0' && line[sizeof(magic) - 1] != ' ') {
        return complain(r, "the header begins with '%.12s', not with '%s '", line, magic);
    }
    static const char once[] = "WHFC";
    unsigned seen = 0;
    int bad = colour(r, clip, "420");
    char *rest = line + sizeof(magic) - 1;
    for (char *save = NULL, *word = strtok_r(rest, " ", &save); bad == 0 && word != NULL;
         word = strtok_r(NULL, " ", &save)) {
        const char *known = strchr(once, word[0]);
        const unsigned bit = known != NULL ? 1U << (known - once) : 0;
        if ((seen & bit) != 0) {
            return complain(r, "the header gives %c twice, the second time as '%.20s'", word[0], word);
        }
        seen |= bit;
        switch (word[0]) {
        case 'W':
            bad = side(r, &clip->width, "width", word + 1);
            break;
        case 'H':
            bad = side(r, &clip->height, "height", word + 1);
            break;
        case 'F':
            bad = rate(r, clip, word + 1);
            break;
        case 'C':
            bad = colour(r, clip, word + 1);
            break;
        default: /* I, A and X say nothing that matters here */
            break;
        }
    }
    if (bad == 0 && (clip->width == 0 || clip->height == 0)) {
        return complain(r, "the header gives no %s", clip->width == 0 ? "width (W)" : "height (H)");
    }
    return bad;
}

/* One frame; the table of frames grows by doubling. */
static int take_frame(reader *r, y4m_clip *clip, size_t frame_bytes, int64_t *capacity)
{
    char line[Y4M_MAX_HEADER + 1];
    if (r->size - r->at < 5 || memcmp(r->bytes + r->at, "FRAME", 5) != 0) {
        return complain(r, "frame %" PRId64 " at byte %zu does not begin with FRAME", clip->frames, r->at);
    }
    if (take_line(r, line, Y4M_MAX_HEADER, "a FRAME line") != 0) {
        return -1;
    }
    if (line[5] != '\0' && line[5] != ' ') {
        return complain(r, "frame %" PRId64 " begins with '%.12s', not with FRAME", clip->frames, line);
    }
    if (r->size - r->at < frame_bytes) {
        return complain(r, "frame %" PRId64 " is cut off: %zu of %zu bytes", clip->frames, r->size - r->at,
                        frame_bytes);
    }
    if (clip->frames == *capacity) {
        *capacity = *capacity == 0 ? 64 : *capacity * 2;
        size_t *bigger = realloc(clip->frame_at, (size_t)*capacity * sizeof(*bigger));
        if (bigger == NULL) {
            return complain(r, "no memory for a table of %" PRId64 " frames", *capacity);
        }
        clip->frame_at = bigger;
    }
    clip->frame_at[clip->frames++] = r->at;
    r->at += frame_bytes;
    return 0;
}

int y4m_parse(y4m_clip *out, const uint8_t *bytes, size_t size, char *error, size_t error_bytes)
{
    reader r = {bytes, size, 0, error, error_bytes};
    int64_t capacity = 0;
    memset(out, 0, sizeof(*out));
    out->bytes = bytes;
    if (take_header(&r, out) != 0) {
        return -1;
    }
    size_t frame_bytes = (size_t)out->width * (size_t)out->height;
    if (!out->mono) {
        frame_bytes += 2 * (size_t)((out->width + out->chroma_x - 1) / out->chroma_x) *
                       (size_t)((out->height + out->chroma_y - 1) / out->chroma_y);
    }
    while (r.at < r.size) {
        if (take_frame(&r, out, frame_bytes, &capacity) != 0) {
            return -1;
        }
    }
    if (out->frames == 0) {
        return complain(&r, "the clip of %" PRId64 " x %" PRId64 " has a header but no frame", out->width, out->height);
    }
    return 0;
}

void y4m_close(y4m_clip *clip)
{
    free(clip->frame_at);
    clip->frame_at = NULL;
    clip->frames = 0;
}

int y4m_write_header(FILE *file, int64_t width, int64_t height, int64_t rate_num, int64_t rate_den)
{
    if (rate_num <= 0 || rate_den <= 0) {
        rate_num = 25;
        rate_den = 1;
    }
    return fprintf(file, "YUV4MPEG2 W%" PRId64 " H%" PRId64 " F%" PRId64 ":%" PRId64 " Ip A1:1 C444\n", width, height,
                   rate_num, rate_den) < 0
               ? -1
               : 0;
}

int y4m_write_frame(FILE *file, const uint8_t *samples, int64_t width, int64_t height)
{
    const size_t bytes = (size_t)(Y4M_PLANES * width * height);
    return fputs("FRAME\n", file) < 0 || fwrite(samples, 1, bytes, file) != bytes ? -1 : 0;
}
