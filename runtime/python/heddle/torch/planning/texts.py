"""Of one dim: which tensors of modules have it, and their texts, as steps have them."""
from __future__ import annotations

import math
from typing import Dict, List, Sequence, Set, Tuple

from ...errors import UnsupportedError
from ..exploring.exploration import Exploration, Module
from ..exploring.flow import as_output
from ..exploring.rows import is_of_pairs, words_of
from ..modules import Sizes
from .plan import Steps


def rows_of(found: Exploration, dim: str) -> int:
    """Of the arguments, those that go together as one, so that inner tensors which have fewer have whole numbers of
    them."""
    extent = found.dims[dim]
    return extent // math.lcm(*(extent // math.gcd(n, extent) for n in _extents(found, dim)))


def _extents(found: Exploration, dim: str) -> List[int]:
    extent = found.dims[dim]
    return [n for n in (module.extents.get(dim, 0) for module in found.modules.values())
            if n > 0 and (n % extent == 0 or extent % n == 0)]


class Texts:
    """What steps that cut one dim all the way say of tensors."""

    def __init__(self, found: Exploration, dim: str):
        self.found, self.dim = found, dim
        self._named: Set[str] = set()  # dims that texts have beside this one
        self._rows = rows_of(found, dim)
        self._unit = found.dims[dim] // self._rows  #: rows of the arguments that go together
        self._is_scaled = any(n != self._rows for n in _extents(found, dim))

    def _is_of_two(self, text: str) -> bool:
        return sum(self.dim in part for axis in words_of(text) for part in axis) > 1

    def _tensors(self, module: Module, side: str) -> List[Tuple[str, str, Sequence[int], bool]]:
        """Those with this dim: the place as a step has it, the text, the shape in the first call; are they of pairs?"""
        texts = module.given if side == "given" else {as_output(name): text for name, text in module.out.items()}
        call = next((call for call in self.found.flow.calls if call.module == module.name), None)
        shapes = {passed.name: passed.shape for passed in getattr(call, side)} if call else {}
        return [(place, text, shapes.get(place, ()), is_of_pairs(text, self.dim, shapes.get(place, ()))
                 or self._is_beside(text)) for place, text in texts.items() if self._has(text)]

    def _is_beside(self, text: str) -> bool:
        """Does it stand beside rows of others, as in a mask of text and picture?"""
        return any(len([part for part in axis if not part[0].isdecimal()]) > 1 and any(
            self.dim in part for part in axis) for axis in words_of(text))

    def _cut(self, module: Module, side: str) -> Dict[str, str]:
        """Texts of tensors of which a rank has its block: those of pairs are whole."""
        return {place: self._of_samples(text, shape) for place, text, shape, is_pairs in self._tensors(module, side)
                if not is_pairs}

    def _of_samples(self, text: str, shape: Sequence[int]) -> str:
        """Without the name of samples where there are more: of each head one."""
        words = text.split()
        return " ".join("_" if word == "b" and n != self.found.dims["b"] else word
                        for word, n in zip(words, shape)) if len(words) == len(shape) else text

    def _has(self, text: str, dim: str = "") -> bool:
        return any((dim or self.dim) in part for axis in words_of(text) for part in axis)

    def _text(self, text: str, *dims: str) -> str:
        """As a step has it: others than b and this dim, or these, are of no matter, and may have other extents there.
        An axis behind this dim's that is read as the same is channels.
        """
        words: List[str] = []
        of = dims or (self.dim,)
        for axis in words_of(text):
            here = [part for part in axis if set(of) & set(part)]
            if not here or not dims and any(self.dim in word.strip("()").split() for word in words):
                words.append("b" if axis == [("b",)] else "_")
                continue
            tokens = [part[0] if part[0].isdecimal() else "" for part in axis]
            if len(axis) > 2 or len(axis) == 2 and not any(tokens):
                raise UnsupportedError(f"'{text}' has {' '.join(of)} beside other rows")
            inner = self._axis(here[0]) if of == (self.dim,) else self._axis_of(here[0], of)
            word = " + ".join(token or inner.strip("()") for token in tokens)
            words.append(f"({word})" if " " in word else word)
        return " ".join(words)

    def _whole(self, text: str) -> str:
        """Of an argument of the model, whose rows go together by so many."""
        words = self._text(text).split() if "(" not in self._text(text) else []
        if self._unit > 1 and self.dim in words:
            return " ".join(f"({self.dim} {self._unit})" if word == self.dim else word for word in words)
        return self._text(text).replace(f"({self.dim} _)", f"({self.dim} {self._unit})")

    def _is_plain(self, dim: str) -> bool:
        """Is its extent inside that of an argument, which has it in an axis of its own?"""
        return all(module.extents.get(dim, self.found.dims[dim]) == self.found.dims[dim]
                   for module in self.found.modules.values()) and any(
            axis == [(dim,)] for text in self.found[""].given.values() for axis in words_of(text))

    def _sizes(self) -> Steps:
        """Of dims that steps name beside this one."""
        return [("", Sizes(name, " ".join(dim if axis == [(dim,)] else "_" for axis in words_of(text))))
                for dim in sorted(self._named) for name, text in self.found[""].given.items()
                if any(axis == [(dim,)] for axis in words_of(text))]

    def _axis(self, part: Tuple[str, ...]) -> str:
        at = part.index(self.dim)
        before = ["b"] if part[:at] == ("b",) else ["_"] if at else []
        behind = ["_"] if len(part) > at + 1 or self._is_scaled else []
        if before == ["_"] and behind and at == 1 and self._is_plain(part[0]):
            before = [part[0]]  # else nobody can tell two apart
            self._named.add(part[0])
        words = [*before, self.dim, *behind]
        return f"({' '.join(words)})" if len(words) > 1 else words[0]

    def _axis_of(self, part: Tuple[str, ...], dims: Sequence[str]) -> str:
        """With both of two dims that are switched: at most one more beside them, of which nobody knows the extent."""
        words: List[str] = []
        for dim in part:
            words += [dim] if dim in dims else ["_"] if words[-1:] != ["_"] else []
            words += ["_"] if dim == self.dim and self._is_scaled else []
        words = ["b" if words.count("_") == 1 and word == "_" and part[0] == "b" and part[1] in dims else word
                 for word in words]
        if words.count("_") > 1:
            raise UnsupportedError(f"'{' '.join(part)}': nobody can tell its dims apart")
        return f"({' '.join(words)})" if len(words) > 1 else words[0]
