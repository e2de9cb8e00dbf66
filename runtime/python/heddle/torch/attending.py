"""Attention within a module, of rows that are cut over ranks."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple, Union

import torch

from ..attention import Attention, check_method, check_saved
from ..errors import ArgumentError, UnsupportedError
from ..options import scale_of
from .attention_op import Local, as_autocast, attention
from .key_mask import of_keys, of_scores, with_key_scores
from .ranks import Ranks, is_name
from .step import Step
from .within import Mode


@dataclass(frozen=True)
class Attend(Step):
    """Within the module torch.nn.functional.scaled_dot_product_attention sees the whole of the dim `over`, of which
    this rank has a block: `heddle.torch.attention` by `method`, keeping the last `saved_forwards` for their
    backwards. A module that calls no such attention, or torch.nn.MultiheadAttention, is refused when it runs; so is a
    checkpoint between the module and its attention, which would recompute without this step.

    over  one dim; or several, ("l", "s"), where the module attends over rows of one and then rows of the other, of
          both of which this rank has its block. By ulysses, and by gather-kv where there is a mask, rows and masks are
          as one process has them; else methods take the rows in another order, and masks of keys alone, [_, _, 1,
          keys], of bool or added to the scores (within 2^14 either way; a sample whose keys are all hidden sees them
          all). Such a mask may everywhere be of this rank's keys, too
    alike  rows in front of those of `over` that every rank has: a token of a class. By gather-kv, without a mask
    """

    over: Union[str, Tuple[str, ...]]
    method: str = "ulysses"
    saved_forwards: int = 1
    alike: int = 0

    def __post_init__(self) -> None:
        over = (self.over,) if isinstance(self.over, str) else self.over
        if not isinstance(over, tuple) or not over or not all(is_name(name) for name in over) or (
                len(set(over)) != len(over)):
            raise ArgumentError(f"Attend: over is {self.over!r}, wanted the name of a dim, or names in a tuple")
        check_method(self.method)
        if self.method == "local":
            raise ArgumentError("Attend: method local is attention of this rank's rows alone, wanted one of all ranks")
        check_saved("Attend", self.saved_forwards)
        if type(self.alike) is not int or self.alike < 0 or self.alike and (
                self.method != "gather-kv" or len(over) > 1):
            raise ArgumentError(f"Attend: alike is {self.alike!r}, over {self.over!r} by {self.method}: wanted a "
                                "number of rows, and of some one dim by gather-kv")

    def _mode(self, ranks: Ranks, where: str) -> "Attending":
        return Attending(self, ranks, where)


def _how_saved() -> Tuple[bool, Any]:
    """What a checkpoint changes for whatever it calls: reentrant, that gradients are wanted; else who saves tensors."""
    return torch.is_grad_enabled(), torch._C._autograd._top_saved_tensors_default_hooks(True)


class Attending(Mode):
    """While it is entered, attention is that of all ranks."""

    none = ("called no scaled_dot_product_attention of torch.nn.functional: its attention, if it has one, was that of "
            "this rank alone")

    def __init__(self, step: Attend, ranks: Ranks, where: str = ""):
        super().__init__()
        self._step, self._ranks, self._saved, self._where = step, ranks, _how_saved(), f"{where}{step}"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.multi_head_attention_forward:
            raise UnsupportedError(f"{self._where}: torch.nn.MultiheadAttention hides its attention, which would be "
                                   "that of this rank alone: wanted a module that calls scaled_dot_product_attention")
        if func is torch.nn.functional.scaled_dot_product_attention and not self._ranks.is_attending:
            self.calls += 1
            try:
                return self._attend(*args, **(kwargs or {}))
            except (ArgumentError, UnsupportedError) as error:
                raise type(error)(f"{self._where}: {error}") from error
        return func(*args, **(kwargs or {}))

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                attn_mask: Optional[torch.Tensor] = None, dropout_p: float = 0.0, is_causal: bool = False,
                scale: Optional[float] = None, enable_gqa: bool = False) -> torch.Tensor:
        step, ranks, scale = self._step, self._ranks, scale_of("attention", scale)
        if dropout_p > 0.0 or query.dim() != 4:
            raise UnsupportedError(f"attention of {tuple(query.shape)}, dropout {dropout_p}: wanted 4 dims, no "
                                   "dropout")
        if _how_saved() != self._saved:
            raise UnsupportedError("between the module and its attention is a checkpoint (or torch.no_grad, or "
                                   "saved_tensors_hooks), which would recompute it on this rank alone: name a module "
                                   "within")
        rows, is_whole = Rows(ranks, step.over), step.method in ("ulysses", "gather-kv")
        if step.alike:
            if attn_mask is not None or is_causal:
                raise UnsupportedError(f"rows that are alike stand before those of {rows.of[0]}: wanted attention "
                                       "without a mask")
            return self._behind_alike(rows, query, key, value, scale)
        if is_causal and len(rows.of) > 1 and not is_whole:
            raise UnsupportedError(f"{step.method} knows no causal of rows of {' and '.join(rows.of)}: ulysses and "
                                   "gather-kv do")
        query, key, value = (rows.held(x) for x in as_autocast(query, key, value))
        if attn_mask is not None:
            attn_mask = of_scores(attn_mask, query, key)
            if not is_whole:
                of_keys(attn_mask, step.method, query.shape[1], key.shape[1])
            attn_mask = rows.mask_of_all(attn_mask) if is_whole or ranks.attend else rows.mask_of_mine(attn_mask)
        attend = ranks.attend or (_by_plan if is_whole or attn_mask is None else _by_columns)
        ranks.is_attending = True
        try:
            return rows.padded(attend(rows, step, query, key, value, attn_mask, is_causal, scale))
        finally:
            ranks.is_attending = False

    def _behind_alike(self, rows: "Rows", query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      scale: Optional[float]) -> torch.Tensor:
        """Queries of the rows that are here; keys and values of those of all ranks."""
        n = self._step.alike
        if query.shape[2] <= n or key.shape[2] != query.shape[2]:
            raise ArgumentError(f"queries {tuple(query.shape)}, keys {tuple(key.shape)}: wanted {n} rows that are "
                                f"alike, and those of {rows.of[0]} behind them")
        self._ranks.is_attending = True
        try:
            query, *both = as_autocast(query, key, value)
            key, value = (torch.cat([x[:, :, :n], rows.of_all(x[:, :, n:])], 2) for x in both)
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, scale=scale, enable_gqa=query.shape[1] != key.shape[1])
        finally:
            self._ranks.is_attending = False


class Rows:
    """Rows of several dims one after another, each of them cut over the ranks: a rank has its block of the first, then
    its block of the second."""

    def __init__(self, ranks: Ranks, over: Union[str, Tuple[str, ...]]):
        self.of = (over,) if isinstance(over, str) else over
        self.ranks = ranks
        #: per rank, of every dim
        self._blocks = [[ranks.part(name, rank)[1] for name in self.of] for rank in range(ranks.comm.size)]
        self._mine = self._blocks[ranks.comm.rank]
        self.total = sum(sum(blocks) for blocks in self._blocks)
        #: as a layout has them
        self.lengths = "" if len(self.of) == 1 else f"({' '.join(str(sum(blocks)) for blocks in self._blocks)})"

    def held(self, x: torch.Tensor) -> torch.Tensor:
        """x[_ _ rows _] without rows that nobody looks at."""
        lengths = [max(length, 1) for length in self._mine]
        if x.shape[2] != sum(lengths):
            raise ArgumentError(f"{tuple(x.shape)} has {x.shape[2]} rows, this rank has "
                                f"{' and '.join(f'{n} of {name}' for n, name in zip(lengths, self.of))}")
        if 0 not in self._mine:
            return x
        return torch.cat([piece.narrow(2, 0, n) for piece, n in zip(x.split(lengths, 2), self._mine)], 2)

    def mask_of_all(self, mask: torch.Tensor) -> torch.Tensor:
        """A mask [_ _ rows keys] as one process has it: where a module makes one of the keys that it sees, those of all
        ranks'."""
        if self._is_mine(mask):
            return self.of_all(mask.transpose(2, 3)).transpose(2, 3)
        return mask

    def mask_of_mine(self, mask: torch.Tensor) -> torch.Tensor:
        """Of a mask of keys those of this rank."""
        if self._is_mine(mask):
            return self.held(mask.transpose(2, 3)).transpose(2, 3)
        return mask.expand(*mask.shape[:3], self.total).index_select(3, self.places(mask.device))

    def _is_mine(self, mask: torch.Tensor) -> bool:
        """Is it of this rank's keys, and not of all? Else it has to be that."""
        queries, keys = mask.shape[2:]
        is_mine = keys == sum(max(length, 1) for length in self._mine) != self.total
        if is_mine and queries == 1:
            return True
        if queries not in (1, self.total) or keys not in (1, self.total):
            raise ArgumentError(f"the mask is {tuple(mask.shape)}{', of its rows' if is_mine else ''}, wanted one "
                                f"of all {self.total} rows of {' and '.join(self.of)}, as one process has it, or "
                                "[_, _, 1, keys] of this rank's")
        return False

    def of_all(self, x: torch.Tensor) -> torch.Tensor:
        """x[b h rows d] of all ranks."""
        x, comm = self.held(x), self.ranks.comm
        x = self.ranks.moved(x, f"f32[b={x.shape[0]} h={x.shape[1]} s={self.total} d={x.shape[3]}] on {comm.mesh}: "
                                f"s@{self.ranks.axis}{self.lengths} -> *")
        return self.by_dim(x) if len(self.of) > 1 else x

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """The way back. What there is nothing of stays in the graph, which is that of the other ranks."""
        if 0 not in self._mine:
            return x
        one = x.new_ones([*x.shape[:2], 1, x.shape[3]])
        pieces = zip(x.split(self._mine, 2), self._mine)
        return torch.cat([part for piece, n in pieces for part in ((piece,) if n > 0 else (piece, one))], 2)

    def by_dim(self, x: torch.Tensor) -> torch.Tensor:
        """From the rows of one rank after another to those of one dim after another."""
        ranks, dims = range(len(self._blocks)), range(len(self.of))
        pieces = x.split([n for blocks in self._blocks for n in blocks], 2)
        return torch.cat([pieces[rank * len(self.of) + dim] for dim in dims for rank in ranks], 2)

    def places(self, device: torch.device) -> torch.Tensor:
        """Of this rank's rows, among those of one dim after another."""
        before = [sum(self.ranks.sizes[name] for name in self.of[:i]) for i in range(len(self.of))]
        parts = [self.ranks.part(name) for name in self.of]
        return torch.cat([torch.arange(n, device=device) + (first + lo) for first, (lo, n) in zip(before, parts)])

    def by_rank(self, x: torch.Tensor) -> torch.Tensor:
        """The way back."""
        ranks, dims = range(len(self._blocks)), range(len(self.of))
        pieces = x.split([self._blocks[rank][dim] for dim in dims for rank in ranks], 2)
        return torch.cat([pieces[dim * len(self._blocks) + rank] for rank in ranks for dim in dims], 2)


def _by_plan(rows: Rows, step: Attend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
             mask: Optional[torch.Tensor], is_causal: bool, scale: Optional[float]) -> torch.Tensor:
    """Of this rank's rows."""
    (b, h, _, d), ranks, comm = q.shape, rows.ranks, rows.ranks.comm
    plan = comm.attention(f"f32[b={b} s={rows.total} h={h} d={d}] on {comm.mesh}: s@{ranks.axis}{rows.lengths}",
                          step.method, kv_heads=k.shape[1], causal=is_causal, scale=scale,
                          saved_forwards=step.saved_forwards)
    local = None
    if mask is not None or is_causal and len(rows.of) > 1 or step.method == "ulysses" and len(rows.of) > 1:
        local = (_of_heads if step.method == "ulysses" else _of_rows)(rows, mask, plan)
    o = attention(q, k, v, plan, sdpa=local)
    # A rank without heads or rows has not looked at the mask, and comes to its gradient as the others do.
    return o + mask[..., :0].sum() if mask is not None and mask.requires_grad else o


def _by_columns(rows: Rows, step: Attend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor,
                is_causal: bool, scale: Optional[float]) -> torch.Tensor:
    """The same with a mask of this rank's keys, which goes where they go."""
    width, scale = q.shape[3], q.shape[3] ** -0.5 if scale is None else scale
    if scale == 0:
        raise UnsupportedError(f"{step.method} knows no mask beside a scale of 0")
    more = of_keys(mask, step.method, q.shape[1], k.shape[1])
    q, k, v = with_key_scores(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), more, scale)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return _by_plan(rows, step, q, k, v, None, is_causal, scale)[..., :width]


def _of_heads(rows: Rows, mask: Optional[torch.Tensor], plan: Attention) -> Local:
    """Attention of this rank's heads, which sees all rows as one process does; so does its mask."""
    lo, count = rows.ranks.cut(plan.kv_heads, plan.comm.rank)
    group = plan.heads // plan.kv_heads
    if mask is not None and mask.shape[1] > 1:
        mask = mask.narrow(1, lo * group, count * group)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if len(rows.of) > 1:
            q, k, v = (rows.by_dim(x) for x in (q, k, v))
        o = _attention(q, k, v, mask, plan, plan.causal)
        return rows.by_rank(o) if len(rows.of) > 1 else o
    return call


def _of_rows(rows: Rows, mask: Optional[torch.Tensor], plan: Attention) -> Local:
    """Attention of this rank's rows, which sees all keys as one process does; of its mask, its rows."""
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        places, mine, k, v = rows.places(q.device), mask, rows.by_dim(k), rows.by_dim(v)
        if mask is None and plan.causal:
            mine = torch.arange(k.shape[2], device=q.device) <= places[:, None]
        elif mask is not None and mask.shape[-2] > 1:
            mine = mask.index_select(-2, places)
        return _attention(q, k, v, mine, plan, plan.causal and mask is not None)
    return call


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Optional[torch.Tensor], plan: Attention,
               is_causal: bool) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=plan.scale,
                                                            enable_gqa=plan.heads != plan.kv_heads)
