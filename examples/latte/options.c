/* The command line. */
#include "latte.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help_text[] =
    "usage: example_latte FOLDER [options]\n"
    "Runs Latte, a text-to-video transformer, on several ranks. FOLDER has config.json and\n"
    "diffusion_pytorch_model.safetensors (or shards with an index), f32, f16 or bf16, as diffusers writes them.\n"
    "  --ranks N           ranks (2); with --mesh: as the mesh says\n"
    "  --mesh '[a=2 b=2]'  ([sp=N])\n"
    "  --transport NAME    threads, shm, or auto: the ranks of mpirun or torchrun, else shm (auto)\n"
    "  --method LIST       STAGE=METHOD,...: attention over a sharded dim in stages s.attn, t.attn (whole fibres)\n"
    "  --threads N         compute threads of each rank (1)\n"
    "  --latent FILE.npy   [b c f h w]; seeded noise without\n"
    "  --text FILE.npy     [b tokens channels], what the text encoder says of the prompts; seeded without\n"
    "  --timestep T        one forward pass at this step, 0 .. 999 (500)\n"
    "  --steps N           instead N steps of DDIM from the latent on\n"
    "  --guidance G        of DDIM: how far to go from the text without the prompt to that with it (no guidance)\n"
    "  --negative FILE.npy the text without the prompt; seeded without\n"
    "  --frames N          of seeded noise: those of the model, or 1\n"
    "  --text-tokens N     of seeded text (120)\n"
    "  --seed N            of latent and text (1)\n"
    "  --output FILE.npy   the pass's result [b out f h w], or the latent behind the last step\n";

static int complain(const char *what, const char *option, const char *value)
{
    fprintf(stderr, "example_latte: %s %s%s%s\n", option, what, value == NULL ? "" : ", not ",
            value == NULL ? "" : value);
    return 2;
}

typedef struct entry {
    const char *name;
    const char **text;
    int64_t *number;
    double *real;
    double lo, hi;
} entry;

static int take(const entry *e, const char *value)
{
    char wanted[80], *end = NULL;
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

static int read_mesh(options *out)
{
    if (out->mesh_text == NULL) {
        out->ranks = out->ranks == 0 ? 2 : out->ranks;
        out->mesh = (heddle_mesh){.naxes = 1, .axis = {{"sp", (int)out->ranks}}};
        return 0;
    }
    if (heddle_mesh_parse(&out->mesh, out->mesh_text) != HEDDLE_OK) {
        return complain(heddle_last_error(), "--mesh:", NULL);
    }
    const int ranks = heddle_mesh_size(&out->mesh);
    if (ranks > MAX_RANKS || (out->ranks != 0 && ranks != out->ranks)) {
        fprintf(stderr, "example_latte: --mesh %s has %d ranks; --ranks says %lld, and %d are the most\n",
                out->mesh_text, ranks, (long long)out->ranks, MAX_RANKS);
        return 2;
    }
    out->ranks = ranks;
    return 0;
}

static int check(options *out)
{
    if (out->folder == NULL) {
        return complain("is missing; --help says what it has", "FOLDER", NULL);
    }
    if (strcmp(out->transport, "threads") != 0 && strcmp(out->transport, "shm") != 0 &&
        strcmp(out->transport, "auto") != 0) {
        return complain("is threads, shm or auto", "--transport", out->transport);
    }
    if ((out->guidance != 0 && out->steps == 0) || (out->negative != NULL && out->guidance == 0)) {
        return complain("goes with --steps, --negative with --guidance", "--guidance", NULL);
    }
    return read_mesh(out);
}

static int take_all(options *out, const entry *entries, int nentries, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int k = 0;
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help_text, stdout);
            return 1;
        }
        if (argv[i][0] != '-' && out->folder == NULL) {
            out->folder = argv[i];
            continue;
        }
        while (k < nentries && strcmp(argv[i], entries[k].name) != 0) {
            k++;
        }
        if (k == nentries) {
            return complain("is no option; --help lists them", argv[i], NULL);
        }
        if (take(&entries[k], i + 1 < argc ? argv[i + 1] : NULL) != 0) {
            return 2;
        }
        i++;
    }
    return 0;
}

int options_read(options *out, int argc, char **argv)
{
    *out = (options){.transport = "auto", .threads = 1, .seed = 1, .text_tokens = 120, .timestep = 500};
    const entry entries[] = {
        {"--ranks", .number = &out->ranks, .lo = 1, .hi = MAX_RANKS},
        {"--mesh", .text = &out->mesh_text},
        {"--transport", .text = &out->transport},
        {"--method", .text = &out->methods},
        {"--threads", .number = &out->threads, .lo = 1, .hi = 256},
        {"--latent", .text = &out->latent},
        {"--text", .text = &out->text},
        {"--timestep", .real = &out->timestep, .lo = 0, .hi = TRAINING_STEPS - 1},
        {"--steps", .number = &out->steps, .lo = 1, .hi = TRAINING_STEPS},
        {"--guidance", .real = &out->guidance, .lo = 0, .hi = 1000},
        {"--negative", .text = &out->negative},
        {"--frames", .number = &out->frames, .lo = 1, .hi = 4096},
        {"--text-tokens", .number = &out->text_tokens, .lo = 1, .hi = 4096},
        {"--seed", .number = &out->seed, .lo = 0, .hi = 1e15},
        {"--output", .text = &out->output},
    };
    const int code = take_all(out, entries, (int)(sizeof(entries) / sizeof(entries[0])), argc, argv);
    return code != 0 ? code : check(out);
}
