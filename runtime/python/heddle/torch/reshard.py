"""Reshards of tensors as operators of torch."""
from __future__ import annotations

import functools
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch.autograd import forward_ad

from ..comm import Comm
from ..errors import ArgumentError
from ..numbered import by_number
from ..reshard import Reshard
from .eager import is_eager, is_transformed, tangent_of
from .moved import (_fit, _fit_out, _fit_packed, _moved_as, _reshard, _reshard_out, _reshard_packed, check_device,
                    check_plan)
from .ones import check_empty, filled, held
from .texts import paired, shapes_by, shapes_of

_ops = torch.library.Library("heddle", "DEF")
_ops.define("reshard(Tensor x, str line, str back, SymInt[] extents, int comm) -> Tensor")
_ops.define("reshard_packed(Tensor[] xs, str line, str back, SymInt[] extents, int comm) -> Tensor")
_ops.define("reshard_out(Tensor x, Tensor(a!) out, str line, SymInt[] extents, int comm) -> ()")


def switch(x: torch.Tensor, plan: Reshard, out: Optional[torch.Tensor] = None, *,
           empty: str = "nothing") -> torch.Tensor:
    """x in the layout that the plan leads to. Its gradient goes by the exact transpose, scaled by nothing: what ranks
    have of it are addends where the layout is replicated. x is of any dtype that torch has memory for; complex numbers
    go as pairs of real ones. Sums (`sum@`) are of those dtypes that a line names, and of complex ones.

    out    a dense tensor of the plan's shape and x's dtype, where the result lies; x must then want no gradient
    empty  what a rank has of which there are fewer rows than ranks: "nothing", an extent of 0; or "one" row of ones, x
           and result likewise, for models that fail without rows. Nobody else sees it, and its gradient is zero
    """
    if type(plan) is not Reshard:
        check_plan("switch", plan, Reshard)
    if out is None and empty == "nothing" and is_eager(x):  # `_shown` takes a while
        line, adjoint, _ = plan.texts
        return _eagerly(x, line, adjoint, plan.comm, plan)
    if out is None:
        return _shown(x, plan, 1, empty)
    if empty != "nothing":
        raise ArgumentError(f"switch: empty is {empty!r}, with `out` wanted 'nothing'")
    check_device(x, plan.comm)
    check_device(out, plan.comm)
    (line, *_), extents = ways(plan)
    _switch_out(x, out, line, plan.comm, plan, extents)
    return out


def ways(plan: Any) -> Tuple[Tuple[str, ...], Tuple[int, ...]]:
    """The lines of a plan, or of a Way. A compiler has them without extents, which are numbers beside them and may be
    symbols: so plans of other extents have the same graph."""
    return (plan.forms, plan.extents) if torch.compiler.is_compiling() else (plan.texts, ())


def _switch_out(x: torch.Tensor, out: torch.Tensor, line: str, comm: Comm, plan: Optional[Reshard] = None,
                extents: Sequence[int] = ()) -> None:
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad) or tangent_of(x) is not None:
        raise ArgumentError("switch: with `out` there is no gradient, and x or out wants one")
    if x.is_complex():
        if not out.is_complex() or not torch.compiler.is_compiling() and out.is_conj():
            kind = "a view that conjugates what its memory holds" if out.is_complex() else f"{out.dtype}"
            raise ArgumentError(f"switch: out is {kind}, wanted a dense tensor of {x.dtype}")
        if not torch.compiler.is_compiling():
            src_shape, dst_shape = shapes_of(line, comm.rank)
            _fit(x, line, src_shape, comm.rank)
            _fit_out(out, x, line, dst_shape)
        _switch_out(pairs(x), torch.view_as_real(out), paired(line), comm, None, extents)
    elif is_eager(x) and is_eager(out):
        _reshard_out(x, out, line % tuple(extents), comm, plan)
    else:
        if not torch.compiler.is_compiling() and out.is_neg():  # which a compiler cannot ask
            raise ArgumentError("switch: out is a view that negates what its memory holds, wanted a dense tensor")
        torch.ops.heddle.reshard_out(x, out, line, extents, comm.number)


def split(x: torch.Tensor, plan: Reshard, *, empty: str = "nothing") -> torch.Tensor:
    """This rank's part of an x that every rank has whole (`* -> t@sp`), at the beginning of a sharded model.

    The parts of the gradient come together again on the way back: every rank gets the whole gradient of x. With
    `gather` at the end, outside of the two every rank computes what one rank would, and gradients of parameters there
    are whole, not addends; what goes from there to the sharded part by another way than x (an embedding of the
    timestep, of text) goes through `share`. `switch` in place of `split` leaves addends before it, too.

    empty  as `switch` has it: "nothing", or "one" row of ones on a rank that gets no rows
    """
    return _boundary("split", x, plan, empty)


def gather(x: torch.Tensor, plan: Reshard, *, empty: str = "nothing") -> torch.Tensor:
    """The whole of an x that is sharded (`t@sp -> *`), at the end of a sharded model.

    Every rank goes on with the whole and computes the same loss, which counts once: its gradient is cut on the way
    back. Where ranks have losses of their own, which are added, it is `switch`.

    empty  as `switch` has it: "one": a rank without rows comes with one row, which is left out
    """
    return _boundary("gather", x, plan, empty)


def _boundary(what: str, x: torch.Tensor, plan: Reshard, empty: str) -> torch.Tensor:
    check_plan(what, plan, Reshard)
    if "sum@" in plan.forms[0]:
        raise ArgumentError(f"{plan.line.text}: split and gather know no partial sums, switch does")
    return _shown(x, plan, 2, empty)


def _shown(x: torch.Tensor, plan: Reshard, way: int, empty: str) -> torch.Tensor:
    """`way`: which of the plan's lines the gradient goes by."""
    lines, extents = ways(plan)
    if empty == "nothing":
        return resharded(x, lines[0], lines[way], plan.comm, plan, extents)
    check_empty(empty)
    check_device(x, plan.comm)
    x = held(x, plan.src_shape)
    return filled(resharded(x, lines[0], lines[way], plan.comm, plan, extents), plan.dst_filled)


def resharded(x: torch.Tensor, line: str, back: str, comm: Comm, plan: Optional[Reshard] = None,
              extents: Sequence[int] = ()) -> torch.Tensor:
    """x by a line; its gradient goes by the line `back`. `plan`: one of this line, for tensors of some dtype.
    `extents`: those of lines that a compiler has without."""
    if is_eager(x):
        if extents:  # of a graph that is run now
            line, back = line % tuple(extents), back % tuple(extents)
        return _eagerly(x, line, back, comm, plan)
    check_device(x, comm)
    if x.is_complex():
        return _as_pairs(x, line, back, comm, extents)
    if is_transformed():
        return _Transformed.apply((line % tuple(extents), back % tuple(extents), comm, False), x)
    y, tangent = torch.ops.heddle.reshard(x, line, back, extents, comm.number), tangent_of(x)
    return y if tangent is None else forward_ad.make_dual(y, resharded(tangent, line, back, comm, None, extents))


def _eagerly(x: torch.Tensor, line: str, back: str, comm: Comm, plan: Optional[Reshard]) -> torch.Tensor:
    """`resharded` where nobody but autograd looks on: every call here is felt in a small switch."""
    if not x.is_cpu:
        check_device(x, comm)
    if x.is_complex():
        return _as_pairs(x, line, back, comm)
    if x.requires_grad and torch.is_grad_enabled():
        return _Resharded.apply(x, (line, back, comm, plan, ()))
    return _reshard(x, line, comm, plan)


def _as_pairs(x: torch.Tensor, line: str, back: str, comm: Comm, extents: Sequence[int] = ()) -> torch.Tensor:
    """Complex numbers, whose shape is looked at while it is known that they are."""
    if not torch.compiler.is_compiling():
        _fit(x, line % tuple(extents), shapes_by(line, extents, comm.rank)[0], comm.rank)
    return torch.view_as_complex(resharded(pairs(x), paired(line), paired(back), comm, None, extents))


def packed(xs: List[torch.Tensor], line: str, back: str, comm: Comm, extents: Sequence[int] = ()) -> torch.Tensor:
    """Tensors of one shape as one, by a line whose first dim counts them. The rest as `resharded` has it."""
    if all(x.is_complex() for x in xs):
        if not torch.compiler.is_compiling():
            _fit_packed(xs, line % tuple(extents), shapes_by(line, extents, comm.rank)[0], comm.rank)
        return torch.view_as_complex(packed([pairs(x) for x in xs], paired(line), paired(back), comm, extents))
    if is_transformed():
        return _Transformed.apply((line % tuple(extents), back % tuple(extents), comm, True), *xs)
    y, tangents = torch.ops.heddle.reshard_packed(xs, line, back, extents, comm.number), [tangent_of(x) for x in xs]
    if all(tangent is None for tangent in tangents):
        return y
    addends = [torch.zeros_like(x) if tangent is None else tangent for x, tangent in zip(xs, tangents)]
    return forward_ad.make_dual(y, packed(addends, line, back, comm, extents))


def pairs(x: torch.Tensor) -> torch.Tensor:
    """Complex numbers as real ones, in a dim more."""
    return torch.view_as_real(x.resolve_conj())


def _fake(x: torch.Tensor, line: str, back: str, extents: Sequence[Any], comm: int) -> torch.Tensor:
    rank = by_number(comm).rank
    src_shape, dst_shape = shapes_by(line, extents, rank)
    line = line.replace("%d", "%s") % tuple(extents)
    _moved_as(x, line)
    _fit(x, line, src_shape, rank)
    return x.new_empty(dst_shape)


def _fake_packed(xs: List[torch.Tensor], line: str, back: str, extents: Sequence[Any], comm: int) -> torch.Tensor:
    rank = by_number(comm).rank
    src_shape, dst_shape = shapes_by(line, extents, rank)
    line = line.replace("%d", "%s") % tuple(extents)
    _moved_as(xs[0], line)
    _fit_packed(xs, line, src_shape, rank)
    return xs[0].new_empty(dst_shape)


def _fake_out(x: torch.Tensor, out: torch.Tensor, line: str, extents: Sequence[Any], comm: int) -> None:
    _fit_out(out, x, line.replace("%d", "%s") % tuple(extents), tuple(_fake(x, line, line, extents, comm).shape))


@functools.lru_cache(maxsize=None)
def _nothing() -> torch.Tensor:
    with torch.inference_mode(False):  # else it could not be saved for any backward
        return torch.empty(0)


_Way = Tuple[str, str, Comm, Optional[Reshard], Sequence[int]]  #: as `resharded` has it


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: torch.Tensor) -> None:
    _, line, back, extents, comm = inputs
    ctx.way = line, back, by_number(comm), None, extents
    _save(ctx)


def _save(ctx: Any) -> None:
    """Checkpointing recomputes up to the last saved tensor as soon as the first is wanted: this makes both the same
    place on all ranks, those without heads included, whose graph saves less."""
    ctx.save_for_backward(_nothing())


def _gradient(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    ctx.saved_tensors
    line, back, comm, _, extents = ctx.way
    return resharded(gradient, back, line, comm, None, extents)


def _backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
    return _gradient(ctx, gradient), None, None, None, None


#: those of a checkpoint, for one; None: there are none
_hooks_of_saved = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: True)


class _Resharded(torch.autograd.Function):
    """The operator's gradient without the operator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, way: _Way) -> torch.Tensor:
        ctx.way = way
        if _hooks_of_saved(True) is not None:
            _save(ctx)
        return _reshard(x, way[0], way[2], way[3])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
        return _gradient(ctx, gradient), None


class _Transformed(torch.autograd.Function):
    """The operators' derivatives for torch.func, one transform within another. `way`: line, line back, communicator,
    whether tensors go as one."""

    @staticmethod
    def forward(way: Tuple[str, str, Comm, bool], *xs: torch.Tensor) -> torch.Tensor:
        line, back, comm, is_packed = way
        return packed(list(xs), line, back, comm) if is_packed else resharded(xs[0], line, back, comm)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.way, *xs = inputs
        ctx.save_for_forward(*xs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
        line, back, comm, is_packed = ctx.way
        x = resharded(gradient, back, line, comm)
        return (None, *(x.unbind(0) if is_packed else (x,)))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Optional[torch.Tensor]) -> torch.Tensor:
        pairs = zip(tangents, ctx.saved_tensors)
        return _Transformed.forward(ctx.way, *(torch.zeros_like(x) if along is None else along for along, x in pairs))

    @staticmethod
    def vmap(info: Any, in_dims: Tuple[Any, ...], way: Any, *xs: torch.Tensor) -> Tuple[torch.Tensor, int]:
        """One after another: an operator moves what its line says."""
        each = [[x] * info.batch_size if dim is None else x.unbind(dim) for x, dim in zip(xs, in_dims[1:])]
        return torch.stack([_Transformed.forward(way, *one) for one in zip(*each)]), 0


def _backward_packed(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
    extents: Any = None if ctx.way[4] else []  # no numbers are no tensors: a list, to torch
    return list(_gradient(ctx, gradient).unbind(0)), None, None, extents, None


def _reshard_op(x: torch.Tensor, line: str, back: str, extents: Sequence[int], comm: int) -> torch.Tensor:
    return _reshard(x, line % tuple(extents), by_number(comm))


def _reshard_packed_op(xs: List[torch.Tensor], line: str, back: str, extents: Sequence[int], comm: int) -> torch.Tensor:
    return _reshard_packed(xs, line % tuple(extents), by_number(comm))


def _reshard_out_op(x: torch.Tensor, out: torch.Tensor, line: str, extents: Sequence[int], comm: int) -> None:
    _reshard_out(x, out, line % tuple(extents), by_number(comm))


for _device in ("CPU", "CUDA"):
    _ops.impl("reshard", _reshard_op, _device)
    _ops.impl("reshard_packed", _reshard_packed_op, _device)
    _ops.impl("reshard_out", _reshard_out_op, _device)
torch.library.register_fake("heddle::reshard", _fake, lib=_ops)
torch.library.register_fake("heddle::reshard_packed", _fake_packed, lib=_ops)
torch.library.register_fake("heddle::reshard_out", _fake_out, lib=_ops)
torch.library.register_autograd("heddle::reshard", _backward, setup_context=_setup, lib=_ops)
torch.library.register_autograd("heddle::reshard_packed", _backward_packed, setup_context=_setup, lib=_ops)


def keep_order(*operators: Any) -> None:
    """A compiler leaves them in the order of the program, which is the same on all ranks: by tokens from one to the
    next, where this torch has them."""
    try:
        from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
    except ImportError:
        return
    for operator in operators:
        _register_effectful_op(operator.default, _EffectType.ORDERED)


keep_order(torch.ops.heddle.reshard, torch.ops.heddle.reshard_packed)
