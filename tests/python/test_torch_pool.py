"""torch.cuda.MemPool over heddle's memory: what is refused, and what torch is told. There is no device here."""
import ctypes
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import heddle
import heddle.torch
from heddle.torch import device_pool

SIM = Path(os.environ["HEDDLE_BUILD"]) / "tests" / "device-sim"

emulated = pytest.mark.skipif(not (SIM / "libheddle_cuda.so").exists(), reason="no emulated device on this processor")


class Pool:
    """Of the recorder in torch's place."""

    def __init__(self, allocator):
        self.allocator = allocator


class Current:
    """torch.cuda.device, and which one is."""

    now = 0

    def __init__(self, device):
        self.before, self.wanted = Current.now, Current.now if device is None else torch.device(device).index

    def __enter__(self):
        Current.now = self.wanted

    def __exit__(self, *error):
        Current.now = self.before


@pytest.fixture
def told(monkeypatch):
    """What CUDAPluggableAllocator was made of, of a torch that has CUDA and two devices."""
    made = []

    def recorder(path, alloc, free):
        made.append((path, alloc, free))
        return types.SimpleNamespace(allocator=lambda: made[-1])

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: Current.now)
    monkeypatch.setattr(torch.cuda, "MemPool", Pool, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", recorder, raising=False)
    monkeypatch.setattr(device_pool, "_pools", {})
    monkeypatch.setenv("HEDDLE_MODULE_PATH", str(SIM))
    return made


def refused(words, kind=heddle.UnsupportedError):
    with pytest.raises(kind) as error:
        heddle.torch.mem_pool()
    for word in words:
        assert word in str(error.value), error.value


@emulated
def test_one_pool_per_device(told):
    pool = heddle.torch.mem_pool()
    assert isinstance(pool, Pool) and heddle.torch.mem_pool() is pool and heddle.torch.mem_pool("cuda:0") is pool
    other = heddle.torch.mem_pool(torch.device("cuda", 1))
    assert other is not pool and heddle.torch.mem_pool("cuda:1") is other and Current.now == 0
    assert len(told) == 2 and pool.allocator == other.allocator == told[0]


def said_by(program, *arguments):
    """The last line of a Python of its own."""
    run = subprocess.run([sys.executable, "-c", program, *arguments],
                         env={**os.environ, "HEDDLE_MODULE_PATH": str(SIM)}, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, timeout=300)
    assert run.returncode == 0, run.stdout
    return run.stdout.splitlines()[-1]


@emulated
def test_torch_finds_functions_that_work(told):
    """By the path and the names that it is told, as it looks for them; without torch, which brings a CUDA of its own.
    """
    heddle.torch.mem_pool()
    assert said_by("""
import ctypes, sys
path, alloc, free = sys.argv[1:]
library = ctypes.CDLL(path)
alloc, free = getattr(library, alloc), getattr(library, free)
alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
free.restype, free.argtypes = None, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
library.hd_sim_device_bytes.restype = ctypes.c_int64
memory = alloc(1000, 0, None)
assert memory and library.hd_sim_device_bytes() == 2 << 20
assert alloc(1 << 50, 0, None) is None
free(memory, 1000, 0, None)
assert library.hd_sim_device_bytes() == 0
print("ok")
""", *told[0]) == "ok"


@emulated
@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch is built without CUDA")
def test_torchs_own_allocator_takes_them():
    """Which needs no device; whose end the process goes through, too."""
    assert said_by("""
import torch
from heddle._library import module
from heddle.torch import device_pool
made = []
torch.cuda.MemPool = lambda allocator: made.append(allocator) or allocator
assert device_pool._made(module("cuda", "mem_pool")) is made[0]
print(type(made[0]).__name__)
""") in ("_CUDAPluggableAllocator", "_cuda_CUDAAllocator")


def test_what_is_missing_is_named(told, monkeypatch, tmp_path):
    monkeypatch.setenv("HEDDLE_MODULE_PATH", "device-sim")
    refused(["HEDDLE_MODULE_PATH is 'device-sim', wanted the absolute path", "libheddle_cuda.so"], heddle.ArgumentError)
    (tmp_path / "libheddle_cuda.so").write_text("no library")
    monkeypatch.setenv("HEDDLE_MODULE_PATH", str(tmp_path))
    refused(["mem_pool: libheddle_cuda.so cannot be loaded", "file too short"])
    (tmp_path / "libheddle_cuda.so").unlink()
    monkeypatch.setattr(heddle._library.lib, "_name", str(tmp_path / "beside" / "libheddle.so"))
    refused([f"there is no libheddle_cuda.so in {tmp_path}, {tmp_path}/beside", "CUDA toolkit", "HEDDLE_MODULE_PATH"])
    assert not told


@emulated
def test_a_torch_that_has_none(told, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(["mem_pool: torch finds no CUDA device"])
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    refused([f"mem_pool: torch {torch.__version__} has no torch.cuda.MemPool: a build with CUDA"])
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.delattr(torch.cuda, "MemPool")
    refused(["has no torch.cuda.MemPool"])
    assert not told
