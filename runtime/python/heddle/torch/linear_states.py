"""Linear attention by torch's own operations and states that are gathered (lasp2), go from rank to rank (lasp) or are
added up over twice as many ranks in every step (scan): of tensors that the library's does not take, those of a device
and of float16.

A state, g^(last - j) k_j v_j added up over a rank's rows j, is all that others know of them. Rows are worked on in
chunks: within one by their products with one another, beyond it by states."""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch

from ..attention import LinearAttention
from ..families import plan_of
from ..numbered import by_number
from .moved import _reshard
from .reshard import keep_order, resharded, ways
from .ring_op import told

_ops = torch.library.Library("heddle", "FRAGMENT")
_ops.define("states_along(Tensor state, SymInt[] numbers, int plan, bool up) -> Tensor")
_ops.define("states_known(Tensor like, int heads, int blocks, SymInt[] numbers, int plan) -> Tensor[]")

_CHUNK = 64  #: rows


class _Known(NamedTuple):
    """What a plan says, on a device."""

    decay: torch.Tensor  #: of this rank's heads
    before: torch.Tensor  #: as `States` has it; [0] where there are none
    behind: torch.Tensor


def _known(plan: LinearAttention, like: torch.Tensor, heads: int) -> _Known:
    """Sent there once, since a stream that is captured takes nothing from the host. To a compiler it is of numbers that
    may be symbols."""
    if torch.compiler.is_compiling():
        blocks = 0 if plan.states is None else len(plan.states.rows)
        return _Known(*torch.ops.heddle.states_known(like.detach(), heads, blocks, *told(plan)))
    known: Dict[str, _Known] = plan.known
    at = str(like.device)
    if at not in known:
        every = torch.tensor([1.0] * plan.heads if plan.decay is None else plan.decay, dtype=torch.float64,
                             device=like.device)
        sides = ([], []) if plan.states is None else (plan.states.before, plan.states.behind)
        known[at] = _Known(every[plan.slices[2]], *(torch.tensor(side, dtype=torch.int64, device=like.device)
                                                    for side in sides))
    return known[at]


class _Decay:
    """Of this rank's heads. Powers are taken in float64: those of a rounded one drift off with the length."""

    def __init__(self, heads: torch.Tensor, dtype: torch.dtype):
        self._heads, self._dtype = heads, dtype

    def to_the(self, exponents: torch.Tensor) -> torch.Tensor:
        """[h, ...]; 0 where exponents[...] are negative."""
        base = self._heads.view(-1, *(1,) * exponents.dim())
        return torch.where(exponents >= 0, base ** exponents.clamp(min=0), 0.0).to(self._dtype)


def by_states(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: LinearAttention) -> torch.Tensor:
    """q, k [b, s, h, d] and v [b, s, h, dv] of this rank's rows -> o, in arithmetic of float32 at least: under
    autocast, too."""
    with torch.autocast(q.device.type, enabled=False):
        return _by_states(q, k, v, plan)


def _by_states(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: LinearAttention) -> torch.Tensor:
    dtype = q.dtype
    q, k, v = (x.transpose(1, 2).to(torch.promote_types(dtype, torch.float32)) for x in (q, k, v))
    known = _known(plan, q, q.shape[1])
    decay = _Decay(known.decay, q.dtype)
    o = _own_rows(q, k, v, decay, plan.bidirectional)
    if plan.states is not None:
        rows = torch.arange(q.shape[2], device=q.device)
        o = o + _other_rows(q, k, v, decay, rows.flip(0), rows + 1, known.before, plan, True)
        if plan.bidirectional:
            o = o + _other_rows(q, k, v, decay, rows, rows.flip(0) + 1, known.behind, plan, False)
    return o.to(dtype).transpose(1, 2)


def _other_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: _Decay, here: torch.Tensor,
                there: torch.Tensor, between: torch.Tensor, plan: LinearAttention, up: bool) -> torch.Tensor:
    """What rows see of other blocks on one side: of those before, where states go `up`. `here`: how far each is from
    the end that those on the other side see, `there`: from the end of the next block on this side, `between`: from
    there on to every block."""
    assert plan.states is not None
    state = (k * decay.to_the(here)[..., None]).transpose(2, 3) @ v
    if plan.method in ("lasp", "scan"):
        state = torch.ops.heddle.states_along(state, *told(plan), up)
    else:
        (line, back), extents = ways(plan.states.way)
        states = resharded(state[None].contiguous(), line, back, plan.comm, None, extents)
        state = torch.einsum("hr,rbhde->bhde", decay.to_the(between), states)
    return (q * decay.to_the(there)[..., None]) @ state


def _along(state: torch.Tensor, numbers: Sequence[int], plan: int, up: bool) -> torch.Tensor:
    """What all blocks before this one (behind it, where not `up`) have come to at its edge. Its transpose is the same
    the other way."""
    made = plan_of(numbers, plan)
    with torch.autocast(state.device.type, enabled=False):
        return (_one_by_one if made.method == "lasp" else _by_doubling)(state, made, 1 if up else -1)


def _one_by_one(state: torch.Tensor, plan: LinearAttention, way: int) -> torch.Tensor:
    assert plan.states is not None
    found, order = torch.zeros_like(state), range(len(plan.states.rows))[::way]
    for place in order[:-1]:
        mine = state + _faded(found, plan, [plan.states.place])
        found = found + _shifted(mine, plan, way, [place]).sum(0)
    return found


def _by_doubling(state: torch.Tensor, plan: LinearAttention, way: int) -> torch.Tensor:
    assert plan.states is not None
    places, place, reach, mine = len(plan.states.rows), plan.states.place, 1, state
    while reach < places:  # mine: of this many blocks up to this one
        got = _shifted(mine, plan, reach * way, _places(places, reach * way))
        if got.shape[0]:
            mine = mine + _faded(got[0], plan, range(place, place - reach * way, -way))
        reach *= 2
    return _shifted(mine, plan, way, _places(places, way)).sum(0)


def _places(places: int, by: int) -> Sequence[int]:
    """That have one so far behind."""
    return range(max(-by, 0), places - max(by, 0))


def _faded(state: torch.Tensor, plan: LinearAttention, blocks: Sequence[int]) -> torch.Tensor:
    assert plan.states is not None
    decay = _known(plan, state, state.shape[1]).decay ** sum(plan.states.rows[place] for place in blocks)
    return state * decay.to(state.dtype)[:, None, None]


def _shifted(state: torch.Tensor, plan: LinearAttention, by: int, places: Sequence[int]) -> torch.Tensor:
    """[1, b, h, dk, dv], of who is so far before; [0, ...]: of nobody"""
    assert plan.states is not None
    held = state[None] if plan.states.place in places else state.new_empty((0, *state.shape))
    return _reshard(held, plan.states.shift(by, places), plan.comm)


def _known_of(like: torch.Tensor, heads: int, blocks: int, numbers: Sequence[int], plan: int) -> List[torch.Tensor]:
    return [x.clone() for x in _known(plan_of(numbers, plan), like, heads)]


def _setup(ctx: Any, inputs: Tuple[Any, ...], output: torch.Tensor) -> None:
    """Nothing is saved for checkpoints (reshard._save): the product with q that follows saves on every rank."""
    _, *ctx.plan, ctx.up = inputs
    ctx.held = by_number(ctx.plan[1])  # as long as this graph is there


def _backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
    return torch.ops.heddle.states_along(gradient, *ctx.plan, not ctx.up), None, None, None


for _device in ("CPU", "CUDA"):
    _ops.impl("states_along", _along, _device)
    _ops.impl("states_known", _known_of, _device)
torch.library.register_fake("heddle::states_along", lambda state, *_: state.new_empty(state.shape), lib=_ops)
torch.library.register_fake("heddle::states_known", lambda like, heads, blocks, *_: [
    like.new_empty((heads,), dtype=torch.float64), *(like.new_empty((blocks,), dtype=torch.int64) for _ in range(2))],
    lib=_ops)
torch.library.register_autograd("heddle::states_along", _backward, setup_context=_setup, lib=_ops)
keep_order(torch.ops.heddle.states_along)


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
