"""Attention of a device's tensors by "ring", "usp" or "gather-kv": by torch's kernels part by part, or by the library's
own. Which of them is not a matter of taste: the first forward of a plan times both."""
from __future__ import annotations

import struct
import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ..attention import Attention
from ..errors import Error, UnsupportedError
from .eager import is_eager
from .pooled import DTYPES, pooled

Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Attention], torch.Tensor]

_METHODS = "ring", "usp", "gather-kv"
_ROUNDS = 5
_WORD = struct.Struct("=2d")


class Chosen(NamedTuple):
    kernels: str  #: "torch" or "heddle"
    why: str


def space_of(x: torch.Tensor) -> str:
    return "host" if x.is_cpu or x.is_meta else "device"


def stream_of(x: torch.Tensor) -> int:
    return torch.cuda.current_stream(x.device).cuda_stream


def result(made: Any, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """A dense tensor where this plan's lie, not initialised."""
    return pooled(made.comm, shape, like.dtype) if made.space == "host" else like.new_empty(shape)


def by_library(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention, torchs: Way, own: Way) -> bool:
    """Which of two ways these tensors of a device go; the same on all ranks. Collective where it is not known yet: then
    both are gone and timed by the slowest rank, of a forward, or of both passes where gradients are wanted. Where
    nothing can be timed (in a compiler, in a graph's capture) it is torch's, and nothing is decided."""
    if space_of(q) == "host" or plan.method not in _METHODS or plan.kernels == "torch":
        return False
    why_not = _why_not(q, plan)
    if plan.kernels == "heddle":
        if why_not:
            raise UnsupportedError(f"{plan.text}: kernels='heddle': {why_not}")
        return True
    if why_not:
        return False
    if plan.method == "gather-kv" and plan.key_lengths is not None:
        return True  # which torch's does not know
    wants = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    asked = q.dtype, wants
    if asked not in plan.chosen:
        if not is_eager(q) or _is_captured(q):
            return False
        plan.chosen[asked] = _compared(q, k, v, plan, torchs, own, wants)
    return plan.chosen[asked].kernels == "heddle"


def _why_not(q: torch.Tensor, plan: Attention) -> Optional[str]:
    """What heddle/attention.h says of devices, of what all ranks have alike."""
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"of {q.dtype}, wanted float32, bfloat16 or float16"
    if plan.width > 128 or q.dtype != torch.float32 and plan.width % 8:
        return f"heads of {plan.width}, wanted up to 128, of bfloat16 and float16 a multiple of 8"
    if plan.scale is not None and plan.scale <= 0:
        return f"scale is {plan.scale}, wanted a positive one"
    return "with log_sum_exp it is torch's" if plan.log_sum_exp else None


def _is_captured(x: torch.Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _compared(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention, torchs: Way, own: Way,
              wants: bool) -> Chosen:
    comm, made = plan.comm, plan.of(DTYPES[q.dtype], "device")
    refused = ""
    try:
        made.prepare()
    except Error as error:  # no memory is left, or this wire has not what a ring wants; others hear that it failed
        refused = str(error)
    if any(said != b"\0" for said in comm.allgather(b"\1" if refused else b"\0")):
        comm.forget(made)
        return Chosen("torch", f"heddle's own is not to be had: {refused or 'another rank could not make it'}")
    given = [x.detach() for x in (q, k, v)]
    mine = _WORD.pack(*_seconds((torchs, own), given, plan, wants))
    of_torch, of_heddle = (max(seconds) for seconds in zip(*map(_WORD.unpack, comm.allgather(mine))))
    why = f"{'both passes' if wants else 'a forward'}: torch's {of_torch * 1e3:.3f} ms, heddle's {of_heddle * 1e3:.3f}"
    if of_heddle <= of_torch:
        return Chosen("heddle", why)
    comm.forget(made)  # with its memory
    return Chosen("torch", why)


def _seconds(ways: Sequence[Way], given: Sequence[torch.Tensor], plan: Attention, wants: bool) -> List[float]:
    """The least of some calls of each, in turns: what is slow for a while is so for both. Behind one of each that makes
    plans and loads kernels."""
    found: List[List[float]] = [[] for _ in ways]
    for _ in range(1 + _ROUNDS):
        for way, seconds in zip(ways, found):
            seconds.append(_once(way, given, plan, wants))
    return [min(seconds[1:]) for seconds in found]


def _once(way: Way, given: Sequence[torch.Tensor], plan: Attention, wants: bool) -> float:
    """Of a call that all ranks begin together: by events of its stream, on a device of torch's."""
    inputs, is_cuda = [x.clone().requires_grad_(wants) for x in given], given[0].is_cuda
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * is_cuda)]
    _settle(given[0])
    plan.comm.barrier()
    for event in events[:1]:
        event.record()
    began = time.perf_counter()
    o = way(inputs[0], inputs[1], inputs[2], plan)
    if wants:
        torch.autograd.grad(o, inputs, torch.ones_like(o))
    for event in events[1:]:
        event.record()
    _settle(given[0])
    return events[0].elapsed_time(events[1]) * 1e-3 if is_cuda else time.perf_counter() - began


def _settle(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
