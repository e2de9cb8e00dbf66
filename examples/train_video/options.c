/* The command line. */
#include "examples/common/program.h"
#include "train.h"

#include <string.h>

static const char name[] = "example_train_video";

static const char help_text[] =
    "usage: example_train_video [options]\n"
    "Trains a small video diffusion transformer (rectified flow) on one clip, on several ranks.\n"
    "  --ranks N             ranks (2); with --mesh: as the mesh says\n"
    "  --mesh '[dp=D sp=S]'  D groups of ranks with samples of their own, S ranks share a sample ([dp=1 sp=N])\n"
    "  --transport NAME      threads, shm, or auto: the ranks of mpirun or torchrun, else shm (auto)\n"
    "  --shard-optimizer     each data rank keeps 1/D of the optimiser's state\n"
    "  --recompute           keep the input of each stage only, compute the rest again in backward\n"
    "  --linear              linear attention over time\n"
    "  --method LIST         STAGE=METHOD,...: attention over a sharded dim in stages s.attn, t.attn "
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

/* The mesh's text to dp and sp; both may be left away, other axes are refused. */
static int read_mesh(options *out)
{
    heddle_mesh mesh;
    if (heddle_mesh_parse(&mesh, out->mesh_text) != HEDDLE_OK) {
        return program_complain(name, "--mesh:", heddle_last_error(), NULL);
    }
    const int64_t ranks = out->ranks;
    out->dp = out->sp = 1;
    for (int i = 0; i < mesh.naxes; i++) {
        if (strcmp(mesh.axis[i].name, "dp") == 0) {
            out->dp = mesh.axis[i].size;
        } else if (strcmp(mesh.axis[i].name, "sp") == 0) {
            out->sp = mesh.axis[i].size;
        } else {
            return program_complain(name, "--mesh", "has the axes dp (data) and sp (sequence)", mesh.axis[i].name);
        }
    }
    out->ranks = out->dp * out->sp;
    if (out->ranks > MAX_RANKS) {
        return program_complain(name, "--mesh", "has more than 256 ranks", NULL);
    }
    if (ranks != 0 && ranks != out->ranks) {
        fprintf(stderr, "%s: --ranks %lld, but the mesh %s has %lld\n", name, (long long)ranks, out->mesh_text,
                (long long)out->ranks);
        return 2;
    }
    return 0;
}

/* The comparison chooses ranks, meshes and shards itself, and writes no files. */
static int check_compare(const options *out)
{
    const struct {
        const char *name;
        int is_given;
    } others[] = {{"--ranks", out->ranks != 0},
                  {"--mesh", out->mesh_text != NULL},
                  {"--shard-optimizer", out->shard_optimizer},
                  {"--picture", out->picture != NULL},
                  {"--loss-csv", out->loss_csv != NULL}};
    for (size_t i = 0; out->compare && i < sizeof(others) / sizeof(others[0]); i++) {
        if (others[i].is_given) {
            return program_complain(name, others[i].name, "is for one training", "--compare");
        }
    }
    return 0;
}

/* Of its options 0 means not given. */
static int take_picture(options *out)
{
    const int has_noise = out->noise > 0, has_steps = out->denoise_steps > 0;
    if (out->picture == NULL && (has_noise || has_steps)) {
        return program_complain(name, has_noise ? "--noise" : "--denoise-steps",
                                "is for the picture: it wants --picture", NULL);
    }
    out->noise = has_noise ? out->noise : 0.8;
    out->denoise_steps = has_steps ? out->denoise_steps : 25;
    return 0;
}

static int check_sizes(const options *out)
{
    const int64_t dp = out->compare ? COMPARE_DP : out->dp;
    if (out->batch % dp != 0) {
        fprintf(stderr, "%s: --batch %lld cannot be shared evenly by %lld data ranks%s\n", name, (long long)out->batch,
                (long long)dp, out->compare ? ", which --compare has" : "");
        return 2;
    }
    if (out->side % out->patch != 0) {
        return program_complain(name, "--side", "must be a multiple of --patch", NULL);
    }
    return out->channels % (4 * out->heads) == 0
               ? 0
               : program_complain(name, "--channels", "must be a multiple of 4 times --heads", NULL);
}

static int check(options *out)
{
    if (program_check_transport(name, out->transport) != 0 || check_compare(out) != 0 || take_picture(out) != 0) {
        return 2;
    }
    if (out->mesh_text != NULL) {
        if (read_mesh(out) != 0) {
            return 2;
        }
    } else {
        out->ranks = out->ranks == 0 ? 2 : out->ranks;
        out->dp = 1;
        out->sp = out->ranks;
    }
    if (out->shard_optimizer && out->dp == 1) {
        return program_complain(name, "--shard-optimizer",
                                "shares the state over the data axis: it wants a --mesh with dp=2 or more", NULL);
    }
    return check_sizes(out);
}

int options_read(options *out, int argc, char **argv)
{
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
                     .print_every = 100,
                     .learning_rate = 0.006};
    const program_option entries[] = {
        {"--ranks", .number = &out->ranks, .lo = 1, .hi = MAX_RANKS},
        {"--mesh", .text = &out->mesh_text},
        {"--transport", .text = &out->transport},
        {"--shard-optimizer", .flag = &out->shard_optimizer},
        {"--recompute", .flag = &out->recompute},
        {"--linear", .flag = &out->linear},
        {"--method", .text = &out->methods},
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
    };
    const program all = {name, help_text, entries, (int)(sizeof(entries) / sizeof(entries[0])), NULL};
    const int code = program_options(&all, argc, argv);
    out->steps = out->steps != 0 ? out->steps : out->compare ? 100 : 1500;
    return code != 0 ? code : check(out);
}
