/* The command line. */
#include "train.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char help_text[] =
    "usage: example_train_video [options]\n"
    "Trains a small video diffusion transformer (rectified flow) on one clip, on several ranks.\n"
    "  --ranks N             ranks (2); with --mesh: as the mesh says\n"
    "  --mesh '[dp=D sp=S]'  D groups of ranks with samples of their own, S ranks share a sample ([dp=1 sp=N])\n"
    "  --transport NAME      threads, shm, or auto: the ranks of mpirun or torchrun, else shm (auto)\n"
    "  --shard-optimizer     each data rank keeps 1/D of the optimiser's state\n"
    "  --recompute           keep the input of each stage only, compute the rest again in backward\n"
    "  --linear              linear attention over time\n"
    "  --methods LIST        STAGE=METHOD,...: attention over a sharded dim in stages s.attn, t.attn "
    "(docs/attention.md)\n"
    "  --clip FILE.y4m       learn this clip (8 bits; shrunk and cropped) instead of a generated one\n"
    "  --steps N             training steps (1500)\n"
    "  --batch N             samples per step (4)\n"
    "  --learning-rate R     highest, after a tenth of the steps (0.006)\n"
    "  --frames N --side N --patch N          a sample: frames (8), pixels per side (24), pixels per patch side (4)\n"
    "  --layers N --channels N --heads N      the transformer (2, 64, 4)\n"
    "  --seed N              of data order, noise and first weights (1)\n"
    "  --picture FILE.png    original, noised, denoised before and after training\n"
    "  --noise R             share of noise the denoising starts from, above 0 to 1 (0.8)\n"
    "  --denoise-steps N     steps of the denoising (25)\n"
    "  --loss-csv FILE       step,loss\n"
    "  --print-every N       steps between lines where there is no terminal (100)\n"
    "  --compare             train with 1, 2 and 4 ranks and compare the losses; --steps 100 unless given\n";

static int complain(const char *what, const char *option, const char *value)
{
    fprintf(stderr, "example_train_video: %s %s%s%s\n", option, what, value == NULL ? "" : ", not ",
            value == NULL ? "" : value);
    return 2;
}

typedef struct entry {
    const char *name;
    const char **text;
    int64_t *number;
    double *real;
    int *flag;
    double lo, hi;
} entry;

static int take(const entry *e, const char *value)
{
    char wanted[80], *end = NULL;
    if (e->flag != NULL) {
        *e->flag = 1;
        return 0;
    }
    if (value == NULL || value[0] == '\0') {
        return complain("wants a value", e->name, NULL);
    }
    if (e->text != NULL) {
        *e->text = value;
        return 0;
    }
    errno = 0;
    const double real = e->real != NULL ? strtod(value, &end) : (double)strtoll(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || !(real >= e->lo && real <= e->hi)) {
        snprintf(wanted, sizeof(wanted), "wants a %snumber from %.9g to %.9g", e->real != NULL ? "" : "whole ", e->lo,
                 e->hi);
        return complain(wanted, e->name, value);
    }
    if (e->real != NULL) {
        *e->real = real;
    } else {
        *e->number = (int64_t)real;
    }
    return 0;
}

/* The mesh's text to dp and sp; both may be left away, other axes are refused. */
static int read_mesh(options *out)
{
    heddle_mesh mesh;
    if (heddle_mesh_parse(&mesh, out->mesh_text) != HEDDLE_OK) {
        fprintf(stderr, "example_train_video: --mesh: %s\n", heddle_last_error());
        return 2;
    }
    const int64_t ranks = out->ranks;
    out->dp = out->sp = 1;
    for (int i = 0; i < mesh.naxes; i++) {
        if (strcmp(mesh.axis[i].name, "dp") == 0) {
            out->dp = mesh.axis[i].size;
        } else if (strcmp(mesh.axis[i].name, "sp") == 0) {
            out->sp = mesh.axis[i].size;
        } else {
            return complain("has the axes dp (data) and sp (sequence)", "--mesh", mesh.axis[i].name);
        }
    }
    out->ranks = out->dp * out->sp;
    if (out->ranks > MAX_RANKS) {
        return complain("has more than 256 ranks", "--mesh", NULL);
    }
    if (ranks != 0 && ranks != out->ranks) {
        fprintf(stderr, "example_train_video: --ranks %lld, but the mesh %s has %lld\n", (long long)ranks,
                out->mesh_text, (long long)out->ranks);
        return 2;
    }
    return 0;
}

static int check(options *out)
{
    if (out->mesh_text != NULL) {
        if (read_mesh(out) != 0) {
            return 2;
        }
    } else {
        out->ranks = out->ranks == 0 ? 2 : out->ranks;
        out->dp = 1;
        out->sp = out->ranks;
    }
    if (strcmp(out->transport, "threads") != 0 && strcmp(out->transport, "shm") != 0 &&
        strcmp(out->transport, "auto") != 0) {
        return complain("is threads, shm or auto", "--transport", out->transport);
    }
    if (out->batch % out->dp != 0) {
        fprintf(stderr, "example_train_video: --batch %lld cannot be shared evenly by %lld data ranks\n",
                (long long)out->batch, (long long)out->dp);
        return 2;
    }
    if (out->shard_optimizer && out->dp == 1 && !out->compare) {
        return complain("shares the state over the data axis: it wants a --mesh with dp=2 or more", "--shard-optimizer",
                        NULL);
    }
    if (out->side % out->patch != 0) {
        return complain("must be a multiple of --patch", "--side", NULL);
    }
    if (out->channels % (4 * out->heads) != 0) {
        return complain("must be a multiple of 4 times --heads", "--channels", NULL);
    }
    if (out->compare && (out->picture != NULL || out->loss_csv != NULL || out->mesh_text != NULL)) {
        return complain("chooses the meshes itself and writes no files: no --mesh, --picture, --loss-csv", "--compare",
                        NULL);
    }
    return 0;
}

static int take_all(const entry *entries, int nentries, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int k = 0;
        while (k < nentries && strcmp(argv[i], entries[k].name) != 0) {
            k++;
        }
        if (k == nentries) {
            return complain("is no option; --help lists them", argv[i], NULL);
        }
        if (take(&entries[k], i + 1 < argc ? argv[i + 1] : NULL) != 0) {
            return 2;
        }
        i += entries[k].flag == NULL;
    }
    return 0;
}

int options_read(options *out, int argc, char **argv)
{
    int help = 0;
    *out = (options){.transport = "auto",
                     .steps = 0,
                     .batch = 4,
                     .seed = 1,
                     .frames = 8,
                     .side = 24,
                     .patch = 4,
                     .layers = 2,
                     .channels = 64,
                     .heads = 4,
                     .denoise_steps = 25,
                     .print_every = 100,
                     .learning_rate = 0.006,
                     .noise = 0.8};
    const entry entries[] = {
        {"--ranks", .number = &out->ranks, .lo = 1, .hi = MAX_RANKS},
        {"--mesh", .text = &out->mesh_text},
        {"--transport", .text = &out->transport},
        {"--shard-optimizer", .flag = &out->shard_optimizer},
        {"--recompute", .flag = &out->recompute},
        {"--linear", .flag = &out->linear},
        {"--methods", .text = &out->methods},
        {"--clip", .text = &out->clip},
        {"--steps", .number = &out->steps, .lo = 1, .hi = 1000000},
        {"--batch", .number = &out->batch, .lo = 1, .hi = 1024},
        {"--learning-rate", .real = &out->learning_rate, .lo = 0, .hi = 1},
        {"--frames", .number = &out->frames, .lo = 1, .hi = 256},
        {"--side", .number = &out->side, .lo = 4, .hi = 256},
        {"--patch", .number = &out->patch, .lo = 1, .hi = 32},
        {"--layers", .number = &out->layers, .lo = 1, .hi = MAX_STAGES / 4},
        {"--channels", .number = &out->channels, .lo = 4, .hi = 2048},
        {"--heads", .number = &out->heads, .lo = 1, .hi = 64},
        {"--seed", .number = &out->seed, .lo = 0, .hi = 1e15},
        {"--picture", .text = &out->picture},
        {"--noise", .real = &out->noise, .lo = 0.01, .hi = 1},
        {"--denoise-steps", .number = &out->denoise_steps, .lo = 1, .hi = 1000},
        {"--loss-csv", .text = &out->loss_csv},
        {"--print-every", .number = &out->print_every, .lo = 1, .hi = 1000000},
        {"--compare", .flag = &out->compare},
        {"--help", .flag = &help},
    };
    if (take_all(entries, (int)(sizeof(entries) / sizeof(entries[0])), argc, argv) != 0) {
        return 2;
    }
    if (help) {
        fputs(help_text, stdout);
        return 1;
    }
    out->steps = out->steps != 0 ? out->steps : out->compare ? 100 : 1500;
    return check(out);
}
