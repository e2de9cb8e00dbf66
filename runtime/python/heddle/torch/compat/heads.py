"""The exchanges around attention: between rows of all heads and all rows of some heads, as one."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch

from ...errors import ArgumentError
from ..attention_op import nothing_of
from ..ones import filled
from .exchange import all_to_all, exchanged_as_one, ranks_of
from .groups import balanced, checked, comm_of, dim_of, rank_of, shared

_ROWS, _HEADS = 1, 2  #: of [b, s, h, d]
_SAID = 256  #: bytes of what a rank tells the others of an error


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
    of = None if heads is None else shared("heads", heads, ranks)
    to = None if sizes is None else checked("sizes", sizes, ranks)
    return all_to_all(o, _ROWS, _HEADS, group, gather_sizes=of, scatter_sizes=to)


def by_heads(attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], q: torch.Tensor,
             k: torch.Tensor, v: torch.Tensor, group: Any = None, scatter_dim: int = _HEADS,
             gather_dim: int = _ROWS) -> torch.Tensor:
    """o of this rank's rows, of an attention `attend(q, k, v)` of all rows, which is given those of this rank's heads.
    Heads are in `scatter_dim`, rows in `gather_dim`, of which every rank has as many; k and v may have fewer heads, and
    other rows. o has heads where q has them, or there the heads and their width as one. A rank that gets no heads calls
    `attend` with a key head of ones, which nobody else sees: so it knows what o is; where that raises or returns no
    heads, o is there as q is, and as wide as v. Where there are such ranks, what `attend` raises on one with heads is
    ArgumentError on those that raise nothing.
    """
    ranks = ranks_of(group)
    scatter, gather = _dims(attend, (q, k, v), scatter_dim, gather_dim)
    if ranks == 1:
        o = attend(q, k, v)
        _width(o, q, q.shape[scatter], scatter, gather)
        return o
    each = q.shape[scatter] // max(k.shape[scatter], 1)
    cut, key_cut = heads_of(q.shape[scatter], k.shape[scatter], ranks)
    if q.shape == k.shape == v.shape and q.dtype == k.dtype == v.dtype:
        q, k, v = exchanged_as_one([q, k, v], scatter, gather, cut, [q.shape[gather]] * ranks, group)
    else:
        q = all_to_all(q, scatter, gather, group, scatter_sizes=cut)
        k, v = (all_to_all(x, scatter, gather, group, scatter_sizes=key_cut) for x in (k, v))
    mine = cut[rank_of(group)]

    def attended() -> Tuple[torch.Tensor, int]:
        if not mine:
            return _of_none(attend, (q, k, v), max(each, 1), scatter, gather)
        o = attend(q, k, v)
        return o, _width(o, q, mine, scatter, gather)
    o, wide = attended() if 0 not in cut or torch.compiler.is_compiling() else _on_all(attended, group)
    return all_to_all(o, gather, scatter, group, gather_sizes=[n * wide for n in cut])


def _dims(attend: Any, qkv: Sequence[torch.Tensor], scatter_dim: int, gather_dim: int) -> Tuple[int, int]:
    if not callable(attend):
        raise ArgumentError(f"by_heads: attend is a {type(attend).__name__}, wanted a function of q, k and v")
    for name, x in zip("qkv", qkv):
        if not isinstance(x, torch.Tensor) or x.dim() != qkv[0].dim() or x.layout is not torch.strided:
            raise ArgumentError(f"by_heads: {name} is {shown(x)}, wanted three tensors of as many dims, dense")
    scatter, gather = dim_of(qkv[0], scatter_dim), dim_of(qkv[0], gather_dim)
    q, k, v = (x.shape[scatter] for x in qkv)
    if scatter == gather or k != v or (q % k if k else q):
        raise ArgumentError(f"by_heads: q {shown(qkv[0])}, k {shown(qkv[1])} and v {shown(qkv[2])} with heads in dim "
                            f"{scatter}, rows in dim {gather}: wanted two dims, and key heads that divide those of q")
    return scatter, gather


def _on_all(attended: Callable[[], Tuple[torch.Tensor, int]], group: Any) -> Tuple[torch.Tensor, int]:
    """Where it raises on one rank it does so on all of them: those without heads wait for nothing."""
    error, found = None, None
    try:
        found = attended()
    except Exception as raised:  # whatever an attention raises
        error = raised
    said = "" if error is None else f"{type(error).__name__}: {error}"
    every = [each.rstrip().decode(errors="replace")
             for each in comm_of(group).allgather(said.encode()[:_SAID].ljust(_SAID))]
    if error is not None:
        raise error
    failed = [f"{each} on rank {rank}" for rank, each in enumerate(every) if each]
    if failed or found is None:
        raise ArgumentError(f"by_heads: attend raised {failed[0]}")
    return found


def _width(o: Any, q: torch.Tensor, heads: int, scatter: int, gather: int) -> int:
    """Of each of its heads, where o has them in `scatter`."""
    if not isinstance(o, torch.Tensor) or o.dim() <= max(scatter, gather) or o.shape[gather] != q.shape[gather] or \
            heads and (not o.shape[scatter] or o.shape[scatter] % heads):
        raise ArgumentError(f"by_heads: attend returned {shown(o)} of {heads} heads, wanted a tensor with rows in dim "
                            f"{gather} and heads in dim {scatter}")
    return o.shape[scatter] // max(heads, 1)


def _of_none(attend: Callable[..., Any], qkv: Sequence[torch.Tensor], heads: int, scatter: int,
             gather: int) -> Tuple[torch.Tensor, int]:
    """o of a rank without heads, and how wide each would be there. Where `attend` wants its own heads alone, which are
    none, o is as q is and as wide as v: the others wait for it."""
    q, k, v = qkv
    try:
        o = attend(_with_heads(q, scatter, heads), *(_with_heads(x, scatter, 1) for x in (k, v)))
        is_told = not isinstance(o, torch.Tensor) or o.dim() <= scatter or o.shape[scatter] > 0
    except Exception:  # whatever it makes of a head that is not its own
        is_told = False
    if is_told:
        wide = _width(o, q, heads, scatter, gather)
        return o.narrow(scatter, 0, 0), wide
    last = (q if gather == q.dim() - 1 else v).shape[-1]
    return nothing_of(q, k, v).reshape(*q.shape[:-1], last), 1


def _with_heads(x: torch.Tensor, dim: int, heads: int) -> torch.Tensor:
    return filled(x, [heads if at == dim else n for at, n in enumerate(x.shape)])


def shown(x: Any) -> str:
    return str(tuple(x.shape)) if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"


def heads_of(heads: Any, key_heads: Any, ranks: int) -> Tuple[List[Any], List[Any]]:
    """What every rank gets of them: a key head goes with all its query heads."""
    cut = balanced(key_heads, ranks)
    return [n * (heads // max(key_heads, 1)) for n in cut], cut


def check_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.dim() != 4 or x.layout is not torch.strided:
            raise ArgumentError(f"{name}: wanted a tensor [b, s, h, d], dense")
    if k.shape != v.shape or not (q.dtype == k.dtype == v.dtype and q.device == k.device == v.device) or \
            q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3] or \
            (q.shape[2] % k.shape[2] if k.shape[2] else q.shape[2]):
        raise ArgumentError(f"q {q.dtype}{tuple(q.shape)}, k {k.dtype}{tuple(k.shape)} and v {v.dtype}"
                            f"{tuple(v.shape)} do not go together: wanted [b, s, h, d] of one dtype, of k and v alike, "
                            "whose heads divide those of q")
