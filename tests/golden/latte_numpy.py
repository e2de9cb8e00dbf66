"""Latte and DDIM in f64 with NumPy, from the formulas: latte_numpy.py PROGRAM FOLDER WORK [short]; exit 1 and a
sentence where the program's numbers differ."""
import json
import os
import struct
import subprocess
import sys

import numpy as np

program, folder, work = sys.argv[1:4]
STEPS, LIMIT = 1000, 1e-4


def read_folder():
    config = json.load(open(os.path.join(folder, "config.json")))
    tensors = {}
    for name in os.listdir(folder):
        if not name.endswith(".safetensors"):
            continue
        raw = open(os.path.join(folder, name), "rb").read()
        size = struct.unpack("<Q", raw[:8])[0]
        for key, entry in json.loads(raw[8:8 + size]).items():
            if key == "__metadata__":
                continue
            lo, hi = (8 + size + at for at in entry["data_offsets"])
            if entry["dtype"] == "BF16":
                wide = np.frombuffer(raw[lo:hi], "<u2").astype("<u4") << 16
                values = wide.view("<f4")
            else:
                values = np.frombuffer(raw[lo:hi], {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
            tensors[key] = values.astype(float).reshape(entry["shape"])
    return config, tensors


config, W = read_folder()
HEADS = config["num_attention_heads"]
C = HEADS * config["attention_head_dim"]
PATCH, SIDE = config["patch_size"], config["sample_size"]


def linear(x, name):
    y = x @ W[name + ".weight"].T
    return y + W[name + ".bias"] if name + ".bias" in W else y


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


def attention(x, source, name):
    """x [..., n, c] looks at source [..., m, c]."""
    def split(rows):
        return rows.reshape(*rows.shape[:-1], HEADS, -1).swapaxes(-2, -3)
    q, k, v = (split(linear(rows, name + part)) for rows, part in ((x, ".to_q"), (source, ".to_k"), (source, ".to_v")))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    o = (weights / weights.sum(-1, keepdims=True)) @ v
    return linear(o.swapaxes(-2, -3).reshape(x.shape), name + ".to_out.0")


def block(x, name, vector, text=None):
    """x [b, groups, n, c], vector [b, 6 c], text [b, l, c]."""
    six = (W[name + ".scale_shift_table"] + vector.reshape(-1, 6, C))[:, :, None, None, :]
    x = x + six[:, 2] * attention(*[norm(x) * (1 + six[:, 1]) + six[:, 0]] * 2, name + ".attn1")
    if text is not None:
        x = x + attention(x, np.broadcast_to(text[:, None], (x.shape[0], x.shape[1], *text.shape[1:])), name + ".attn2")
    hidden = gelu(linear(norm(x) * (1 + six[:, 4]) + six[:, 3], name + ".ff.net.0.proj"))
    return x + six[:, 5] * linear(hidden, name + ".ff.net.2")


def sines(places, channels):
    turns = np.outer(places, 10000.0 ** (-np.arange(channels // 2) / (channels // 2)))
    return np.concatenate([np.sin(turns), np.cos(turns)], 1)


def forward(latent, text, timestep):
    b, channels, frames, height, width = latent.shape
    h, w, p = height // PATCH, width // PATCH, PATCH
    patches = latent.reshape(b, channels, frames, h, p, w, p).transpose(0, 2, 3, 5, 1, 4, 6)
    patches = patches.reshape(b, frames, h * w, -1)
    x = patches @ W["pos_embed.proj.weight"].reshape(C, -1).T + W["pos_embed.proj.bias"]
    scale = (SIDE // p) / max(SIDE // 64, 1)
    rows, columns = np.repeat(np.arange(h) / h, w) * scale, np.tile(np.arange(w) / w, h) * scale
    x = x + np.concatenate([sines(columns, C // 2), sines(rows, C // 2)], 1)
    wave = sines(np.full(b, timestep), 256)
    time = linear(silu(linear(np.concatenate([wave[:, 128:], wave[:, :128]], 1),
                              "adaln_single.emb.timestep_embedder.linear_1")),
                  "adaln_single.emb.timestep_embedder.linear_2")
    vector = linear(silu(time), "adaln_single.linear")
    text = linear(gelu(linear(text, "caption_projection.linear_1")), "caption_projection.linear_2")
    for layer in range(config["num_layers"]):
        x = block(x, f"transformer_blocks.{layer}", vector, text)
        x = x.swapaxes(1, 2)
        if layer == 0 and frames > 1:
            x = x + sines(np.arange(frames), C)
        x = block(x, f"temporal_transformer_blocks.{layer}", vector).swapaxes(1, 2)
    shift, scale = ((W["scale_shift_table"] + time[:, None])[:, i, None, None] for i in (0, 1))
    y = linear(norm(x) * (1 + scale) + shift, "proj_out")
    out = y.shape[-1] // (p * p)
    return y.reshape(b, frames, h, w, p, p, out).transpose(0, 6, 1, 2, 4, 3, 5).reshape(b, out, frames, height, width)


def ddim(latent, text, steps, guidance=None, negative=None):
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, STEPS))
    for step in (np.arange(steps) * (STEPS // steps))[::-1]:
        noise = forward(latent, text, step)[:, :latent.shape[1]]
        if guidance is not None:
            without = forward(latent, negative, step)[:, :latent.shape[1]]
            noise = without + guidance * (noise - without)
        before = kept[step - STEPS // steps] if step >= STEPS // steps else 1.0
        picture = (latent - np.sqrt(1 - kept[step]) * noise) / np.sqrt(kept[step])
        latent = np.sqrt(before) * picture + np.sqrt(1 - before) * noise
    return latent


draw = np.random.default_rng(3)


def run(what, shape, expected, *options):
    """expected(latent, text, negative); numbers of f16 and f64 are taken, too."""
    names = {name: os.path.join(work, name + ".npy") for name in ("latent", "text", "negative", "result")}
    latent, text, negative = (draw.standard_normal(s) for s in (shape, (shape[0], 7, config["caption_channels"]),
                                                                (shape[0], 7, config["caption_channels"])))
    text = text.astype("<f2").astype(float)
    latent = latent.astype("<f4").astype(float)
    np.save(names["latent"], latent.astype("<f4"))
    np.save(names["text"], text.astype("<f2"))
    np.save(names["negative"], negative)
    words = [program, folder, "--latent", names["latent"], "--text", names["text"], "--output", names["result"]]
    words += options
    if "--guidance" in options:
        words += ["--negative", names["negative"]]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: {what}: {done.stderr}")
    got, wanted = np.load(names["result"]), expected(latent, text, negative)
    worst = np.abs(got - wanted).max() / np.abs(wanted).max() if got.shape == wanted.shape else np.inf
    print(f"{what}: {worst:.1e} of the largest")
    if not worst < LIMIT:
        sys.exit(f"FAILED: {what}: differs by {worst:.3g} of the largest, {LIMIT} are allowed")


frames = config["video_length"]
full = sys.argv[4:] != ["short"]
run("one pass", (2, 4, frames, SIDE, SIDE), lambda x, y, n: forward(x, y, 417), "--timestep", "417")
if full:
    run("another size, 3 ranks", (1, 4, frames, 6, 14), lambda x, y, n: forward(x, y, 3), "--timestep", "3",
        "--ranks", "3")
    run("a picture", (1, 4, 1, SIDE, SIDE), lambda x, y, n: forward(x, y, 999), "--timestep", "999")
    run("attention over sharded dims", (1, 4, frames, SIDE, SIDE), lambda x, y, n: forward(x, y, 999),
        "--timestep", "999", "--ranks", "2", "--method", "t.attn=ring,s.attn=ulysses")
    run("three steps", (1, 4, frames, SIDE, SIDE), lambda x, y, n: ddim(x, y, 3), "--steps", "3")
run("three steps, guided", (1, 4, frames, SIDE, SIDE), lambda x, y, n: ddim(x, y, 3, 4.5, n), "--steps", "3",
    "--guidance", "4.5")
