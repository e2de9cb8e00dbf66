"""What an axis inside a model is made of: `b f` folded into one, text beside video, a class token beside patches."""
from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Set, Tuple

from .axes import Axes, Shapes

_PATCHES = 1, 2, 4, 8, 14, 16, 32, 64
_TOKENS_MAX = 4  #: of a class


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


def extents_of(axes: Axes, shapes: Shapes) -> Dict[str, List[int]]:
    """Those that a dim may have inside: the argument's own, what it has where it is alone, patches, every fourth
    frame and the first."""
    found: Dict[str, List[int]] = {}
    for name, given in axes.dims.items():
        alone = [size for key, shape in shapes.items() for at, size in enumerate(shape)
                 if size <= given.extent and depends_on(axes, shapes, key, at) == {name}] if given.step else []
        if name == "b":
            found[name] = [given.extent]
            continue
        patched = [given.extent // p for p in _PATCHES if given.extent % p == 0]
        fourth = [(given.extent - 1) // p + 1 for p in (2, 4, 8) if (given.extent - 1) % p == 0]
        found[name] = list(dict.fromkeys([given.extent, *patched, *fourth, *alone]))
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


def solved(size: int, others: Mapping[str, int], axes: Axes, extents: Mapping[str, List[int]]) -> List[Folded]:
    """Ways to read an axis, the plainest first. `others`: what it is with the other extent of each of its dims."""
    names = [name for name in axes.dims if name in others]
    fixed = [name for name, given in axes.dims.items() if given.step == 0 and given.extent > 1]
    for more in range(len(fixed) + 1):
        ways: List[Folded] = []
        for chosen in itertools.combinations(fixed, more):
            if names or chosen:
                folded = [name for name in axes.dims if name in names or name in chosen]
                ways += _read(size, folded, others, axes, extents)
        if ways:
            return ways
    if len(names) == 1 and size > axes.dims[names[0]].extent:  # more rows than it was given
        return [(Part(0, (names[0],), (size,)),)]
    return []


def _read(size: int, names: List[str], others: Mapping[str, int], axes: Axes,
          extents: Mapping[str, List[int]]) -> List[Folded]:
    for beside in range(min(len(names) - 1, 2) + 1):
        for apart in itertools.combinations(reversed(names), beside):
            if any(name == "b" or others.get(name, size + axes.dims[name].step) != size + axes.dims[name].step
                   for name in apart):
                continue
            folded = [name for name in names if name not in apart]
            texts = sum(axes.dims[name].extent for name in apart)
            for tokens in range(_TOKENS_MAX + 1):
                rest = texts + tokens
                got = _product(size - rest, folded, {name: other - rest for name, other in others.items()}, extents)
                if got is not None:
                    return _orders(folded, got, [(name, axes.dims[name].extent) for name in apart], tokens)
    return []


def _product(size: int, names: List[str], others: Mapping[str, int],
             extents: Mapping[str, List[int]]) -> Optional[Tuple[int, ...]]:
    """Extents with this product, of which another extent of a dim gives the other size."""
    fits = [each for each in itertools.product(*(extents[name] for name in names)) if math.prod(each) == size > 0
            and all(others.get(name, 0) % (size // extent) == 0 for name, extent in zip(names, each))]
    if not fits:
        return None
    return min(fits, key=lambda each: _uneven(names, each, extents))


def _uneven(names: List[str], each: Tuple[int, ...], extents: Mapping[str, List[int]]) -> Tuple[float, int]:
    """h and w shrink alike, b and f rather not."""
    shrunk = {name: extents[name][0] / extent for name, extent in zip(names, each) if extent}
    alike = abs(math.log(shrunk.get("h", 1) / shrunk.get("w", 1))) if "h" in shrunk and "w" in shrunk else 0.0
    return (alike + 3 * abs(math.log(shrunk.get("b", 1))), -min(each))


def _orders(names: List[str], extents: Tuple[int, ...], apart: List[Tuple[str, int]], tokens: int) -> List[Folded]:
    main = (tuple(names), extents)
    texts = [((name,), (extent,)) for name, extent in apart]
    rows = [*texts, main], [main, *texts]
    ways: List[Folded] = []
    for order in rows if texts else rows[:1]:
        for first in (tokens, 0) if tokens else (0,):
            begin, parts = first, []
            for dims, each in order:
                parts.append(Part(begin, dims, each))
                begin += math.prod(each)
            ways.append(tuple(parts))
    return ways
