"""Rows that every rank has alike, in an axis beside those that are cut: a token of a class in front of patches."""
from __future__ import annotations

import re
from typing import Callable, Tuple

import torch

from ..errors import ArgumentError

Apply = Callable[[torch.Tensor], torch.Tensor]


def apart(text: str) -> Tuple[str, Callable[[Apply], Apply]]:
    """`b (1 + h w) c` as `b (h w) c`, and how work on the latter is work on the former. Of other texts, themselves."""
    words = re.findall(r"\([^()]*\)|[^\s()]+", text) if isinstance(text, str) else []
    for axis, word in enumerate(words):
        inner = re.fullmatch(r"\(\s*(\d+)\s*\+([^+]+)\)|\(([^+]+)\+\s*(\d+)\s*\)", word)
        if inner is None:
            continue
        names = (inner[2] or inner[3]).split()
        words[axis] = f"({' '.join(names)})" if len(names) > 1 else names[0] if names else word
        return " ".join(words), _Beside(text, axis, int(inner[1] or inner[4]), inner[1] is not None)
    return text, lambda apply: apply


class _Beside:
    def __init__(self, text: str, axis: int, rows: int, is_before: bool):
        self._text, self._axis, self._rows, self._is_before = text, axis, rows, is_before

    def __call__(self, apply: Apply) -> Apply:
        def on(x: torch.Tensor) -> torch.Tensor:
            there = x.shape[self._axis] - self._rows if x.dim() > self._axis else 0
            if there < 1:
                raise ArgumentError(f"'{self._text}': the tensor has the shape {tuple(x.shape)}, wanted more than "
                                    f"{self._rows} rows in dim {self._axis}")
            lengths = [self._rows, there] if self._is_before else [there, self._rows]
            parts = list(x.split(lengths, self._axis))
            at = 1 if self._is_before else 0
            parts[at] = apply(parts[at])
            return torch.cat(parts, self._axis)
        return on
