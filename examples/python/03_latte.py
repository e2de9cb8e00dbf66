"""diffusers' Latte on several ranks, unmodified: whole frames in spatial blocks, whole fibres of time in temporal ones.

    python -m heddle -n 3 03_latte.py

The model here is small and has random weights; from_pretrained(...) is used alike.
"""
import heddle
import heddle.diffusers
import torch
from diffusers import LatteTransformer3DModel

torch.manual_seed(0)
torch.set_num_threads(1)
model = LatteTransformer3DModel(num_attention_heads=4, attention_head_dim=16, in_channels=4, out_channels=8,
                                num_layers=2, caption_channels=32, cross_attention_dim=64, attention_bias=True,
                                sample_size=16, patch_size=2, activation_fn="gelu-approximate",
                                num_embeds_ada_norm=1000, norm_type="ada_norm_single",
                                norm_elementwise_affine=False, video_length=7)
given = {"hidden_states": torch.randn(1, 4, 7, 10, 14), "timestep": torch.tensor([500]),  # 7 frames of 35 places
         "encoder_hidden_states": torch.randn(1, 9, 32)}

with heddle.Comm.open() as comm, torch.no_grad():
    alone = model(**given).sample
    handle = heddle.diffusers.parallelize(model, comm)
    video = model(**given).sample  # the whole on every rank, before and after
    same = torch.equal(video, alone)
    print(f"rank {comm.rank}: {handle.why}; {'the same bits' if same else 'NOT the same bits'}", flush=True)
    if not same:
        raise SystemExit(1)
