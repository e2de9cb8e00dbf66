"""Lines, and what follows from them, for operators and for compilers."""
from __future__ import annotations

import functools
from typing import Tuple

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


def paired(line: str) -> str:
    """The line of a complex tensor's real numbers, which torch.view_as_real shows in a dim more."""
    head, rest = line.split("]", 1)
    sides = [f"{side},re_im" if " as " in side else side for side in rest.split(" -> ")]
    return f"{head} re_im=2]{' -> '.join(sides)}"
