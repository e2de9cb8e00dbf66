"""Models of transformers, unmodified: found without hints, planned, and proved on several ranks."""
import os

os.environ.update(HF_HUB_OFFLINE="1")
import pytest
import torch
from transformers import (SegformerConfig, SegformerModel, TimesformerConfig, TimesformerModel, VideoMAEConfig,
                          VideoMAEModel, VivitConfig, VivitModel, VJEPA2Config, VJEPA2Model)

import heddle.torch as ht

SMALL = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=20)


def timesformer():
    """Attention in plain products, along frames and then over places and a token of a class."""
    return TimesformerModel(TimesformerConfig(patch_size=4, num_frames=7, **SMALL)), dict(
        pixel_values=torch.randn(1, 7, 3, 12, 20))


def vivit():
    return VivitModel(VivitConfig(tubelet_size=[2, 4, 4], num_frames=6, **SMALL)), dict(
        pixel_values=torch.randn(1, 6, 3, 20, 20))


def videomae():
    return VideoMAEModel(VideoMAEConfig(patch_size=4, num_frames=6, **SMALL)), dict(
        pixel_values=torch.randn(1, 6, 3, 20, 20))


def segformer():
    """Blocks that are told height and width, by which they shape rows."""
    return SegformerModel(SegformerConfig(
        num_encoder_blocks=2, depths=[2, 2], sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3],
        strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2], decoder_hidden_size=16)), dict(
            pixel_values=torch.randn(2, 3, 32, 48))


@pytest.mark.parametrize("made,words", (
    (timesformer, "h is cut all the way; 4 by Switch"), (vivit, "rows of s are cut"), (videomae, "rows of s are cut"),
    (segformer, "h is cut all the way; 6 by Halo, 4 by Gather")))
def test_found_planned_and_proved(made, words):
    torch.manual_seed(0)
    model, given = made()
    plan = ht.explore(model, **given).plan(model, "[sp=3]")
    assert words in plan.why, str(plan)
    proof = ht.prove(model, plan, ranks=4, **given)
    assert proof and proof.bytes_total > 0, str(proof)


class Encoder(torch.nn.Module):
    """VJEPA2's, whose attention numbers its rows by itself."""

    def __init__(self):
        super().__init__()
        self.encoder = VJEPA2Model(VJEPA2Config(
            patch_size=4, crop_size=20, frames_per_clip=4, tubelet_size=2, hidden_size=24, num_attention_heads=2,
            num_hidden_layers=2, mlp_ratio=2, pred_hidden_size=24, pred_num_attention_heads=2, pred_num_hidden_layers=1)
            ).encoder

    def forward(self, x):
        return self.encoder(x).last_hidden_state


def test_a_plan_of_weights_as_training_begins_holds_for_trained_ones():
    torch.manual_seed(2)
    model, given = Encoder().eval(), dict(x=torch.randn(1, 4, 3, 20, 20))
    plan = ht.explore(model, **given).plan(model, "[sp=3]")
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(20 if "query" in name or "key" in name else 1)
    proof = ht.prove(model, plan, ranks=3, **given)
    assert proof and proof.forward < 1e-5 and proof.bytes_total > 0, str(proof)
