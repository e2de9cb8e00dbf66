"""Reshards of tensors as operators of torch."""
from __future__ import annotations

import functools
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch.autograd import forward_ad

from ..comm import Comm
from ..errors import ArgumentError, UnsupportedError
from ..numbered import by_number
from ..reshard import Reshard
from .eager import is_eager, is_transformed, tangent_of
from .ones import check_empty, filled, held
from .pooled import AS_BYTES, BY_DLPACK, DTYPES, pooled, tensor_of
from .texts import paired, shapes_by

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
    if out is None and empty == "nothing" and not torch.compiler.is_compiling():  # `_shown` takes a while
        line, adjoint, _ = plan.texts
        return resharded(x, line, adjoint, plan.comm, plan)
    if out is None:
        return _shown(x, plan, 1, empty)
    if empty != "nothing":
        raise ArgumentError(f"switch: empty is {empty!r}, with `out` wanted 'nothing'")
    check_device(x, plan.comm)
    check_device(out, plan.comm)
    (line, *_), extents = ways(plan)
    if x.is_complex() and out.is_complex():
        x, out_of_pairs, line = _pairs(x), torch.view_as_real(out), paired(line)
        _switch_out(x, out_of_pairs, line, plan.comm, None, extents)
    else:
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
    if is_eager(x) and is_eager(out):
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
    check_device(x, comm)
    if x.is_complex():
        return torch.view_as_complex(resharded(_pairs(x), paired(line), paired(back), comm, None, extents))
    is_seen = not is_eager(x)
    if is_seen and not is_transformed():
        y, tangent = torch.ops.heddle.reshard(x, line, back, extents, comm.number), tangent_of(x)
        return y if tangent is None else forward_ad.make_dual(y, resharded(tangent, line, back, comm, None, extents))
    if extents:  # of a graph that is run now
        line, back = line % tuple(extents), back % tuple(extents)
    if is_seen:
        return _Transformed.apply((line, back, comm, False), x)
    if x.requires_grad and torch.is_grad_enabled():
        return _Resharded.apply(x, (line, back, comm, plan, ()))
    return _reshard(x, line, comm, plan)


def packed(xs: List[torch.Tensor], line: str, back: str, comm: Comm, extents: Sequence[int] = ()) -> torch.Tensor:
    """Tensors of one shape as one, by a line whose first dim counts them. The rest as `resharded` has it."""
    if is_transformed():
        return _Transformed.apply((line % tuple(extents), back % tuple(extents), comm, True), *xs)
    y, tangents = torch.ops.heddle.reshard_packed(xs, line, back, extents, comm.number), [tangent_of(x) for x in xs]
    if all(tangent is None for tangent in tangents):
        return y
    addends = [torch.zeros_like(x) if tangent is None else tangent for x, tangent in zip(xs, tangents)]
    return forward_ad.make_dual(y, packed(addends, line, back, comm, extents))


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj())


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
