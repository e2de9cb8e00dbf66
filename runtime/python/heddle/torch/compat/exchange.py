"""Exchanges by the numbers of two dims of a local tensor, as backends have them."""
from __future__ import annotations

import functools
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from ...errors import ArgumentError, UnsupportedError
from ...numbered import by_number
from ..moved import _reshard, _reshard_packed, check_device
from ..ones import filled, held
from ..reshard import _switch_out, keep_order, packed, pairs, resharded
from ..texts import texts_of
from .handle import Handle, started
from .groups import balanced, checked, comm_of, dim_of, flag_of, group_of

_WHOLE = -1  #: in the place of a dim: every rank has all of it

_ops = torch.library.Library("heddle", "FRAGMENT")
_ops.define("exchange(Tensor x, int scatter, int gather, SymInt[] scatter_sizes, SymInt[] gather_sizes, int comm) -> "
            "Tensor")
_ops.define("exchange_packed(Tensor[] xs, int scatter, int gather, SymInt[] to, SymInt[] of, int comm) -> Tensor")


def all_to_all(x: torch.Tensor, scatter_dim: int, gather_dim: int, group: Any = None, *,
               gather_sizes: Optional[Sequence[int]] = None, scatter_sizes: Optional[Sequence[int]] = None,
               empty: str = "rows", out: Optional[torch.Tensor] = None,
               async_op: bool = False) -> Union[torch.Tensor, Handle]:
    """x, which has all of `scatter_dim` and this rank's block of `gather_dim`, the other way round. Exact, and so is
    its gradient, which comes by the way back. Collective over the group.

    group          a ProcessGroup, a DeviceMesh of one dim, or None: the default group
    gather_sizes   what every rank has of `gather_dim`; None: as much as this one. Where that is wrong it is
                   MismatchError, on every rank
    scatter_sizes  what every rank gets of `scatter_dim`; None: it is cut evenly, the first ranks get one more
    empty          of a rank that has or gets nothing: "rows", an extent of 0; or "one" row of ones, which nobody else
                   sees, for models that fail without rows
    out            a dense tensor for the result; there is then no gradient
    async_op       True: a handle at once, whose `wait()` is the result. The exchange runs on a thread and a
                   communicator of its own, of a device's tensors on a stream of its own, for which the stream that is
                   current at `wait()` waits; until then x is left as it is
    """
    ranks = ranks_of(group)
    scatter, gather = dim_of(x, scatter_dim), dim_of(x, gather_dim)
    if scatter == gather:
        raise ArgumentError(f"all_to_all: scatter_dim and gather_dim are both dim {scatter}")
    to = balanced(x.shape[scatter], ranks) if scatter_sizes is None else checked("scatter_sizes", scatter_sizes, ranks)
    of = [x.shape[gather]] * ranks if gather_sizes is None else checked("gather_sizes", gather_sizes, ranks)
    async_op = flag_of("all_to_all: async_op", async_op)
    if out is not None and not isinstance(out, torch.Tensor):
        raise ArgumentError(f"all_to_all: out is a {type(out).__name__}, wanted a tensor")
    if out is None and not async_op:
        return _moved(x, scatter, gather, to, of, group, empty)
    if empty != "rows" or out is not None and async_op:
        raise ArgumentError("all_to_all: `out`, `async_op` and empty='one' are used one at a time")
    if ranks == 1:
        _lines(x.shape, scatter, gather, tuple(to), tuple(of), 0)
        if out is not None and (out.shape, out.dtype, out.device) != (x.shape, x.dtype, x.device):
            raise ArgumentError(f"all_to_all: out is {out.dtype}{tuple(out.shape)} on {out.device}, wanted {x.dtype}"
                                f"{tuple(x.shape)} on {x.device}")
        return Handle(x) if out is None else out.copy_(x)
    comm = comm_of(group)
    line, back = _lines(x.shape, scatter, gather, tuple(to), tuple(of), comm.rank)
    if out is None:
        return started(x, line, back, comm, group)
    _switch_out(x, out, line, comm)
    return out


def split(x: torch.Tensor, dim: int, group: Any = None, *, sizes: Optional[Sequence[int]] = None, grad: str = "sum",
          empty: str = "rows") -> torch.Tensor:
    """This rank's block of a dim of x, which every rank has alike. On the way back every rank gets the whole gradient
    of x. Between `split` and `gather` ranks have addends of the gradients of parameters:

    sizes  of the ranks' blocks; None: the dim is cut evenly, the first ranks get one more
    grad   how the gradients of parameters between are put together afterwards: "sum", by adding them up over the group;
           "mean", by the mean (DistributedDataParallel and FSDP over these ranks, too), so that `gather` multiplies the
           gradient by the number of ranks on its way back, and `split` divides it
    empty  as `all_to_all` has it
    """
    ranks, at = ranks_of(group), dim_of(x, dim)
    to = balanced(x.shape[at], ranks) if sizes is None else checked("sizes", sizes, ranks)
    return _moved(_scaled(x, grad, 1.0 / ranks), at, _WHOLE, to, [], group, empty)


def gather(x: torch.Tensor, dim: int, group: Any = None, *, sizes: Optional[Sequence[int]] = None, grad: str = "sum",
           empty: str = "rows") -> torch.Tensor:
    """The whole of x, of which every rank has its block of a dim. All ranks compute the same loss from it, which counts
    once: the gradient is cut on the way back.

    sizes  of the ranks' blocks; None: they are as long as this one, and where that is wrong it is MismatchError, on
           every rank
    grad, empty  as `split` has them
    """
    ranks, at = ranks_of(group), dim_of(x, dim)
    of = [x.shape[at]] * ranks if sizes is None else checked("sizes", sizes, ranks)
    return _scaled(_moved(x, _WHOLE, at, [], of, group, empty), grad, float(ranks))


def ranks_of(group: Any) -> int:
    return dist.get_world_size(None if group is None else group_of(group))


def _moved(x: torch.Tensor, scatter: int, gather: int, to: Sequence[Any], of: Sequence[Any], group: Any,
           empty: str) -> torch.Tensor:
    if not isinstance(empty, str) or empty not in ("rows", "one"):
        raise ArgumentError(f"empty is {empty!r}, wanted 'rows' or 'one'")
    if len(to or of) == 1:
        if not torch.compiler.is_compiling():
            _lines(x.shape, scatter, gather, tuple(to), tuple(of), 0)  # are they its lengths?
        return x
    if torch.compiler.is_compiling():
        if empty != "rows":
            raise UnsupportedError("within a compiler an exchange has empty='rows'")
        if x.is_complex():
            return torch.view_as_complex(_moved(pairs(x), scatter, gather, to, of, group, empty))
        return torch.ops.heddle.exchange(x, scatter, gather, to, of, number_of(group))
    comm = comm_of(group)
    if empty == "rows":
        return resharded(x, *_lines(x.shape, scatter, gather, tuple(to), tuple(of), comm.rank), comm)
    x = held(x, tuple(of[comm.rank] if dim == gather else length for dim, length in enumerate(x.shape)))
    shape = [max(to[comm.rank], 1) if dim == scatter else sum(of) if dim == gather else length
             for dim, length in enumerate(x.shape)]
    return filled(resharded(x, *_lines(x.shape, scatter, gather, tuple(to), tuple(of), comm.rank), comm), shape)


def exchanged_as_one(xs: List[torch.Tensor], scatter: int, gather: int, to: Sequence[Any], of: Sequence[Any],
                     group: Any) -> Tuple[torch.Tensor, ...]:
    """Tensors of one shape, whose dims scatter and gather are exchanged."""
    if torch.compiler.is_compiling():
        if xs[0].is_complex():
            each = exchanged_as_one([pairs(x) for x in xs], scatter, gather, to, of, group)
            return tuple(torch.view_as_complex(x) for x in each)
        return torch.ops.heddle.exchange_packed(xs, scatter, gather, to, of, number_of(group)).unbind(0)
    comm = comm_of(group)
    for x in xs:
        check_device(x, comm)
    shape = (len(xs), *xs[0].shape)
    return packed(xs, *_lines(shape, scatter + 1, gather + 1, tuple(to), tuple(of), comm.rank), comm).unbind(0)


@torch.compiler.assume_constant_result
def number_of(group: Any) -> int:
    return comm_of(group).number


@functools.lru_cache(maxsize=4096)
def _lines(shape: Tuple[int, ...], scatter: int, gather: int, to: Tuple[int, ...], of: Tuple[int, ...],
           rank: int) -> Tuple[str, str]:
    """The line, and that of the gradient, of this rank's tensor of this shape."""
    if gather != _WHOLE and of[rank] != shape[gather]:
        raise ArgumentError(f"x has {shape[gather]} rows in dim {gather}, rank {rank}'s length is {of[rank]} of "
                            f"{list(of)}")
    if scatter != _WHOLE and sum(to) != shape[scatter]:
        raise ArgumentError(f"x has {shape[scatter]} rows in dim {scatter}, and the lengths {list(to)} are "
                            f"{sum(to)} together")
    extents = " ".join(f"x{dim}={sum(of) if dim == gather else length}" for dim, length in enumerate(shape))
    sides = ["*" if dim == _WHOLE else f"x{dim}@sp({' '.join(map(str, lengths))})"
             for dim, lengths in ((gather, of), (scatter, to))]
    head = f"f32[{extents}] on [sp={len(to or of)}]"
    return texts_of(f"{head}: {sides[0]} -> {sides[1]}")[0], texts_of(f"{head}: {sides[1]} -> {sides[0]}")[0]


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float) -> torch.Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
        return gradient * ctx.by, None


def _scaled(x: torch.Tensor, grad: str, by: float) -> torch.Tensor:
    if not isinstance(grad, str) or grad not in ("sum", "mean"):
        raise ArgumentError(f"grad is {grad!r}, wanted 'sum' or 'mean'")
    return x if grad == "sum" or by == 1.0 or not x.requires_grad else _Scaled.apply(x, by)


# In a compiled graph lengths are symbols: the line is made when the operator runs, so one graph serves all of them.


def _exchange(x: torch.Tensor, scatter: int, gather: int, to: Sequence[int], of: Sequence[int],
              comm: int) -> torch.Tensor:
    made = by_number(comm)
    return _reshard(x, _lines(x.shape, scatter, gather, tuple(to), tuple(of), made.rank)[0], made)


def _fake(x: torch.Tensor, scatter: int, gather: int, to: Sequence[Any], of: Sequence[Any], comm: int) -> torch.Tensor:
    rank = by_number(comm).rank
    return x.new_empty([to[rank] if dim == scatter else sum(of) if dim == gather else length
                        for dim, length in enumerate(x.shape)])


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: torch.Tensor) -> None:
    _, *ctx.way, ctx.comm = inputs
    ctx.held = by_number(ctx.comm)  # as long as this graph is there


def _backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
    scatter, gather, to, of = ctx.way
    return torch.ops.heddle.exchange(gradient, gather, scatter, of, to, ctx.comm), None, None, None, None, None


def _packed(xs: List[torch.Tensor], scatter: int, gather: int, to: Sequence[int], of: Sequence[int],
            comm: int) -> torch.Tensor:
    shape, made = (len(xs), *xs[0].shape), by_number(comm)
    return _reshard_packed(xs, _lines(shape, scatter + 1, gather + 1, tuple(to), tuple(of), made.rank)[0], made)


def _fake_packed(xs: List[torch.Tensor], scatter: int, gather: int, to: Sequence[Any], of: Sequence[Any],
                 comm: int) -> torch.Tensor:
    one = _fake(xs[0], scatter, gather, to, of, comm)
    return one.new_empty([len(xs), *one.shape])


def _backward_packed(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
    scatter, gather, to, of = ctx.way
    back = torch.ops.heddle.exchange(gradient, gather + 1, scatter + 1, of, to, ctx.comm)
    return list(back.unbind(0)), None, None, None, None, None


for _device in ("CPU", "CUDA"):
    _ops.impl("exchange", _exchange, _device)
    _ops.impl("exchange_packed", _packed, _device)
torch.library.register_fake("heddle::exchange", _fake, lib=_ops)
torch.library.register_autograd("heddle::exchange", _backward, setup_context=_setup, lib=_ops)
torch.library.register_fake("heddle::exchange_packed", _fake_packed, lib=_ops)
torch.library.register_autograd("heddle::exchange_packed", _backward_packed, setup_context=_setup, lib=_ops)
keep_order(torch.ops.heddle.exchange, torch.ops.heddle.exchange_packed)
