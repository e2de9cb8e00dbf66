/* The command line. */
#include "examples/common/program.h"
#include "latte.h"

#include <stdio.h>
#include <string.h>

static const char name[] = "example_latte";
static const char help_text[] =
    "usage: example_latte FOLDER [options]\n"
    "Runs Latte, a text-to-video transformer, on several ranks. FOLDER has config.json and\n"
    "diffusion_pytorch_model.safetensors (or shards with an index), f32, f16 or bf16, as diffusers writes them.\n"
    "  --ranks N           ranks (2); with --mesh: as the mesh says\n"
    "  --mesh '[a=2 b=2]'  ([sp=N])\n"
    "  --transport NAME    threads, shm, or auto: the ranks of mpirun or torchrun, else shm (auto)\n"
    "  --device NAME       compute on it: cuda, cuda:N (each rank on the host's CPU)\n"
    "  --wire NAME         of --device: auto, peer, nccl, host (auto)\n"
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

static int read_mesh(options *out)
{
    if (out->mesh_text == NULL) {
        out->ranks = out->ranks == 0 ? 2 : out->ranks;
        out->mesh = (heddle_mesh){.naxes = 1, .axis = {{"sp", (int)out->ranks}}};
        return 0;
    }
    if (heddle_mesh_parse(&out->mesh, out->mesh_text) != HEDDLE_OK) {
        return program_complain(name, "--mesh:", heddle_last_error(), NULL);
    }
    const int ranks = heddle_mesh_size(&out->mesh);
    if (ranks > MAX_RANKS || (out->ranks != 0 && ranks != out->ranks)) {
        fprintf(stderr, "%s: --mesh %s has %d ranks; --ranks says %lld, and %d are the most\n", name, out->mesh_text,
                ranks, (long long)out->ranks, MAX_RANKS);
        return 2;
    }
    out->ranks = ranks;
    return 0;
}

static int read_wire(options *out)
{
#define NAME_OF(wire, text) [HEDDLE_WIRE_##wire] = text,
    static const char *const names[] = {HEDDLE_WIRE_LIST(NAME_OF)};
    for (int i = 0; out->wire_name != NULL && i < (int)(sizeof(names) / sizeof(names[0])); i++) {
        if (strcmp(out->wire_name, names[i]) == 0) {
            out->wire = (heddle_wire)i;
            return 0;
        }
    }
    return out->wire_name == NULL ? 0 : program_complain(name, "--wire", "is auto, peer, nccl or host", out->wire_name);
}

/* What the other one of two options makes meaningless. */
static int check_pairs(const options *out)
{
    if (out->steps > 0 && out->timestep >= 0) {
        return program_complain(name, "--timestep", "is for one pass", "--steps");
    }
    if (out->latent != NULL && out->frames > 0) {
        return program_complain(name, "--frames", "is for seeded noise", "--latent");
    }
    if (out->text != NULL && out->text_tokens > 0) {
        return program_complain(name, "--text-tokens", "is for seeded text", "--text");
    }
    if (out->wire_name != NULL && out->device == NULL) {
        return program_complain(name, "--wire", "goes with --device", NULL);
    }
    if ((out->guidance != 0 && out->steps == 0) || (out->negative != NULL && out->guidance == 0)) {
        return program_complain(name, "--guidance", "goes with --steps, --negative with --guidance", NULL);
    }
    return 0;
}

static int check(options *out)
{
    if (out->folder == NULL) {
        return program_complain(name, "FOLDER", "is missing; --help says what it has", NULL);
    }
    if (program_check_transport(name, out->transport) != 0 || check_pairs(out) != 0 || read_wire(out) != 0) {
        return 2;
    }
    out->timestep = out->timestep < 0 ? 500 : out->timestep;
    out->text_tokens = out->text_tokens == 0 ? 120 : out->text_tokens;
    return read_mesh(out);
}

int options_read(options *out, int argc, char **argv)
{
    *out = (options){.transport = "auto", .threads = 1, .seed = 1, .timestep = -1};
    const program_option entries[] = {
        {"--ranks", .number = &out->ranks, .lo = 1, .hi = MAX_RANKS},
        {"--mesh", .text = &out->mesh_text},
        {"--transport", .text = &out->transport},
        {"--device", .text = &out->device},
        {"--wire", .text = &out->wire_name},
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
    const program all = {name, help_text, entries, (int)(sizeof(entries) / sizeof(entries[0])), &out->folder};
    const int code = program_options(&all, argc, argv);
    return code != 0 ? code : check(out);
}
