"""What a module does along one dim: its arguments are changed in one row, and it is looked which rows of its result are
others; then it is run on fewer rows."""
from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from .solve import Folded, Part
from .trees import Tensors, fresh, tensors_of
from .wide import converted, in_dtype

Seen = Dict[int, Tuple[torch.Tensor, bool]]  #: by the row that was changed: which are others, and anything beside
Run = Callable[[Callable[[str, torch.Tensor], torch.Tensor]], Tensors]  #: by its changed arguments; its results


@dataclass(frozen=True)
class Finding:
    """Of a module and a dim."""

    kind: str  #: free, mixes, halo, causal, reduction, table, unknown
    why: str = ""  #: a sentence, where the kind alone does not say it
    rows: int = 0  #: of a halo, each way; of a causal one behind it, 0: all of them
    times: int = 1  #: so many rows of an argument are one of these, before a stride

    @property
    def is_free(self) -> bool:
        return self.kind == "free"

    @property
    def is_near(self) -> bool:
        """Rows so far away are enough for it, however many there are."""
        return self.kind in ("halo", "causal") and self.rows > 0

    @property
    def is_apart(self) -> bool:
        """No row reaches another one, whatever the module does with fewer of them."""
        return self.is_free or self.kind == "unknown" and "on fewer rows" in self.why

    def joined(self, other: "Finding") -> "Finding":
        """What holds for a call of this kind and for a later one."""
        if self.kind == other.kind:
            reach, others = (each.rows * each.times or math.inf for each in (self, other))
            return other if others > reach else self
        rank = ["free", "table", "halo", "causal", "reduction", "mixes", "unknown"].index
        worse = max(self, other, key=lambda each: rank(each.kind))
        if rank(min(self.kind, other.kind, key=rank)) >= rank("halo") and worse.kind not in ("mixes", "unknown"):
            return Finding("mixes", f"{self} in one call, {other} in another")
        return worse if worse is self else Finding(other.kind, f"in a later call: {other.why or other}", other.rows,
                                                   other.times)

    def __str__(self) -> str:
        return f"halo of {self.rows}" if self.kind == "halo" else self.kind


@dataclass
class Reading:
    """How the axes of a call's tensors are read."""

    given: Dict[str, Sequence[Folded]]
    out: Dict[str, Sequence[Folded]] = field(default_factory=dict)

    def key(self) -> Any:
        return tuple((at, tuple(axes)) for side in (self.given, self.out) for at, axes in side.items())

    def dims(self) -> Set[str]:
        return {name for axes in (*self.given.values(), *self.out.values()) for axis in axes
                for part in axis for name in part.dims}


def holding(axes: Sequence[Folded], dim: str) -> List[Tuple[int, Part]]:
    return [(at, part) for at, axis in enumerate(axes) for part in axis if dim in part.dims]


def _extent(part: Part, dim: str) -> int:
    return part.extents[part.dims.index(dim)]


def _rows(size: int, part: Part, dim: str, lo: int, hi: int) -> torch.Tensor:
    """Of an axis, those where the dim is within."""
    inside = torch.arange(part.length, device="cpu").reshape(part.extents)
    picked = inside.narrow(part.dims.index(dim), lo, hi - lo).reshape(-1) + part.begin
    return torch.zeros(size, dtype=torch.bool, device="cpu").index_fill_(0, picked, True)


class Probe:
    """One dim of one call of a module. `run` gives its results for arguments that a function changes, `finer` in more
    digits. Differences within `least` of the largest element are none."""

    def __init__(self, dim: str, reading: Reading, run: Run, whole: Tensors, finer: Optional[Run] = None,
                 least: float = 1e-6):
        self.dim, self.reading, self.run, self.whole, self.finer, self.least = dim, reading, run, whole, finer, least
        self.draw = torch.Generator().manual_seed(1)
        extents = [_extent(part, dim) for axes in reading.given.values() for _, part in holding(axes, dim)]
        self.extent = min(extents) if extents else 0
        outs = [_extent(part, dim) for axes in reading.out.values() for _, part in holding(axes, dim)]
        if outs and extents and min(outs) < self.extent and self.extent % min(outs) == 0:
            self.extent = min(outs)
        self.extents = {*extents, *outs}
        self.is_out = bool(outs)

    def finding(self) -> Finding:
        if not self.extent:
            return Finding("table", "its rows come from extents, not from rows that it takes")
        if not self.is_out:
            return Finding("mixes", f"its result has no {self.dim}")
        if self.extent < 2:
            return Finding("unknown", f"{self.dim} has one row there, of which nothing can be told")
        odd = [extent for extent in self.extents if extent % self.extent]
        if odd:
            return Finding("mixes", f"{self.dim} has {odd[0]} rows on one side and {self.extent} on the other")
        last = self.extent - 1
        seen = {last: self._seen(last)}
        if not seen[last][1] and not bool(seen[last][0][0]):  # else it mixes, whatever the other rows do
            seen.update((row, self._seen(row)) for row in {0, self.extent // 2} - {last})
        if not any(bool(rows.any()) for rows, _ in seen.values()) and not any(more for _, more in seen.values()):
            if self.whole and not any(bool(y.isfinite().any()) for y in self.whole.values()):
                return Finding("unknown", "its results are NaNs or infinite, of which no change can be seen")
            return Finding("table", "no row that it takes changes what it returns")
        return self._told(seen)

    def _told(self, seen: Seen) -> Finding:
        if any(more for _, more in seen.values()):
            return Finding("mixes", f"a row of {self.dim} reaches results that have no {self.dim}")
        away = _away(seen)
        if not any(away):
            return self._confirmed()
        far, times = max(map(abs, away)), max(self.extents) // self.extent
        if min(away) >= 0 and far == self.extent - 1:
            return Finding("causal", f"a row of {self.dim} reaches all that are behind it", 0, times)
        if far < self.extent - 1 and not self._is_anywhere(far):
            return Finding("mixes", f"a row of {self.dim} reaches rows up to {far} away, and others where the first or "
                                    "the last is not there: by their number, as windows do")
        if far < self.extent - 1:
            fine = self._finely(seen)
            if max(map(abs, fine)) > far:
                why = f"what a row of {self.dim} reaches beyond {far} rows is less and less, and not nothing"
                return Finding("causal" if min(fine) >= 0 else "mixes", why, 0, times)
        if far < self.extent - 1 and (2 * far > self.extent or self._is_by_values(seen)):
            return Finding("mixes", f"a row of {self.dim} reaches rows up to {far} away, and others "
                                    "with other numbers or more rows")
        if min(away) >= 0:
            return Finding("causal", f"a row of {self.dim} reaches {far} rows behind it", far, times)
        if far < self.extent - 1:
            return Finding("halo", f"a row of {self.dim} reaches rows up to {far} away", far, times)
        if self.extent >= 4 and all(bool(rows.all()) for rows, _ in seen.values()) and self._is_reduction():
            return Finding("reduction", f"of the rows of {self.dim} it needs sums alone")
        return Finding("mixes")

    def _finely(self, seen: Seen) -> List[int]:
        """How far away anything at all is another: a halo ends where it ends, a decay only where rounding begins."""
        try:
            if self.finer is None:
                raise ValueError("there are no more digits")
            fine = Probe(self.dim, self.reading, self.finer, self.finer(lambda _, x: x), None, 1e-12)
            found = {row: fine._seen(row) for row in seen}
        except Exception:  # whatever a model raises: every bit counts then
            fine = Probe(self.dim, self.reading, self.run, self.whole, None, 0.0)
            found = {row: fine._seen(row) for row in seen}
        return [*_away(found), *_away(seen)]

    def _is_by_values(self, seen: Seen) -> bool:
        """Does a row reach others than these, with other numbers in all rows?"""
        def other(name: str, x: torch.Tensor) -> torch.Tensor:
            parts = holding(self.reading.given.get(name, ()), self.dim)
            if len(parts) != 1 or not x.is_floating_point() or not bool(x.isfinite().all()):
                return x  # a mask, or what numbers rows
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(x.numel()), device="cpu")
            return x + noise.to(x.device, x.dtype) * max(float(x.detach().abs().float().mean()), 0.1)

        def run(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Tensors:
            return self.run(lambda name, x: change(name, other(name, x)))
        beside = Probe(self.dim, self.reading, run, run(lambda _, x: x), None, self.least)
        return any(not torch.equal(rows, beside._seen(row)[0]) for row, (rows, _) in seen.items())

    def _each(self, change: Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor],
              lo: int, hi: int) -> Callable[[str, torch.Tensor], torch.Tensor]:
        """A function for `run`: what `change` makes of the tensors that have the dim, with an axis and its rows."""
        def changed(name: str, x: torch.Tensor) -> torch.Tensor:
            for at, part in holding(self.reading.given.get(name, ()), self.dim):
                times = _extent(part, self.dim) // self.extent
                rows = _rows(x.shape[at], part, self.dim, lo * times, hi * times).to(x.device)
                x = change(x, at, rows)
            return x
        return changed

    def _noisy(self, x: torch.Tensor, at: int, rows: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() and not x.is_complex():
            picked = rows.nonzero().flatten()
            other = x.index_select(at, (picked + 1) % x.shape[at])
            return x.index_copy(at, picked, other)
        noise = torch.randn(x.shape, generator=self.draw, device="cpu").to(x.device, x.dtype)
        size = max(float(x.detach().abs().float().mean()), 0.1) * 3
        shape = [x.shape[axis] if axis == at else 1 for axis in range(x.dim())]
        return torch.where(rows.reshape(shape), x + noise * size, x)

    def _seen(self, row: int) -> Tuple[torch.Tensor, bool]:
        """Which rows of the results are others where this one is, and whether anything without the dim is."""
        return self._others(self.whole, self.run(self._each(self._noisy, row, row + 1)))

    def _others(self, whole: Tensors, out: Tensors) -> Tuple[torch.Tensor, bool]:
        rows, beside = torch.zeros(self.extent, dtype=torch.bool, device="cpu"), False
        for name, y in whole.items():
            differs = _differs(y, out[name], self.least)
            there = holding(self.reading.out.get(name, ()), self.dim)
            if not there:
                beside = beside or bool(differs.any())
                continue
            for at, part in there:
                axis = differs.transpose(0, at).flatten(1).any(1) if differs.dim() > 1 else differs
                inside = axis[part.begin: part.begin + part.length]
                inside = inside.reshape(part.extents).movedim(part.dims.index(self.dim), 0).reshape(
                    self.extent, -1).any(1)
                rows |= inside.cpu()
                others = axis.sum() - axis[part.begin: part.begin + part.length].sum()
                beside = beside or bool(others)
        return rows, beside

    def _fewer(self, lo: int, hi: int) -> Callable[[str, torch.Tensor], torch.Tensor]:
        """A function for `run`: these rows alone, and all that stands beside the dim in its axis."""
        def changed(name: str, x: torch.Tensor) -> torch.Tensor:
            for at, part in holding(self.reading.given.get(name, ()), self.dim):
                keep = self._kept_rows(x.shape[at], part, lo, hi)
                x = x.index_select(at, keep.to(x.device))
            return x
        return changed

    def _kept_rows(self, size: int, part: Part, lo: int, hi: int) -> torch.Tensor:
        times = _extent(part, self.dim) // self.extent
        keep = _rows(size, part, self.dim, lo * times, hi * times)
        keep[: part.begin] = True
        keep[part.begin + part.length:] = True
        return keep.nonzero().flatten()

    def _confirmed(self) -> Finding:
        """No row reaches another one: does the module run on fewer rows, with the same results?"""
        if self._is_by_size():
            return Finding("mixes", f"a row of {self.dim} reaches others where numbers are large")
        raised, ends = "", [[(1, self.extent), (0, self.extent - 1)], [(1, self.extent - 1)]]
        for fewer in ends[:1] if self.extent == 2 else ends:
            try:
                is_same = all(self._is_part(self.run(self._fewer(*rows)), *rows, *rows) for rows in fewer)
            except Exception as error:  # whatever a model raises: it may take even extents alone
                raised = (f"on fewer rows of {self.dim} it raises {type(error).__name__}: "
                          f"{str(error).splitlines()[0] if str(error) else ''}"[:200])
                continue
            others = f"on fewer rows of {self.dim} its results are others"
            return Finding("free") if is_same else Finding("unknown", others)
        return Finding("unknown", raised)

    def _is_by_size(self) -> bool:
        """Do rows of large numbers reach others, or others them? So do a threshold that no row was above, and a gate
        that none had opened."""
        lo, hi = self.extent // 3, max(2 * self.extent // 3, self.extent // 3 + 1)
        inside = (torch.arange(self.extent, device="cpu") - lo) // (hi - lo) == 0
        large, front, back = (self._each(*way) for way in (
            (_grown, lo, hi), (self._noisy, 0, lo), (self._noisy, hi, self.extent)))
        try:
            grown = self.run(large)
            beside = self.run(lambda name, x: back(name, front(name, large(name, x))))
        except Exception:  # whatever a model raises: numbers may be places in a table
            return False
        return bool((self._others(self.whole, grown)[0] & ~inside).any()
                    or (self._others(grown, beside)[0] & inside).any())

    def _is_anywhere(self, far: int) -> bool:
        """Does a row reach the same ones, so far away at most, where the first row or the last is not there?"""
        for lo, hi in ((1, self.extent), (0, self.extent - 1)):
            try:
                out = self.run(self._fewer(lo, hi))
            except Exception:  # whatever a model raises
                return False
            if not self._is_part(out, lo, hi, lo + far if lo else 0, hi if lo else hi - far):
                return False
        return True

    def _is_part(self, out: Tensors, lo: int, hi: int, first: int, last: int) -> bool:
        """Are these the whole's results of rows lo to hi, as far as those from first to last go?"""
        for name, y in self.whole.items():
            for at, part in holding(self.reading.out.get(name, ()), self.dim):
                kept = self._kept_rows(y.shape[at], part, lo, hi)
                if out[name].shape != (*y.shape[:at], len(kept), *y.shape[at + 1:]):
                    return False
                asked = torch.isin(kept, self._kept_rows(y.shape[at], part, first, last)).nonzero().flatten()
                wanted = y.index_select(at, kept[asked].to(y.device))
                if _differs(wanted, out[name].index_select(at, asked.to(y.device)), 1e-4).any():
                    return False
        return True

    def _is_reduction(self) -> bool:
        """Is a row's result the same when the others are mirrored at their mean, which keeps sums of them and of their
        squares?"""
        row = 1  # not the middle one, which a reversed order leaves where it is

        def mirrored(x: torch.Tensor, at: int, rows: torch.Tensor) -> torch.Tensor:
            if not x.is_floating_point():
                return x
            part = next(part for other, part in holding(self.reading.given[self._name], self.dim) if other == at)
            inner = x.narrow(at, part.begin, part.length).unflatten(at, part.extents)
            axis = at + part.dims.index(self.dim)
            length = inner.shape[axis]
            times = length // self.extent
            keep = torch.ones(length, dtype=torch.bool, device=x.device)
            keep[row * times: (row + 1) * times] = False
            others = inner.index_select(axis, keep.nonzero().flatten())
            inner = inner.index_copy(axis, keep.nonzero().flatten(), 2 * others.mean(axis, keepdim=True) - others)
            inner = inner.flatten(at, at + len(part.extents) - 1)
            return torch.cat([x.narrow(at, 0, part.begin), inner,
                              x.narrow(at, part.begin + part.length, x.shape[at] - part.begin - part.length)], at)

        def changed(name: str, x: torch.Tensor) -> torch.Tensor:
            self._name = name
            return self._each(mirrored, 0, self.extent)(name, x)
        out = self.run(changed)
        for name, y in self.whole.items():
            for at, part in holding(self.reading.out.get(name, ()), self.dim):
                times = _extent(part, self.dim) // self.extent
                rows = _rows(y.shape[at], part, self.dim, row * times, (row + 1) * times).nonzero().flatten()
                rows = rows.to(y.device)
                if _differs(y.index_select(at, rows), out[name].index_select(at, rows), 1e-4).any():
                    return False
        return True

    _name = ""


def _grown(x: torch.Tensor, at: int, rows: torch.Tensor) -> torch.Tensor:
    """These rows 32 times as large."""
    if not x.is_floating_point() and not x.is_complex():
        return x
    return torch.where(rows.reshape([-1 if axis == at else 1 for axis in range(x.dim())]), x * 32, x)


def _away(seen: Seen) -> List[int]:
    return [int(j) - row for row, (rows, _) in seen.items() for j in rows.nonzero().flatten()]


def _differs(a: torch.Tensor, b: torch.Tensor, within: float) -> torch.Tensor:
    if a.shape != b.shape:
        return torch.ones(a.shape, dtype=torch.bool, device=a.device)
    if not (a.is_floating_point() or a.is_complex()):
        return a != b
    finite = a.abs().nan_to_num(0, 0, 0)
    if within > 1e-5:  # of runs on other rows, which round otherwise
        within = max(within, 16 * torch.finfo(a.dtype).eps)
    elif a.dtype.itemsize < 4:
        within = 0.0
    far = (a - b).abs() > within * (float(finite.max()) if a.numel() else 0.0)
    return far | (a.isnan() != b.isnan())


def seeded() -> None:
    """As torch.manual_seed, which looks who calls it for longer than a layer takes."""
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


def numbered(x: torch.Tensor, axes: Sequence[Folded]) -> str:
    """The dim whose rows these integers number from 0; none: nothing."""
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        return ""
    for at, axis in enumerate(axes):
        for inner, dim in enumerate(axis[0].dims if len(axis) == 1 else ()):
            extent = axis[0].extents[inner]
            if extent < 3 or x.shape[at] != axis[0].length:
                continue
            rows = torch.arange(extent, device=x.device).reshape([-1 if i == inner else 1 for i in
                                                                  range(len(axis[0].extents))])
            rows = rows.expand(axis[0].extents).reshape([-1 if i == at else 1 for i in range(x.dim())])
            if bool((x == rows).all()):
                return dim
    return ""


def called(module: torch.nn.Module, args: Any, kwargs: Any, dtype: Optional[torch.dtype] = None) -> Run:
    """A module that runs by itself, with the same random numbers every time; in another dtype."""
    def run(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Tensors:
        seeded()
        with converted(module, dtype) if dtype else contextlib.nullcontext():
            wide = (lambda name, x: change(name, in_dtype(x, dtype))) if dtype else change
            given = fresh(module, args, kwargs, wide)
            out = module(*given[0], **given[1])
            return {name: y.clone() for name, y in tensors_of(out).items()}
    return run
