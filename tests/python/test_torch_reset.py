"""A model on several ranks, one of which raises in the middle of it: the program catches that, and all ranks go on."""
from ranks import JUDGE, fork

import torch._dynamo  # once for all ranks, Attend wants it

COMMON = JUDGE + """
import os
import time
import torch
import torch.distributed
import torch.nn.functional as F
import heddle
import heddle.torch as ht
from heddle.torch import Attend, Gather, Split

class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        act("forward")
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        act("backward")
        return gradient

def act(where):
    if at == where and comm.rank == comm.size - 1:
        raise ValueError("a bad batch")

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = (y.unflatten(2, (4, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return Raises.apply(x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = torch.nn.ModuleList([Block(), Block()]), torch.nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)

def step():
    model.zero_grad()
    result = model(x)
    result.square().mean().backward()
    ht.reduce_gradients(model.parameters(), sum_over=comm)
    return [result.detach(), *(parameter.grad.clone() for parameter in model.parameters())]

rank, size = int(os.environ["HEDDLE_RANK"]), int(os.environ["HEDDLE_SIZE"])
torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(__file__ + ".store", size), rank=rank,
                                     world_size=size)
torch.manual_seed(0)
model, x, at = Model(), torch.randn(2, 11, 16), None
"""


def test_a_batch_is_skipped(tmp_path):
    output = fork(tmp_path, COMMON + """
with ht.from_process_group(deadline_s=300) as comm:
    ht.parallelize(model, {"blocks.0": Split("x", "b s c", "s"), "blocks.*": Attend("s"),
                           "last": Gather("output", "b s o", "s")}, comm)
    good, files = step(), None
    for turn in range(24):
        at, began = (None, "forward", "backward")[turn % 3], time.time()
        try:
            result = step()
            assert at is None and all(torch.equal(a, b) for a, b in zip(result, good))
        except (ValueError, heddle.PeerError) as error:
            assert at is not None and "a bad batch" in str(error), error
            comm.reset(f"{type(error).__name__}: {error}")
        assert time.time() - began < 60
        now = len(os.listdir("/proc/self/fd"))
        assert files in (None, now), (files, now)
        files = now if turn > 3 else None
    at = None
    assert all(torch.equal(a, b) for a, b in zip(step(), good))
torch.distributed.destroy_process_group()
print("ok")
""", 2)
    assert "Error" not in output, output


def test_who_goes_on_without_a_reset_is_told_at_once(tmp_path):
    fork(tmp_path, COMMON + """
with ht.from_process_group(deadline_s=300) as comm:
    ht.parallelize(model, {"blocks.0": Split("x", "b s c", "s"), "blocks.*": Attend("s"),
                           "last": Gather("output", "b s o", "s")}, comm)
    good = step()
    for at in ("forward", "backward"):
        began = time.time()
        try:
            step()
        except ValueError as error:
            assert comm.rank == comm.size - 1
            at = None
            refused(heddle.MismatchError, f"rank {comm.rank} is in an allgather of ", model, x)
        except heddle.MismatchError as error:
            assert f"while rank {comm.rank} is in an execution of a reshard " in str(error), error
        assert time.time() - began < 60
        comm.reset()
        at = None
        assert all(torch.equal(a, b) for a, b in zip(step(), good))
torch.distributed.destroy_process_group()
print("ok")
""", 2)
