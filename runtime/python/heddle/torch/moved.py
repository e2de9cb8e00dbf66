"""Tensors by lines, as they are: no gradient, no operator of torch. Plans are found by line and dtype."""
from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch

from ..comm import Comm
from ..errors import ArgumentError, UnsupportedError
from ..reshard import Reshard
from .pooled import AS_BYTES, BY_DLPACK, DTYPES, pooled, tensor_of


def dtype_of(x: torch.Tensor, what: Any) -> str:
    """`what` it is for: a text, or a plan, whose text a compiler is not to look at."""
    if x.dtype not in DTYPES:
        raise ArgumentError(f"{what}: x is of {x.dtype}, wanted one of {', '.join(DTYPES.values())}")
    return DTYPES[x.dtype]


def _moved_as(x: torch.Tensor, line: str) -> str:
    """The dtype that a line names, or another one as large, as which bits are moved and nothing is added."""
    if x.dtype in DTYPES:
        return DTYPES[x.dtype]
    if x.dtype not in AS_BYTES:
        raise ArgumentError(f"{line}: x is of {x.dtype}, of which torch shows no plain elements of 1, 2, 4 or 8 bytes")
    if "sum@" in line:
        raise ArgumentError(f"{line}: x is of {x.dtype}, which is moved and not added up: wanted one of "
                            f"{', '.join(DTYPES.values())}")
    return AS_BYTES[x.dtype]


def check_plan(what: str, plan: Any, kind: type) -> None:
    if not isinstance(plan, kind):
        made = {"Reshard": "reshard", "Attention": "attention", "LinearAttention": "linear_attention"}[kind.__name__]
        raise ArgumentError(f"{what}: the plan is a {type(plan).__name__}, wanted a heddle.{kind.__name__}, which "
                            f"comm.{made}(...) makes")


def check_device(x: torch.Tensor, comm: Comm) -> None:
    """Is it where this communicator moves tensors?"""
    if not isinstance(x, torch.Tensor):
        raise ArgumentError(f"a {type(x).__name__}, wanted a tensor of torch")
    if x.is_cpu or x.device.type == "cuda" and x.device.index == comm.device or x.device.type == "meta":
        return
    there = "" if comm.device < 0 else f" and on cuda:{comm.device}"
    more = ": comm.attach_device() is missing" if x.device.type == "cuda" and comm.device < 0 else ""
    raise UnsupportedError(f"a tensor on {x.device}: this communicator moves tensors in host memory{there}{more}")


def _plan_by(x: torch.Tensor, line: str, comm: Comm) -> Reshard:
    asked = line, x.dtype, x.is_cpu
    plan = comm.again(asked)
    if plan is None:
        plan = comm.reshard(line, _moved_as(x, line), "host" if x.is_cpu else "device", asked=asked)
        plan.tensors = x.dtype if x.is_cpu else None
    return plan


def _plan_of(x: torch.Tensor, line: str, comm: Comm, plan: Optional[Reshard] = None) -> Reshard:
    if plan is None or plan.tensors is not x.dtype or not x.is_cpu:  # looking for it takes a while
        plan = _plan_by(x, line, comm)
    if x.shape != plan.src_shape:
        _fit(x, line, plan.src_shape, comm.rank)
    return plan


def _fit(x: torch.Tensor, line: str, shape: Tuple[int, ...], rank: int) -> None:
    if x.shape != shape:
        raise ArgumentError(f"{line}: x has the shape {tuple(x.shape)}, rank {rank} wants {shape}")


def _reshard(x: torch.Tensor, line: str, comm: Comm, plan: Optional[Reshard] = None) -> torch.Tensor:
    plan = _plan_of(x, line, comm, plan)
    x = _dense(x, line, plan)
    at = x.data_ptr()
    if plan.space == "host" and x.dtype in BY_DLPACK:
        return plan.execute_pooled(at, tensor_of)
    out = empty(plan, x.dtype)
    _execute(plan, x, out)
    return out


def _dense(x: torch.Tensor, line: str, plan: Reshard) -> torch.Tensor:
    """x as the plan reads it. What has other strides is copied once, to where peers reach it."""
    try:
        x = x if x.is_contiguous() else empty(plan, x.dtype, "src").copy_(x)
        x.data_ptr()
    except RuntimeError as error:  # sparse, of oneDNN, of a transform that is over
        raise ArgumentError(f"{line}: x of {x.layout} has no dense memory: {error}") from error
    return x


def _execute(plan: Reshard, x: torch.Tensor, out: torch.Tensor) -> None:
    stream = torch.cuda.current_stream(x.device).cuda_stream if plan.space == "device" else 0
    plan.execute(x.data_ptr(), out.data_ptr(), stream)


def _reshard_packed(xs: List[torch.Tensor], line: str, comm: Comm) -> torch.Tensor:
    """Tensors of one shape as the first dim of the line's. They are copied to where peers reach them, so that whatever
    they were the move reads them where they are."""
    plan = _plan_by(xs[0], line, comm)
    _fit_packed(xs, line, plan.src_shape, plan.comm.rank)
    source, out = empty(plan, xs[0].dtype, "src"), empty(plan, xs[0].dtype)
    torch.stack(xs, out=source)
    _execute(plan, source, out)
    return out


def _fit_packed(xs: List[torch.Tensor], line: str, shape: Tuple[int, ...], rank: int) -> None:
    for x in xs:
        if x.shape != shape[1:] or x.dtype != xs[0].dtype or len(xs) != shape[0]:
            raise ArgumentError(f"{line}: one of {len(xs)} tensors is {x.dtype}{tuple(x.shape)}, rank {rank} wants "
                                f"{shape[0]} of {xs[0].dtype}{shape[1:]}")


def _reshard_out(x: torch.Tensor, out: torch.Tensor, line: str, comm: Comm, plan: Optional[Reshard] = None) -> None:
    plan = _plan_of(x, line, comm, plan)
    _fit_out(out, x, line, plan.dst_shape)
    _execute(plan, _dense(x, line, plan), out)
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)  # whoever saved what it held is told


def _fit_out(out: torch.Tensor, x: torch.Tensor, line: str, shape: Tuple[int, ...]) -> None:
    if out.shape != shape or out.dtype != x.dtype or not out.is_contiguous() or out.device != x.device:
        raise ArgumentError(f"{line}: out is {out.dtype}{tuple(out.shape)} with strides {out.stride()} on "
                            f"{out.device}, wanted a dense {x.dtype}{shape} on {x.device}")


def empty(plan: Reshard, dtype: torch.dtype, side: str = "dst") -> torch.Tensor:
    """A tensor of a side of the plan ("src", "dst") in the communicator's pool, not initialised. A source that lies
    there is not staged. A device's tensors are torch's own."""
    check_plan("empty", plan, Reshard)
    if side not in ("src", "dst"):
        raise ArgumentError(f"empty: side is {side!r}, wanted src or dst")
    shape = plan.src_shape if side == "src" else plan.dst_shape
    if plan.space == "device":
        return torch.empty(shape, dtype=dtype, device=f"cuda:{plan.comm.device}")
    return pooled(plan.comm, shape, dtype)
