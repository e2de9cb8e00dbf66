/* Writes a small moving clip as YUV4MPEG2, so that `heddle run --input` has something to read where there is no video
 * and no ffmpeg: a ball over a rolling landscape, 4:2:0, 8 bits.
 *
 *     ./example_make_clip clip.y4m                        15 frames of 54 x 30
 *     ./example_make_clip clip.y4m 32 128 128             frames, width, height
 *     heddle run examples/models/stdit3-xl2.yaml --input clip.y4m --layers 1 --ranks 2
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_SIDE = 4096, MAX_FRAMES = 10000 };

typedef struct colour {
    double y, cb, cr; /* 0..255 */
} colour;

static colour pixel(double x, double y, double time) /* x, y: 0..1, time: seconds */
{
    const double pi = 3.14159265358979;
    const double hill = 0.62 + 0.10 * sin(2 * pi * (x + 0.2 * time)) + 0.05 * sin(6 * pi * x - time);
    const double ball_x = 0.5 + 0.35 * cos(2 * pi * 0.4 * time), ball_y = 0.55 - 0.35 * fabs(sin(2 * pi * 0.7 * time));
    const double distance = hypot(x - ball_x, (y - ball_y) * 0.6);
    if (distance < 0.09) {
        return (colour){200 - 900 * distance, 90, 210};
    }
    if (y > hill) {
        return (colour){70 + 60 * (y - hill) + 12 * sin(40 * x + 30 * y), 105, 115};
    }
    return (colour){170 - 60 * y, 150 - 20 * y, 112};
}

static int write_plane(FILE *file, int which, int frame, int width, int height, int step)
{
    for (int y = 0; y < height; y += step) {
        for (int x = 0; x < width; x += step) {
            const colour c = pixel((x + 0.5) / width, (y + 0.5) / height, frame / 25.0);
            const double value = which == 0 ? c.y : which == 1 ? c.cb : c.cr;
            if (fputc((int)fmin(fmax(value, 0), 255), file) == EOF) {
                return -1;
            }
        }
    }
    return 0;
}

static int number(const char *text, int otherwise, int largest)
{
    const int value = text == NULL ? otherwise : atoi(text);
    if (value < 1 || value > largest) {
        fprintf(stderr, "a number from 1 to %d is wanted, not '%s'\n", largest, text);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 5) {
        fprintf(stderr, "usage: %s clip.y4m [frames [width [height]]]\n", argv[0]);
        return 2;
    }
    const int frames = number(argc > 2 ? argv[2] : NULL, 15, MAX_FRAMES);
    const int width = number(argc > 3 ? argv[3] : NULL, 54, MAX_SIDE);
    const int height = number(argc > 4 ? argv[4] : NULL, 30, MAX_SIDE);
    FILE *file = fopen(argv[1], "wb");
    if (file == NULL) {
        perror(argv[1]);
        return 1;
    }
    int bad = fprintf(file, "YUV4MPEG2 W%d H%d F25:1 Ip A1:1 C420jpeg\n", width, height) < 0;
    for (int frame = 0; frame < frames && !bad; frame++) {
        bad = fputs("FRAME\n", file) == EOF;
        for (int plane = 0; plane < 3 && !bad; plane++) {
            bad = write_plane(file, plane, frame, width, height, plane == 0 ? 1 : 2) != 0;
        }
    }
    if (fclose(file) != 0 || bad) {
        perror(argv[1]);
        remove(argv[1]);
        return 1;
    }
    printf("%s: %d frames of %d x %d\n", argv[1], frames, width, height);
    return 0;
}
