"""What an axis inside a model is made of: `b f` folded into one, text beside video, a class token beside patches."""
from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Set, Tuple

from .axes import Axes, Shapes

_PATCHES = 1, 2, 4, 8, 14, 16, 32, 64
_TOKENS_MAX = 4  #: of a class
_REGISTERS_MAX = 8  #: rows beside those of dims that vary, all of them


@dataclass(frozen=True)
class Part:
    """Rows of an axis that are one product of dims: where they begin, which dims, slowest first, and how long."""

    begin: int
    dims: Tuple[str, ...]
    extents: Tuple[int, ...]

    @property
    def length(self) -> int:
        return math.prod(self.extents)


Folded = Tuple[Part, ...]  #: of an axis; none: channels


Extents = Dict[str, Dict[int, Set[int]]]  #: of a dim, inside; and what each is with the dim's other extent


def extents_of(axes: Axes, shapes: Shapes) -> Extents:
    """Those that a dim may have inside: the argument's own, what it has where it is alone, patches, every fourth
    frame and the first."""
    found: Extents = {}
    for name, given in axes.dims.items():
        extent, other = given.extent, given.extent + given.step
        mine = found[name] = {extent: {other}}
        if name == "b":
            continue
        for p in (p for p in _PATCHES if extent % p == 0):
            mine.setdefault(extent // p, set()).add(other // p)
        for p in (p for p in (2, 4, 8) if (extent - 1) % p == 0):
            mine.setdefault((extent - 1) // p + 1, set()).add((other - 1) // p + 1)
        for key, shape in shapes.items() if given.step else ():
            for at, size in enumerate(shape):
                if size <= extent and depends_on(axes, shapes, key, at) == {name}:
                    mine.setdefault(size, set()).add(axes.shapes[name][key][at])
    return found


def depends_on(axes: Axes, shapes: Shapes, key: str, at: int) -> Optional[Set[str]]:
    """The dims whose other extents change this axis; None: the tensor has other axes then."""
    found = set()
    for name, others in axes.shapes.items():
        other = others.get(key)
        if other is None or len(other) != len(shapes[key]):
            continue
        if other[at] != shapes[key][at]:
            found.add(name)
    return found


def solved(size: int, others: Mapping[str, int], axes: Axes, extents: Extents) -> List[Folded]:
    """Ways to read an axis, the plainest first. `others`: what it is with the other extent of each of its dims."""
    names = [name for name in axes.dims if name in others]
    fixed = [name for name, given in axes.dims.items() if given.step == 0 and given.extent > 1]
    for more in range(len(fixed) + 1):
        ways: List[Folded] = []
        for chosen in itertools.combinations(fixed, more):
            if names or chosen:
                folded = [name for name in axes.dims if name in names or name in chosen]
                ways += _read(size, folded, others, axes, extents)
        if ways:  # rather without tokens
            return [way for way in ways if sum(part.length for part in way) == size] or ways
    if len(names) == 1 and size > axes.dims[names[0]].extent:  # more rows than it was given
        return [(Part(0, (names[0],), (size,)),)]
    return []


def _read(size: int, names: List[str], others: Mapping[str, int], axes: Axes,
          extents: Extents) -> List[Folded]:
    for beside in range(min(len(names) - 1, 2) + 1):
        for apart in itertools.combinations(reversed(names), beside):
            if any(name == "b" or others.get(name, size + axes.dims[name].step) != size + axes.dims[name].step
                   for name in apart):
                continue
            folded = [name for name in names if name not in apart]
            texts = sum(axes.dims[name].extent for name in apart)
            for tokens in range((_REGISTERS_MAX if set(names) <= set(others) else _TOKENS_MAX) + 1):
                rest = texts + tokens
                got = _product(size - rest, folded, {name: other - rest for name, other in others.items()}, extents)
                if got is not None:
                    return _orders(folded, got, [(name, axes.dims[name].extent) for name in apart], tokens)
    return []


def _product(size: int, names: List[str], others: Mapping[str, int],
             extents: Extents) -> Optional[Tuple[int, ...]]:
    """Extents with this product, of which another extent of a dim gives the other size."""
    fits = [each for each in itertools.product(*(extents[name] for name in names)) if math.prod(each) == size > 0
            and all(name not in others or any(others[name] == size // extent * other for other in extents[name][extent])
                    for name, extent in zip(names, each))]
    if not fits:
        return None
    return min(fits, key=lambda each: _uneven(names, each, extents))


def _uneven(names: List[str], each: Tuple[int, ...], extents: Extents) -> Tuple[float, int]:
    """h and w shrink alike, b and f rather not."""
    shrunk = {name: next(iter(extents[name])) / extent for name, extent in zip(names, each) if extent}
    alike = abs(math.log(shrunk.get("h", 1) / shrunk.get("w", 1))) if "h" in shrunk and "w" in shrunk else 0.0
    return (alike + 3 * abs(math.log(shrunk.get("b", 1))), -min(each))


def _orders(names: List[str], extents: Tuple[int, ...], apart: List[Tuple[str, int]], tokens: int) -> List[Folded]:
    """Dims in the order of the arguments, and with the first one last; texts and tokens on either side."""
    mains = [(tuple(names), extents)]
    if len(names) > 1 and "b" not in names:
        mains.append(((*names[1:], names[0]), (*extents[1:], extents[0])))
    texts = [((name,), (extent,)) for name, extent in apart]
    ways: List[Folded] = []
    for is_behind, first in itertools.product((False, True) if texts else (False,), (tokens, 0) if tokens else (0,)):
        for main in mains:
            begin, parts = first, []
            for dims, each in [main, *texts] if is_behind else [*texts, main]:
                parts.append(Part(begin, dims, each))
                begin += math.prod(each)
            ways.append(tuple(parts))
    return ways
