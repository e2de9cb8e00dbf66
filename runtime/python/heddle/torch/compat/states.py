"""Linear attention with decay, as LASP calls it."""
from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch

from ...attention import LinearAttention
from ...comm import Comm
from ...errors import ArgumentError
from ...numbered import by_number
from ...options import plain
from ..attention_op import _attention, _attention_backward, _is_of_library, _twice, linear_attention
from ..reshard import keep_order
from .exchange import number_of, ranks_of
from .groups import checked, comm_of
from .heads import shown

_ops = torch.library.Library("heddle", "FRAGMENT")
_ops.define("lasp(Tensor q, Tensor k, Tensor v, Tensor slopes, SymInt[] rows, str method, int comm) -> "
            "(Tensor, Tensor)")
_ops.define("lasp_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor slopes, Tensor ticket, SymInt[] rows, "
            "str method, int comm) -> (Tensor, Tensor, Tensor)")


def lasp(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: Any, group: Any = None, *,
         sizes: Optional[Sequence[int]] = None, method: str = "lasp2") -> torch.Tensor:
    """o_i = sum over j <= i of exp(-slope (i - j)) (q_i . k_j) v_j, of a sequence of which every rank has its rows:
    q, k [b, h, n, d] and v [b, h, n, e], of one dtype. Any rows; o has its gradient. Collective.

    slopes  one of each head, 0 at least, of any shape; o has no gradient by them
    sizes   the ranks' rows; None: as many as this one has, and where that is wrong it is MismatchError, on every rank
    method  "lasp2" gathers states, "lasp" hands them from rank to rank, "scan" adds them up in log2(ranks) steps
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.dim() != 4 or not x.shape[1] * x.shape[3] or \
                x.layout is not torch.strided:
            raise ArgumentError(f"lasp: {name} is {shown(x)}, wanted a tensor [b, h, n, d] with heads and a width, "
                                "dense")
    ranks, slopes = ranks_of(group), _numbers(slopes)
    rows = [q.shape[2]] * ranks if sizes is None else checked("sizes", sizes, ranks)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if torch.compiler.is_compiling():
        o: torch.Tensor = torch.ops.heddle.lasp(q, k, v, slopes, rows, method, number_of(group))[0]
    else:
        o = linear_attention(q, k, v, _plan(q, v, slopes, rows, method, comm_of(group)), heads_first=False)
    return o.transpose(1, 2)


def _numbers(slopes: Any) -> torch.Tensor:
    if not isinstance(slopes, torch.Tensor):
        try:
            slopes = torch.as_tensor(plain(slopes), dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError, ArgumentError):  # whatever torch makes of it
            raise ArgumentError(f"lasp: slopes is {slopes!r}, wanted a number of each head") from None
    if slopes.is_complex() or slopes.is_meta or slopes.layout is not torch.strided:
        raise ArgumentError(f"lasp: slopes are {slopes.dtype} on {slopes.device}, {slopes.layout}: wanted real numbers")
    return slopes.detach()


def _plan(q: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor, rows: Sequence[int], method: str,
          comm: Comm) -> LinearAttention:
    b, _, h, d = q.shape
    problem = f"f32[b={b} s={sum(rows)} h={h} d={d}] on [sp={comm.size}]: s@sp({' '.join(map(str, rows))})"
    decay = torch.exp(-slopes.double()).flatten().tolist()
    return comm.linear_attention(problem, method, decay=decay, dv=v.shape[3])


# In a compiled graph lengths are symbols and slopes a tensor: the plan is made, or found, when the operator runs.


def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor, rows: Sequence[int], method: str,
             comm: int) -> Tuple[torch.Tensor, torch.Tensor]:
    plan = _plan(q, v, slopes, rows, method, by_number(comm))
    if _is_of_library(q):
        o, _, ticket = _attention(q, k, v, (), plan.number)
        return o, ticket
    with torch.no_grad():
        o = linear_attention(q.detach(), k.detach(), v.detach(), plan, heads_first=False)
    return o.contiguous(), torch.zeros(2, dtype=torch.int64)


def _backward(d_o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor,
              ticket: torch.Tensor, rows: Sequence[int], method: str,
              comm: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    plan = _plan(q, v, slopes, rows, method, by_number(comm))
    if _is_of_library(q):
        return _attention_backward(d_o, q, k, v, ticket, (), plan.number)
    # An operator's body is below autograd, which is wanted here: forward runs again for its graph.
    with torch.enable_grad(), torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False):
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        o = linear_attention(given[0], given[1], given[2], plan, heads_first=False)
        dq, dk, dv = (x.contiguous() for x in torch.autograd.grad(o, given, d_o))
    return dq, dk, dv


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.rows, ctx.method, ctx.comm = inputs
    ctx.held = by_number(ctx.comm)  # as long as this graph is there
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])


def _gradient(ctx: Any, d_o: torch.Tensor, _: Any) -> Tuple[Any, ...]:
    back = torch.ops.heddle.lasp_backward(d_o, *ctx.saved_tensors, ctx.rows, ctx.method, ctx.comm)
    return (*back, None, None, None, None)


for _device in ("CPU", "CUDA"):
    _ops.impl("lasp", _forward, _device)
    _ops.impl("lasp_backward", _backward, _device)
torch.library.register_fake("heddle::lasp", lambda q, k, v, *_: (
    q.new_empty([*q.shape[:3], v.shape[3]]), q.new_empty((2,), dtype=torch.int64, device="cpu")), lib=_ops)
torch.library.register_fake("heddle::lasp_backward", lambda d_o, q, k, v, *_: tuple(
    x.new_empty(x.shape) for x in (q, k, v)), lib=_ops)
torch.library.register_autograd("heddle::lasp", _gradient, setup_context=_setup, lib=_ops)
torch.library.register_autograd("heddle::lasp_backward", _twice, lib=_ops)
keep_order(torch.ops.heddle.lasp, torch.ops.heddle.lasp_backward)
