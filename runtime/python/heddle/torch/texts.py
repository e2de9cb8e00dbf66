"""Lines, and what follows from them, for operators and for compilers."""
from __future__ import annotations

import functools
import math
from typing import Any, List, Sequence, Tuple

import torch

from ..line import Line


def texts_of(line: str) -> Tuple[str, str, str]:
    """As `Reshard.texts`, without a plan."""
    return (_texts if torch.compiler.is_compiling() else _kept_texts)(line)  # a compiler warns of caches


def _texts(line: str) -> Tuple[str, str, str]:
    parsed = Line(line)
    return parsed.text, parsed.adjoint().text, parsed.reversed().text


_kept_texts = functools.lru_cache(maxsize=4096)(_texts)


@functools.lru_cache(maxsize=4096)
def shapes_of(line: str, rank: int) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    parsed = Line(line)
    return parsed.src_shape(rank), parsed.dst_shape(rank)


def shapes_by(line: str, extents: Sequence[Any], rank: int) -> Tuple[Tuple[Any, ...], Tuple[Any, ...]]:
    """The same of a line without extents, which may be symbols."""
    if all(type(n) is int for n in extents):
        return shapes_of(line % tuple(extents), rank)
    known, before, after = _cuts(line, rank)
    whole = *extents, *known[len(extents):]
    return _part(whole, *before), _part(whole, *after)


def _part(whole: Sequence[Any], order: Tuple[int, ...], cuts: List[Tuple[int, int, int]]) -> Tuple[Any, ...]:
    shape = list(whole)
    for dim, parts, at in cuts:  # blocks are balanced, the first have one more; those of several axes are nested
        shape[dim] = (shape[dim] + (parts - 1 - at)) // parts
    return tuple(shape[dim] for dim in order)


_Cuts = Tuple[Tuple[int, ...], List[Tuple[int, int, int]]]


@functools.lru_cache(maxsize=4096)
def _cuts(line: str, rank: int) -> Tuple[Tuple[int, ...], _Cuts, _Cuts]:
    """What of a line does not depend on its extents: those that it has; of both sides the order of dims, and for every
    axis that cuts a dim this dim, the number of blocks, and which is the rank's."""
    parsed = Line(line.replace("%d", "1"))
    mesh = parsed._c.mesh
    sizes = [mesh.axis[a].size for a in range(mesh.naxes)]
    at = [rank // math.prod(sizes[a + 1:]) % size for a, size in enumerate(sizes)]

    def cuts(layout: Any) -> List[Tuple[int, int, int]]:
        return [(layout.dim_of_axis[a], size, at[a]) for a, size in enumerate(sizes) if layout.dim_of_axis[a] >= 0]
    return parsed.shape, (parsed.src_order, cuts(parsed._c.from_)), (parsed.dst_order, cuts(parsed._c.to))


def paired(line: str) -> str:
    """The line of a complex tensor's real numbers, which torch.view_as_real shows in a dim more."""
    head, rest = line.split("]", 1)
    sides = [f"{side},re_im" if " as " in side else side for side in rest.split(" -> ")]
    return f"{head} re_im=2]{' -> '.join(sides)}"
