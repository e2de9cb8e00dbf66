"""Attention of a device's tensors: which kernels take them, and what those of the library make of them. torch has no
device here, so its tensors lie in the memory of the emulated one."""
import os
from pathlib import Path

import pytest
from ranks import JUDGE, SCALE, fork

import torch._dynamo  # once for all ranks

SIM = Path(os.environ["HEDDLE_BUILD"]) / "tests" / "device-sim"

COMMON = JUDGE + """
import ctypes, os
os.environ["HEDDLE_MODULE_PATH"] = %r
import torch
import torch.nn.functional as F
import heddle
import heddle.torch as ht
from heddle.torch import on_device

# With its own calls of CUDA, whichever torch has loaded for everybody.
cuda = ctypes.CDLL(os.environ["HEDDLE_MODULE_PATH"] + "/libheddle_cuda.so", os.RTLD_NOW | os.RTLD_DEEPBIND)

def device_sim(name, *given):
    assert getattr(cuda, name)(*given) == 0, name

class There:
    '''A copy on the device of what lies at a place, strides and all.'''
    def __init__(self, place, shape, itemsize):
        at, strides = place
        self.nbytes = (1 + sum((n - 1) * stride for n, stride in zip(shape, strides))) * itemsize if all(shape) else 0
        self.host, self.device = ctypes.c_void_p(at), ctypes.c_void_p()
        device_sim("cudaMalloc", ctypes.byref(self.device), ctypes.c_size_t(max(self.nbytes, 1)))
        device_sim("cudaMemcpy", self.device, self.host, ctypes.c_size_t(self.nbytes), 1)
        self.place = self.device.value, strides

    def back(self):
        device_sim("cudaDeviceSynchronize")
        device_sim("cudaMemcpy", self.host, self.device, ctypes.c_size_t(self.nbytes), 2)

def on_copies(own, heads_of, outputs):
    '''A call on addresses, by copies of what lies there.'''
    def call(self, *given):
        if self.space != "device":
            return own(self, *given)
        ticket = given[:1] if isinstance(given[0], int) else ()
        places, more = given[len(ticket): len(ticket) + 4], given[len(ticket) + 4:]
        itemsize = {"f32": 4, "bf16": 2, "f16": 2}[self.line.dtype]
        copies = [There(place, self.local_shape(getattr(self, heads), self.width), itemsize)
                  for place, heads in zip(places, heads_of)]
        said = own(self, *ticket, *(copy.place for copy in copies), *more)
        calls.append(self.method)
        for at in outputs:
            copies[at].back()
        return said
    return call

calls = []
heddle.Attention.execute = on_copies(heddle.Attention.execute, ("heads", "kv_heads", "kv_heads", "heads"), [3])
heddle.Attention.execute_backward = on_copies(heddle.Attention.execute_backward,
                                              ("heads", "heads", "kv_heads", "kv_heads"), [1, 2, 3])
on_device.space_of = lambda x: "device"
on_device.stream_of = lambda x: 0
on_device.result = lambda made, shape, like: torch.empty(shape, dtype=like.dtype)
ht.attention_op._is_of_library = lambda x: False

def rows(whole, comm):
    cut = blocks(whole.shape[2], comm.size)
    return whole[:, :, cut[comm.rank]: cut[comm.rank + 1]]

def draw(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)

def close(a, b, within):
    assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, b.shape)
    assert a.numel() == 0 or (a.double() - b.double()).abs().max() <= within * (1 + b.abs().max()), (a - b).abs().max()
""" % str(SIM)

pytestmark = pytest.mark.skipif(not (SIM / "libheddle_cuda.so").exists(), reason="no emulated device on this processor")


def test_the_librarys_kernels_say_what_torchs_do(tmp_path):
    fork(tmp_path, COMMON + """
def compare(comm, method, dtype, within, s, h, kv, causal, **more):
    q, d_o = draw(1, 2, h, s, 8, dtype=dtype), draw(4, 2, h, s, 8, dtype=dtype)
    k, v = draw(2, 2, kv, s, 8, dtype=dtype), draw(3, 2, kv, s, 8, dtype=dtype)
    mask = torch.arange(s) < torch.tensor(more.get("key_lengths", [s, s]))[:, None, None, None]
    if causal:
        mask = mask & torch.ones(s, s, dtype=torch.bool).tril()
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    o = F.scaled_dot_product_attention(*wide, mask, enable_gqa=h != kv)
    wanted = [x.to(dtype) for x in (o.detach(), *torch.autograd.grad(o, wide, d_o.double()))]
    plan = comm.attention(f"f32[b=2 s={s} h={h} d=8] on [sp=2]: s@sp", method, kv_heads=kv, causal=causal,
                          kernels="heddle", **more)
    before = len(calls)
    mine = [rows(x, comm).clone().requires_grad_() for x in (q, k, v)]
    o = ht.attention(*mine, plan)
    assert len(calls) == before + 1
    found = [o.detach(), *torch.autograd.grad(o, mine, rows(d_o, comm))]
    assert len(calls) == before + 2
    for a, b in zip(found, wanted):
        close(a, rows(b, comm), within)

with heddle.Comm.open() as comm:
    comm.attach_device("cuda:0")
    for method in ("ring", "gather-kv"):
        compare(comm, method, torch.float32, 1e-5, 11, 6, 2, True)
        compare(comm, method, torch.bfloat16, 0.03, 11, 3, 3, False)
        compare(comm, method, torch.float16, 5e-3, 1, 2, 2, False)  # a rank without rows
        compare(comm, method, torch.float32, 1e-5, 9, 2, 2, False, key_lengths=[9, 5])
    q = rows(draw(1, 2, 2, 9, 12), comm)
    plan = comm.attention("f32[b=2 s=9 h=2 d=12] on [sp=2]: s@sp", "ring", kernels="heddle")
    ht.attention(q, q, q, plan)
    refused(heddle.UnsupportedError, "heads of 12, wanted up to 128, of bfloat16", ht.attention, *[q.half()] * 3, plan)
    refused(heddle.UnsupportedError, "kernels='heddle': of torch.float64", ht.attention, *[q.double()] * 3, plan)
    refused(heddle.ArgumentError, "kernels 'mine', wanted", comm.attention, "f32[b=2 s=9 h=2 d=12] on [sp=2]: s@sp",
            "ring", kernels="mine")
    there_plan = comm.attention("f32[b=2 s=9 h=2 d=12] on [sp=2]: s@sp", "ring", space="device")
    refused(heddle.ArgumentError, "takes no arrays of NumPy", there_plan, *[q.numpy()] * 3)
print("ok")
""", 2)


def test_the_faster_kernels_are_taken(tmp_path):
    fork(tmp_path, COMMON + f"LONG_S = {0.5 * SCALE}  # on a machine of its own the emulator takes a tenth\n" + """
import time

clock, own_once = {}, on_device._once

def once(way, given, plan, wants):
    own_once(way, given, plan, wants)  # both are gone, and nothing is measured
    return clock["torch" if way is ht.attention_op._by_torch else "heddle"]

on_device._once = once

def went(plan, q):
    before = len(calls)
    o = ht.attention(q, q, q, plan)
    return "heddle" if len(calls) > before else "torch", o

with heddle.Comm.open() as comm:
    comm.attach_device("cuda:0")
    q = rows(draw(1, 2, 2, 9, 8), comm)
    for method in ("ring", "gather-kv"):
        plan = comm.attention("f32[b=2 s=9 h=2 d=8] on [sp=2]: s@sp", method, kernels="auto")
        # The slowest rank counts: torch's is the faster one on rank 1 alone.
        clock.update(torch=[3.0, 1.0][comm.rank], heddle=2.0)
        first = went(plan, q)[0]
        assert (first, went(plan, q)[0]) == ("heddle", "heddle"), first
        clock.update(torch=1.0, heddle=[0.5, 1.5][comm.rank])
        x = q.half()
        assert went(plan, x)[0] == "heddle" and len(plan.chosen) == 2  # the timing's calls
        assert went(plan, x)[0] == "torch"
        assert not any(kept.space == "device" and kept.line.dtype == "f16" for kept in comm._attentions.values())
        assert plan.chosen[torch.float16, False] == ("torch", "a forward: torch's 1000.000 ms, heddle's 1500.000")
        x = q.clone().requires_grad_()
        went(plan, x)
        assert "both passes" in plan.chosen[torch.float32, True].why and went(plan, x)[0] == "torch"
        assert went(plan, q.double())[0] == "torch" and len(plan.chosen) == 3  # which the library has not there
        plan = comm.attention("f32[b=2 s=9 h=2 d=8] on [sp=2]: s@sp", method)  # torch
        assert went(plan, q)[0] == "torch" and not plan.chosen
        plan = comm.attention("f32[b=2 s=9 h=2 d=8] on [sp=2]: s@sp", method, causal=True, kernels="auto")
        with torch.profiler.profile():  # who looks on is not timed
            assert went(plan, q)[0] == "torch" and not plan.chosen
        # One rank alone cannot make it: both go by torch's.
        def prepare(self, own=heddle.Attention.prepare):
            own(self)
            if comm.rank == 1:
                raise heddle.NoMemoryError("no room")
        heddle.Attention.prepare, kept = prepare, heddle.Attention.prepare
        assert went(plan, q)[0] == "torch"
        heddle.Attention.prepare = kept
        words = "another rank could not" if comm.rank == 0 else "no room"
        assert words in plan.chosen[torch.float32, False].why, plan.chosen
    # By true clocks: whichever is made slow is not taken, of one plan and the dtype and passes at hand.
    on_device._once, on_device._ROUNDS, slow = own_once, 1, None

    def slowed(name, own):
        def call(*given):
            time.sleep(LONG_S if slow == name else 0)
            return own(*given)
        return call
    ht.attention_op._by_torch = slowed("torch", ht.attention_op._by_torch)
    heddle.Attention.execute = slowed("heddle", heddle.Attention.execute)
    plan = comm.attention("f32[b=2 s=9 h=2 d=8] on [sp=2]: s@sp", "ring", saved_forwards=2, kernels="auto")
    for slow, x in ("torch", q), ("heddle", q.half()), ("torch", q.bfloat16()), ("heddle", q.clone().requires_grad_()):
        went(plan, x)
        chosen = plan.chosen[x.dtype, x.requires_grad]
        assert chosen.kernels == {"torch": "heddle", "heddle": "torch"}[slow] == went(plan, x)[0], (slow, chosen)
    plan = comm.attention("f32[b=2 s=9 h=2 d=8] on [sp=2]: s@sp", "gather-kv", key_lengths=[9, 4], kernels="auto")
    assert went(plan, q)[0] == "heddle" and not plan.chosen  # torch's knows no lengths of keys
print("ok")
""", 2)
