"""The exchanges around attention: between rows of all heads and all rows of some heads, as one."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch

from ...errors import ArgumentError
from .exchange import all_to_all, exchanged_as_one, ranks_of
from .groups import balanced, checked

_ROWS, _HEADS = 1, 2  #: of [b, s, h, d]


def qkv_to_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Any = None, *,
                 sizes: Optional[Sequence[int]] = None) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v [b, s/n, h, d] of this rank's rows -> [b, s, h/n, d], all rows of this rank's heads. One exchange, two
    where k and v have fewer heads than q; the arguments may have any strides, as slices of one projection have.

    sizes  the ranks' rows; None: as many as this one has, and where that is wrong it is MismatchError, on every rank
    """
    ranks = ranks_of(group)
    check_qkv(q, k, v)
    rows = [q.shape[_ROWS]] * ranks if sizes is None else checked("sizes", sizes, ranks)
    if ranks == 1:
        return q, k, v
    heads, key_heads = heads_of(q.shape[_HEADS], k.shape[_HEADS], ranks)
    if q.shape == k.shape:
        return exchanged_as_one([q, k, v], _HEADS, _ROWS, heads, rows, group)
    q = all_to_all(q, _HEADS, _ROWS, group, gather_sizes=rows, scatter_sizes=heads)
    return (q, *exchanged_as_one([k, v], _HEADS, _ROWS, key_heads, rows, group))


def heads_to_rows(o: torch.Tensor, group: Any = None, *, sizes: Optional[Sequence[int]] = None,
                  heads: Union[int, Sequence[int], None] = None) -> torch.Tensor:
    """The way back: o [b, s, h/n, d] -> [b, s/n, h, d].

    sizes  the ranks' rows; None: they are cut evenly, the first ranks have one more
    heads  how many there are of all ranks, which have them as `qkv_to_heads` cuts them, or what every rank has; None:
           all have as many as this one
    """
    ranks = ranks_of(group)
    if heads is None or not isinstance(heads, int):
        of = heads
    else:
        of = balanced(heads, ranks)
    return all_to_all(o, _ROWS, _HEADS, group, gather_sizes=of, scatter_sizes=sizes)


def heads_of(heads: Any, key_heads: Any, ranks: int) -> Tuple[List[Any], List[Any]]:
    """What every rank gets of them: a key head goes with all its query heads."""
    cut = balanced(key_heads, ranks)
    return [n * (heads // key_heads) for n in cut], cut


def check_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.dim() != 4:
            raise ArgumentError(f"{name}: wanted a tensor [b, s, h, d]")
    if k.shape != v.shape or k.dtype != v.dtype or q.dtype != k.dtype or q.shape[:2] != k.shape[:2] or \
            q.shape[3] != k.shape[3] or q.shape[2] % max(k.shape[2], 1):
        raise ArgumentError(f"q {q.dtype}{tuple(q.shape)}, k {k.dtype}{tuple(k.shape)} and v {v.dtype}"
                            f"{tuple(v.shape)} do not go together: wanted [b, s, h, d] of one dtype, of k and v alike, "
                            "whose heads divide those of q")
