"""Rows that every rank has alike, in an axis beside those that are cut: a token of a class in front of patches."""
from __future__ import annotations

import re
from typing import Callable, Optional, Tuple

import torch

from ..errors import ArgumentError

Apply = Callable[[torch.Tensor], torch.Tensor]


def apart(text: str) -> Tuple[str, Callable[..., Apply]]:
    """`b (1 + h w) c` as `b (h w) c`, and how work on the latter is work on the former, and other work on the rows
    beside. Of other texts, themselves."""
    words = re.findall(r"\([^()]*\)|[^\s()]+", text) if isinstance(text, str) else []
    for axis, word in enumerate(words):
        inner = re.fullmatch(r"\(\s*(\d+)\s*\+([^+]+)\)|\(([^+]+)\+\s*(\d+)\s*\)", word)
        if inner is None:
            continue
        names = (inner[2] or inner[3]).split()
        words[axis] = f"({' '.join(names)})" if len(names) > 1 else names[0] if names else word
        return " ".join(words), _Beside(text, axis, int(inner[1] or inner[4]), inner[1] is not None)
    return text, lambda apply, beside=None: apply


def beside(text: str) -> str:
    """`(b f) (1 + h w) c` as `(b f) _ c`, the dims of the rows beside; of other texts, nothing."""
    inner, on_others = apart(text)
    if not isinstance(on_others, _Beside):
        return ""
    words = re.findall(r"\([^()]*\)|[^\s()]+", inner)
    return " ".join("_" if axis == on_others.axis else word for axis, word in enumerate(words))


class _Beside:
    def __init__(self, text: str, axis: int, rows: int, is_before: bool):
        self._text, self.axis, self._rows, self._is_before = text, axis, rows, is_before

    def __call__(self, apply: Apply, beside: Optional[Apply] = None) -> Apply:
        def on(x: torch.Tensor) -> torch.Tensor:
            there = x.shape[self.axis] - self._rows if x.dim() > self.axis else 0
            if there < 1:
                raise ArgumentError(f"'{self._text}': the tensor has the shape {tuple(x.shape)}, wanted more than "
                                    f"{self._rows} rows in dim {self.axis}")
            lengths = [self._rows, there] if self._is_before else [there, self._rows]
            parts = list(x.split(lengths, self.axis))
            at = 1 if self._is_before else 0
            parts[at] = apply(parts[at])
            if beside is not None:
                parts[1 - at] = beside(parts[1 - at])
            return torch.cat(parts, self.axis)
        return on
