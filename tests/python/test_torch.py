"""Tensors between ranks: bits, gradients, launchers."""
import os
from pathlib import Path

import pytest
from ranks import JUDGE, NCCL, fork

import torch.distributed.run  # once for all ranks

EXAMPLES = Path(os.environ["HEDDLE_SOURCE"]) / "examples" / "python"

COMMON = JUDGE + """
import os
import torch
import heddle
with torch.inference_mode():  # wherever it is imported first
    import heddle.torch as ht

def part(whole, axis, rank, size):
    cut = blocks(whole.shape[axis], size)
    return whole.narrow(axis, cut[rank], cut[rank + 1] - cut[rank]).contiguous()
"""


def test_forward_bitwise_in_every_dtype(tmp_path):
    fork(tmp_path, COMMON + """
with heddle.Comm.open() as comm:
    n, rank = comm.size, comm.rank
    plan = comm.reshard(f"f32[b=2 t=7 s=5 c=3] on [sp={n}]: t@sp -> s@sp")
    one = comm.reshard(f"f32[b=2 t=7 s=1 c=3] on [sp={n}]: t@sp -> s@sp")  # ranks without elements
    raw = torch.randint(0, 100, (2, 7, 5, 3), generator=torch.Generator().manual_seed(3))
    moved = [*ht.pooled.DTYPES, *ht.pooled.AS_BYTES, torch.complex32, torch.complex64, torch.complex128]
    assert {torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e8m0fnu} <= set(moved)
    for dtype in moved:
        draw, limit = torch.Generator().manual_seed(3), 2 if dtype == torch.bool else 256
        whole = torch.randint(0, limit, (2, 7, 5, 3 * dtype.itemsize), dtype=torch.uint8, generator=draw)
        def cut(whole, axis):  # torch has no copies of some of them
            return part(whole, axis, rank, n).view(dtype)
        y, wanted = ht.switch(cut(whole, 1), plan), cut(whole, 2)
        assert y.dtype == dtype and torch.equal(y.view(torch.uint8), wanted.view(torch.uint8)), dtype
        out = ht.empty(plan, dtype)
        assert torch.equal(ht.switch(cut(whole, 1), plan, out).view(torch.uint8), wanted.view(torch.uint8)), dtype
        assert torch.equal(ht.switch(cut(whole[:, :, :1], 1), one).view(torch.uint8),
                           cut(whole[:, :, :1], 2).view(torch.uint8))
    for dtype in ht.pooled.DTYPES:
        whole = raw.to(dtype)
        y = ht.switch(part(whole, 1, rank, n), plan)
        wanted = part(whole, 2, rank, n)
        assert y.dtype == dtype and torch.equal(y.view(torch.uint8), wanted.view(torch.uint8)), dtype
        assert torch.equal(ht.switch(part(whole[:, :, :1], 1, rank, n), one).view(torch.uint8),
                           part(whole[:, :, :1], 2, rank, n).view(torch.uint8))
    whole = raw.to(torch.float32)
    mine = part(whole, 1, rank, n)
    turned = mine.transpose(1, 3).contiguous().transpose(1, 3)
    assert not turned.is_contiguous()
    wanted = part(whole, 2, rank, n)
    assert torch.equal(ht.switch(turned, plan), wanted)
    out = torch.empty(plan.dst_shape)
    assert ht.switch(mine, plan, out=out) is out and torch.equal(out, wanted)
    z = torch.complex(mine, mine.flip(0)).conj().requires_grad_()
    y = ht.switch(z, comm.reshard(f"{plan.line.text} as s,b,c,t"))
    assert torch.equal(y, ht.switch(z.detach().resolve_conj(), plan).permute(2, 0, 3, 1))
    y.abs().square().sum().backward()
    assert torch.allclose(z.grad, 2 * z.detach())
    given, wants = torch.complex(mine, mine), f"wanted a dense torch.complex64{plan.dst_shape} on cpu"
    there = torch.empty(plan.dst_shape, dtype=torch.complex64)
    for other in (there[:1], there.to(torch.complex128)):
        refused(heddle.ArgumentError, f"{plan.line.text}: out is {other.dtype}{tuple(other.shape)} with strides "
                f"{other.stride()} on cpu, {wants}", ht.switch, given, plan, out=other)
    refused(heddle.ArgumentError, f"{plan.line.text}: x has the shape {tuple(given[:1].shape)}, rank {rank} wants "
            f"{plan.src_shape}", ht.switch, given[:1], plan)
    own = comm.reshard(f"f32[t=4 re_im=2] on [sp={n}]: * -> t@sp")  # a line of the caller's with the name of pairs
    for other in (torch.ones(4, 3), torch.ones(3, 2), torch.ones(3, 2, dtype=torch.int32), torch.ones(3, 2) * 1j):
        refused(heddle.ArgumentError, f"{own.line.text}: x has the shape {tuple(other.shape)}, rank {rank} wants (4,",
                ht.switch, other, own)
    for points in (torch.randn(4, 2), torch.randn(4, 2) * 1j):
        assert torch.equal(ht.switch(points, own), part(points, 0, rank, n))
    refused(heddle.ArgumentError, "out is torch.float32(3, 2)", ht.switch, torch.ones(4, 2), own, out=torch.ones(3, 2))
    sums = comm.reshard(f"f32[t=7 s=5] on [sp={n}]: sum@sp -> *")
    assert torch.equal(ht.switch(torch.full((7, 5), 1 + 2j), sums), torch.full((7, 5), n + 2j * n))
    for dtype in (torch.int16, torch.uint64, torch.float8_e8m0fnu):
        refused(heddle.ArgumentError, "which is moved and not added up", ht.switch, torch.ones(7, 5).to(dtype), sums)
    quantized = torch._empty_affine_quantized([2, 2, 5, 3], scale=0.1, zero_point=0, dtype=torch.qint8)
    refused(heddle.ArgumentError, "qint8, of which torch shows no plain elements", ht.switch, quantized, plan)
    source = ht.empty(plan, torch.float32, "src").copy_(mine)
    address = ht.switch(source, plan).data_ptr()
    assert ht.switch(source, plan).data_ptr() == address  # the first result is gone, its memory is used again
    refused(heddle.ArgumentError, "wants (2,", ht.switch, mine[:1], plan)
    refused(heddle.ArgumentError, "wanted a dense", ht.switch, mine, plan, out=out[:1])
    refused(heddle.ArgumentError, "no gradient", ht.switch, mine.clone().requires_grad_(), plan, out=out)
    for other, words in ((mine[:, 0].to_sparse(), "has no dense memory"), (mine[:, 0].to_mkldnn(), "no dense memory"),
                         (mine.numpy(), "a ndarray, wanted a tensor"), (None, "NoneType")):
        flat = comm.reshard(f"f32[b=2 s=5 c=3] on [sp={n}]: * -> s@sp")
        refused(heddle.ArgumentError, words, ht.switch, other, flat)
    ring = comm.attention(f"f32[b=2 s=5 h=3 d=4] on [sp={n}]: s@sp", "ring")
    refused(heddle.ArgumentError, "k has 2 dims", ht.attention, torch.zeros(2, 3, 5, 4), mine[:, 0, 0], mine, ring)
    refused(heddle.ArgumentError, "wanted a DTensor", ht.redistribute, mine, [], comm)
    refused(heddle.ArgumentError, "partial sums", ht.split, mine,
            comm.reshard(f"f32[b=2 t=7 s=5 c=3] on [sp={n}]: t@sp -> sum@sp"))
    with torch.inference_mode():
        y = ht.switch(mine, plan)
        assert torch.equal(y, wanted) and torch.equal(ht.switch(mine, plan, out=torch.empty(plan.dst_shape)), wanted)
        y += 1
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x * 1):
        x = mine.clone().requires_grad_()
        y = ht.switch(x.sin(), plan) ** 2
    y.sum().backward()
    assert torch.allclose(x.grad, (2 * mine).sin())
    y = ht.switch(mine.clone().requires_grad_(), plan)
    y += 1  # in place, as on any operator's result
    y.sum().backward()
    weight = torch.ones(plan.dst_shape, requires_grad=True)
    h = weight * out
    ht.switch(mine, plan, out=out)  # what h's gradient needs is overwritten
    refused(RuntimeError, "modified by an inplace operation", h.sum().backward)

    def by_a_communicator_that_nobody_keeps(x):
        own = heddle.Comm.join(os.environ["HEDDLE_KEY"] + "own", rank, n)
        return ht.switch(x, own.reshard(plan.line))
    by_a_communicator_that_nobody_keeps(mine.clone().requires_grad_()).sum().backward()
    kept = ht.switch(mine, plan)
assert torch.equal(kept, wanted)  # of a communicator that is closed
import heddle.diffusers, sys
assert "torch._dynamo" not in sys.modules  # seconds, of whoever compiles
print("ok")
""", 3)


def test_tensors_of_a_device_go_by_its_plans_and_streams(tmp_path):
    fork(tmp_path, COMMON + """
from heddle.torch import moved as ops

class Plan:  # no such device is here: what the operators ask of a plan for one
    src_shape, dst_shape, space, asked = (4, 5), (5, 4), "device", []

    def execute(self, *given):
        self.asked.append(given)

class Comm:
    rank, device, plan, asked = 0, 1, Plan(), []
    again = {}.get

    def reshard(self, *given, asked):
        self.asked.append(given)
        return self.plan

class Tensor:
    dtype, device, is_cpu = torch.bfloat16, torch.device("cuda:1"), False
    is_contiguous = is_inference = lambda self: True
    __class__ = torch.Tensor  # says isinstance

    def __init__(self, address, shape):
        self.data_ptr, self.shape = lambda: address, shape

    def contiguous(self):
        return self

comm = Plan.comm = Comm()
torch.cuda.current_stream = {Tensor.device: type("Stream", (), {"cuda_stream": 77})}.get
ops._reshard_out(Tensor(1000, (4, 5)), Tensor(2000, (5, 4)), "a line", comm)
assert comm.asked == [("a line", "bf16", "device")] and comm.plan.asked == [(1000, 2000, 77)]
ops.check_device(Tensor(0, ()), comm)
comm.device = 0
refused(heddle.UnsupportedError, "in host memory and on cuda:0", ops.check_device, Tensor(0, ()), comm)
comm.device = -1
refused(heddle.UnsupportedError, "attach_device() is missing", ops.check_device, Tensor(0, ()), comm)
assert torch._C._dispatch_has_kernel_for_dispatch_key("heddle::reshard", "CUDA")
print("ok")
""", 1)


MODEL = """
class Axial(torch.nn.Module):
    '''Attention over one dim of x[b t s c], which it needs whole.'''
    def __init__(self, over, channels):
        super().__init__()
        self.over, self.qkv = over, torch.nn.Linear(channels, 3 * channels)

    def forward(self, x):
        fibres = x.transpose(1, 2) if self.over == "t" else x
        q, k, v = self.qkv(fibres).chunk(3, -1)
        y = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
        return x + (y.transpose(1, 2) if self.over == "t" else y)

def model():
    torch.manual_seed(0)
    return Axial("s", 8).double(), Axial("t", 8).double(), Axial("s", 8).double()

def forward(layers, x, plans):
    inner, to_time, to_space, outer = plans
    a, b, c = layers
    x = a(inner(x))
    x = b(to_time(x))
    return outer(c(to_space(x)))

def plans_of(comm, b, t, s):
    line = f"f64[b={b} t={t} s={s} c=8] on [sp={comm.size}]: "
    cut, there = comm.reshard(line + "* -> t@sp"), comm.reshard(line + "t@sp -> s@sp")
    back, whole = comm.reshard(line + "s@sp -> t@sp"), comm.reshard(line + "t@sp -> *")
    return (lambda x: ht.split(x, cut), lambda x: ht.switch(x, there), lambda x: ht.switch(x, back),
            lambda x: ht.gather(x, whole))

NOTHING = (lambda x: x,) * 4

def gradients(layers, x, plans, function=forward):
    for layer in layers:
        layer.zero_grad()
    x = x.clone().requires_grad_()
    y = function(layers, x, plans)
    (y * torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos()).sum().backward()
    return y.detach(), x.grad, [p.grad.clone() for layer in layers for p in layer.parameters()]

def summed(comm, gradients):
    for gradient in gradients:
        comm.allreduce_sum(gradient.numpy())
    return gradients

def close(a, b):
    assert a.shape == b.shape and (a - b).abs().max() <= 1e-12 * (1 + b.abs().max()), (a - b).abs().max()
"""


def test_gradients_are_those_of_one_rank(tmp_path):
    fork(tmp_path, COMMON + MODEL + """
with heddle.Comm.open() as comm:
    layers = model()
    for b, t, s in [(2, 7, 5), (1, 2, 9)]:  # 2 frames on 3 ranks: one has none
        x = torch.randn(b, t, s, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        y, dx, dw = gradients(layers, x, plans_of(comm, b, t, s))
        y1, dx1, dw1 = gradients(layers, x, NOTHING)
        close(y, y1)
        close(dx, dx1)
        for got, wanted in zip(summed(comm, dw), dw1):
            close(got, wanted)
    first, last, begin = *(torch.nn.Linear(8, 8).double() for _ in range(2)), comm.reshard(
        f"f64[b={b} t={t} s={s} c=8] on [sp={comm.size}]: * -> t@sp")
    def stemmed(every, x, plans):
        return last(forward(layers, first(x), plans))
    wanted = gradients((first, last, *layers), x, NOTHING, stemmed)[2]
    for cut in (ht.split, ht.switch):
        plans = (lambda x: cut(x, begin), *plans_of(comm, b, t, s)[1:])
        dw = gradients((first, last, *layers), x, plans, stemmed)[2]
        summed(comm, dw[:2] if cut is ht.switch else [])  # before it; what is behind the gather is whole
        summed(comm, dw[4:])
        for got, one in zip(dw, wanted):
            close(got, one)
print("ok")
""", 3)


def test_a_switch_is_its_transpose_and_differentiable_twice(tmp_path):
    fork(tmp_path, COMMON + """
with heddle.Comm.open() as comm:
    for sides in ["t@sp -> s@sp", "* -> t@sp", "s@sp -> *", "sum@sp -> t@sp"]:
        plan = comm.reshard(f"f64[t=7 s=5] on [sp={comm.size}]: {sides}")
        draw = torch.Generator().manual_seed(comm.rank)
        x = torch.randint(-9, 9, plan.src_shape, generator=draw).double().requires_grad_()
        y = torch.randint(-9, 9, plan.dst_shape, generator=draw).double().requires_grad_()
        moved = ht.switch(x, plan)
        (dx,) = torch.autograd.grad((moved * y).sum(), x, create_graph=True)
        sums = torch.stack([(moved * y).sum(), (x * dx).sum()]).detach()
        comm.allreduce_sum(sums.numpy())
        assert sums[0] == sums[1], sides
        (twice,) = torch.autograd.grad((dx * x.detach()).sum(), y)  # d<x, F*y>/dy = F x
        assert torch.equal(twice, moved.detach()), sides
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.heddle.reshard.default,
                          (torch.randn(heddle.Line(f"f32[t=7] on [sp={comm.size}]: t@sp -> t@sp").src_shape(comm.rank)),
                           f"f32[t=7] on [sp={comm.size}]: t@sp -> t@sp",
                           f"f32[t=7] on [sp={comm.size}]: t@sp -> t@sp", [], comm.number),
                          test_utils=checks)
    same = f"f32[t=7] on [sp={comm.size}]: t@sp -> t@sp"
    x = torch.randn(heddle.Line(same).src_shape(comm.rank))
    torch.library.opcheck(torch.ops.heddle.reshard_out.default, (x, torch.empty_like(x), same, [], comm.number),
                          test_utils=checks[:2])
    plan = comm.attention(f"f32[b=1 s=7 h=2 d=4] on [sp={comm.size}]: s@sp", "ring")
    q = torch.randn(plan.q_shape, requires_grad=True)
    torch.library.opcheck(torch.ops.heddle.attention.default, (q, q, q, (), plan.number), test_utils=checks[1:])
print("ok")
""", 2)


def test_tensors_of_the_pool_are_tensors_like_others(tmp_path):
    """Written in place, saved, taken by other threads and processes, used again when they are gone, and not before."""
    fork(tmp_path, COMMON + """
import copy, io, os, queue, threading
from heddle.torch import pooled as pools

def whole_of(dtype):
    return (torch.arange(24) % 2 == 0 if dtype == torch.bool else torch.arange(24).to(dtype)).view(6, 4)

with heddle.Comm.open() as comm:
    lo, hi = (0, 3) if comm.rank == 0 else (3, 6)
    plan = comm.reshard("f32[t=6 s=4] on [sp=2]: t@sp -> s@sp")
    for by_dlpack in (pools.BY_DLPACK, frozenset()):  # and where torch takes nothing by DLPack but bytes
        pools.BY_DLPACK = ht.moved.BY_DLPACK = by_dlpack
        for dtype in pools.DTYPES:
            whole = whole_of(dtype)
            y = ht.switch(whole[lo:hi].clone(), plan)
            assert y.dtype == dtype and y.is_contiguous() and not y._is_view() and y.storage_offset() == 0
            assert torch.equal(y.view(torch.uint8), whole[:, 2 * comm.rank: 2 * comm.rank + 2].contiguous()
                               .view(torch.uint8)), dtype
            assert y.untyped_storage().nbytes() == y.numel() * y.element_size()
        pools.BY_DLPACK = ht.moved.BY_DLPACK = frozenset(pools.DTYPES)
    x, wanted = whole_of(torch.float32)[lo:hi].clone(), whole_of(torch.float32)[:, 2 * comm.rank: 2 * comm.rank + 2]
    y = ht.switch(x, plan)
    view = y[2:4]
    view += 100
    y.t_()
    assert y.shape == (2, 6) and y[0, 2] == wanted[2, 0] + 100 and y._version == 2
    y.t_()
    at, held = y.data_ptr(), comm.pool.held_bytes
    del y
    assert ht.switch(x, plan).data_ptr() != at and view[0, 0] == wanted[2, 0] + 100  # the view keeps it
    held = comm.pool.held_bytes
    del view
    for _ in range(20):
        assert ht.switch(x, plan).data_ptr() == at and comm.pool.held_bytes == held
    y = ht.switch(x, plan)
    file = io.BytesIO()
    torch.save(y, file)
    file.seek(0)
    for other in (torch.load(file), copy.deepcopy(y), y.clone(), torch.from_numpy(y.numpy().copy())):
        assert torch.equal(other, wanted) and other.data_ptr() != y.data_ptr()
    try:
        y.resize_(1000)
    except RuntimeError as error:
        assert "resiz" in str(error)
    assert torch.equal(y.resize_(3, 4).view(6, 2), wanted)
    with torch.inference_mode():
        assert ht.switch(x, plan).is_inference()
    with torch.no_grad():
        ht.switch(x, plan).requires_grad_().mul_(2)
    leaf = ht.switch(x, plan).requires_grad_()
    leaf.square().sum().backward()
    assert torch.equal(leaf.grad, 2 * wanted)
    assert torch.equal(ht.switch(torch._neg_view(x), plan), -wanted)  # whose memory holds x
    refused(heddle.ArgumentError, "negates", ht.switch, x, plan, torch._neg_view(torch.empty_like(wanted)))

    taken = queue.SimpleQueue()
    def give_back():
        for y in iter(taken.get, None):
            y.zero_()
    threads = [threading.Thread(target=give_back) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        taken.put(ht.switch(x, plan))
        assert torch.equal(ht.switch(x, plan), wanted)
    for thread in threads:
        taken.put(None)
    for thread in threads:
        thread.join()
    y = ht.switch(x, plan)
    child = os.fork()
    if child == 0:
        held = torch.equal(y, wanted)
        refused(heddle.ArgumentError, "fork", ht.switch, x, plan)
        del y
        os._exit(0 if held else 1)
    assert os.waitpid(child, 0)[1] == 0
    y = ht.switch(x, plan)
    comm.barrier()
assert torch.equal(y, wanted) and y.sum() == wanted.sum()  # memory of a closed communicator
del y
refused(heddle.ArgumentError, "closed", ht.switch, x, plan)
print("ok")
""", 2)


def test_a_small_switch_is_few_calls(tmp_path):
    """Each of them is felt in 2 KB, with a gradient's graph and without: 8 and 7 functions of the package's."""
    fork(tmp_path, COMMON + """
import gc
import os
import sys

def calls(x):
    seen, package = [], os.path.dirname(heddle.__file__) + os.sep
    def look(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            seen.append(frame.f_code.co_name)
    ht.switch(x, plan)
    gc.disable()  # which would run finalizers within
    sys.setprofile(look)
    ht.switch(x, plan)
    sys.setprofile(None)
    gc.enable()
    return [name for name in seen if name != "_asked"]  # while it waits

with heddle.Comm.open() as comm:
    plan = comm.reshard(f"f32[t=4 s=8 c=32] on [sp={comm.size}]: t@sp -> s@sp")
    x = torch.randn(plan.src_shape)
    plain, graph = calls(x), calls(x.requires_grad_())
    assert "execute_pooled" in plain and len(plain) <= 8 and len(graph) <= 9, (plain, graph)
print("ok")
""", 2)


def test_whoever_looks_at_operators_sees_a_switch(tmp_path):
    """Eagerly it goes by no operator; a mode, a transform, tangents and the profiler get one."""
    fork(tmp_path, COMMON + """
import torch.autograd.forward_ad as forward
from heddle.torch.eager import is_eager
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        seen.append(str(operator))
        return operator(*args, **(kwargs or {}))

class Beside(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))

seen = []
with heddle.Comm.open() as comm:
    plan = comm.reshard(f"f32[t=6 s=4] on [sp={comm.size}]: t@sp -> s@sp")
    x = torch.arange(float(torch.Size(plan.src_shape).numel())).view(plan.src_shape).requires_grad_()
    assert is_eager(x)
    def step():
        y = ht.switch(x, plan)
        (gradient,) = torch.autograd.grad(y, x, y.detach() + comm.rank)
        return y.detach(), gradient
    wanted = step()
    assert "Resharded" in str(ht.switch(x, plan).grad_fn)
    with Seen():
        assert not is_eager(x)
        found = step()
    assert seen.count("heddle.reshard.default") == 2, seen
    assert all(map(torch.equal, wanted, found))
    with Beside():
        assert not is_eager(x)
    with torch.profiler.profile() as profile:
        ht.switch(x, plan)
    assert any("heddle::reshard" in event.key for event in profile.key_averages())
    assert torch.equal(torch.func.vmap(lambda one: ht.switch(one, plan))(x.detach()[None])[0], wanted[0])
    zero = torch._efficientzerotensor(plan.src_shape)
    assert not is_eager(zero) and torch.equal(ht.switch(zero, plan), torch.zeros(plan.dst_shape))
    given, along = x.detach(), torch.ones(plan.src_shape) + comm.rank
    with forward.dual_level():
        assert not is_eager(x)
        moved = forward.unpack_dual(ht.switch(forward.make_dual(given, along), plan))
        assert torch.equal(moved.primal, wanted[0]) and torch.equal(moved.tangent, ht.switch(along, plan))
        refused(heddle.ArgumentError, "there is no gradient", ht.switch, forward.make_dual(given, along), plan,
                out=torch.empty(plan.dst_shape))
    ulysses, ring = (comm.attention(f"f64[b=1 s=6 h=2 d=4] on [sp={comm.size}]: s@sp", method)
                     for method in ("ulysses", "ring"))
    q, along = torch.randn(2, 1, 2, 3, 4, dtype=torch.float64)
    attend = lambda x: ht.attention(x, q, q, ulysses, sdpa=lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
    with forward.dual_level():
        dual = forward.make_dual(q, along)
        got = forward.unpack_dual(attend(dual)).tangent
        refused(heddle.UnsupportedError, "no forward-mode derivative", ht.attention, dual, q, q, ring)
    wanted = (attend(q + 1e-6 * along) - attend(q - 1e-6 * along)) / 2e-6
    assert (got - wanted).abs().max() < 1e-6 * (1 + wanted.abs().max())
    assert is_eager(x)
print("ok")
""", 2)


def test_ranks_of_torchrun(tmp_path):
    output = fork(tmp_path, f"""
import os
from torch.distributed.run import main
for name in ("HEDDLE_RANK", "HEDDLE_SIZE", "HEDDLE_KEY"):
    del os.environ[name]
main(["--standalone", "--nproc-per-node", "2", {str(EXAMPLES / "01_switch.py")!r}])
print("ok")
""", 1)
    assert output.count(" 0 wrong") == 2 and "rank 1: frames 5..9 " in output, output


def test_ranks_of_torch_multiprocessing_and_of_a_process_group(tmp_path):
    output = fork(tmp_path, COMMON + """
import torch.distributed
def main(rank, size, store):
    os.environ.update(HEDDLE_RANK=str(rank), HEDDLE_SIZE=str(size))
    with heddle.Comm.open() as comm:
        plan, whole = comm.reshard(f"f32[t=7 s=5] on [sp={comm.size}]: t@sp -> s@sp"), torch.arange(35.0).view(7, 5)
        assert torch.equal(ht.switch(part(whole, 0, rank, size), plan), part(whole, 1, rank, size))
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(store, size), rank=1 - rank,
                                         world_size=size)  # ranks of another order, which the environment denies
    with ht.from_process_group(mesh="[uly=2]") as comm:
        assert (comm.rank, comm.size, comm.mesh) == (1 - rank, 2, "[uly=2]"), comm
        assert comm.allgather(b"ab"[comm.rank: comm.rank + 1]) == [b"a", b"b"]
    alone = torch.distributed.new_group([0]), torch.distributed.new_group([1])
    with ht.from_process_group(alone[torch.distributed.get_rank()]) as comm:
        assert (comm.rank, comm.size) == (0, 1)
    torch.distributed.destroy_process_group()
    print(f"rank {rank} done", flush=True)

torch.multiprocessing.start_processes(main, (2, __file__ + ".store"), nprocs=2, start_method="fork")
print("ok")
""", 1)
    assert output.count("done") == 2, output


NCCL_SIM = Path(os.environ["HEDDLE_BUILD"]) / "tests" / "nccl-sim" / "libheddle_nccl.so"


@pytest.mark.skipif(not NCCL_SIM.exists(), reason="no emulated device on this processor")
def test_a_process_group_lends_its_communicator_of_nccl(tmp_path):
    fork(tmp_path, COMMON + NCCL + """
import socket
import torch.distributed
from heddle.torch import compat

class Shows:
    def __init__(self, pointer):
        self.pointer = pointer

    def _comm_ptr(self):
        return self.pointer

with heddle.Comm.open() as launched:
    rank = launched.rank
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(__file__ + ".store", 2), rank=rank,
                                         world_size=2)
    refused(heddle.UnsupportedError, "rank 0's torch shows no communicator of NCCL", ht.from_process_group, nccl=True)
    borrowed, own = lender(launched), torch.distributed.ProcessGroup._get_backend
    shown = {"pointer": borrowed}
    torch.distributed.ProcessGroup._get_backend = lambda group, device: (
        Shows(shown["pointer"]) if device.type == "cuda" else own(group, device))
    with ht.from_process_group(deadline_s=20) as comm:  # of one host: by itself
        assert comm.device == -1, comm
    with ht.from_process_group(nccl=True, deadline_s=20) as comm:
        assert (comm.rank, comm.device) == (rank, rank) and "wire nccl" in comm.describe(), comm
    socket.gethostname = lambda: f"host{rank}"
    with ht.from_process_group(deadline_s=20, mesh="[uly=2]") as comm:
        assert (comm.rank, comm.device, comm.mesh) == (rank, rank, "[uly=2]"), comm
    refused(heddle.UnsupportedError, "on 2 hosts (host0, host1): several hosts want nccl=True", ht.from_process_group,
            nccl=False)
    first = compat.comm_of()
    second = compat.comm_of(failed="a bad request")  # over NCCL none goes on: it is made anew
    assert first.closed and second is not first and "wire nccl" in second.describe(), (first, second)
    assert second.allgather(bytes([rank])) == [b"\\0", b"\\1"] and compat.comm_of() is second
    second.close()
    shown["pointer"] = borrowed if rank == 0 else 0
    refused(heddle.UnsupportedError, "rank 1's torch shows no", ht.from_process_group)
    torch.distributed.destroy_process_group()
print("ok")
""", 2)


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_modules_example(tmp_path, ranks):
    example = str(EXAMPLES / "02_modules.py")
    output = fork(tmp_path, f"import runpy; runpy.run_path({example!r}); print('ok')", ranks)
    assert output.count("as one rank") == ranks, output


def test_gradients_of_two_axes_dtypes_and_buckets(tmp_path):
    fork(tmp_path, COMMON + """
with heddle.Comm.open(mesh="[dp=2 sp=2]") as comm:
    sizes, ht.gradients._AT_ONCE_BYTES = [90, 5, 400, 3, 7], 256  # of float32 two buckets full and one begun
    dtypes = [torch.float32, torch.bfloat16, torch.float32, torch.float32, torch.bfloat16]
    parameters = [torch.nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in zip(sizes, dtypes)]
    none = torch.nn.Parameter(torch.zeros(2))  # has no gradient
    for i, p in enumerate(parameters):
        p.grad = torch.full_like(p, i + 1.0) * (comm.rank + 1)
        p.grad[-1] = 8.0
    ht.reduce_gradients([*parameters, none], sum_over=comm.axis("sp"), mean_over=comm.axis("dp"))
    for i, p in enumerate(parameters):  # (1 + 2 + 3 + 4) / 2
        wanted = torch.full_like(p, (i + 1.0) * 5)
        wanted[-1] = 16.0
        assert torch.equal(p.grad, wanted), (i, p.grad[-4:])
    assert none.grad is None
print("ok")
""", 4)


def test_a_rank_that_used_another_expert_adds_zeros(tmp_path):
    """Experts are alike in shape, so that nothing but their place tells whose gradient it is."""
    fork(tmp_path, COMMON + """
with heddle.Comm.open() as comm:
    experts = [torch.nn.Linear(3, 3) for _ in range(comm.size + 1)]
    x = torch.full((1, 3), comm.rank + 1.0)
    experts[comm.rank](x).sum().backward()
    ht.reduce_gradients((p for expert in experts for p in expert.parameters()), sum_over=comm)
    for at, expert in enumerate(experts[:-1]):
        assert torch.equal(expert.weight.grad, torch.full((3, 3), at + 1.0)), (at, expert.weight.grad)
    assert experts[-1].weight.grad is None  # no rank has used it
    one, other = torch.nn.Parameter(x), torch.nn.Parameter(x.double() if comm.rank == 0 else x)
    one.grad, other.grad = x if comm.rank == 0 else None, torch.zeros_like(other)
    refused(heddle.MismatchError, "gradient", ht.reduce_gradients, [one, other], comm)
    assert (one.grad is None) == (comm.rank > 0)  # what is refused changes nothing
print("ok")
""", 3)
