"""Attention over a sequence that is sharded, as operators of torch."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from ..attention import Attention, LinearAttention, Place
from ..attention_lines import Way
from ..errors import ArgumentError, UnsupportedError
from ..families import Family, plan_of
from ..numbered import by_number
from . import on_device
from .blocks import accumulated
from .eager import is_transformed, tangent_of
from .linear_states import by_states
from .moved import check_device, check_plan, dtype_of
from .ones import check_empty, filled, held
from .reshard import keep_order, packed, resharded, ways
from .ring_op import ring_attention, told

_ops = torch.library.Library("heddle", "FRAGMENT")
_ops.define("attention(Tensor q, Tensor k, Tensor v, SymInt[] numbers, int plan) -> (Tensor, Tensor, Tensor)")
_ops.define("attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor ticket, SymInt[] numbers, int plan) "
            "-> (Tensor, Tensor, Tensor)")

#: of local heads, as torch.nn.functional.scaled_dot_product_attention: q, k, v [b, h, s, d] -> o
Local = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
_Pair = Tuple[torch.Tensor, torch.Tensor]  #: o and its log-sum-exp


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention, *, sdpa: Optional[Local] = None,
              heads_first: bool = True, empty: str = "nothing") -> Any:
    """o of this rank's rows of the sequence; q, k, v likewise, of any dtype that the method has. With gradients: those
    of a loss that is the sum over all ranks.

    "ulysses" moves q, k and v, as one where they have as many heads, so that every rank has the whole sequence of some
    heads, calls `sdpa` (None: torch's own) and moves o back: bitwise what one process gets where `sdpa` treats every
    head alike. Ranks that get no head wait.
    "gather-kv", where `sdpa` is given or the tensors are float16, moves k and v so that every rank has all rows of
    them, and calls `sdpa` with its own rows of q, whatever the number of heads.
    "ring" and, after moving heads as ulysses does, "usp" are torch's operations on float16: k and v come round in parts
    as large as a rank's share (heddle/turns.py), each is attended to by the kernel that torch would take, which says
    how much the part weighs, and gradients go home from part to part.
    Tensors of a device go by these three as float16 does, or by the library's own kernels there: `plan.kernels` says,
    "auto" takes the faster (torch/on_device.py), and `plan.chosen` tells.
    Otherwise methods are the library's own, of float32, float64 or bfloat16 in host memory; a backward that comes after
    more than `plan.saved_forwards` other forwards runs the forward again.
    Under autocast q, k and v are of its dtype, and so is o, as with torch's own attention.
    A plan with `log_sum_exp` gives (o, lse), lse [b, h, s] in float32 at least, by every method; `sdpa`, where there is
    one, then returns both. Where gradients are wanted lse has one, too, so that results of several sets of keys may be
    put together: by torch's operations, as above on a device, and "gather-kv" as "ring". "rsa" has it without.

    sdpa  gets and returns [b, h, s, d]. Where the plan is causal, or has key_lengths, it has to know; what autocast
          casts it casts itself

    heads_first  True: [b, h, s, d], as scaled_dot_product_attention has it; False: [b, s, h, d]
    empty        as `switch` has it: with "one" a rank without rows comes with one row, and gets one of ones
    """
    check_plan("attention", plan, Attention)
    _look(q, k, v, plan)
    if sdpa is None:
        q, k, v = as_autocast(q, k, v)
    if heads_first:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    q, k, v = _held(q, k, v, plan, empty)
    if plan.log_sum_exp:
        if empty != "nothing":
            raise ArgumentError(f"{plan.text}: with log_sum_exp empty is {empty!r}, wanted 'nothing'")
        o, lse = _with_lse(q, k, v, plan, sdpa)
        return o.transpose(1, 2) if heads_first else o, lse
    if plan.method in ("ulysses", "local"):
        o = _ulysses(q, k, v, plan, sdpa or _own(plan))
    elif plan.method == "gather-kv" and sdpa is not None:
        o = _gathered(q, k, v, plan, sdpa)
    elif sdpa is not None:
        raise ArgumentError(f"{plan.text}: method {plan.method} is the library's own, sdpa is for ulysses, gather-kv "
                            "and local")
    elif _is_of_library(q) or on_device.by_library(q, k, v, plan, _by_torch, _planned):
        o = _planned(q, k, v, plan)
    else:
        o = _by_torch(q, k, v, plan)
    o = _filled(o, plan, empty)
    return o.transpose(1, 2) if heads_first else o


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: LinearAttention, *,
                     heads_first: bool = True, empty: str = "nothing") -> torch.Tensor:
    """The same of a linear attention (`Comm.linear_attention`): the library's own, of float32, float64 or bfloat16 in
    host memory; of a device's tensors and of float16, by any method, torch's operations on this rank's rows and on
    states that go between ranks as the method says. "lasp" and "scan" there, and the library's own, have no derivatives
    of forward mode and are refused by transforms of torch.func.

    o is of the dtype of q, k and v, which are of one; sums are of float32 at least. Autocast changes neither."""
    check_plan("linear_attention", plan, LinearAttention)
    _look(q, k, v, plan)
    if heads_first:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    q, k, v = _held(q, k, v, plan, empty)
    if not _is_of_library(q):
        if plan.method in ("lasp", "scan"):
            _autograd_only(q, k, v, plan)
        _fit(plan, q, k, v, dtype_of(q, plan))
        o = by_states(q, k, v, plan)
    else:
        o = _planned(q, k, v, plan)
    o = _filled(o, plan, empty)
    return o.transpose(1, 2) if heads_first else o


def of_family(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, numbers: Sequence[Any], family: int, log_sum_exp: bool,
              method: str) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """[b, s, h, d]: attention by "ring", or "local" with its log-sum-exp, of which a compiler has the family alone."""
    q, k, v = as_autocast(q, k, v)
    wants = log_sum_exp and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if method == "local" or wants or not _is_of_library(q):
        o, lse = torch.ops.heddle.ring_attention(*(x.transpose(1, 2) for x in (q, k, v)), numbers, family)
        return o.transpose(1, 2), lse
    o, lse, _ = torch.ops.heddle.attention(q, k, v, numbers, family)
    return o, lse if log_sum_exp else None


def _with_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention, sdpa: Any) -> _Pair:
    """[b, s, h, d] -> o likewise, lse [b, h, s]"""
    if plan.method in ("ulysses", "local"):
        return _ulysses_with_lse(q, k, v, plan, sdpa or (lambda q, k, v: ring_attention(q, k, v, plan)))
    if sdpa is not None:
        raise ArgumentError(f"{plan.text}: with log_sum_exp sdpa is for ulysses and local")
    if not _is_of_library(q) or torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        if plan.method == "rsa":
            raise UnsupportedError(f"{plan.text}: rsa has a log-sum-exp of the library's tensors and without gradients")
        return _in_turns(q, k, v, plan)
    _autograd_only(q, k, v, plan)
    return torch.ops.heddle.attention(q, k, v, *told(plan))[:2]


def _ulysses_with_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention, sdpa: Any) -> _Pair:
    _fit(plan, q, k, v, dtype_of(q, plan))
    if plan.method == "local":
        _whole_rows(plan)
        o, lse = sdpa(*(x.transpose(1, 2) for x in (q, k, v)))
        return o.transpose(1, 2), lse
    return _by_heads_with_lse(q, k, v, plan, sdpa)


def _by_heads_with_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention, attend: Any) -> _Pair:
    found: List[torch.Tensor] = []

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        o, lse = attend(q, k, v)
        found.append(lse)
        return o
    o = _by_heads(q, k, v, plan, call)
    assert plan.to_heads_of_lse is not None
    return o, _moved_back(found[0].transpose(1, 2)[..., None], plan.to_heads_of_lse, plan)[..., 0].transpose(1, 2)


def _moved(x: torch.Tensor, way: Way, plan: Attention) -> torch.Tensor:
    (there, back), extents = ways(way)
    return resharded(x, there, back, plan.comm, None, extents)


def _moved_back(x: torch.Tensor, way: Way, plan: Attention) -> torch.Tensor:
    (there, back), extents = ways(way)
    return resharded(x, back, there, plan.comm, None, extents)


def _packed(xs: List[torch.Tensor], way: Way, plan: Attention) -> Sequence[torch.Tensor]:
    (there, back), extents = ways(way)
    return packed(xs, there, back, plan.comm, extents).unbind(0)


def _held(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any, empty: str) -> Sequence[torch.Tensor]:
    check_empty(empty)
    if empty == "nothing":
        return q, k, v
    return [held(x, plan.local_shape(heads, width)) for x, heads, width in (
        (q, plan.heads, plan.width), (k, plan.kv_heads, plan.width), (v, plan.kv_heads, plan.dv))]


def _filled(o: torch.Tensor, plan: Any, empty: str) -> torch.Tensor:
    if empty == "nothing":
        return o
    return filled(o, [length or min(whole, 1) for length, whole in zip(o.shape, plan.line.shape)])


def as_autocast(*given: torch.Tensor) -> Sequence[torch.Tensor]:
    """As torch's own attention takes them: moved in autocast's dtype, and of one dtype on ranks without heads, too."""
    kind = given[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return given
    dtype = torch.get_autocast_dtype(kind)
    return [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in given]


def _is_of_library(x: torch.Tensor) -> bool:
    """Does the library's own attention take such tensors? Torch's operations take all."""
    return (x.is_cpu or x.is_meta) and x.dtype != torch.float16


def _look(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_device(x, plan.comm)
        if x.dim() != 4:
            raise ArgumentError(f"{plan.text}: {name} has {x.dim()} dims, wanted 4")


def _by_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention) -> torch.Tensor:
    if plan.method == "gather-kv":
        return _gathered(q, k, v, plan, _own(plan))
    if plan.method in ("ring", "usp"):
        return _in_turns(q, k, v, plan)[0]
    raise UnsupportedError(f"{plan.text}: a tensor of {q.dtype} on {q.device}: method {plan.method} is of float32, "
                           "float64 and bfloat16 in host memory; ulysses, gather-kv, ring and usp are of devices "
                           "and float16, too")


def _planned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any) -> torch.Tensor:
    _autograd_only(q, k, v, plan)
    return torch.ops.heddle.attention(q, k, v, *told(plan))[0]


def _autograd_only(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any) -> None:
    if any(tangent_of(x) is not None for x in (q, k, v)):
        raise UnsupportedError(f"{plan.text}: method {plan.method} has no forward-mode derivative, ulysses has torch's")
    if is_transformed():
        raise UnsupportedError(f"{plan.text}: method {plan.method} is not seen by transforms of torch.func: ulysses "
                               "is, and torch.autograd sees both")


def _own(plan: Attention) -> Local:
    if plan.key_lengths is not None:
        raise UnsupportedError(f"{plan.text}: torch's own attention knows no key_lengths: pass sdpa, with a mask")

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask, is_causal = None, plan.causal
        if is_causal and q.shape[2] != k.shape[2]:  # torch's own begins with the first key
            rows, keys = torch.arange(q.shape[2], device=q.device), torch.arange(k.shape[2], device=q.device)
            mask, is_causal = keys <= rows[:, None] + plan.first, False
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal, scale=plan.scale, enable_gqa=plan.is_grouped)
    return call


def _ulysses(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention, sdpa: Local) -> torch.Tensor:
    if plan.method == "local":
        _whole_rows(plan)
        return sdpa(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    return _by_heads(q, k, v, plan, lambda q, k, v: sdpa(q, k, v) if q.shape[1] > 0 else nothing_of(q, k, v))


def _whole_rows(plan: Attention) -> None:
    if plan.q_shape[1] != plan.line.shape[1]:
        raise UnsupportedError(f"{plan.text}: method local has whole sequences, this rank has {plan.q_shape[1]} of "
                               f"{plan.line.shape[1]} rows: ulysses, ring and the others attend over all ranks")


def _by_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention, attend: Local) -> torch.Tensor:
    """Rows of all heads [b, s, h, d] to more rows of some of them [b, h, s, d], and back: o as kernels leave it in
    memory, [b, s, h, d], which is then not copied first."""
    if plan.to_heads is None:
        axes = "two axes" if plan.method == "usp" else "one axis"
        raise UnsupportedError(f"{plan.text}: {plan.method} wants the sequence on {axes} and whole heads")
    alone, together = plan.to_heads
    if not plan.is_grouped:
        q, k, v = _packed([q, k, v], together, plan)
    else:
        q = _moved(q, alone, plan).transpose(1, 2)
        k, v = _packed([k, v], together, plan)
    return _moved_back(attend(q, k, v).transpose(1, 2), alone, plan)


def _in_turns(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention) -> _Pair:
    _autograd_only(q, k, v, plan)
    _fit(plan, q, k, v, dtype_of(q, plan))
    if plan.method == "usp":
        return _by_heads_with_lse(q, k, v, plan, lambda q, k, v: ring_attention(q, k, v, plan))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o, lse = ring_attention(q, k, v, plan)
    return o.transpose(1, 2), lse


def _gathered(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Attention, sdpa: Local) -> torch.Tensor:
    if plan.to_whole is None:
        raise UnsupportedError(f"{plan.text}: gather-kv with fewer key heads wants them cut evenly")
    _fit(plan, q, k, v, dtype_of(q, plan))
    k, v = _packed([k, v], plan.to_whole, plan)
    q = q.transpose(1, 2)
    return (sdpa(q, k, v) if q.shape[2] > 0 else nothing_of(q, k, v)).transpose(1, 2)


def nothing_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A rank without heads or rows has the graph of the others, so that it comes to their backward."""
    return q + (k.sum() + v.sum())


def _told(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy where all its strides are zero, as of an expanded number: the library takes that for a dense one; or
    where on a device the elements of a head lie apart."""
    return x if any(x.stride()) and (x.stride(3) == 1 or on_device.space_of(x) == "host") else x.contiguous()


def _place(x: torch.Tensor) -> Place:
    return x.data_ptr(), x.stride()


def _fit(plan: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dtype: str) -> None:
    for name, x, heads, width in (("q", q, plan.heads, plan.width), ("k", k, plan.kv_heads, plan.width),
                                  ("v", v, plan.kv_heads, plan.dv)):
        wanted = plan.local_shape(heads, width)
        if x.shape != wanted or dtype_of(x, plan) != dtype:
            raise ArgumentError(f"{plan.text}: {name} is {x.dtype}{tuple(x.shape)} in [b, s, h, d], rank "
                                f"{plan.comm.rank} wants {dtype}{wanted}")


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, numbers: Sequence[int],
               plan: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = plan_of(numbers, plan).of(dtype_of(q, "attention"), on_device.space_of(q))
    _fit(made, q, k, v, made.line.dtype)
    q, k, v = _told(q), _told(k), _told(v)
    o, lse = on_device.result(made, made.local_shape(made.heads, made.dv), q), _lse_of(made, q)
    more = _when(made, q, *((lse.data_ptr(),) if lse.numel() else ()))
    return o, lse, torch.tensor([made.number, made.execute(_place(q), _place(k), _place(v), _place(o), *more)])


def _when(made: Any, x: torch.Tensor, *lse: int) -> Sequence[int]:
    """What a call takes besides its arrays: where the log-sum-exp goes, and on a device its stream."""
    return lse if made.space == "host" else (*(lse or (0,)), on_device.stream_of(x))


def _lse_of(plan: Any, q: torch.Tensor) -> torch.Tensor:
    """Where it is not wanted, [0]."""
    b, s, h, _ = q.shape
    return q.new_empty((b, h, s) if plan.log_sum_exp else (0,), dtype=accumulated(q.dtype))


def _attention_backward(d_o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ticket: torch.Tensor,
                        numbers: Sequence[int], plan: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    d_o, q, k, v = _told(d_o), _told(q), _told(k), _told(v)
    made = plan_of(numbers, plan).of(dtype_of(q, "attention"), on_device.space_of(q))
    inputs, (number, at) = (_place(q), _place(k), _place(v)), ticket.tolist()
    if made.number != number or not made.holds(at):  # the same on every rank: all of them count and keep plans alike
        again = on_device.result(made, d_o.shape, d_o)
        at = made.execute(*inputs, _place(again), *_when(made, q))
    out: List[torch.Tensor] = [on_device.result(made, tuple(x.shape), x) for x in (q, k, v)]
    given = inputs if isinstance(made, LinearAttention) else ()
    made.execute_backward(at, *given, _place(d_o), *(_place(x) for x in out), *_when(made, q)[1:])
    return out[0], out[1], out[2]


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    q, k, v, *ctx.plan = inputs
    ctx.held = by_number(ctx.plan[1])  # as long as this graph is there
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, output[2])


def _backward(ctx: Any, d_o: torch.Tensor, *_: Any) -> Tuple[Any, ...]:
    q, k, v, ticket = ctx.saved_tensors
    return *torch.ops.heddle.attention_backward(d_o, q, k, v, ticket, *ctx.plan), None, None


def _twice(*_: Any) -> Any:
    raise UnsupportedError("attention by a method of the library is differentiated once only: ulysses is as often as "
                           "torch's own")


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, numbers: Sequence[Any],
          plan: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = by_number(plan)
    if not isinstance(made, Family):
        _fit(made, q, k, v, dtype_of(q, made))
    ticket = q.new_empty((2,), dtype=torch.int64, device="cpu" if on_device.space_of(q) == "device" else None)
    return q.new_empty([*q.shape[:3], v.shape[3]]), _lse_of(made, q), ticket


for _device in ("CPU", "CUDA"):
    _ops.impl("attention", _attention, _device)
    _ops.impl("attention_backward", _attention_backward, _device)
torch.library.register_fake("heddle::attention", _fake, lib=_ops)
torch.library.register_fake("heddle::attention_backward",
                            lambda d_o, q, k, v, ticket, *_: tuple(x.new_empty(x.shape) for x in (q, k, v)), lib=_ops)
torch.library.register_autograd("heddle::attention", _backward, setup_context=_setup, lib=_ops)
torch.library.register_autograd("heddle::attention_backward", _twice, lib=_ops)
keep_order(torch.ops.heddle.attention, torch.ops.heddle.attention_backward)
