/* The clip from a file, 8 bits (what `ffmpeg -i any.mp4 -f yuv4mpegpipe clip.y4m` writes), shrunk. */
#include "runtime/files/y4m.h"
#include "train.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Mean of a plane over the rectangle of the frame that pixel (x, y) of side x side covers, after cropping to a square.
 */
static double shrink(const uint8_t *plane, int64_t width, int64_t height, int64_t side, int64_t x, int64_t y,
                     const y4m_clip *f)
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

static void convert(float *out, const uint8_t *luma, const y4m_clip *f, int64_t side)
{
    const int64_t width = (f->width + f->chroma_x - 1) / f->chroma_x; /* of the colours' planes */
    const int64_t height = (f->height + f->chroma_y - 1) / f->chroma_y, plane = side * side;
    const uint8_t *cb = luma + f->width * f->height, *cr = cb + width * height;
    for (int64_t i = 0; i < plane; i++) {
        const int64_t x = i % side, y = i / side;
        const double bright = 1.164 * (shrink(luma, f->width, f->height, side, x, y, f) - 16);
        const double u = f->mono ? 0 : shrink(cb, width, height, side, x, y, f) - 128;
        const double v = f->mono ? 0 : shrink(cr, width, height, side, x, y, f) - 128;
        out[i] = level(bright + 1.596 * v);
        out[plane + i] = level(bright - 0.392 * u - 0.813 * v);
        out[2 * plane + i] = level(bright + 2.017 * u);
    }
}

static int convert_all(clip *out, const y4m_clip *from, int64_t side, char *error, size_t error_bytes)
{
    const int64_t values = COLOURS * side * side;
    out->side = side;
    out->frames = from->frames < MAX_FRAMES ? from->frames : MAX_FRAMES;
    out->values = malloc((size_t)(out->frames * values) * sizeof(float));
    if (out->values == NULL) {
        snprintf(error, error_bytes, "has too many frames for the memory");
        return -1;
    }
    for (int64_t i = 0; i < out->frames; i++) {
        convert(out->values + i * values, from->bytes + from->frame_at[i], from, side);
    }
    return 0;
}

int clip_read_y4m(clip *out, const char *path, int64_t side, char *error, size_t error_bytes)
{
    struct stat about;
    y4m_clip from;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const int is_file = fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0;
    void *bytes = is_file ? mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    int code = -1;
    memset(out, 0, sizeof(*out));
    if (fd < 0 || (is_file && bytes == MAP_FAILED)) {
        snprintf(error, error_bytes, "cannot be opened: %s", strerror(errno));
    } else if (!is_file) {
        snprintf(error, error_bytes, "is not a file with anything in it");
    } else {
        code = y4m_parse(&from, bytes, (size_t)about.st_size, error, error_bytes);
        code = code == 0 ? convert_all(out, &from, side, error, error_bytes) : code;
        y4m_close(&from);
    }
    if (bytes != MAP_FAILED) {
        munmap(bytes, (size_t)about.st_size);
    }
    if (fd >= 0) {
        close(fd);
    }
    return code;
}
