"""Softmax attention of some rows to some keys, with the logarithm of the sum of what was exponentiated, by which blocks
of keys are put together: by the kernels that torch's own attention would take, else by products of chunks of rows."""
from __future__ import annotations

import math
from typing import Callable, Iterator, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F

_aten = torch.ops.aten
_SCORES_MAX = 1 << 24  #: of one chunk

_Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], Tuple[torch.Tensor, torch.Tensor]]
_Gradients = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Kernel(NamedTuple):
    """q [b, h, s, d]; k, v [b, h, keys, d], none of them empty -> o as q, lse [b, h, s]. `causal`: row i sees keys up
    to i, of as many. The gradients are a block's where o and lse are those of all blocks."""

    name: str
    forward: _Forward  #: q, k, v, causal, scale
    backward: Callable[..., _Gradients]  #: d_o, q, k, v, o, lse, causal, scale


def accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def kernel_for(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Kernel:
    """As torch chooses between flash and memory-efficient attention, of tensors with as many heads; where both are out
    (only cuDNN's is allowed, say) it is chunks."""
    if q.is_cpu or q.is_meta:
        return FLASH_OF_CPU
    with torch.inference_mode(False), torch.enable_grad():
        asked = torch.backends.cuda.SDPAParams(*(_as_in_training(x) for x in (q, k, v)), None, 0.0, False, False)
        if torch.backends.cuda.can_use_flash_attention(asked):
            return FLASH
        return EFFICIENT if torch.backends.cuda.can_use_efficient_attention(asked) else CHUNKS


def _as_in_training(x: torch.Tensor) -> torch.Tensor:
    """Of the shape of x and wanting gradients, which not all kernels have: an operator sees tensors that want none, and
    forward and backward are by one kernel."""
    return x.new_empty(x.shape[3]).expand(x.shape).requires_grad_()


def _flash_of_cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool,
                  scale: float) -> Tuple[torch.Tensor, torch.Tensor]:
    return _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)


def _flash_of_cpu_backward(d_o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
                           lse: torch.Tensor, causal: bool, scale: float) -> _Gradients:
    return _aten._scaled_dot_product_flash_attention_for_cpu_backward(d_o, q, k, v, o, lse, 0.0, causal, scale=scale)


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool,
           scale: float) -> Tuple[torch.Tensor, torch.Tensor]:
    width, (q, k, v) = q.shape[3], _padded(q, k, v)
    o, lse, *_ = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
    return o[..., :width], lse


def _flash_backward(d_o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
                    lse: torch.Tensor, causal: bool, scale: float) -> _Gradients:
    width, (d_o, q, k, v, o) = q.shape[3], _padded(d_o, q, k, v, o)
    seed, offset = (torch.empty(shape, dtype=torch.uint64, device=q.device) for shape in ((2,), ()))  # of no dropout
    dq, dk, dv = _aten._scaled_dot_product_flash_attention_backward(
        d_o, q, k, v, o, lse.contiguous(), None, None, q.shape[2], k.shape[2], 0.0, causal, seed, offset, scale=scale)
    return dq[..., :width], dk[..., :width], dv[..., :width]


def _padded(*given: torch.Tensor) -> Sequence[torch.Tensor]:
    """To a width of whole eights, which flash wants; torch's own attention does so, too."""
    more = -given[0].shape[3] % 8
    return [F.pad(x, (0, more)) for x in given] if more else given


def _efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool,
               scale: float) -> Tuple[torch.Tensor, torch.Tensor]:
    o, lse, *_ = _aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=scale)
    return o, lse[:, :, : q.shape[2]]


def _efficient_backward(d_o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
                        lse: torch.Tensor, causal: bool, scale: float) -> _Gradients:
    lse = F.pad(lse, (0, -q.shape[2] % 32), value=math.inf).contiguous()  # as its forward leaves it
    o = o.transpose(1, 2).contiguous().transpose(1, 2)  # likewise: its rows are taken to lie a row of all heads apart
    seed, offset = (torch.empty((), dtype=torch.int64, device=q.device) for _ in range(2))
    return _aten._scaled_dot_product_efficient_attention_backward(
        d_o, q, k, v, None, o, lse, seed, offset, 0.0, [True, True, True, False], causal, scale=scale)[:3]


def _chunks(q: torch.Tensor, k: torch.Tensor, causal: bool) -> Iterator[Tuple[slice, slice, Optional[torch.Tensor]]]:
    """Rows, the keys that they see, and which of these they do not."""
    b, h, rows, _ = q.shape
    each = max(_SCORES_MAX // (b * h * k.shape[2]), 1)
    for start in range(0, rows, each):
        stop = min(start + each, rows)
        keys = slice(0, stop if causal else k.shape[2])
        hidden = torch.ones(stop - start, stop, dtype=torch.bool, device=q.device).triu(start + 1) if causal else None
        yield slice(start, stop), keys, hidden


def _scores(q: torch.Tensor, k: torch.Tensor, hidden: Optional[torch.Tensor], scale: float) -> torch.Tensor:
    scores = (q @ k.mT).mul_(scale)
    return scores if hidden is None else scores.masked_fill_(hidden, -math.inf)


def _in_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool,
               scale: float) -> Tuple[torch.Tensor, torch.Tensor]:
    q, k, v = (x.to(accumulated(x.dtype)) for x in (q, k, v))
    o, lse = torch.empty_like(q), q.new_empty(q.shape[:3])
    for rows, keys, hidden in _chunks(q, k, causal):
        scores = _scores(q[:, :, rows], k[:, :, keys], hidden, scale)
        lse[:, :, rows] = torch.logsumexp(scores, 3)
        o[:, :, rows] = scores.sub_(lse[:, :, rows, None]).exp_() @ v[:, :, keys]
    return o, lse


def _in_chunks_backward(d_o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
                        lse: torch.Tensor, causal: bool, scale: float) -> _Gradients:
    d_o, q, k, v, o = (x.to(accumulated(x.dtype)) for x in (d_o, q, k, v, o))
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    delta = (d_o * o).sum(3, keepdim=True)
    for rows, keys, hidden in _chunks(q, k, causal):
        weights = _scores(q[:, :, rows], k[:, :, keys], hidden, scale).sub_(lse[:, :, rows, None]).exp_()
        dv[:, :, keys] += weights.mT @ d_o[:, :, rows]
        d_scores = (d_o[:, :, rows] @ v[:, :, keys].mT).sub_(delta[:, :, rows]).mul_(weights).mul_(scale)
        dq[:, :, rows] = d_scores @ k[:, :, keys]
        dk[:, :, keys] += d_scores.mT @ q[:, :, rows]
    return dq, dk, dv


def with_lse_gradient(d_o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
                      d_lse: torch.Tensor) -> Sequence[torch.Tensor]:
    """d_o, q, k, v and o by which a kernel's backward gives the gradients of a loss that the log-sum-exp is in, too. A
    kernel takes the sum of d_o o off the gradient of the weights, to which d_lse has to come: columns are added where
    that sum gets it, and nothing else does."""
    q, k, v = (F.pad(x, (0, 8)) for x in (q, k, v))
    d_o, o = F.pad(d_o, (0, 8)), F.pad(o, (0, 8))
    o[..., -1], d_o[..., -1] = 1, -d_lse
    return d_o, q, k, v, o


FLASH_OF_CPU = Kernel("flash of the CPU", _flash_of_cpu, _flash_of_cpu_backward)
FLASH = Kernel("flash", _flash, _flash_backward)
EFFICIENT = Kernel("efficient", _efficient, _efficient_backward)
CHUNKS = Kernel("chunks", _in_chunks, _in_chunks_backward)
