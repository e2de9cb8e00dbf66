"""Rows of neighbours for what mixes rows that are near: convolutions, windows, tables of positions."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

import torch

from ..errors import ArgumentError
from .ones import filled
from .ranks import Dims, Ranks
from .step import Step

_Rows = Tuple[int, int, int]  #: before this rank's, of this rank, behind


class Around:
    """An argument gets rows around this rank's, and the result is cut to this rank's again. Two pieces of work on one
    module, of which the second knows what the first has added."""

    def __init__(self, ranks: Ranks, dims: str, over: str, out_dims: str):
        self.ranks, self.over, self.dims, self._out = ranks, over, Dims(dims), Dims(out_dims or dims)
        self.dims.need(over)
        self._out.need(over)
        self._added: Optional[_Rows] = None

    def given(self, x: torch.Tensor) -> torch.Tensor:
        """x with more rows: `added` of them."""
        ranks, dims, at = self.ranks, self.dims, self.dims.names.index(self.over)
        unfolded = ranks.unfold(x, dims, self.over)
        inner, behind = _inner(dims, self.over), unfolded.shape[at + 1:]
        times = math.prod(behind[:inner])
        rows = unfolded.flatten(at, at + inner) if inner else unfolded
        before, length = rows.shape[:at], rows.shape[at]
        more = self._with_rows(rows, at, times)
        self._added = more[1], max(length, times), more[2]
        whole = filled(more[0], [*before, times, *behind[inner:]]) if length == 0 else more[0]
        return whole.reshape(_folded(dims, self.over, [*before, whole.shape[at], *behind[inner:]], inner))

    def _with_rows(self, x: torch.Tensor, at: int, times: int) -> Tuple[torch.Tensor, int, int]:
        raise NotImplementedError

    def left(self, y: torch.Tensor) -> torch.Tensor:
        """The result of this rank's rows: there may be more or fewer of them for each than there were, as an upsampling
        or a stride makes them."""
        if self._added is None or y.dim() != len(self._out.groups):
            raise ArgumentError(f"'{self._out.text}': the result has the shape {tuple(y.shape)}")
        axis = next(i for i, group in enumerate(self._out.groups) if self.over in group)
        group = self._out.groups[axis]
        before = [self.ranks.extent(self._out, name) for name in group[: group.index(self.over)]]
        lead, (first, mine, last) = math.prod(before), self._added
        there, given = y.shape[axis] // max(lead, 1), first + mine + last
        cuts = [rows * there for rows in (first, mine, last)]
        if y.shape[axis] != lead * there or any(rows % given for rows in cuts):
            raise ArgumentError(f"'{self._out.text}': of {given} rows, {first} before and {last} behind this rank's, "
                                f"the module made {y.shape[axis]}: wanted as many of each, or a whole number of them")
        y = y.unflatten(axis, (lead, there)).narrow(axis + 1, cuts[0] // given, cuts[1] // given)
        return y.flatten(axis, axis + 1)


@dataclass(frozen=True)
class Halo(Step):
    """The module gets `before` rows of the ranks before this one's and `after` of those behind (as many, where it is
    not given), and its result is cut to this rank's rows: what a convolution, a window or a whole block of them
    reaches. At the ends of the whole there are none, so the module's own padding counts there. Parts may be smaller
    than the halo.

    dims, over  of the argument; `(h _)` is an axis that has several rows for each of h, `(h 8)` one that has eight, all
                of which go together. before and after are rows of this axis
    out         the result that is cut: `output`, or a place in it
    out_dims    its dims, where they are others
    """

    what: str
    dims: str
    over: str
    before: int
    after: Optional[int] = None
    out: str = "output"
    out_dims: str = ""

    def _around(self, ranks: Ranks) -> Around:
        for name, rows in (("before", self.before), ("after", self.after)):
            if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 0):
                raise ArgumentError(f"{name} is {rows!r}, wanted a number of rows")
        return _Neighbours(ranks, self)


@dataclass(frozen=True)
class Numbered(Step):
    """A module that numbers the rows it takes from 0, to add positions say, numbers this rank's as the whole's: of an
    argument of integers, which are the numbers, this rank's begin where its block does; another one gets blank rows in
    front of it, by which the result is cut again. Nothing is sent."""

    what: str
    dims: str
    over: str
    out: str = "output"
    out_dims: str = ""

    def _around(self, ranks: Ranks) -> Around:
        return _Numbers(ranks, self.dims, self.over, self.out_dims)


class _Neighbours(Around):
    def __init__(self, ranks: Ranks, step: Halo):
        super().__init__(ranks, step.dims, step.over, step.out_dims)
        self._reach = step.before, step.before if step.after is None else step.after

    def _with_rows(self, x: torch.Tensor, at: int, times: int) -> Tuple[torch.Tensor, int, int]:
        blocks = [(lo * times, (lo + n) * times) for lo, n in
                  (self.ranks.part(self.over, rank) for rank in range(self.ranks.comm.size))]
        wanted = [(max(lo - self._reach[0], 0), min(hi + self._reach[1], blocks[-1][1])) if hi > lo else (lo, hi)
                  for lo, hi in blocks]
        before = self._from(x, at, blocks, [(first, lo) for (first, _), (lo, _) in zip(wanted, blocks)], 1)
        after = self._from(x, at, blocks, [(hi, last) for (_, last), (_, hi) in zip(wanted, blocks)], -1)
        y = torch.cat([*reversed(before), x, *after], at)
        lo, hi = blocks[self.ranks.comm.rank]
        first, last = wanted[self.ranks.comm.rank]
        return y, lo - first, last - hi

    def _from(self, x: torch.Tensor, at: int, blocks: Sequence[Tuple[int, int]], wanted: Sequence[Tuple[int, int]],
              way: int) -> List[torch.Tensor]:
        """What this rank wants of the ranks before it (way 1) or behind it (-1), the nearest first: for each distance
        one reshard, of rows in blocks of those who have them to blocks of those who want them."""
        size, rank = len(blocks), self.ranks.comm.rank
        found = []
        for distance in range(way, way * size, way):
            shared = {peer: (max(blocks[peer][0], wanted[peer + distance][0]),
                             min(blocks[peer][1], wanted[peer + distance][1]))
                      for peer in range(size) if 0 <= peer + distance < size}
            sent = [max(hi - lo, 0) for lo, hi in (shared.get(peer, (0, 0)) for peer in range(size))]
            if not any(sent):
                continue
            taken = [sent[peer - distance] if 0 <= peer - distance < size else 0 for peer in range(size)]
            first = shared[rank][0] - blocks[rank][0] if sent[rank] else 0
            piece = x.narrow(at, first, sent[rank]).movedim(at, 0)
            layouts = [f"e@{self.ranks.axis}({' '.join(map(str, lengths))})" for lengths in (sent, taken)]
            line = (f"f32[e={sum(sent)} c={math.prod(piece.shape[1:])}] on {self.ranks.comm.mesh}: "
                    f"{layouts[0]} -> {layouts[1]}")
            got = self.ranks.moved(piece.reshape(sent[rank], math.prod(piece.shape[1:])), line)
            found.append(got.reshape(taken[rank], *piece.shape[1:]).movedim(0, at))
        return found


class _Numbers(Around):
    def given(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_floating_point() or x.is_complex():
            return super().given(x)
        unfolded = self.ranks.unfold(x, self.dims, self.over)
        times = math.prod(unfolded.shape[self.dims.names.index(self.over) + 1:][: _inner(self.dims, self.over)])
        self._added = None
        lo, length = self.ranks.part(self.over)
        return x + lo * times if length else x

    def left(self, y: torch.Tensor) -> torch.Tensor:
        return y if self._added is None else super().left(y)

    def _with_rows(self, x: torch.Tensor, at: int, times: int) -> Tuple[torch.Tensor, int, int]:
        lo, length = self.ranks.part(self.over)
        blank = x.new_zeros([lo * times if length and axis == at else n for axis, n in enumerate(x.shape)])
        return (torch.cat([blank, x], at) if length else x), blank.shape[at] if length else 0, 0


def _inner(dims: Dims, over: str) -> int:
    """How many names stand behind it in its axis."""
    group = next(group for group in dims.groups if over in group)
    return len(group) - 1 - group.index(over)


def _folded(dims: Dims, over: str, extents: List[int], inner: int) -> List[int]:
    """The tensor's own shape, where `over` and what is inside it are one extent."""
    shape, at = [], 0
    for group in dims.groups:
        count = len(group) - (inner if over in group else 0)
        shape.append(math.prod(extents[at: at + count]))
        at += count
    return shape
