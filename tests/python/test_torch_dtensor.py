"""DTensors: moved by heddle against torch's own redistribute over gloo, and as the gradients of FSDP."""
from ranks import JUDGE, fork
from test_torch_modules import COMMON as MODULES

import torch._dynamo  # which DTensors want, once for all ranks
import torch.distributed.fsdp
import torch.distributed.tensor


def test_as_torch_redistributes(tmp_path):
    fork(tmp_path, JUDGE + """
import itertools
import os
import torch
import torch.distributed as dist
import heddle
import heddle.torch as ht
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

rank, size = int(os.environ["HEDDLE_RANK"]), int(os.environ["HEDDLE_SIZE"])
dist.init_process_group("gloo", store=dist.FileStore(%r, size), rank=rank, world_size=size)
comm = ht.from_process_group()

def drawn(seed, shape, dtype):  # whole numbers: their sums are the same in any order
    return torch.randint(-99, 99, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)

def placed(seed, shape, dtype, mesh, placements):
    if any(p.is_partial() for p in placements):
        held = distribute_tensor(drawn(seed, shape, dtype), mesh, [Replicate() if p.is_partial() else p
                                                                   for p in placements])
        return DTensor.from_local(held.to_local() * (1 + rank), mesh, placements, run_check=False, shape=held.shape,
                                  stride=held.stride())
    return distribute_tensor(drawn(seed, shape, dtype), mesh, placements)

def same(a, b):
    assert a.placements == b.placements and a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
    a, b = a.to_local(), b.to_local()
    assert a.shape == b.shape and torch.equal(a, b), (a, b)

def compare(shape, mesh, before, after, dtype=torch.float32):
    x, y = (placed(1, shape, dtype, mesh, before).detach().requires_grad_() for _ in range(2))
    theirs, ours = x.redistribute(placements=after), ht.redistribute(y, after, comm)
    same(ours, theirs)
    gradient = placed(2, shape, dtype, mesh, theirs.placements)
    theirs.backward(gradient)
    ours.backward(gradient)
    same(y.grad, x.grad)

line = init_device_mesh("cpu", (4,))
every = [Shard(0), Shard(1), Replicate(), Partial()]
for shape in ((5, 6), (2, 3, 4)):  # 2 2 1 0 rows, fewer than ranks
    for before, after in itertools.product(every, every[:3]):
        compare(shape, line, [before], [after])
compare((5, 6), line, [Shard(-1)], [Shard(-2)], torch.bfloat16)
compare((7,), line, [Partial()], [Shard(0)], torch.float64)
compare((), line, [Partial()], [Replicate()])
grid = init_device_mesh("cpu", (2, 2))
pairs = [(Shard(0), Shard(1)), (Shard(1), Shard(0)), (Replicate(), Shard(1)), (Shard(0), Replicate()),
         (Partial(), Shard(0)), (Partial(), Partial()), (Replicate(), Replicate())]
for turn, before in enumerate(pairs):
    compare((5, 7), grid, before, pairs[(turn + 1) & 3])
compare((8, 3), grid, (Shard(0), Shard(0)), (Replicate(), Shard(1)))

x = placed(1, (5, 6), torch.float32, line, [Shard(0)])
assert ht.redistribute(x, [Shard(0)], comm) is x
refused(heddle.ArgumentError, "wanted Shard or Replicate", ht.redistribute, x, [Partial()], comm)
refused(heddle.ArgumentError, "on a mesh of 1 axes", ht.redistribute, x, [Shard(0), Shard(1)], comm)
refused(heddle.UnsupportedError, "5, 6) on 2 axes, 4 blocks that differ", ht.redistribute,
        placed(1, (5, 6), torch.float32, grid, (Shard(0), Shard(0))), (Replicate(), Replicate()), comm)
refused(heddle.UnsupportedError, "wanted Shard, Replicate or Partial", ht.redistribute,
        placed(1, (5, 6), torch.float32, line, [Partial("max")]), [Replicate()], comm)
turned = placed(1, (5, 6), torch.float32, DeviceMesh("cpu", torch.tensor([1, 0, 3, 2])), [Shard(0)])
refused(heddle.ArgumentError, "wanted the same order", ht.redistribute, turned, [Replicate()], comm)
dist.barrier()
comm.close()
dist.destroy_process_group()
print("ok", flush=True)
""" % str(tmp_path / "store"), 4)


def test_parameters_that_fully_shard_has_cut(tmp_path):
    fork(tmp_path, MODULES + """
import os
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank, size = int(os.environ["HEDDLE_RANK"]), int(os.environ["HEDDLE_SIZE"])
dist.init_process_group("gloo", store=dist.FileStore(%r, size), rank=rank, world_size=size)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
x, scale = inputs(2, 7, 5)  # a sample for each of dp

def backward(model, *given):
    y = model(*given)["y"]
    (y * y).mean().backward()

with heddle.Comm.open(mesh="[dp=2 sp=2]") as comm:
    dp, sp = comm.axis("dp"), comm.axis("sp")
    alone = Model(heads=4).double()
    backward(alone, x, scale)
    for over, is_first in ((mesh["dp"], True), (mesh["dp"], False), (mesh._flatten("all"), True)):
        model = Model(heads=4).double()
        if not is_first:
            ht.parallelize(model, PLACES, sp)
        for module in (*model.space, model):
            fully_shard(module, mesh=over)
            if over.size() == 4:  # all of them hold addends of a mean over dp
                module.set_gradient_divide_factor(2.0)
                module.set_force_sum_reduction_for_comms(True)  # for gloo
        if is_first:
            ht.parallelize(model, PLACES, sp)
        backward(model, x[dp.rank: dp.rank + 1], scale[dp.rank: dp.rank + 1])
        if over.size() == 2:
            told = "rank 1 has gradient 0: (torch.float64, (12, 12), 'piece 1 of S(0)'), rank 0 has"
            refused(heddle.MismatchError, told, ht.reduce_gradients, model.parameters(), sp, dp)
            ht.reduce_gradients(model.parameters(), sum_over=sp)
        for (name, p), one in zip(model.named_parameters(), alone.parameters()):
            got = p.grad.full_tensor()
            assert (got - one.grad).abs().max() <= 1e-12 * (1 + one.grad.abs().max()), name
    dist.barrier()
dist.destroy_process_group()
print("ok", flush=True)
""" % str(tmp_path / "store"), 4)
