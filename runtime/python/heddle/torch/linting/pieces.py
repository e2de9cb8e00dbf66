"""What a rank has of a tensor: the whole, its block of some dims, or something else."""
from __future__ import annotations

from dataclasses import dataclass
from typing import FrozenSet, Iterator, Optional, Tuple

import torch

from ..proving.proof import far, within
from ..ranks import Ranks


@dataclass(frozen=True)
class Held:
    """Of a tensor that goes into a module or comes out of it."""

    place: str  #: `hidden_states`, `rotary_emb.0`, `output`: as a step has it
    shape: Tuple[int, ...]  #: of the whole
    cut: Optional[FrozenSet[str]] = None  #: along these dims; none: it is whole; None: nothing can be said
    is_other: bool = False  #: it has a shape that it should have, and other numbers

    @property
    def is_whole(self) -> bool:
        return self.cut is not None and not self.cut and not self.is_other


def held(ranks: Ranks, place: str, mine: torch.Tensor, whole: Optional[torch.Tensor]) -> Held:
    if whole is None or mine.dim() != whole.dim() or mine.dtype != whole.dtype or any(
            ranks.part(name)[1] == 0 for name in ranks.cuts & set(ranks.sizes)):
        return Held(place, tuple(mine.shape if whole is None else whole.shape))
    if not _has_shape(ranks, mine, whole):
        return Held(place, tuple(whole.shape))
    cut = _block(ranks, mine, whole)
    return Held(place, tuple(whole.shape), cut, cut is None)


def mended(ranks: Ranks, mine: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A tensor with other numbers than it should have, with those: what comes behind it is judged by itself. Its
    gradient goes on as it was."""
    block = min(_blocks(ranks, mine, whole), key=lambda x: _apart(mine, x))
    return mine + (block - mine).detach() if mine.requires_grad else block.clone()


def _has_shape(ranks: Ranks, mine: torch.Tensor, whole: torch.Tensor) -> bool:
    return all(n == m or next(_blocks_of_axis(ranks, whole, axis, n), None) is not None
               for axis, (n, m) in enumerate(zip(mine.shape, whole.shape)))


def _block(ranks: Ranks, mine: torch.Tensor, whole: torch.Tensor) -> Optional[FrozenSet[str]]:
    """The dims along which the one is this rank's block of the other; None: it is none."""
    for axis, (n, m) in enumerate(zip(mine.shape, whole.shape)):
        if n != m:
            for names, block in _blocks_of_axis(ranks, whole, axis, n):
                others = _block(ranks, mine, block)
                if others is not None:
                    return names | others
            return None
    return frozenset() if far(mine, whole) <= within(whole, 1000) else None


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.detach().double() - b.double()).abs().sum())


def _blocks(ranks: Ranks, mine: torch.Tensor, whole: torch.Tensor) -> Iterator[torch.Tensor]:
    """All of the shape, of which the one that is meant is the nearest."""
    axis = next((axis for axis, (n, m) in enumerate(zip(mine.shape, whole.shape)) if n != m), None)
    if axis is None:
        yield whole
        return
    for _, block in _blocks_of_axis(ranks, whole, axis, mine.shape[axis]):
        yield from _blocks(ranks, mine, block)


def _blocks_of_axis(ranks: Ranks, whole: torch.Tensor, axis: int,
                    n: int) -> Iterator[Tuple[FrozenSet[str], torch.Tensor]]:
    """Of n rows: of a dim that may be folded with others there, or of two that stand one after the other."""
    m = whole.shape[axis]
    for name, extent in ranks.sizes.items():
        lo, length = ranks.part(name)
        if name not in ranks.cuts or extent < 2 or m % extent or n * extent != m * length:
            continue
        for inner in range(1, m // extent + 1):
            if m // extent % inner == 0:
                block = whole.unflatten(axis, (m // extent // inner, extent, inner)).narrow(axis + 1, lo, length)
                yield frozenset([name]), block.flatten(axis, axis + 2)
    for a, rows in ranks.sizes.items():
        for b, others in ranks.sizes.items():
            if a != b and rows + others == m and ranks.part(a)[1] + ranks.part(b)[1] == n:
                both = zip(whole.split([rows, others], axis), (a, b))
                yield frozenset([a, b]), torch.cat([x.narrow(axis, *ranks.part(name)) for x, name in both], axis)
