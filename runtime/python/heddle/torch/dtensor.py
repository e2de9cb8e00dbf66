"""DTensors of torch from one placement to another."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ..comm import Comm
from ..errors import ArgumentError, UnsupportedError
from .moved import check_device, dtype_of
from .reshard import resharded


def redistribute(x: DTensor, placements: Sequence[Placement], comm: Comm) -> DTensor:
    """x.redistribute(placements=...) by heddle: the same blocks (torch.chunk's, so that the last ranks may have less or
    nothing), the same gradients. Sums of partial tensors are added in rank order. The communicator has the ranks of
    x's mesh in its order: `heddle.torch.from_process_group()`. Collective.

    placements  Shard and Replicate, one per axis of the mesh; those of x may be Partial("sum"), too
    """
    if not isinstance(x, DTensor):
        raise ArgumentError(f"redistribute: a {type(x).__name__}, wanted a DTensor")
    check_device(x.to_local(), comm)
    mesh, wanted = x.device_mesh, tuple(_positive(placement, x.dim()) for placement in placements)
    if len(wanted) != mesh.ndim or any(placement.is_partial() for placement in wanted):
        raise ArgumentError(f"redistribute to {tuple(placements)} on a mesh of {mesh.ndim} axes: wanted Shard or "
                            "Replicate for each")
    if mesh.mesh.flatten().tolist().index(torch.distributed.get_rank()) != comm.rank or mesh.size() != comm.size:
        raise ArgumentError(f"redistribute: the mesh is {mesh}, this process is rank {comm.rank} of {comm.size} of the "
                            "communicator, wanted the same order")
    return x if wanted == x.placements else _Redistributed.apply(x, wanted, comm)


class _Redistributed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: DTensor, placements: Tuple[Placement, ...], comm: Comm) -> DTensor:
        ctx.placements, ctx.comm = x.placements, comm
        return _moved(x, placements, comm)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> Any:
        # Of a sum every addend has the whole gradient.
        back = tuple(Replicate() if placement.is_partial() else placement for placement in ctx.placements)
        return _moved(gradient, back, ctx.comm), None, None


def _moved(x: DTensor, placements: Tuple[Placement, ...], comm: Comm) -> DTensor:
    local, mesh = x.to_local(), x.device_mesh
    shape = tuple(x.shape) or (1,)
    sizes = " ".join(f"x{dim}={extent}" for dim, extent in enumerate(shape))
    axes = " ".join(f"a{axis}={mesh.size(axis)}" for axis in range(mesh.ndim))
    line = (f"{dtype_of(local, 'redistribute')}[{sizes}] on [{axes}]: {_layout(shape, mesh, x.placements)} -> "
            f"{_layout(shape, mesh, placements)}")
    moved = resharded(local if x.dim() else local.reshape(1), line, line, comm)
    return DTensor.from_local(moved if x.dim() else moved.reshape(()), mesh, placements, run_check=False, shape=x.shape,
                              stride=x.stride())


def _positive(placement: Placement, ndim: int) -> Placement:
    if isinstance(placement, Shard) and placement.dim < 0:
        return Shard(placement.dim + ndim)
    return placement


def _layout(shape: Tuple[int, ...], mesh: Any, placements: Sequence[Placement]) -> str:
    entries = [_entry(axis, shape, mesh, placements) for axis in range(len(placements))]
    return ",".join(entry for entry in entries if entry is not None) or "*"


def _entry(axis: int, shape: Tuple[int, ...], mesh: Any, placements: Sequence[Placement]) -> Optional[str]:
    placement = placements[axis]
    if type(placement) is Replicate:
        return None
    if type(placement) is Partial and placement.reduce_op == "sum":
        return f"sum@a{axis}"
    if type(placement) is not Shard:
        raise UnsupportedError(f"redistribute: {placement}: wanted Shard, Replicate or Partial('sum')")
    dim, ranks = placement.dim, mesh.size(axis)
    others = [a for a, other in enumerate(placements) if isinstance(other, Shard) and other.dim == dim]
    if len(others) == 1:
        return f"x{dim}@a{axis}({' '.join(str(length) for length in _chunks(shape[dim], ranks))})"
    parts = 1
    for other in others:
        parts *= mesh.size(other)
    if shape[dim] % parts:
        raise UnsupportedError(f"redistribute: dim {dim} of {shape} on {len(others)} axes, {parts} blocks that differ: "
                               "such blocks must be even")
    return f"x{dim}@a{axis}"


def _chunks(length: int, parts: int) -> List[int]:
    """As torch.chunk cuts: 5 over 4 is 2 2 1 0."""
    each = -(-length // parts)
    return [max(min(each, length - part * each), 0) for part in range(parts)]
