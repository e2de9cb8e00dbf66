"""diffusers' Wan on several ranks, unmodified, in training: attention over all tokens by Ulysses, uneven in tokens and
heads, gradients added up over the ranks.

    python -m heddle -n 3 04_wan.py [METHOD]

The model here is small and has random weights; from_pretrained(...) is used alike. METHOD: auto ulysses ring gather-kv
"""
import sys

import heddle
import heddle.diffusers
import torch
from diffusers import WanTransformer3DModel
from heddle.torch import reduce_gradients

torch.manual_seed(0)
torch.set_num_threads(1)
model = WanTransformer3DModel(num_attention_heads=4, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
                              freq_dim=32, ffn_dim=64, num_layers=2, rope_max_seq_len=64)
given = {"hidden_states": torch.randn(1, 4, 3, 6, 10), "timestep": torch.tensor([500]),  # 45 tokens
         "encoder_hidden_states": torch.randn(1, 9, 16)}


def step() -> list:
    model.zero_grad()
    model(**given).sample.square().mean().backward()  # on every rank: the same whole result, the same loss
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


with heddle.Comm.open() as comm:
    alone = step()
    handle = heddle.diffusers.parallelize(model, comm, method=sys.argv[1] if len(sys.argv) > 1 else "auto")
    step()
    reduce_gradients(model.parameters(), sum_over=comm)  # mean_over=comm.axis("dp"), where samples differ
    together = [p.grad for p in model.parameters() if p.grad is not None]
    worst = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in zip(together, alone))
    print(f"rank {comm.rank}: {handle.why}; gradients {'as' if worst < 1e-3 else 'NOT as'} one rank's, within "
          f"{worst:.0e}", flush=True)
    if worst >= 1e-3:
        raise SystemExit(1)
