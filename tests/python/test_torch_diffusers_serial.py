"""What presets count of a sample's serial part, recounted of the classes that compute it: text encoders (serial_flops)
of transformers, the VAE's decoder by token (serial_token_flops) of diffusers. Convolutions and linear layers, without
the scores of attention, as the presets' comments say. Nothing is computed: the arrays are of no device."""
import functools
import os
import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import diffusers
import transformers

PICTURES = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2,
            "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
WITHOUT = {"use_quant_conv": False, "use_post_quant_conv": False}
COGVIDEOX = {"down_block_types": ("CogVideoXDownBlock3D",) * 4, "up_block_types": ("CogVideoXUpBlock3D",) * 4}
# Class of the VAE, its config where that is not the class's, channels and frames of its latent video (0: pictures), and
# the presets with the positions of it that a token is.
VAES = {
    "latte": ("AutoencoderKL", {"latent_channels": 4, **PICTURES}, 4, 0, {"latte-xl2": 4}),
    "flux": ("AutoencoderKL", {"latent_channels": 16, **WITHOUT, **PICTURES}, 16, 0,
             {"flux.1-dev": 4, "sd3-medium": 4}),
    "qwen": ("AutoencoderKLQwenImage", {}, 16, 1, {"qwen-image": 4}),
    "wan": ("AutoencoderKLWan", {}, 16, 21, {"wan2.1-1.3b": 4, "wan2.1-14b": 4}),
    "cogvideox": ("AutoencoderKLCogVideoX", COGVIDEOX, 16, 13,
                  {"cogvideox-2b": 4, "cogvideox-5b": 4, "consisid": 4, "cogvideox-1.5-5b": 8}),
    "ltx": ("AutoencoderKLLTXVideo", {}, 128, 21, {"ltx-video": 1}),
    "mochi": ("AutoencoderKLMochi", {}, 12, 28, {"mochi": 4}),
    "hunyuan": ("AutoencoderKLHunyuanVideo", {}, 16, 33, {"hunyuanvideo": 4, "open-sora-2": 4}),
}
T5 = {"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu"}
CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
          "projection_dim": 768}
CLIP_G = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20,
          "projection_dim": 1280}
LLAMA3 = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
          "num_key_value_heads": 8, "vocab_size": 128320}
QWEN = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064}
# Class of each text encoder and of its config, and what is in that.
ENCODERS = {
    "t5": ("T5EncoderModel", "T5Config", T5),
    "umt5": ("UMT5EncoderModel", "UMT5Config", T5),
    "clip-l": ("CLIPTextModel", "CLIPTextConfig", CLIP_L),
    "clip-l-projected": ("CLIPTextModelWithProjection", "CLIPTextConfig", CLIP_L),
    "clip-g-projected": ("CLIPTextModelWithProjection", "CLIPTextConfig", CLIP_G),
    "llama3": ("LlamaModel", "LlamaConfig", LLAMA3),
    "qwen2.5-vl": ("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig", {"text_config": QWEN}),
}
# Of each preset: texts (2: of both halves of guidance), and the encoders with the tokens that each reads.
TEXTS = {
    "stdit3-xl2 stdit3-240p-51f stdit3-480p-102f stdit3-720p-204f stdit3-3b": (1, {"t5": 300}),
    "open-sora-2 flux.1-dev": (1, {"t5": 512, "clip-l": 77}),
    "sd3-medium": (2, {"t5": 256, "clip-l-projected": 77, "clip-g-projected": 77}),
    "hunyuanvideo": (1, {"llama3": 95 + 256, "clip-l": 77}),
    "qwen-image": (2, {"qwen2.5-vl": 34 + 512}),
    "wan2.1-1.3b wan2.1-14b": (2, {"umt5": 512}),
    "cogvideox-2b cogvideox-5b cogvideox-1.5-5b consisid": (2, {"t5": 226}),
    "ltx-video": (2, {"t5": 128}),
    "mochi": (2, {"t5": 256}),
}
STDIT3 = ["stdit3-xl2", "stdit3-240p-51f", "stdit3-480p-102f", "stdit3-720p-204f", "stdit3-3b"]
LINEAR, SCORES = {"convolution", "mm", "addmm"}, {"bmm", "baddbmm"}


def said(preset, key="serial_token_flops"):
    """The figure in the preset's file."""
    for folder in ("planner/presets", "examples/models"):
        path = os.path.join(os.environ["HEDDLE_SOURCE"], folder, preset + ".yaml")
        if os.path.exists(path):
            with open(path) as file:
                found = re.search(rf"^{key}: (\d+)$", file.read(), re.MULTILINE)
                return int(found[1]) if found else 0
    raise AssertionError(f"no preset {preset}")


def linear(call, **inputs):
    """What a call takes that grows with the rows alone."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(**inputs)
    by = {str(op).removeprefix("aten."): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    assert set(by) <= LINEAR | SCORES, by
    return sum(flops for op, flops in by.items() if op in LINEAR)


def count(vae, channels, frames, height, width=8):
    shape = (1, channels, frames, height, width) if frames else (1, channels, height, width)
    return linear(vae.decode, z=torch.empty(shape, device="meta"))


@functools.cache
def encoding(name, tokens):
    kind, config, values = ENCODERS[name]
    with torch.device("meta"):
        encoder = getattr(transformers, kind)(getattr(transformers, config)(**values)).eval()
    return linear(encoder, input_ids=torch.zeros(1, tokens, dtype=torch.long, device="meta"))


def test_presets_count_their_text_encoders():
    wrong = []
    for presets, (texts, encoders) in TEXTS.items():
        found = texts * sum(encoding(name, tokens) for name, tokens in encoders.items())
        wrong += [f"{preset}: {found}, the preset says {said(preset, 'serial_flops')}"
                  for preset in presets.split() if said(preset, "serial_flops") != found]
    assert not wrong, "\n".join(wrong)


def decoder(name, config):
    with torch.device("meta"):
        vae = getattr(diffusers, name)(**config).eval()
    vae.use_framewise_decoding = False  # HunyuanVideo's would overlap in time
    return vae


def by_position(vae, channels, frames):
    """Of a clip of so many frames, from short and small ones: behind the first frames every one takes the same."""
    if frames < 2:
        of = count(vae, channels, frames, 8)
        assert count(vae, channels, frames, 16) == 2 * of
        return of / 64
    step = getattr(vae, "num_latent_frames_batch_size", 1)
    first = count(vae, channels, 1 + step, 8)
    more = count(vae, channels, 1 + 2 * step, 8) - first
    assert count(vae, channels, 1 + 3 * step, 16) == 2 * (first + 2 * more)
    return (first + (frames - 1 - step) / step * more) / (64 * frames)


@pytest.mark.parametrize("name", VAES)
def test_presets_count_their_decoder(name):
    kind, config, channels, frames, presets = VAES[name]
    found = by_position(decoder(kind, config), channels, frames)
    for preset, positions in presets.items():
        print(f"{preset}: {found * positions} by token, the preset says {said(preset)}")
        assert said(preset) == pytest.approx(found * positions, rel=1e-8), preset


def test_stdit3_counts_both_decoders():
    """In time: blocks of two convolutions of 3 x 3 x 3 each, one of 1 x 1 x 1 beside those that narrow, and those that
    make two frames of one. Frames of pictures: 17 of 5."""
    def convolution(narrow, wide, kernel=27):
        return 2 * kernel * narrow * wide

    def blocks(count, narrow, wide):
        first = convolution(narrow, wide) + (convolution(narrow, wide, 1) if narrow != wide else 0)
        return first + (2 * count - 1) * convolution(wide, wide)
    once = (convolution(4, 4, 1) + convolution(4, 512) + blocks(4, 512, 512) + blocks(4, 512, 512)
            + convolution(512, 1024))
    twice = blocks(4, 512, 256) + convolution(256, 512)
    four_times = blocks(4, 256, 256) + blocks(4, 256, 128) + convolution(128, 4)
    pictures = by_position(decoder("AutoencoderKL", {"latent_channels": 4, **PICTURES}), 4, 0)
    found = 4 * (once + 2 * twice + 4 * four_times + pictures * 17 / 5)
    for preset in STDIT3:
        assert said(preset) == pytest.approx(found, rel=1e-8), preset
