"""examples/latte against diffusers: the folder as diffusers saves it, one pass, and its DDIM scheduler."""
import copy
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, LatteTransformer3DModel

PROGRAM = Path(os.environ["HEDDLE_BUILD"]) / "example_latte"
PLAIN = dict(num_attention_heads=3, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2,
             cross_attention_dim=24, attention_bias=True, sample_size=10, patch_size=2,
             activation_fn="gelu-approximate", num_embeds_ada_norm=1000, norm_type="ada_norm_single",
             norm_elementwise_affine=False, norm_eps=1e-6, caption_channels=16, video_length=5)


def make(folder, dtype=torch.float32, shard="1GB", **config):
    """Weights large enough that every part of the network shows in the result."""
    torch.manual_seed(5)
    model = LatteTransformer3DModel(**{**PLAIN, **config}).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_((torch.randn_like(weight) * (0.3 if weight.ndim == 1 or "table" in name else 0.25)).to(dtype))
    copy.deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size=shard)  # to() rounds positions, too
    return model


def run(tmp_path, folder, latent, text, *options):
    np.save(tmp_path / "latent.npy", latent.numpy())
    np.save(tmp_path / "text.npy", text.numpy())
    words = [PROGRAM, folder, "--latent", tmp_path / "latent.npy", "--text", tmp_path / "text.npy",
             "--output", tmp_path / "result.npy", *options]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.from_numpy(np.load(tmp_path / "result.npy"))


def close(got, wanted, limit=1e-4):
    assert got.shape == wanted.shape
    worst = (got - wanted).abs().max() / wanted.abs().max()
    assert worst < limit, worst


def draw(model, samples=2, frames=None, height=10, width=10):
    torch.manual_seed(1)
    config = model.config
    return (torch.randn(samples, config.in_channels, frames or config.video_length, height, width),
            torch.randn(samples, 7, config.caption_channels))


@pytest.mark.parametrize("name, config, size", [
    ("plain", {}, {}), ("without bias", dict(attention_bias=False, out_channels=4), {}),
    ("a picture", {}, dict(frames=1)), ("another size", {}, dict(height=6, width=14)),
    ("large", dict(sample_size=130, num_layers=1), dict(height=8, width=12)),
    ("half precision", dict(dtype=torch.float16), {}), ("shards", dict(dtype=torch.bfloat16, shard="40KB"), {})])
def test_one_pass(tmp_path, name, config, size):
    model = make(tmp_path / "folder", **config)
    latent, text = draw(model, **size)
    with torch.no_grad():
        wanted = model(latent, encoder_hidden_states=text, timestep=torch.tensor([417] * len(latent))).sample
    close(run(tmp_path, tmp_path / "folder", latent, text, "--timestep", 417, "--ranks", 3), wanted)


def test_ddim(tmp_path):
    model = make(tmp_path / "folder")
    latent, text = draw(model, samples=1)
    negative = torch.flip(text, [1])
    np.save(tmp_path / "negative.npy", negative.numpy())
    scheduler = DDIMScheduler(beta_schedule="linear", clip_sample=False)
    scheduler.set_timesteps(3)
    x = latent
    for step in scheduler.timesteps:
        with torch.no_grad():
            noise = model(torch.cat([x, x]), encoder_hidden_states=torch.cat([negative, text]),
                          timestep=step.expand(2)).sample
        without, towards = noise[:, :4].chunk(2)
        x = scheduler.step(without + 4.5 * (towards - without), step, x).prev_sample
    got = run(tmp_path, tmp_path / "folder", latent, text, "--steps", 3, "--guidance", 4.5, "--negative",
              tmp_path / "negative.npy")
    close(got, x, 5e-4)
