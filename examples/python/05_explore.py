"""A model that nobody wrote a plan for: which dims its modules mix is found by experiment, and the planner decides from
that which dim is cut in each stage. The plan that follows is proved on ranks that are simulated.

    python 05_explore.py                one process, no ranks
"""
import tempfile
from pathlib import Path

import heddle
import heddle.torch
import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    """Attention over the rows of [any, rows, c], then a feed-forward layer."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.qkv = torch.nn.LayerNorm(width), torch.nn.Linear(width, 3 * width)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.GELU(),
                                       torch.nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unsqueeze(1) for y in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v).squeeze(1)
        return x + self.mlp(x)


class Video(torch.nn.Module):
    """video[b, c, f, h, w]: patches, then attention over places and over frames in turn."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.patch = torch.nn.Conv3d(3, width, (1, 2, 2), (1, 2, 2))
        self.space, self.time = (torch.nn.ModuleList(Block(width) for _ in range(2)) for _ in range(2))
        self.last = torch.nn.Linear(width, 12)

    def forward(self, video: torch.Tensor) -> torch.Tensor:
        x = self.patch(video).permute(0, 2, 3, 4, 1)
        b, x = x.shape[0], x.flatten(2, 3)
        for space, time in zip(self.space, self.time):  # a rank may have a part of f: -1
            x = space(x.flatten(0, 1)).unflatten(0, (b, -1)).transpose(1, 2)
            x = time(x.flatten(0, 1)).unflatten(0, (b, -1)).transpose(1, 2)
        return self.last(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Video()
found = heddle.torch.explore(model, torch.randn(2, 3, 7, 10, 12))
print(found)
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "video.yaml"
    file.write_text(found.to_yaml())
    schedule = heddle.plan(file, "[sp=4]", sizes="b=1,f=16,s=1024")
print("on 4 ranks, at 16 frames of 32 x 32 patches:")
for stage in schedule.stages:
    print(f"  {stage.name}: {stage.layout}")
plan = found.plan(model, "[sp=4]", schedule=schedule)
print(plan)                             # heddle.torch.parallelize(model, plan, comm) puts it on the model
print(plan.prove(model, torch.randn(1, 3, 9, 12, 14), ranks=4))
