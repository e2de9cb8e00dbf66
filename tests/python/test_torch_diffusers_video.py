"""Convolutions and norms of diffusers' models over ranks: video UNets along frames, decoders along rows and frames."""
import time

import pytest
import torch
from diffusers import (AutoencoderKL, AutoencoderKLTemporalDecoder, UNetMotionModel, UNetSpatioTemporalConditionModel)
from heddle.torch import Attend, Extent, Gather, Halo, Numbered, Split, Sums, explore, prove


def stable_video():
    torch.manual_seed(0)
    model = UNetSpatioTemporalConditionModel(
        sample_size=16, block_out_channels=(32,), num_attention_heads=(2,), layers_per_block=1, cross_attention_dim=16,
        down_block_types=("CrossAttnDownBlockSpatioTemporal",), up_block_types=("CrossAttnUpBlockSpatioTemporal",),
        projection_class_embeddings_input_dim=48, addition_time_embed_dim=16, num_frames=5)
    ends = Split("sample", "b f c h w", "f"), Gather("output.sample", "b f _ h w", "f")
    return model, [("", ends), *temporal(model)], dict(
        sample=torch.randn(1, 5, 8, 6, 4), timestep=torch.tensor(3.0), encoder_hidden_states=torch.randn(1, 1, 16),
        added_time_ids=torch.rand(1, 3))


def temporal(model):
    """What mixes frames: convolutions along them, norms over them, attention over them, and their numbers."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind == "TemporalResnetBlock":
            yield from ((f"{name}.norm{at}", Sums("f")) for at in (1, 2))
            yield from ((f"{name}.conv{at}", Halo("input", "b _ f _ _", "f", 1)) for at in (1, 2))
        elif kind == "TransformerSpatioTemporalModel":
            yield f"{name}.time_proj", Numbered("timesteps", "(b f)", "f")
        elif kind == "TemporalBasicTransformerBlock":
            yield f"{name}.attn1", Attend("f")


def animated():
    torch.manual_seed(0)
    model = UNetMotionModel(
        sample_size=8, block_out_channels=(32,), layers_per_block=1, cross_attention_dim=16, num_attention_heads=2,
        down_block_types=("CrossAttnDownBlockMotion",), up_block_types=("CrossAttnUpBlockMotion",),
        motion_num_attention_heads=2, motion_max_seq_length=16)
    plan = [("", (Split("sample", "b c f h w", "f"), Split("encoder_hidden_states", "(b f) l _", "f"),
                  Gather("output.sample", "b _ f h w", "f")))]
    for name, module in model.named_modules():
        if type(module).__name__ == "AnimateDiffTransformer3D":
            plan.append((f"{name}.norm", Sums("f")))
        elif type(module).__name__ == "BasicTransformerBlock" and "motion" in name:
            plan += [(f"{name}.pos_embed", Numbered("x", "_ f _", "f")),
                     *((f"{name}.attn{at}", Attend("f")) for at in (1, 2))]
    return model, plan, dict(sample=torch.randn(1, 4, 5, 6, 4), timestep=torch.tensor(3),
                             encoder_hidden_states=torch.randn(5, 3, 16))


def decoder():
    """Along rows, of which there are twice as many behind each upsampling; attention over places has all of them."""
    torch.manual_seed(0)
    kinds = "DownEncoderBlock2D", "UpDecoderBlock2D"
    model = AutoencoderKL(block_out_channels=(16, 16, 16), down_block_types=kinds[:1] * 3, up_block_types=kinds[1:] * 3,
                          norm_num_groups=8, layers_per_block=1, latent_channels=4).decoder
    plan = []
    for name, module in model.named_modules():
        steps = []
        if type(module).__name__ == "Attention":
            steps += [Gather("hidden_states", "b _ h _", "h"), Split("output", "b _ h _", "h")]
        elif isinstance(module, torch.nn.GroupNorm) and ".attentions." not in name:
            steps.append(Sums("h"))
        elif isinstance(module, torch.nn.Conv2d) and module.kernel_size == (3, 3):
            steps += [Split("input", "b _ h _", "h")] if name == "conv_in" else []
            steps.append(Halo("input", "b _ (h _) _", "h", 1))
            steps += [Gather("output", "b _ (h _) _", "h")] if name == "conv_out" else []
        plan += [(name, steps[0] if len(steps) == 1 else tuple(steps))] if steps else []
    return model, plan, dict(sample=torch.randn(2, 4, 5, 6))


def temporal_decoder():
    torch.manual_seed(0)
    model = AutoencoderKLTemporalDecoder(block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D",) * 2,
                                         layers_per_block=1, latent_channels=4).decoder
    ends = (Split("image_only_indicator", "b f", "f"), Split("sample", "(b f) _ _ _", "f"), Extent("num_frames", "f"),
            Gather("output", "(b f) _ _ _", "f"))
    plan = [("", ends), *temporal(model), ("time_conv_out", Halo("input", "b _ f _ _", "f", 1))]
    return model, plan, dict(sample=torch.randn(10, 4, 4, 4), image_only_indicator=torch.zeros(2, 5), num_frames=5)


#: a line for each model of which arguments do not tell their dims apart
DIMS = {animated: {"sample": "b c f h w", "encoder_hidden_states": "(b f) l c"},
        temporal_decoder: {"image_only_indicator": "b f", "sample": "(b f) c h w", "num_frames": "f"}}


@pytest.mark.parametrize("made", (stable_video, animated, decoder, temporal_decoder))
def test_video_models(made):
    model, plan, given = made()
    hand = prove(model, plan, ranks=3, **given)
    print(hand)
    assert hand and hand.forward <= 1e-5 and hand.gradients <= 1e-4 and hand.bytes_total > 0, str(hand)
    lost = next(at for at, (_, step) in reversed(list(enumerate(plan))) if isinstance(step, (Sums, Halo)))
    assert not prove(model, plan[:lost] + plan[lost + 1:], ranks=2, gradients=False, **given), plan[lost]
    began = time.monotonic()
    found = explore(model, dims=DIMS.get(made), **given)
    seconds = time.monotonic() - began
    mine = found.plan(model, "[sp=3]", method="ulysses")
    print(f"{found.model}: explored in {seconds:.1f} s; {mine.why}; {mine.proof}; by hand {hand.bytes_total} bytes")
    assert mine.proof and mine.proof.bytes_total <= hand.bytes_total, str(mine)
