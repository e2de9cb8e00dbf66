/* The rows of the gallery as one PNG. Its compression is "stored": nothing to depend on. */
#include "train.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ZOOM = 3, GAP = 3, ROWS = 4, STORED_BYTES = 65535 };

typedef struct png {
    FILE *file;
    uint32_t crc, adler_a, adler_b;
    int failed;
} png;

static void put(png *out, const unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        out->crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            out->crc = out->crc >> 1 ^ (out->crc & 1 ? 0xEDB88320U : 0);
        }
    }
    out->failed |= fwrite(bytes, 1, size, out->file) != size;
}

static void put32(png *out, uint32_t value)
{
    const unsigned char bytes[4] = {(unsigned char)(value >> 24), (unsigned char)(value >> 16),
                                    (unsigned char)(value >> 8), (unsigned char)value};
    put(out, bytes, 4);
}

static void chunk_begin(png *out, const char *name, size_t size)
{
    put32(out, (uint32_t)size);
    out->crc = 0xFFFFFFFFU;
    put(out, (const unsigned char *)name, 4);
}

static void chunk_end(png *out)
{
    put32(out, out->crc ^ 0xFFFFFFFFU);
}

/* One zlib stream of stored blocks. */
static void put_stored(png *out, const unsigned char *bytes, size_t size)
{
    const size_t blocks = (size + STORED_BYTES - 1) / STORED_BYTES;
    chunk_begin(out, "IDAT", 2 + size + 5 * blocks + 4);
    put(out, (const unsigned char[]){0x78, 0x01}, 2);
    uint32_t a = 1, b = 0; /* adler32 */
    for (size_t at = 0; at < size; at += STORED_BYTES) {
        const size_t now = size - at < STORED_BYTES ? size - at : STORED_BYTES;
        const unsigned char head[5] = {at + now == size, (unsigned char)now, (unsigned char)(now >> 8),
                                       (unsigned char)~now, (unsigned char)(~now >> 8)};
        put(out, head, 5);
        put(out, bytes + at, now);
        for (size_t i = at; i < at + now; i++) {
            a = (a + bytes[i]) % 65521;
            b = (b + a) % 65521;
        }
    }
    put32(out, b << 16 | a);
    chunk_end(out);
}

static int write_png(const char *path, const unsigned char *lines, int64_t width, int64_t height)
{
    png out = {.file = fopen(path, "wb")};
    if (out.file == NULL) {
        return -1;
    }
    out.failed |= fwrite("\x89PNG\r\n\x1a\n", 1, 8, out.file) != 8;
    chunk_begin(&out, "IHDR", 13);
    put32(&out, (uint32_t)width);
    put32(&out, (uint32_t)height);
    put(&out, (const unsigned char[]){8, 2, 0, 0, 0}, 5); /* 8 bits, red green blue */
    chunk_end(&out);
    put_stored(&out, lines, (size_t)(height * (1 + 3 * width)));
    chunk_begin(&out, "IEND", 0);
    chunk_end(&out);
    if ((fclose(out.file) != 0) | out.failed) {
        errno = errno ? errno : EIO;
        return -1;
    }
    return 0;
}

static unsigned char byte_of(float value)
{
    const float scaled = (value + 1) * 127.5F + 0.5F;
    return scaled >= 255 ? 255 : scaled >= 0 ? (unsigned char)scaled : 0; /* NaN: 0 */
}

int picture_write(const char *path, const gallery *pictures, int64_t frames, int64_t side)
{
    const float *const rows[ROWS] = {pictures->original, pictures->noised, pictures->untrained, pictures->trained};
    const int64_t cell = side * ZOOM + GAP, width = frames * cell + GAP, height = ROWS * cell + GAP;
    const int64_t line_bytes = 1 + 3 * width; /* the first byte says: no filter */
    unsigned char *lines = malloc((size_t)(height * line_bytes));
    if (lines == NULL) {
        errno = ENOMEM;
        return -1;
    }
    memset(lines, 255, (size_t)(height * line_bytes));
    for (int64_t y = 0; y < height; y++) {
        lines[y * line_bytes] = 0;
    }
    for (int64_t i = 0; i < ROWS * frames * side * ZOOM * side * ZOOM; i++) {
        const int64_t x = i % (side * ZOOM), y = i / (side * ZOOM) % (side * ZOOM);
        const int64_t f = i / (side * ZOOM * side * ZOOM) % frames, row = i / (side * ZOOM * side * ZOOM * frames);
        unsigned char *to = lines + (GAP + row * cell + y) * line_bytes + 1 + 3 * (GAP + f * cell + x);
        for (int64_t c = 0; c < COLOURS; c++) {
            to[c] = byte_of(rows[row][((f * COLOURS + c) * side + y / ZOOM) * side + x / ZOOM]);
        }
    }
    const int result = write_png(path, lines, width, height);
    free(lines);
    return result;
}
