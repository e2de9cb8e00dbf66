"""Attention whose keys and values come round in turns (heddle/turns.py), as an operator of torch: of tensors that the
library's ring does not take, those of a device and of float16.

No rank holds more of others' keys and values at once than one rank's share. Beside that share lie, while it is there,
an Nth of its own rows, put together to be sent; where the wire stores into memory of the plan (docs/gpu.md), as much
again for every plan, of which there are one or a few each way (heddle/turns.py); and in a backward the sums of the
gradients of this rank's keys and values and of the part's, both in float32 at least."""
from __future__ import annotations

import functools
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple, TypeVar, cast

import torch

from ..attention import Attention
from ..errors import UnsupportedError
from ..families import plan_of
from ..numbered import by_number
from ..turns import Piece, Turn
from .blocks import accumulated, kernel_for, with_lse_gradient
from .eager import static
from .moved import _reshard, _reshard_packed
from .reshard import keep_order

_ops = torch.library.Library("heddle", "FRAGMENT")
_ops.define("ring_attention(Tensor q, Tensor k, Tensor v, SymInt[] numbers, int plan) -> (Tensor, Tensor)")
_ops.define("ring_attention_backward(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
            "SymInt[] numbers, int plan) -> (Tensor, Tensor, Tensor)")


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                   plan: Attention) -> Tuple[torch.Tensor, torch.Tensor]:
    """q, k, v [b, h, s, d] of this rank's rows -> o, lse [b, h, s]. Collective."""
    return torch.ops.heddle.ring_attention(q, k, v, *told(plan))


def told(plan: Any) -> Tuple[Sequence[int], int]:
    """An attention as operators take it. A compiler has its numbers, which may be symbols, and its family."""
    if not torch.compiler.is_compiling():
        return (), plan.number
    from .for_graph import for_graph
    return plan.numbers, for_graph(static(plan.family))


class _Blocks:
    """What rows of this rank and parts of the keys are to one another. Query heads of one key head are rows of it,
    where no mask is in the way: all see the same keys."""

    def __init__(self, plan: Attention, k: torch.Tensor):
        self.key_heads = k.shape[1]
        self.each = plan.heads // plan.kv_heads
        self.scale = plan.width ** -0.5 if plan.scale is None else plan.scale

    def of_rows(self, x: torch.Tensor, piece: Piece) -> torch.Tensor:
        """Of q or what is like it, or of the log-sum-exp: [b, key heads, each, rows, ...], a view."""
        return x[piece.samples, :, piece.rows].unflatten(1, (self.key_heads, self.each))

    def queries(self, x: torch.Tensor, piece: Piece) -> torch.Tensor:
        """The same as a kernel has it."""
        x = self.of_rows(x, piece)
        return x.flatten(1, 2) if piece.causal else x.flatten(2, 3)

    def keys(self, x: torch.Tensor, piece: Piece) -> torch.Tensor:
        x = x[piece.samples, :, piece.keys]
        return x.repeat_interleave(self.each, 1) if piece.causal and self.each > 1 else x

    def back(self, x: torch.Tensor, piece: Piece) -> torch.Tensor:
        """What a kernel says of its queries, as `of_rows`."""
        if piece.causal:
            return x.unflatten(1, (self.key_heads, self.each))
        return x.unflatten(2, (self.each, x.shape[2] // self.each))

    def back_of_keys(self, x: torch.Tensor, piece: Piece) -> torch.Tensor:
        return x.unflatten(1, (self.key_heads, self.each)).sum(2) if piece.causal and self.each > 1 else x


def _rounds(plan: Attention, k: torch.Tensor, v: torch.Tensor) -> Iterator[Tuple[Turn, torch.Tensor, torch.Tensor]]:
    """Turns, with the keys and values that are here in each. Who lets go of these before the next has one turn's."""
    for turn in plan.turns():
        if turn.lines is None:
            yield (turn, *(x if x.stride(3) == 1 else x.contiguous() for x in (k, v)))
        else:
            parts: List[torch.Tensor] = [x[:, :, turn.own] for x in (k, v)]
            yield (turn, *_reshard_packed(parts, turn.lines[0], plan.comm).unbind(0))


_Body = TypeVar("_Body", bound=Callable[..., Any])


def _without_autocast(body: _Body) -> _Body:
    """What is accumulated stays as wide as it is: autocast reaches what an operator calls."""
    @functools.wraps(body)
    def call(x: torch.Tensor, *more: Any) -> Any:
        with torch.autocast(x.device.type, enabled=False):
            return body(x, *more)
    return cast(_Body, call)


@_without_autocast
def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, numbers: Sequence[int],
             plan: int) -> Tuple[torch.Tensor, torch.Tensor]:
    made, q = plan_of(numbers, plan), q.contiguous()
    blocks, kind = _Blocks(made, k), accumulated(q.dtype)
    o = torch.zeros(q.shape, dtype=kind, device=q.device)
    lse = torch.full(q.shape[:3], -torch.inf, dtype=kind, device=q.device)
    for turn, keys, values in _rounds(made, k, v):
        for piece in turn.pieces if q.numel() else ():
            _add(blocks, piece, q, keys, values, o, lse)
        del keys, values
    return o.to(q.dtype), lse


def _add(blocks: _Blocks, piece: Piece, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
         lse: torch.Tensor) -> None:
    given = blocks.queries(q, piece), blocks.keys(k, piece), blocks.keys(v, piece)
    found = kernel_for(*given).forward(*given, piece.causal, blocks.scale)
    _merge(blocks.of_rows(o, piece), blocks.of_rows(lse, piece), *(blocks.back(x, piece) for x in found))


def _merge(o: torch.Tensor, lse: torch.Tensor, block: torch.Tensor, block_lse: torch.Tensor) -> None:
    """A block into what the blocks before it have come to, in place."""
    both = torch.logaddexp(lse, block_lse)
    o.mul_((lse - both).exp_()[..., None]).addcmul_(block, (block_lse - both).exp_()[..., None])
    lse.copy_(both)


@_without_autocast
def _backward(d_o: torch.Tensor, d_lse: Optional[torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
              o: torch.Tensor, lse: torch.Tensor, numbers: Sequence[int],
              plan: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made, q, d_o = plan_of(numbers, plan), q.contiguous(), d_o.contiguous()
    blocks, kind = _Blocks(made, k), accumulated(q.dtype)
    dq = torch.zeros(q.shape, dtype=kind, device=q.device)
    home = torch.zeros((2, *k.shape), dtype=kind, device=q.device)  # of this rank's own keys and values
    for turn, keys, values in _rounds(made, k, v):
        part = home if turn.lines is None else home.new_zeros((2, *keys.shape))
        for piece in turn.pieces if q.numel() else ():
            _add_gradients(blocks, piece, d_o, d_lse, q, keys, values, o, lse, dq, part)
        if turn.lines is not None:
            home[:, :, :, turn.own].add_(_reshard(part, turn.lines[1], made.comm))
        del keys, values, part
    dk, dv = (x.to(k.dtype, copy=True) for x in home)
    return dq.to(q.dtype), dk, dv


def _add_gradients(blocks: _Blocks, piece: Piece, d_o: torch.Tensor, d_lse: Optional[torch.Tensor], q: torch.Tensor,
                   k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, dq: torch.Tensor,
                   d_part: torch.Tensor) -> None:
    width = q.shape[3]
    of_q, of_k, of_v = blocks.queries(q, piece), blocks.keys(k, piece), blocks.keys(v, piece)
    of_d_o, of_o, of_lse = (blocks.queries(x, piece) for x in (d_o, o, lse))
    if d_lse is not None:
        given = of_d_o, of_q, of_k, of_v, of_o, blocks.queries(d_lse, piece)
        of_d_o, of_q, of_k, of_v, of_o = with_lse_gradient(*given)
    kernel = kernel_for(of_q, of_k, of_v)
    found = [x[..., :width] for x in kernel.backward(of_d_o, of_q, of_k, of_v, of_o, of_lse, piece.causal,
                                                     blocks.scale)]
    blocks.of_rows(dq, piece).add_(blocks.back(found[0], piece))
    for into, x in zip(d_part, found[1:]):
        into[piece.samples, :, piece.keys].add_(blocks.back_of_keys(x, piece))


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, *ctx.plan = inputs
    ctx.held = by_number(ctx.plan[1])  # as long as this graph is there
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output)


def _gradient(ctx: Any, d_o: Optional[torch.Tensor], d_lse: Optional[torch.Tensor]) -> Tuple[Any, ...]:
    saved = ctx.saved_tensors
    d_o = torch.zeros_like(saved[3]) if d_o is None else d_o
    return *torch.ops.heddle.ring_attention_backward(d_o, d_lse, *saved, *ctx.plan), None, None


def _twice(*_: Any) -> Any:
    raise UnsupportedError("attention by a ring is differentiated once only: ulysses is as often as torch's own")


for _device in ("CPU", "CUDA"):
    _ops.impl("ring_attention", _forward, _device)
    _ops.impl("ring_attention_backward", _backward, _device)
torch.library.register_fake(
    "heddle::ring_attention", lambda q, k, v, *_: (q.new_empty(q.shape), q.new_empty(
        q.shape[:3], dtype=accumulated(q.dtype))), lib=_ops)
torch.library.register_fake("heddle::ring_attention_backward", lambda d_o, d_lse, q, k, v, *_: tuple(
    x.new_empty(x.shape) for x in (q, k, v)), lib=_ops)
torch.library.register_autograd("heddle::ring_attention", _gradient, setup_context=_setup, lib=_ops)
torch.library.register_autograd("heddle::ring_attention_backward", _twice, lib=_ops)
keep_order(torch.ops.heddle.ring_attention, torch.ops.heddle.ring_attention_backward)
