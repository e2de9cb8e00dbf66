"""A rank without rows goes on with one of ones: a model's shapes hold, and its graph is that of the other ranks."""
from __future__ import annotations

from typing import Any, Sequence, Tuple

import torch

from ..errors import ArgumentError


def check_empty(empty: Any) -> None:
    if empty not in ("nothing", "one"):
        raise ArgumentError(f"empty is {empty!r}, wanted 'nothing' or 'one'")


def held(x: torch.Tensor, shape: Tuple[int, ...]) -> torch.Tensor:
    """x without the row that stands for nothing. Another shape stays for whoever refuses it."""
    if x.dim() == len(shape) and all(n == wanted or wanted == 0 and n == 1 for n, wanted in zip(x.shape, shape)):
        for axis, wanted in enumerate(shape):
            x = x if x.shape[axis] == wanted else x.narrow(axis, 0, 0)
    return x


def filled(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """x, or ones of this shape where there is nothing. The graph goes on through it, and takes nothing back."""
    if 0 not in x.shape or x.shape == tuple(shape):
        return x
    axis = next(a for a, (n, wanted) in enumerate(zip(x.shape, shape)) if n != wanted)
    nothing = x.reshape([0 if a == axis else n for a, n in enumerate(shape)])
    return torch.cat([nothing, x.new_ones(shape)], axis)
