"""The lines of text by which arrays of an attention go between ranks, as reshards."""
from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple, Optional, Sequence, Tuple

from .errors import UnsupportedError
from .line import Line
from .turns import axes_of, flat

if TYPE_CHECKING:
    from .attention import Attention, LinearAttention


class Way(NamedTuple):
    """Two lines, there and back."""

    texts: Tuple[str, str]
    forms: Tuple[str, str]  #: without the extents that a compiler has as numbers
    extents: Tuple[int, ...]


def _way(line: Line, back: Line) -> Way:
    return Way((line.text, back.text), (line.form, back.form), line.free)


def to_heads(plan: "Attention") -> Optional[Tuple[Way, Way]]:
    """The lines there and back of one array of all heads, and of those that go together as one: q, k and v, or k and v
    where they have fewer heads. The latter go from rows [b, s, h, d] to heads [b, h, s, d], the former comes back from
    [b, s, h, d], as most kernels leave o in memory; key heads are cut evenly, query heads where their key heads are.
    Of usp: along the inner axis of two."""
    _, s, h, _ = plan.line.dims
    shape, mesh, sides = re.split(" on |: ", plan.text)
    cut = re.findall(rf"\b({s}@(\w+)(?:\([^)]*\))?)", sides)
    if len(cut) != (2 if plan.method == "usp" else 1) or re.search(rf"\b{h}@", sides):
        return None
    entry, axis = max(cut, key=lambda found: re.findall(r"(\w+)=", mesh).index(found[1]))
    ranks = int(re.findall(rf"\b{axis}=(\d+)", mesh)[0])
    each, more = divmod(plan.kv_heads, ranks)

    def lines(heads: int, together: int) -> Way:
        lengths = " ".join(str((each + (i < more)) * heads // plan.kv_heads) for i in range(ranks))
        whole = ",".join(f"{h}@{axis}({lengths})" if each == entry else each for each in sides.split(","))
        line = _line(plan, heads, together, sides, whole)
        return _way(line, line.reversed())
    return lines(plan.heads, 1), lines(plan.kv_heads, 3 if plan.heads == plan.kv_heads else 2)


def of_lse(plan: "Attention", way: Way) -> Way:
    """Of the same with one number in place of a width."""
    d = plan.line.dims[3]
    there, back = (Line(re.sub(rf" {d}=\d+\]", f" {d}=1]", text)) for text in way.texts)
    return _way(there, back)


def _without(dim: str, sides: str) -> str:
    """A layout whose entries of one dim are gone."""
    return ",".join(entry for entry in sides.split(",") if not entry.startswith(f"{dim}@")) or "*"


def to_whole(plan: "Attention") -> Optional[Way]:
    """The lines of k and v together, from rows [b, s, h, d] to all of them [b, h, s, d], and of their gradient."""
    _, s, h, _ = plan.line.dims
    rows = re.split(" on |: ", plan.text)[2]
    if plan.heads != plan.kv_heads and re.search(rf"\b{h}@\w+\(", rows):  # lengths of other heads
        return None
    line = _line(plan, plan.kv_heads, 2, rows, _without(s, rows))
    return _way(line, line.adjoint())


class States:
    """Of a linear attention: how the states of all ranks come together, and how far their rows are away. A state is
    [dk, dv] for every sample and head of a block of rows."""

    def __init__(self, plan: "LinearAttention"):
        b, s, h, d = plan.line.dims
        shape, mesh, sides = re.split(" on |: ", plan.text)
        sizes, extents = (dict(re.findall(r"(\w+)=(\d+)", where)) for where in (mesh, shape))
        cut = [re.sub(r"\(.*", "", entry) if entry.startswith(f"{s}@") else entry for entry in sides.split(",")]
        blocks = math.prod(int(sizes[entry.split("@")[1]]) for entry in cut if entry.startswith(f"{s}@"))
        e = next(name for name in ("e", "f", "g", "w", "x") if name not in (b, s, h, d))
        line = Line(f"{plan.line.dtype}[{s}={blocks} {b}={extents[b]} {h}={extents[h]} {d}={extents[d]} {e}={plan.dv}] "
                    f"on {mesh}: {','.join(cut)} -> {_without(s, sides)}")
        #: the lines from [1, b, h, dk, dv], this rank's, to those of all blocks in their order, and of their gradient
        self.way = _way(line, line.adjoint())
        rows = {}
        for rank in range(plan.comm.size):
            rows[line.src_slices(rank)[0].start] = plan.line.src_slices(rank)[1]
        mine = line.src_slices(plan.comm.rank)[0].start
        #: rows between this block and each that lies before it, or behind it; -1: it does not
        self.before = [rows[mine].start - rows[i].stop if i < mine else -1 for i in range(blocks)]
        self.behind = [rows[i].start - rows[mine].stop if i > mine else -1 for i in range(blocks)]
        #: of this block in their order, and what each has of them
        self.place, self.rows = mine, [rows[i].stop - rows[i].start for i in range(blocks)]
        axes = axes_of(mesh)
        around = [name for name, _ in axes if f"{s}@{name}" in cut]
        others = [entry for entry in cut if not entry.startswith(f"{s}@")]
        self._parts = (line.dtype, f"{b}={extents[b]} {h}={extents[h]} {d}={extents[d]} {e}={plan.dv}",
                       flat(axes, around), f"{s}@{around[0]}", others)

    def shift(self, by: int, places: Sequence[int]) -> str:
        """The line by which these places' [1, b, h, dk, dv] go to those so far behind, or before where `by` is less
        than zero; others have and get [0, ...]."""
        dtype, state, mesh, cut, others = self._parts
        if mesh is None:
            raise UnsupportedError(f"states on {self.way.texts[0]}: one by one they want the sequence on neighbouring "
                                   "axes")
        sides = (",".join([f"{cut}({' '.join(str(int(i in held)) for i in range(len(self.rows)))})", *others])
                 for held in (list(places), [place + by for place in places]))
        return f"{dtype}[{cut.split('@')[0]}={len(places)} {state}] on {mesh}: {' -> '.join(sides)}"


def _line(plan: "Attention", heads: int, together: int, rows: str, whole: str) -> Line:
    b, s, h, d = plan.line.dims
    shape, mesh, _ = re.split(" on |: ", plan.text)
    shape, order = shape.replace(f" {h}={plan.heads} ", f" {h}={heads} "), f"{b},{h},{s},{d}"
    if together > 1:
        which = next(name for name in ("n", "m", "l", "k", "j") if name not in plan.line.dims)
        shape, order = shape.replace("[", f"[{which}={together} "), f"{which},{order}"
    return Line(f"{shape} on {mesh}: {rows} -> {whole}{f' as {order}' if together > 1 else ''}")
