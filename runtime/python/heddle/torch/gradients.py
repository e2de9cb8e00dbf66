"""Gradients that ranks have addends of."""
from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch

from ..comm import Comm, check_comm
from ..errors import ArgumentError, UnsupportedError
from ..turns import axes_of
from .agreement import agree
from .eager import is_eager
from .moved import check_device
from .reshard import resharded

_AT_ONCE_BYTES = 32 << 20


def share(x: torch.Tensor, comm: Comm, axis: Optional[str] = None) -> torch.Tensor:
    """x, which every rank has alike, for use between `split` and `gather`, where it goes by another way than what is
    split: an embedding of the timestep or of text. There ranks have addends of its gradient, of their own rows; here
    they are added up in rank order, so that what x was computed from gets the whole gradient on every rank, as `split`
    gives it. Nothing is moved forward. Its backward is collective: ranks without rows take part (`empty="one"`).

    x     any tensor; one that wants no gradient is handed back. Of a dtype whose elements are added up
    axis  None: over all ranks of `comm`; else over those of `comm.axis(axis)`, whose first use is collective
    """
    check_comm("share", comm)
    check_device(x, comm)
    if not (x.is_floating_point() or x.is_complex()) or is_eager(x) and not (
            x.requires_grad and torch.is_grad_enabled()):
        return x
    over = comm if axis is None else comm.axis(axis)
    same, sums = _lines(x, over)
    return resharded(x.reshape(-1), same, sums, over).reshape(x.shape)


def added_up(x: torch.Tensor, comm: Comm) -> torch.Tensor:
    """The ranks' tensors added element by element in rank order; the same bits on every rank. Collective."""
    same, sums = _lines(x, comm)
    return resharded(x.reshape(-1), sums, same, comm).reshape(x.shape)


def _lines(x: torch.Tensor, comm: Comm) -> Tuple[str, str]:
    head = f"f32[n={x.numel()}] on {comm.mesh}: "
    return f"{head}* -> *", f"{head}{','.join(f'sum@{name}' for name, _ in axes_of(comm.mesh))} -> *"


def reduce_gradients(parameters: Iterable[torch.nn.Parameter], sum_over: Optional[Comm] = None,
                     mean_over: Optional[Comm] = None) -> None:
    """Of every parameter's gradient: the sum over the ranks that shared one sample (`comm.axis("sp")`), the mean over
    those that had samples of their own (`comm.axis("dp")`). In place, added in rank order in the gradients' own dtype,
    in buckets of one dtype; the same bits on every rank. Collective: all ranks name the same parameters. A rank without
    the gradient of one (an expert that none of its rows went to) adds zeros where another rank has it, and then has the
    sum; one without any gradient, while others have some, is MismatchError.

    Of a DTensor (fully_shard's) the piece that this rank has: all ranks of `sum_over` have the same one, and the mean
    is FSDP's own, so that `mean_over` is left out.
    """
    for name, comm in (("sum_over", sum_over), ("mean_over", mean_over)):
        if comm is not None:
            check_comm(f"reduce_gradients: {name}", comm)
    every = _checked(parameters)
    gradients = [parameter.grad for parameter in every]
    for comm in (sum_over, mean_over):
        if comm is not None:
            _complete(gradients, every, comm)
    buckets = _buckets(gradients)
    for comm in (sum_over, mean_over):
        if comm is not None:
            agree(comm, "reduce_gradients", [(f"gradient {at}", _piece_of(gradient))
                                             for at, gradient in enumerate(gradients) if gradient is not None])
    for parameter, gradient in zip(every, gradients):
        parameter.grad = gradient
    for bucket in ([_local(gradient) for gradient in bucket] for bucket in buckets):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        for comm in (sum_over, mean_over):
            flat = flat if comm is None else added_up(flat, comm)
        if mean_over is not None:
            flat /= mean_over.size
        for gradient, whole in zip(bucket, flat.split([gradient.numel() for gradient in bucket])):
            gradient.copy_(whole.view_as(gradient))


def _is_dtensor(gradient: torch.Tensor) -> bool:
    return hasattr(gradient, "device_mesh") and hasattr(gradient, "to_local")  # importing DTensor takes long


@torch.no_grad()
def _local(gradient: Any) -> torch.Tensor:
    return gradient.to_local() if _is_dtensor(gradient) else gradient


def _piece_of(gradient: Any) -> Tuple[Any, ...]:
    """What of which gradient this rank has."""
    facts = gradient.dtype, tuple(gradient.shape)
    if not _is_dtensor(gradient):
        return facts
    if any(placement.is_partial() for placement in gradient.placements):
        raise UnsupportedError(f"reduce_gradients: a DTensor of {gradient.placements}, wanted Shard or Replicate")
    at = zip(gradient.placements, gradient.device_mesh.get_coordinate() or ())
    return (*facts, *(f"piece {place} of {placement}" for placement, place in at if placement.is_shard()))


def _checked(parameters: Iterable[torch.nn.Parameter]) -> List[torch.nn.Parameter]:
    if isinstance(parameters, (torch.Tensor, torch.nn.Module)):
        raise ArgumentError(f"reduce_gradients: a {type(parameters).__name__}, wanted its parameters: "
                            "model.parameters()")
    every = list(parameters)
    for parameter in every:
        if not isinstance(parameter, torch.Tensor):
            raise ArgumentError(f"reduce_gradients: a {type(parameter).__name__} among the parameters, wanted tensors: "
                                "model.parameters()")
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise UnsupportedError(f"reduce_gradients: a gradient of {parameter.grad.layout}, wanted dense ones (of an "
                                   "Embedding: sparse=False)")
    return every


def _complete(gradients: List[Optional[torch.Tensor]], parameters: List[torch.nn.Parameter], comm: Comm) -> None:
    """Zeros where this rank has no gradient and another one has: which they have may differ by the rows that they
    have, and of two parameters of one shape nothing else tells which it is."""
    mine = bytes(gradient is not None for gradient in gradients)
    agree(comm, "reduce_gradients", [("parameters", len(mine)), ("a gradient of any", any(mine))])
    for at, of_ranks in enumerate(zip(*comm.allgather(mine))):
        if gradients[at] is None and any(of_ranks):
            gradients[at] = torch.zeros_like(parameters[at])


def _buckets(gradients: List[Optional[torch.Tensor]]) -> List[List[torch.Tensor]]:
    full: List[List[torch.Tensor]] = []
    filling: Dict[torch.dtype, Tuple[List[torch.Tensor], int]] = {}
    for gradient in gradients:
        if gradient is None:
            continue
        bucket, held_bytes = filling.get(gradient.dtype, ([], 0))
        bucket.append(gradient)
        held_bytes += gradient.numel() * gradient.element_size()
        if held_bytes >= _AT_ONCE_BYTES:
            full.append(bucket)
            bucket, held_bytes = [], 0
        filling[gradient.dtype] = bucket, held_bytes
    return full + [bucket for bucket, _ in filling.values() if bucket]
