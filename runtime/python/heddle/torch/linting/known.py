"""What an exploration says of a module, in the names that a plan has for dims."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..exploring.exploration import Exploration
from ..exploring.flow import Attention
from ..exploring.probe import Finding
from ..exploring.rows import Fused, words_of


class Known:
    """Of a model; without an exploration, by extents alone."""

    def __init__(self, found: Optional[Exploration], sizes: Mapping[str, int]):
        self.found, self.sizes = found, sizes
        try:
            self._fused: Optional[Fused] = found.fused() if found else None
        except ValueError:
            self._fused = None

    def alone(self, module: str) -> str:
        """What its attention does with the rows that it has, so that it wants all."""
        return self.found.modules[module].alone if self.found is not None and module in self.found.modules else ""

    def _names(self, module: str) -> Dict[str, str]:
        """Dims of the exploration, fused where no stage tells them apart, by the plan's names."""
        if self.found is None or self._fused is None or module not in self.found.modules:
            return {}
        mine = self._fused.extents(self.found.modules[module].extents)
        names: Dict[str, str] = {}
        for name, extent in mine.items():
            fits = [other for other, size in self.sizes.items() if size == extent and other not in names.values()]
            names[name] = name if name in fits else fits[0] if fits else name
        return names

    def _read(self, module: str, place: str) -> Optional[str]:
        if self.found is None or module not in self.found.modules:
            return None
        seen = self.found.modules[module]
        if place.split(".")[0] == "output":
            return seen.out.get(place[7:])
        return seen.given.get(place)

    def text(self, module: str, place: str, shape: Sequence[int], dim: str) -> str:
        """As a step has it: `(b t) s _`."""
        read, names = self._read(module, place), self._names(module)
        if read is not None and self._fused is not None:
            words = words_of(self._fused.text(read)[0])
            axes = [" + ".join(" ".join(names.get(name, name) for name in part) for part in axis) for axis in words]
            axes = [axis if " " in axis or axis in ("b", *self.sizes) else "" for axis in axes]
            if sum(dim in axis.split() for axis in axes) == 1 and len(axes) == len(shape):
                return " ".join(f"({axis})" if " " in axis else axis or "_" for axis in axes)
        at = self._axis(shape, dim)
        return " ".join(dim if axis == at else "_" for axis in range(len(shape)))

    def unlearned(self, module: str, place: str, shape: Sequence[int], dim: str) -> Optional[str]:
        """A Split over a dim whose extent is not known, of a tensor that has one which no step has learned."""
        read = self._read(module, place)
        if read is None or self._fused is None or self.found is None:
            return None
        extents = self._fused.extents(self.found.modules[module].extents)
        for name in [name for axis in words_of(self._fused.text(read)[0]) for part in axis for name in part]:
            if name != "b" and extents.get(name, 0) > 1 and extents[name] not in self.sizes.values():
                text = Known(self.found, {**self.sizes, dim: extents[name]}).text(module, place, shape, dim)
                return f"Split('{place}', '{text}', '{dim}')"
        return None

    def _axis(self, shape: Sequence[int], dim: str) -> int:
        size = self.sizes[dim]
        return next((at for at, n in enumerate(shape) if n == size),
                    next((at for at, n in enumerate(shape) if n % size == 0), -1))

    def holds(self, module: str, place: str, shape: Sequence[int], dim: str) -> bool:
        """Has this tensor rows of the dim?"""
        size = self.sizes.get(dim, 0)
        if size < 2:
            return False
        read, names = self._read(module, place), self._names(module)
        if read is not None and self._fused is not None:
            there = {names.get(self._fused.of.get(name, name), name) for axis in words_of(read) for part in axis
                     for name in part}
            if there or size not in shape:
                return dim in there
        return size in shape

    def kinds(self, module: str, dim: str) -> List[str]:
        """What the module does along the dim, or its parts."""
        return [seen.kind for seen in self._findings(module, dim)]

    def reach(self, module: str, dim: str) -> int:
        """Rows away of which it needs others; 0: as many as there are."""
        found = [seen for seen in self._findings(module, dim) if not seen.is_free]
        return max((seen.rows for seen in found), default=0) if all(seen.is_near for seen in found) else 0

    def _findings(self, module: str, dim: str) -> List[Finding]:
        if self.found is None or self._fused is None or module not in self.found.modules:
            return []
        dims, names = self.found.modules[module].dims, self._names(module)
        if dim not in names.values():  # rows of rows: of a dim that holds them
            extents, size = self._fused.extents(self.found.modules[module].extents), self.sizes.get(dim, 0)
            names = {name: dim for name in names if 1 < size < extents[name] and extents[name] % size == 0}
        return [dims[part] for name, mine in names.items() if mine == dim
                for part in self._fused.parts[name] if part in dims]

    def has_rows(self, dim: str) -> bool:
        """False: all dims of rows are known, and this is none of them."""
        return self.found is None or self._fused is None or any(
            dim in self._names(module).values() for module in self.found.modules)

    def free(self, module: str) -> List[str]:
        """Dims that a switch may cut there."""
        if self.found is None or self._fused is None or module not in self.found.modules:
            return []
        free = self.found.modules[module].free
        return [mine for name, mine in self._names(module).items()
                if name != "b" and all(part in free for part in self._fused.parts[name])]

    def is_of_keys(self, module: str, dim: str) -> bool:
        """Are rows of the dim keys of torch's attention in it, and no queries?"""
        return any(each.keys == self.sizes.get(dim) != each.rows for each in (self.found.flow.attentions if self.found
                   else ()) if each.module == module or module.startswith(f"{each.module}."))

    def attention(self, module: str, dims: Set[str], cuts: Set[str]) -> Optional[Tuple[Attention, List[str]]]:
        """That of torch in it whose rows are of one of these dims, or of one and another that is cut; and of which."""
        for each in self.found.flow.attentions if self.found else ():
            if each.module != module and not module.startswith(f"{each.module}."):
                continue
            for name in sorted(dims):
                if each.rows == each.keys == self.sizes.get(name):
                    return each, [name]
            pairs = [[a, b] for a in cuts & set(self.sizes) for b in cuts & set(self.sizes) if a < b and {a, b} & dims
                     and self.sizes[a] + self.sizes[b] == each.rows == each.keys]
            if pairs:
                return each, pairs[0]
        return None
