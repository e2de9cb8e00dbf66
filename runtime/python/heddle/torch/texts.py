"""Lines, and what follows from them, for operators and for compilers."""
from __future__ import annotations

import functools
import math
import re
from typing import Any, List, Optional, Sequence, Tuple

import torch

from ..line import Line

#: of an array: its length here, where the line says it; else which of the free extents it is of, and for every axis
#: that cuts it the number of blocks and which is the rank's
_Axis = Tuple[int, Optional[int], List[Tuple[int, int]]]

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
    """The same of a line without its free extents, which may be symbols."""
    if all(type(n) is int for n in extents):
        return shapes_of(line % tuple(extents), rank)
    before, after = _sides(line, rank)
    return _part(extents, before), _part(extents, after)


def _part(extents: Sequence[Any], axes: Sequence[_Axis]) -> Tuple[Any, ...]:
    shape = []
    for known, free, cuts in axes:
        length = known if free is None else extents[free]
        for parts, at in cuts:  # blocks are balanced, the first have one more; those of several axes are nested
            length = (length + (parts - 1 - at)) // parts
        shape.append(length)
    return tuple(shape)


@functools.lru_cache(maxsize=4096)
def _sides(line: str, rank: int) -> Tuple[List[_Axis], List[_Axis]]:
    """What of a line does not depend on its free extents, of both sides' arrays."""
    parsed = Line(line.replace("%d", "1"))
    mesh, sizes = parsed._c.mesh, [size for _, size in re.findall(r"(\w+)=(%d|\d+)", line.partition("]")[0])]
    places = {d: sizes[:d].count("%d") for d, size in enumerate(sizes) if size == "%d"}
    ranks = [mesh.axis[a].size for a in range(mesh.naxes)]
    at = [rank // math.prod(ranks[a + 1:]) % size for a, size in enumerate(ranks)]

    def side(layout: Any, order: Sequence[int], shape: Sequence[int]) -> List[_Axis]:
        return [(length, places.get(dim), [(size, at[a]) for a, size in enumerate(ranks)
                                           if layout.dim_of_axis[a] == dim and dim in places])
                for dim, length in zip(order, shape)]
    return (side(parsed._c.from_, parsed.src_order, parsed.src_shape(rank)),
            side(parsed._c.to, parsed.dst_order, parsed.dst_shape(rank)))


def paired(line: str) -> str:
    """The line of a complex tensor's real numbers, which torch.view_as_real shows in a dim more."""
    head, rest = line.split("]", 1)
    name = "re_im"
    while f"{name}=" in head:  # a dim of the caller's own
        name += "_"
    sides = [f"{side},{name}" if " as " in side else side for side in rest.split(" -> ")]
    return f"{head} {name}=2]{' -> '.join(sides)}"
