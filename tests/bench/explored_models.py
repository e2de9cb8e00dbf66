#!/usr/bin/env python3
"""Models that nobody here wrote, of small random configurations: what `explore` and `plan` make of each.

    tests/bench/explored_models.py [NAME...] [--ranks N]     with the package on PYTHONPATH (build/python)

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
ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("HEDDLE_SOURCE", str(ROOT))  # as the tests have them, whose models these are
os.environ.setdefault("HEDDLE_BUILD", str(ROOT / "build"))
sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import diffusers
import heddle
import heddle.diffusers
import heddle.torch as ht
import torch
from model_zoo import ZOO
from test_torch_diffusers_planned import MODELS
from test_torch_diffusers_video import DIMS, animated, decoder, stable_video, temporal_decoder
from test_torch_explore_models import classified, divided, evoformer
from test_torch_prove import made as axial

try:
    from test_torch_transformers import timesformer, videomae, vivit
except ImportError:  # transformers is not there: its models are left out
    timesformer = videomae = vivit = None

torch.set_num_threads(1)


def mochi():
    model = diffusers.MochiTransformer3DModel(
        patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=12,
        in_channels=4, text_embed_dim=16, time_embed_dim=8, max_sequence_length=13)
    return model, dict(hidden_states=torch.randn(1, 4, 3, 6, 10), timestep=torch.tensor([7]),
                       encoder_hidden_states=torch.randn(1, 13, 16), encoder_attention_mask=torch.ones(1, 13).bool())


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
    return model, dict(hidden_states=torch.randn(1, 4, 3, 8, 10), timestep=torch.tensor([5]),
                       encoder_hidden_states=torch.randn(1, 13, 16))


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
            "evoformer": plain(evoformer), "classified": plain(classified), "divided": plain(divided),
            **({"timesformer": plain(timesformer), "vivit": plain(vivit), "videomae": plain(videomae)}
               if vivit else {}), **{name: plain(made) for name, made in ZOO.items()}}


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
