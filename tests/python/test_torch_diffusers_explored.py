"""Models of diffusers, unmodified: which dims their blocks mix, found without hints."""
import os

os.environ.update(HF_HUB_OFFLINE="1")
import torch
from diffusers import LatteTransformer3DModel, QwenImageTransformer2DModel, SD3Transformer2DModel, WanTransformer3DModel
from diffusers.models.transformers.transformer_temporal import TransformerSpatioTemporalModel

import heddle.torch as ht
from heddle.torch import Gather, Switch


def test_latte_whose_frames_are_fixed_and_folded():
    torch.manual_seed(0)
    model = LatteTransformer3DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=1, caption_channels=12,
        cross_attention_dim=16, attention_bias=True, sample_size=16, patch_size=2, norm_type="ada_norm_single",
        activation_fn="gelu-approximate", num_embeds_ada_norm=1000, norm_elementwise_affine=False, video_length=7)
    found = ht.explore(model, torch.randn(2, 4, 7, 10, 22), timestep=torch.tensor([3, 500]),
                       encoder_hidden_states=torch.randn(2, 13, 12))
    assert found.dims == {"b": 2, "f": 7, "h": 10, "w": 22, "l": 13} and found.fixed == ("f",)
    space, time = found["transformer_blocks.0"], found["temporal_transformer_blocks.0"]
    assert space.out[""] == "(b f) (h w) _" and space.free == ("b", "f") and space.mixed == ("h", "w", "l")
    assert time.out[""] == "(b h w) f _" and time.free == ("b", "h", "w") and time.mixed == ("f",)
    assert found["transformer_blocks.0.attn2"].free == ("b", "f", "h", "w"), found


def test_wan_sd3_and_qwen():
    torch.manual_seed(0)
    wan = WanTransformer3DModel(num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
                                text_dim=16, freq_dim=32, ffn_dim=64, num_layers=1, rope_max_seq_len=64)
    found = ht.explore(wan, torch.randn(2, 4, 3, 6, 10), torch.tensor([3, 500]), torch.randn(2, 13, 16))
    assert [stage.name for stage in found.stages()] == ["blocks.0"] and found.sequence() == ("f", "h", "w")
    assert found["blocks.0"].out[""] == "b (f h w) _" and found["blocks.0"].mixed == ("f", "h", "w", "l")
    assert found["blocks.0.ffn"].free == ("b", "f", "h", "w") == found["blocks.0.attn2"].free, found
    sd3 = SD3Transformer2DModel(
        sample_size=16, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=12, num_attention_heads=2,
        joint_attention_dim=16, caption_projection_dim=24, pooled_projection_dim=12, pos_embed_max_size=16)
    found = ht.explore(sd3, hidden_states=torch.randn(2, 4, 10, 18), timestep=torch.tensor([3, 500]),
                       encoder_hidden_states=torch.randn(2, 13, 16), pooled_projections=torch.randn(2, 12))
    assert found["transformer_blocks.0"].out == {"0": "b l _", "1": "b (h w) _"}
    assert found["transformer_blocks.0"].mixed == ("h", "w", "l")
    qwen = QwenImageTransformer2DModel(patch_size=2, in_channels=16, out_channels=4, num_layers=1,
                                       axes_dims_rope=(4, 6, 6), attention_head_dim=16, num_attention_heads=2,
                                       joint_attention_dim=16)
    found = ht.explore(qwen, hidden_states=torch.randn(2, 15, 16), encoder_hidden_states=torch.randn(2, 13, 16),
                       timestep=torch.tensor([0.1, 0.7]), img_shapes=[[(1, 3, 5)]] * 2)
    assert found.fixed == ("s",) and found["transformer_blocks.0"].mixed == ("s", "l"), found


def test_both_attentions_within_one_transformer():
    """Of Stable Video Diffusion: attention over places is switched to frames, and no rank gets all of them."""
    torch.manual_seed(0)
    model = TransformerSpatioTemporalModel(num_attention_heads=2, attention_head_dim=16, in_channels=32, num_layers=1,
                                           cross_attention_dim=12)
    given = dict(hidden_states=torch.randn(7, 32, 5, 6), encoder_hidden_states=torch.randn(7, 3, 12),
                 image_only_indicator=torch.zeros(1, 7))
    found = ht.explore(model, dims={"hidden_states": "(b f) c h w", "encoder_hidden_states": "(b f) l c",
                                    "image_only_indicator": "b f"}, **given)
    plan = found.plan(model, "[sp=3]")
    steps = dict(plan.steps)["transformer_blocks.0.attn1"]
    assert [(type(step), step.what) for step in steps] == [(Switch, "hidden_states"), (Switch, "output")], str(plan)
    assert all(name == "" for name, step in plan.apart() if isinstance(step, Gather)), str(plan)
    assert ht.prove(model, plan, ranks=2, **given)
