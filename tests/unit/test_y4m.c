/* YUV4MPEG2: good clips are read sample by sample, bad ones refused with a sentence. */
#include "case.h"
#include "runtime/files/y4m.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Header, then `frames` frames of `frame_bytes` samples 0, 1, 2 ... */
static size_t make(uint8_t *out, const char *header, const char *frame, int frames, size_t frame_bytes)
{
    size_t at = (size_t)sprintf((char *)out, "%s", header);
    for (int f = 0; f < frames; f++) {
        at += (size_t)sprintf((char *)out + at, "%s", frame);
        for (size_t i = 0; i < frame_bytes; i++) {
            out[at++] = (uint8_t)(i + (size_t)f * 100);
        }
    }
    return at;
}

HD_CASE(reads_every_subsampling)
{
    static const struct {
        const char *colour;
        size_t frame_bytes;
        int cb_at_3_4; /* sample of Cb at luma row 3, column 4 of a 7 x 5 frame; -1: mono */
    } known[] = {
        {"", 35 + 2 * 12, 35 + 1 * 4 + 2},           {"C420jpeg ", 35 + 2 * 12, 35 + 1 * 4 + 2},
        {"C422 ", 35 + 2 * 20, 35 + 3 * 4 + 2},      {"C444 ", 35 * 3, 35 + 3 * 7 + 4},
        {"C411 ", 35 + 2 * 10, 35 + 3 * 2 + 1},      {"Cmono ", 35, -1},
        {"C420mpeg2 ", 35 + 2 * 12, 35 + 1 * 4 + 2},
    };
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        uint8_t bytes[4096];
        char header[128], error[256] = "";
        y4m_clip clip;
        snprintf(header, sizeof(header), "YUV4MPEG2 W7 H5 %sF30000:1001 Ip A1:1 XYSCSS=420JPEG\n", known[k].colour);
        size_t size = make(bytes, header, k % 2 ? "FRAME\n" : "FRAME Ib\n", 3, known[k].frame_bytes);
        assert_int_equal(y4m_parse(&clip, bytes, size, error, sizeof(error)), 0);
        assert_int_equal(clip.width, 7);
        assert_int_equal(clip.height, 5);
        assert_int_equal(clip.frames, 3);
        assert_int_equal(clip.rate_num, 30000);
        assert_int_equal(clip.rate_den, 1001);
        assert_int_equal(y4m_sample(&clip, 1, 0, 2, 3), 100 + 2 * 7 + 3);
        assert_int_equal(y4m_sample(&clip, 1, 1, 3, 4), known[k].cb_at_3_4 < 0 ? 128 : 100 + known[k].cb_at_3_4);
        assert_int_equal(y4m_sample(&clip, 2, 2, 4, 6),
                         known[k].cb_at_3_4 < 0 ? 128 : (uint8_t)(200 + known[k].frame_bytes - 1));
        y4m_close(&clip);
    }
}

HD_CASE(refuses_with_a_sentence)
{
    static const struct {
        const char *header, *frame;
        int frames;
        size_t frame_bytes;
        const char *says;
    } bad[] = {
        {"", "", 0, 0, "YUV4MPEG2"},
        {"RIFF....", "", 0, 0, "YUV4MPEG2"},
        {"YUV4MPEG2 W4 H4", "", 0, 0, "end of line"},
        {"YUV4MPEG2X W4 H4\n", "", 0, 0, "begins with"},
        {"YUV4MPEG2 H4\n", "FRAME\n", 1, 24, "width"},
        {"YUV4MPEG2 W4\n", "FRAME\n", 1, 24, "height"},
        {"YUV4MPEG2 W0 H4\n", "FRAME\n", 1, 24, "'0'"},
        {"YUV4MPEG2 W99999999999999999999 H4\n", "FRAME\n", 1, 24, "65536"},
        {"YUV4MPEG2 W-4 H4\n", "FRAME\n", 1, 24, "'-4'"},
        {"YUV4MPEG2 W4x H4\n", "FRAME\n", 1, 24, "'4x'"},
        {"YUV4MPEG2 W4 H4 C420p10\n", "FRAME\n", 1, 48, "C420p10"},
        {"YUV4MPEG2 W4 H4 C444alpha\n", "FRAME\n", 1, 64, "C444alpha"},
        {"YUV4MPEG2 W4 H4 F25\n", "FRAME\n", 1, 24, "frame rate"},
        {"YUV4MPEG2 W+4 H4\n", "FRAME\n", 1, 24, "'+4'"},
        {"YUV4MPEG2 W4 H\t4\n", "FRAME\n", 1, 24, "height"},
        {"YUV4MPEG2 W4 H4 W8\n", "FRAME\n", 1, 24, "gives W twice, the second time as 'W8'"},
        {"YUV4MPEG2 W4 H4 C420 C444\n", "FRAME\n", 1, 24, "gives C twice"},
        {"YUV4MPEG2 W4 H4 F+25:1\n", "FRAME\n", 1, 24, "frame rate"},
        {"YUV4MPEG2 W4 H4 F25:1x\n", "FRAME\n", 1, 24, "frame rate"},
        {"YUV4MPEG2 W4 H4 F25:0\n", "FRAME\n", 1, 24, "frame rate"},
        {"YUV4MPEG2 W4 H4 F99999999999999999999:1\n", "FRAME\n", 1, 24, "frame rate"},
        {"YUV4MPEG2 W4 H4\n", "FRAMES\n", 1, 24, "begins with 'FRAMES'"},
        {"YUV4MPEG2 W4 H4\n", "", 0, 0, "no frame"},
        {"YUV4MPEG2 W4 H4\n", "FRAME\n", 2, 23, "does not begin with FRAME"},
        {"YUV4MPEG2 W4 H4\n", "FRAME\n", 1, 23, "23 of 24"},
        {"YUV4MPEG2 W4 H4\n", "FRAMO\n", 1, 24, "FRAME"},
        {"YUV4MPEG2 W65536 H65536\n", "FRAME\n", 1, 24, "24 of 6442450944"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char error[256] = "";
        y4m_clip clip;
        uint8_t *bytes = malloc(4096);
        const size_t size = make(bytes, bad[i].header, bad[i].frame, bad[i].frames, bad[i].frame_bytes);
        uint8_t *exact = malloc(size + (size == 0)); /* so that a sanitizer sees a read past the end */
        memcpy(exact, bytes, size);
        assert_int_equal(y4m_parse(&clip, exact, size, error, sizeof(error)), -1);
        if (strstr(error, bad[i].says) == NULL) {
            fail_msg("case %zu: '%s' does not say '%s'", i, error, bad[i].says);
        }
        y4m_close(&clip);
        free(exact);
        free(bytes);
    }
}

HD_CASE(a_zero_byte_ends_no_line)
{
    static const char header[] = "YUV4MPEG2 W4\0 H4\nFRAME\n", frame[] = "YUV4MPEG2 W4 H4\nFRAME\0x\n";
    char error[256] = "";
    y4m_clip clip;
    assert_int_equal(y4m_parse(&clip, (const uint8_t *)header, sizeof header - 1, error, sizeof error), -1);
    assert_non_null(strstr(error, "at byte 0 has a zero byte in it"));
    y4m_close(&clip);
    assert_int_equal(y4m_parse(&clip, (const uint8_t *)frame, sizeof frame - 1, error, sizeof error), -1);
    assert_non_null(strstr(error, "at byte 16 has a zero byte in it"));
    y4m_close(&clip);
}

HD_CASE(reads_what_it_writes)
{
    char *bytes = NULL, error[256] = "";
    size_t size = 0;
    uint8_t samples[3 * 6 * 4];
    y4m_clip clip;
    FILE *file = open_memstream(&bytes, &size);
    for (size_t i = 0; i < sizeof(samples); i++) {
        samples[i] = (uint8_t)(i * 3);
    }
    assert_int_equal(y4m_write_header(file, 6, 4, 0, 0), 0);
    assert_int_equal(y4m_write_frame(file, samples, 6, 4), 0);
    assert_int_equal(y4m_write_frame(file, samples, 6, 4), 0);
    fclose(file);
    assert_int_equal(y4m_parse(&clip, (uint8_t *)bytes, size, error, sizeof(error)), 0);
    assert_int_equal(clip.frames, 2);
    for (int plane = 0; plane < 3; plane++) {
        for (int y = 0; y < 4; y++) {
            for (int x = 0; x < 6; x++) {
                assert_int_equal(y4m_sample(&clip, 1, plane, y, x), samples[(plane * 4 + y) * 6 + x]);
            }
        }
    }
    y4m_close(&clip);
    free(bytes);
}
