"""A pool of torch's on CUDA devices whose memory is heddle's, which peers reach."""
from __future__ import annotations

import ctypes
import threading
from typing import Any, Dict

import torch

from .._library import module
from ..errors import UnsupportedError

# of heddle/cuda.h
_ALLOC, _FREE = "heddle_cuda_malloc", "heddle_cuda_free"

_pools: Dict[int, Any] = {}  #: by device
_making = threading.Lock()


def mem_pool(device: Any = None) -> "torch.cuda.MemPool":
    """The pool of a CUDA device, the current one if none is named, whose memory is heddle's (heddle/cuda.h).

        comm.attach_device("cuda:current")
        pool = heddle.torch.mem_pool()
        with torch.cuda.use_mem_pool(pool):
            torch.empty(1 << 30, dtype=torch.uint8, device="cuda")  # forgotten at once: the pool keeps its memory
        plan = comm.reshard(line, space="device")                   # which the peers map here
        with torch.cuda.use_mem_pool(pool):
            y = heddle.torch.switch(x, plan)                        # and store to

    What it is good for: between processes the wire "peer" stores at once into what a switch returns, or is given as
    `out=`, where any other memory of torch's costs a copy behind the launch. What the pool has taken from the device
    when a plan is made is mapped then, for all plans and whatever tensors lie there later; what it takes after that,
    when the next plan is made. `plan.info().why` says whether there was a copy. By other wires and between threads
    nothing is gained.

    The pool is made when it is asked for first, is the same one for as long as the process lives, and so is what torch
    keeps in it. `torch.cuda.use_mem_pool` is of one thread and one device: gradients, which torch computes in a thread
    of its own, are not in it. Older versions of torch refuse such a pool, or take no memory from it, where they are
    told to use `expandable_segments`.

    heddle.UnsupportedError: torch is built without CUDA, has no pools (before 2.5), or finds no device; there is no
    libheddle_cuda, which heddle builds where there is a CUDA toolkit, or it cannot be loaded.
    """
    if not torch.backends.cuda.is_built() or not hasattr(torch.cuda, "MemPool"):
        raise UnsupportedError(f"mem_pool: torch {torch.__version__} has no torch.cuda.MemPool: a build with CUDA of "
                               "2.5 or newer has")
    path = module("cuda", "mem_pool")
    if not torch.cuda.is_available():
        raise UnsupportedError("mem_pool: torch finds no CUDA device")
    with torch.cuda.device(device), _making:
        number = torch.cuda.current_device()
        if number not in _pools:
            _pools[number] = _made(path)
    return _pools[number]


def _made(path: str) -> "torch.cuda.MemPool":
    """Of the current device. Neither it nor its allocator is ever destroyed: torch's pool calls the allocator in its
    end and does not hold it, and what Python takes down first when it ends is nobody's to say."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, _ALLOC, _FREE)
    pool = torch.cuda.MemPool(allocator.allocator())
    for kept in (allocator, pool):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    return pool
