/* Reads YUV4MPEG2, 8 bits (what `ffmpeg -i any.mp4 -f yuv4mpegpipe clip.y4m` writes), and shrinks it. */
#include "train.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PIXELS = 8192, MAX_FRAMES = 4096, HEADER_BYTES = 1024 };

typedef struct format {
    int64_t width, height, chroma_width, chroma_height; /* chroma 0 x 0: grey */
} format;

static int complain(char *error, size_t error_bytes, const char *sentence)
{
    snprintf(error, error_bytes, "%s", sentence);
    return -1;
}

static int read_header(format *out, FILE *file, char *error, size_t error_bytes)
{
    char line[HEADER_BYTES], *rest = NULL;
    int across = 2, down = 2; /* luma samples per chroma sample; the default is 4:2:0 */
    if (fgets(line, sizeof(line), file) == NULL || strncmp(line, "YUV4MPEG2 ", 10) != 0) {
        return complain(error, error_bytes,
                        "is no YUV4MPEG2 clip (ffmpeg -i any.mp4 -f yuv4mpegpipe clip.y4m writes one)");
    }
    memset(out, 0, sizeof(*out));
    for (char *word = strtok_r(line + 10, " \n", &rest); word != NULL; word = strtok_r(NULL, " \n", &rest)) {
        if (word[0] == 'W') {
            out->width = atoi(word + 1);
        } else if (word[0] == 'H') {
            out->height = atoi(word + 1);
        } else if (strcmp(word, "C444") == 0) {
            across = down = 1;
        } else if (strcmp(word, "C422") == 0) {
            down = 1;
        } else if (strcmp(word, "Cmono") == 0) {
            across = 0;
        } else if (word[0] == 'C' && strcmp(word, "C420") != 0 && strcmp(word, "C420jpeg") != 0 &&
                   strcmp(word, "C420mpeg2") != 0 && strcmp(word, "C420paldv") != 0) {
            return complain(error, error_bytes, "is not 8 bits 4:2:0, 4:2:2, 4:4:4 or grey (ffmpeg: -pix_fmt yuv420p)");
        }
    }
    if (out->width < 1 || out->width > MAX_PIXELS || out->height < 1 || out->height > MAX_PIXELS) {
        return complain(error, error_bytes, "has a width or height outside 1 .. 8192");
    }
    out->chroma_width = across == 0 ? 0 : (out->width + across - 1) / across;
    out->chroma_height = across == 0 ? 0 : (out->height + down - 1) / down;
    return 0;
}

/* Mean of a plane over the rectangle of the frame that pixel (x, y) of side x side covers, after cropping to a square.
 */
static double shrink(const unsigned char *plane, int64_t width, int64_t height, int64_t side, int64_t x, int64_t y,
                     const format *f)
{
    const int64_t square = f->width < f->height ? f->width : f->height;
    const double left = (double)(f->width - square) / 2, top = (double)(f->height - square) / 2;
    const double step = (double)square / (double)side, sx = (double)width / (double)f->width,
                 sy = (double)height / (double)f->height;
    const int64_t x0 = (int64_t)((left + (double)x * step) * sx), y0 = (int64_t)((top + (double)y * step) * sy);
    int64_t x1 = (int64_t)((left + (double)(x + 1) * step) * sx), y1 = (int64_t)((top + (double)(y + 1) * step) * sy);
    x1 = x1 > x0 ? x1 : x0 + 1; /* a small clip is enlarged */
    y1 = y1 > y0 ? y1 : y0 + 1;
    double sum = 0;
    for (int64_t j = y0; j < y1; j++) {
        for (int64_t i = x0; i < x1; i++) {
            sum += plane[j * width + i];
        }
    }
    return sum / (double)((x1 - x0) * (y1 - y0));
}

static float level(double value) /* 0 .. 255 to -1 .. 1 */
{
    const double clamped = value < 0 ? 0 : value > 255 ? 255 : value;
    return (float)(clamped / 127.5 - 1);
}

static void convert(float *out, const unsigned char *bytes, const format *f, int64_t side)
{
    const unsigned char *cb = bytes + f->width * f->height, *cr = cb + f->chroma_width * f->chroma_height;
    const int64_t plane = side * side;
    for (int64_t i = 0; i < plane; i++) {
        const int64_t x = i % side, y = i / side;
        const double luma = 1.164 * (shrink(bytes, f->width, f->height, side, x, y, f) - 16);
        double u = 0, v = 0;
        if (f->chroma_width > 0) {
            u = shrink(cb, f->chroma_width, f->chroma_height, side, x, y, f) - 128;
            v = shrink(cr, f->chroma_width, f->chroma_height, side, x, y, f) - 128;
        }
        out[i] = level(luma + 1.596 * v);
        out[plane + i] = level(luma - 0.392 * u - 0.813 * v);
        out[2 * plane + i] = level(luma + 2.017 * u);
    }
}

/* 1: a frame was read; 0: the clip ends here; -1 */
static int read_frame(unsigned char *bytes, size_t frame_bytes, FILE *file, char *error, size_t error_bytes)
{
    char line[HEADER_BYTES];
    if (fgets(line, sizeof(line), file) == NULL) {
        return 0;
    }
    if (strncmp(line, "FRAME", 5) != 0) {
        return complain(error, error_bytes, "has something else where a frame should begin");
    }
    if (fread(bytes, 1, frame_bytes, file) != frame_bytes) {
        return complain(error, error_bytes, "ends within a frame");
    }
    return 1;
}

int clip_read_y4m(clip *out, const char *path, int64_t side, char *error, size_t error_bytes)
{
    format f;
    unsigned char *bytes = NULL;
    const int64_t values = COLOURS * side * side;
    FILE *file = fopen(path, "rb");
    memset(out, 0, sizeof(*out));
    if (file == NULL) {
        snprintf(error, error_bytes, "cannot be opened: %s", strerror(errno));
        return -1;
    }
    int more = read_header(&f, file, error, error_bytes);
    const size_t frame_bytes = more == 0 ? (size_t)(f.width * f.height + 2 * f.chroma_width * f.chroma_height) : 1;
    bytes = more == 0 ? malloc(frame_bytes) : NULL;
    more = more == 0 && bytes == NULL ? complain(error, error_bytes, "has frames too large for the memory") : more;
    while (more >= 0 && out->frames < MAX_FRAMES &&
           (more = read_frame(bytes, frame_bytes, file, error, error_bytes)) > 0) {
        float *longer = realloc(out->values, (size_t)((out->frames + 1) * values) * sizeof(float));
        if (longer == NULL) {
            more = complain(error, error_bytes, "has too many frames for the memory");
            break;
        }
        out->values = longer;
        convert(out->values + out->frames * values, bytes, &f, side);
        out->frames++;
    }
    out->side = side;
    free(bytes);
    fclose(file);
    return more < 0 ? -1 : 0;
}
