"""What presets count of a VAE's decoder by token (serial_token_flops), recounted of diffusers' own classes:
convolutions and linear layers, without the scores of attention, as the presets' comments say. Nothing is computed: the
arrays are of no device."""
import os
import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import diffusers

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
STDIT3 = ["stdit3-xl2", "stdit3-240p-51f", "stdit3-480p-102f", "stdit3-720p-204f", "stdit3-3b"]
LINEAR, SCORES = {"convolution", "mm", "addmm"}, {"bmm", "baddbmm"}


def said(preset):
    """The figure in the preset's file."""
    for folder in ("planner/presets", "examples/models"):
        path = os.path.join(os.environ["HEDDLE_SOURCE"], folder, preset + ".yaml")
        if os.path.exists(path):
            with open(path) as file:
                return int(re.search(r"^serial_token_flops: (\d+)$", file.read(), re.MULTILINE).group(1))
    raise AssertionError(f"no preset {preset}")


def count(vae, channels, frames, height, width=8):
    """What decoding takes that grows with the positions alone."""
    shape = (1, channels, frames, height, width) if frames else (1, channels, height, width)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        vae.decode(torch.empty(shape, device="meta"))
    by = {str(op).removeprefix("aten."): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    assert set(by) <= LINEAR | SCORES, by
    return sum(flops for op, flops in by.items() if op in LINEAR)


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
