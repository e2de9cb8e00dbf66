"""Dims that always stand folded together are one dim of a plan: `(h w)` is `s`, and blocks of it need not be rows."""
from __future__ import annotations

import itertools
import math
import re
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

Words = List[List[Tuple[str, ...]]]  #: per axis, parts that stand beside one another; none: channels


def words_of(text: str) -> Words:
    """`(b f) (l + h w) _` as [[(b, f)], [(l,), (h, w)], []]."""
    found: Words = []
    for word in re.findall(r"\([^()]*\)|[^\s()]+", text):
        parts = [tuple(part.split()) for part in word.strip("()").split("+")]
        found.append([] if parts == [("_",)] else parts)
    return found


def is_of_pairs(text: str, only: str = "", shape: Sequence[int] = ()) -> bool:
    """Are there two axes (as long as each other, where the shape is known) with rows of a dim (of this one alone)? So
    is a mask of all rows with all, which stays whole. The shape of a call with other axes tells nothing."""
    words = words_of(text)
    axes = [({dim for part in axis for dim in part if dim != "b" and not dim.isdecimal() and only in ("", dim)}, n)
            for axis, n in zip(words, shape if len(shape) == len(words) else [None] * len(words))]
    return any(mine & other and n == m for (mine, n), (other, m) in itertools.combinations(axes, 2))


class Fused:
    """`of[dim]` is the fused dim that a dim is a part of; `parts` the other way."""

    def __init__(self, texts: Iterable[str], dims: Sequence[str]):
        groups = [part for text in texts for axis in words_of(text) for part in axis]
        runs: List[Tuple[str, ...]] = [(dim,) for dim in dims]
        for a, b in zip(dims, dims[1:]):
            if a == "b" or not any(set((a, b)) & set(group) for group in groups):
                continue
            if all(_beside(group, a, b) for group in groups if a in group or b in group):
                at = next(at for at, run in enumerate(runs) if run[-1] == a)
                runs[at: at + 2] = [(*runs[at], b)]
        taken = {run[0] for run in runs if len(run) == 1}
        self.parts: Dict[str, Tuple[str, ...]] = {}
        for run in runs:
            name = run[0] if len(run) == 1 else "s" if "s" not in taken | set(self.parts) else "".join(run)
            self.parts[name] = run
        self.of = {dim: name for name, run in self.parts.items() for dim in run}

    def text(self, text: str) -> Tuple[str, Set[str]]:
        """As steps have it, and the dims that stand beside others there, which no step can cut."""
        words: List[str] = []
        beside: Set[str] = set()
        seen: Set[str] = set()  # a mask may have rows twice, which steps cannot name
        for axis in words_of(text):
            tokens = [part[0].isdecimal() for part in axis]  # of a class
            names = [self.named(part) for part, is_token in zip(axis, tokens) if not is_token]
            if len(axis) == 2 and len(names) == 1 and names[0] is not None and not seen & set(names[0]):
                seen |= set(names[0])
                words.append("(" + " + ".join(" ".join(names[0]) if not is_token else part[0]
                                              for part, is_token in zip(axis, tokens)) + ")")
            elif len(axis) == 1 and names[0] is not None and not seen & set(names[0]):
                seen |= set(names[0])
                words.append(f"({' '.join(names[0])})" if len(names[0]) > 1 else names[0][0])
            else:
                words.append("_")
                beside |= {self.of[dim] for part in axis for dim in part if dim in self.of}
        return " ".join(words), beside

    def named(self, part: Tuple[str, ...]) -> Optional[List[str]]:
        """None: a dim is there without those that it is folded with."""
        names: List[str] = []
        at = 0
        while at < len(part):
            name = self.of.get(part[at], "")
            run = self.parts.get(name, ())
            if not run or part[at: at + len(run)] != run:
                return None
            names.append(name)
            at += len(run)
        return names

    def extents(self, of: Mapping[str, int]) -> Dict[str, int]:
        return {name: math.prod(of[dim] for dim in run) for name, run in self.parts.items()
                if all(dim in of for dim in run)}


def _beside(group: Tuple[str, ...], a: str, b: str) -> bool:
    return a in group and b in group and group.index(b) == group.index(a) + 1
