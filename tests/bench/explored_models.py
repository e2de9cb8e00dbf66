#!/usr/bin/env python3
"""Models that nobody here wrote, of small random configurations: what `explore` and `plan` make of each.

    tests/bench/explored_models.py [NAME...] [--ranks N]

A line for each: whether it was found without hints, by a line of `dims`, or not; the seconds of exploring; the plan's
bytes beside those of the plan by hand, where there is one. Exit 1 where a plan that was returned does not hold, or
sends more than that by hand.
"""
import argparse
import os
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import diffusers
import heddle
import heddle.diffusers
import heddle.torch as ht
import torch
from test_torch_diffusers_planned import MODELS
from test_torch_diffusers_video import DIMS, animated, decoder, stable_video, temporal_decoder
from test_torch_prove import made as axial

torch.set_num_threads(1)


def mochi():
    model = diffusers.MochiTransformer3DModel(
        patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=12,
        in_channels=4, text_embed_dim=16, time_embed_dim=8, max_sequence_length=16)
    return model, dict(hidden_states=torch.randn(1, 4, 3, 6, 10), timestep=torch.tensor([7]),
                       encoder_hidden_states=torch.randn(1, 16, 16), encoder_attention_mask=torch.ones(1, 16).bool())


def cosmos():
    model = diffusers.CosmosTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=12, num_layers=2, mlp_ratio=2,
        text_embed_dim=16, adaln_lora_dim=4, max_size=(4, 32, 32), patch_size=(1, 2, 2), rope_scale=(2.0, 1.0, 1.0),
        concat_padding_mask=False, extra_pos_embed_type=None)
    return model, dict(hidden_states=torch.randn(1, 4, 3, 6, 10), timestep=torch.tensor([0.5]),
                       encoder_hidden_states=torch.randn(1, 13, 16))


def sana_video():
    model = diffusers.SanaVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=12, num_layers=2,
        num_cross_attention_heads=2, cross_attention_head_dim=12, cross_attention_dim=24, caption_channels=16,
        mlp_ratio=2.0, sample_size=8, patch_size=(1, 2, 2), rope_max_seq_len=32)
    return model, dict(hidden_states=torch.randn(1, 4, 3, 6, 10), timestep=torch.tensor([5]),
                       encoder_hidden_states=torch.randn(1, 13, 16))


class Pairs(torch.nn.Module):
    """An Evoformer's: m[b, n, s, c] of n sequences beside z[b, s, s2, c] of pairs of residues."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Evoformer() for _ in range(2))

    def forward(self, m, z):
        for block in self.blocks:
            m, z = block(m, z)
        return m, z


class Rows(torch.nn.Module):
    """Attention over the third of four dims."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(2, 3).flatten(0, 1) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.unflatten(0, x.shape[:2]).transpose(2, 3).flatten(3))


class Evoformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.of_rows, self.of_columns, self.of_pairs = Rows(), Rows(), Rows()
        self.up, self.left, self.right = (torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, m, z):
        m = self.of_rows(m)
        m = self.of_columns(m.transpose(1, 2)).transpose(1, 2)
        z = z + torch.einsum("bnic,bnjc->bijc", self.left(m), self.right(m)) / m.shape[1]
        return m + self.up(m), self.of_pairs(z)


def evoformer():
    return Pairs(), dict(m=torch.randn(1, 5, 7, 16), z=torch.randn(1, 7, 7, 16))


def cases():
    """By name: model, arguments, dims, and the plan by hand."""
    def of(name):
        def make():
            model, given = MODELS[name]()
            return model, given, None, heddle.diffusers.plan
        return make

    def video(made):
        def make():
            model, plan, given = made()
            return model, given, DIMS.get(made), lambda *_: plan
        return make

    def plain(made):
        return lambda: (*made(), None, None)
    return {**{name: of(name) for name in MODELS}, "svd": video(stable_video), "animatediff": video(animated),
            "decoder": video(decoder), "temporal-decoder": video(temporal_decoder), "mochi": plain(mochi),
            "cosmos": plain(cosmos), "sana-video": plain(sana_video), "axial": plain(axial),
            "evoformer": plain(evoformer)}


def judged(name, make, ranks):
    """The line, and whether it is as it should be: "found", "dims", "none", "wrong"."""
    torch.manual_seed(0)
    model, given, dims, by_hand = make()
    began = time.monotonic()
    found = ht.explore(model, dims=dims, **given)
    seconds = time.monotonic() - began
    try:
        plan = found.plan(model, f"[sp={ranks}]", method="ulysses" if dims or name == "svd" else "auto")
    except heddle.Error as error:
        return "none", f"{seconds:5.1f} s  no plan: {str(error)[:150]}"
    proof = ht.prove(model, plan, ranks=ranks, **given)
    hand = ht.prove(model, by_hand(model, f"[sp={ranks}]"), ranks=ranks, gradients=False, **given) if by_hand else None
    beside = f", by hand {hand.bytes_total}" if hand else ""
    kind = "wrong" if not proof or hand and proof.bytes_total > hand.bytes_total else "dims" if dims else "found"
    return kind, f"{seconds:5.1f} s  {proof.bytes_total} bytes{beside}: {plan.why[:140]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = cases()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(every))
    parser.add_argument("--ranks", type=int, default=3)
    asked = parser.parse_args()
    kinds = []
    for name in asked.names or every:
        kind, line = judged(name, every[name], asked.ranks)
        kinds.append(kind)
        print(f"{name:18} {kind:6} {line}", flush=True)
    words = {"found": "found without hints", "dims": "by a line of dims", "none": "without a plan", "wrong": "wrong"}
    print(f"{len(kinds)} models: " + ", ".join(f"{kinds.count(kind)} {word}" for kind, word in words.items()))
    sys.exit(1 if "wrong" in kinds else 0)


if __name__ == "__main__":
    main()
