/* YUV4MPEG2 clips, 8 bits: what `ffmpeg -i any.mp4 -f yuv4mpegpipe -` writes. */
#ifndef HD_FILES_Y4M_H
#define HD_FILES_Y4M_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { Y4M_MAX_SIDE = 65536, Y4M_MAX_HEADER = 4096, Y4M_PLANES = 3 };

/* Frames as they lie in the file's bytes, which are borrowed. */
typedef struct y4m_clip {
    int64_t width, height, frames;
    int64_t rate_num, rate_den; /* 0:0 when the file does not say */
    int mono;
    int chroma_x, chroma_y; /* luma samples per chroma sample; 1 when mono */
    const uint8_t *bytes;
    size_t *frame_at; /* [frames] offset of the first sample; owned */
} y4m_clip;

/* 0, or -1 with one sentence in `error` (no file name in it). y4m_close is legal after either. */
int y4m_parse(y4m_clip *out, const uint8_t *bytes, size_t size, char *error, size_t error_bytes);
void y4m_close(y4m_clip *clip);

/* Sample of plane 0 (Y), 1 (Cb) or 2 (Cr) at a luma position; the planes of a mono clip's colours are 128. */
static inline uint8_t y4m_sample(const y4m_clip *clip, int64_t frame, int plane, int64_t y, int64_t x)
{
    const uint8_t *at = clip->bytes + clip->frame_at[frame];
    if (plane == 0) {
        return at[y * clip->width + x];
    }
    if (clip->mono) {
        return 128;
    }
    int64_t chroma_width = (clip->width + clip->chroma_x - 1) / clip->chroma_x;
    int64_t chroma_height = (clip->height + clip->chroma_y - 1) / clip->chroma_y;
    at += clip->width * clip->height + (plane - 1) * chroma_width * chroma_height;
    return at[y / clip->chroma_y * chroma_width + x / clip->chroma_x];
}

/* 4:4:4 clips. Planar frames of 3 * width * height samples. 0, or -1 with errno. */
int y4m_write_header(FILE *file, int64_t width, int64_t height, int64_t rate_num, int64_t rate_den);
int y4m_write_frame(FILE *file, const uint8_t *samples, int64_t width, int64_t height);

#endif
