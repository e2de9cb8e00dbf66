"""How the keys and values of a sharded sequence come round to every rank, a part of them at a time.

Of N ranks each gives one Nth of its rows in every turn, so that a rank holds as many rows of others as it would in a
ring of blocks (one of each more, where they do not divide), and moves as many bytes, but to all ranks at once and by a
reshard: `s@sp(3 3 2) -> *`. The gradient of the part goes home by the adjoint, `sum@sp -> s@sp(3 3 2)`.

Blocks that N divides want one line for all turns; blocks that differ by a row, as a layout cuts by itself, two or
three; others, of explicit lengths, up to N. Every line is a plan, with the memory that a plan has."""
from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Sequence, Tuple

from .line import Line

if TYPE_CHECKING:
    from .attention import Attention


@dataclass(frozen=True)
class Piece:
    """Rows of this rank that see keys of a part, in samples where they see as many."""

    samples: slice
    rows: slice
    keys: slice
    causal: bool  #: row i sees keys up to i, of as many; else all rows see all keys


@dataclass(frozen=True)
class Turn:
    #: there and back, of k and v as one, [2, b, h, s, d]; None: the part is what this rank has
    lines: Optional[Tuple[str, str]]
    own: slice  #: rows that this rank gives
    pieces: Tuple[Piece, ...]


def turns_of(plan: "Attention", sides: str) -> Optional[List[Turn]]:
    """Of a plan whose q, k and v lie as `sides` says. None: the sequence is on axes that are no neighbours, or heads
    are cut between those of one key head."""
    b, s, h, _ = plan.line.dims
    shape, mesh, _ = re.split(" on |: ", plan.text)
    axes = axes_of(mesh)
    entries = re.findall(r"(\w+)@(\w+)(\([^)]*\))?", sides)
    line = Line(f"{shape} on {mesh}: {sides} -> *")
    around = [name for name, _ in axes if (s, name) in ((dim, axis) for dim, axis, _ in entries)]
    mesh_of_ring = flat(axes, around)
    others = _of_key_heads(plan, line, axes, [entry for entry in entries if entry[0] != s])
    if mesh_of_ring is None or others is None:
        return None
    blocks = [line.src_slices(rank)[1] for rank in _members(axes, around, plan.comm.rank)]
    return list(_turns(plan, blocks, line.src_slices(plan.comm.rank), _writer(plan, mesh_of_ring, around, others)))


def axes_of(mesh: str) -> List[Tuple[str, int]]:
    return [(name, int(size)) for name, size in re.findall(r"(\w+)=(\d+)", mesh)]


def flat(axes: Sequence[Tuple[str, int]], around: Sequence[str]) -> Optional[str]:
    """The mesh with all axes of the ring as one, named as the first; None: they are no neighbours."""
    places = [at for at, (name, _) in enumerate(axes) if name in around]
    if places and places[-1] - places[0] >= len(places):
        return None
    size = math.prod(axes[at][1] for at in places)
    parts = [(name, size if name == around[0] else each) if name in around else (name, each)
             for name, each in axes if name not in around[1:]]
    return f"[{' '.join(f'{name}={size}' for name, size in parts)}]"


def _of_key_heads(plan: "Attention", line: Line, axes: Sequence[Tuple[str, int]],
                  entries: Sequence[Tuple[str, str, str]]) -> Optional[List[str]]:
    """A layout's entries as they are for k and v: heads are cut where those of q are."""
    out, each = [], plan.heads // plan.kv_heads
    for dim, axis, lengths in entries:
        if dim == plan.line.dims[2] and each > 1:
            cuts = [line.src_slices(rank)[2] for rank in _members(axes, [axis], 0)]
            if any((cut.stop - cut.start) % each for cut in cuts):
                return None
            lengths = f"({' '.join(str((cut.stop - cut.start) // each) for cut in cuts)})"
        out.append(f"{dim}@{axis}{lengths}")
    return out


def _members(axes: Sequence[Tuple[str, int]], around: Sequence[str], rank: int) -> List[int]:
    """The ranks that differ from this one in these axes only."""
    def place(of: int) -> List[int]:
        out = []
        for name, size in reversed(axes):
            of, at = divmod(of, size)
            out.append(0 if name in around else at)
        return out
    return [other for other in range(math.prod(size for _, size in axes)) if place(other) == place(rank)]


_Write = Callable[[Sequence[int]], Tuple[str, str]]


def _writer(plan: "Attention", mesh: str, around: Sequence[str], others: Sequence[str]) -> _Write:
    b, s, h, d = plan.line.dims
    samples, _, _, width = plan.line.shape
    which = next(name for name in ("n", "m", "l", "k", "j") if name not in plan.line.dims)

    def write(lengths: Sequence[int]) -> Tuple[str, str]:
        cut = ",".join([f"{s}@{around[0]}({' '.join(map(str, lengths))})", *others])
        line = Line(f"{plan.line.dtype}[{which}=2 {b}={samples} {h}={plan.kv_heads} {s}={sum(lengths)} {d}={width}] "
                    f"on {mesh}: {cut} -> {','.join(others) or '*'}")
        return line.text, line.adjoint().text
    return write


def _block(rows: slice, parts: int, at: int) -> slice:
    each, more = divmod(rows.stop - rows.start, parts)
    start = rows.start + at * each + min(at, more)
    return slice(start, start + each + (at < more))


def _turns(plan: "Attention", blocks: Sequence[slice], mine: Sequence[slice], write: _Write) -> Iterator[Turn]:
    """blocks: of the sequence, in order, one of which is this rank's"""
    samples, rows = mine[0], mine[1]
    lengths = [plan.line.shape[1]] * plan.line.shape[0] if plan.key_lengths is None else plan.key_lengths
    seen = list(lengths[samples])
    held, ranks = rows.stop - rows.start, len(blocks)
    if plan.causal or ranks == 1:
        own = [min(max(length - rows.start, 0), held) for length in seen]
        yield Turn(None, slice(0, held), tuple(_own_pieces(plan, own, held)))
    for at in range(ranks if ranks > 1 else 0):
        parts = [_block(block, ranks, at) for block in blocks]
        if all(part.start == part.stop for part in parts):
            continue
        own_part = _block(slice(0, held), ranks, at)
        ends = [min(length, rows.start) if plan.causal else length for length in seen]
        counts = [sum(min(max(end - part.start, 0), part.stop - part.start) for part in parts) for end in ends]
        yield Turn(write([part.stop - part.start for part in parts]), own_part,
                   tuple(Piece(who, slice(0, held), slice(0, keys), False)
                         for who, keys in _alike(counts) if keys > 0 and held > 0))


def _own_pieces(plan: "Attention", counts: Sequence[int], held: int) -> Iterator[Piece]:
    for who, keys in _alike(counts):
        first = keys if plan.causal else 0  #: rows that do not see all of these keys
        for rows in (slice(0, first), slice(first, held)):
            if keys > 0 and rows.start < rows.stop:
                yield Piece(who, rows, slice(0, keys), rows.stop == first)


def _alike(counts: Sequence[int]) -> Iterator[Tuple[slice, int]]:
    """Neighbouring samples with as many keys."""
    start = 0
    for count, who in itertools.groupby(counts):
        stop = start + len(list(who))
        yield slice(start, stop), count
        start = stop
