"""Linear attention by torch's own operations and gathered states (LASP-2): of tensors that the library's is not for.

A state, g^(last - j) k_j v_j added up over a rank's rows j, is all that others know of them. Rows are worked on in
chunks: within one by their products with one another, beyond it by states."""
from __future__ import annotations

from typing import Dict

import torch

from ..attention import LinearAttention
from .reshard import resharded

_CHUNK = 64  #: rows


def _known(plan: LinearAttention, device: torch.device) -> Dict[str, torch.Tensor]:
    """What a plan says, on a device: sent there once, since a stream that is captured takes nothing from the host."""
    known: Dict[str, torch.Tensor] = {} if torch.compiler.is_compiling() else plan.known.setdefault(str(device), {})
    if not known:
        every = torch.tensor(plan.decay or [1.0] * plan.heads, dtype=torch.float64, device=device)
        known["decay"] = every[plan.slices[2]]
        if plan.states is not None:
            known["before"] = torch.tensor(plan.states.before, device=device)
            known["behind"] = torch.tensor(plan.states.behind, device=device)
    return known


class _Decay:
    """Of this rank's heads. Powers are taken in float64: those of a rounded one drift off with the length."""

    def __init__(self, heads: torch.Tensor, dtype: torch.dtype):
        self._heads, self._dtype = heads, dtype

    def to_the(self, exponents: torch.Tensor) -> torch.Tensor:
        """[h, ...]; 0 where exponents[...] are negative."""
        base = self._heads.view(-1, *(1,) * exponents.dim())
        return torch.where(exponents >= 0, base ** exponents.clamp(min=0), 0.0).to(self._dtype)


def by_states(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: LinearAttention) -> torch.Tensor:
    """q, k [b, s, h, d] and v [b, s, h, dv] of this rank's rows -> o, in arithmetic of float32 at least."""
    dtype = q.dtype
    q, k, v = (x.transpose(1, 2).to(torch.promote_types(dtype, torch.float32)) for x in (q, k, v))
    known = _known(plan, q.device)
    decay = _Decay(known["decay"], q.dtype)
    o = _own_rows(q, k, v, decay, plan.bidirectional)
    if plan.states is not None:
        rows = torch.arange(q.shape[2], device=q.device)
        o = o + _other_rows(q, k, v, decay, rows.flip(0), rows + 1, known["before"], plan)
        if plan.bidirectional:
            o = o + _other_rows(q, k, v, decay, rows, rows.flip(0) + 1, known["behind"], plan)
    return o.to(dtype).transpose(1, 2)


def _other_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: _Decay, here: torch.Tensor,
                there: torch.Tensor, between: torch.Tensor, plan: LinearAttention) -> torch.Tensor:
    """What rows see of other blocks on one side. `here`: how far each is from the end that those on the other side see,
    `there`: from the end of the next block on this side, `between`: from there on to every block."""
    assert plan.states is not None
    state = (k * decay.to_the(here)[..., None]).transpose(2, 3) @ v
    states = resharded(state[None].contiguous(), *plan.states.lines, plan.comm)
    weights = decay.to_the(between)
    return (q * decay.to_the(there)[..., None]) @ torch.einsum("hr,rbhde->bhde", weights, states)


def _own_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: _Decay,
              is_bidirectional: bool) -> torch.Tensor:
    """q, k [b, h, s, d] and v [b, h, s, dv] -> o, as if there were no other rows."""
    n, chunk = q.shape[2], min(_CHUNK, max(q.shape[2], 1))
    more = -n % chunk  # rows of zeros
    q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, more)).unflatten(2, (-1, chunk)) if n else x[:, :, None]
               for x in (q, k, v))
    rows, chunks = (torch.arange(length, device=q.device) for length in (q.shape[3], q.shape[2]))
    apart, chunks_apart = rows[:, None] - rows, chunks[:, None] - chunks
    o = (q @ k.transpose(3, 4) * decay.to_the(apart.abs() if is_bidirectional else apart)[:, None]) @ v
    for side in (1, -1) if is_bidirectional else (1,):  # chunks before, chunks behind
        here, there = (rows + 1, rows.flip(0)) if side > 0 else (rows.flip(0) + 1, rows)
        states = (k * decay.to_the(there)[:, None, :, None]).transpose(3, 4) @ v
        weights = decay.to_the((side * chunks_apart - 1) * chunk)
        o = o + (q * decay.to_the(here)[:, None, :, None]) @ torch.einsum("hcx,bhxde->bhcde", weights, states)
    return o.flatten(2, 3)[:, :, :n]
