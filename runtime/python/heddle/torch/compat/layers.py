"""Attention as backends call it: modules, and the arguments of flash attention."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.distributed as dist

from ...errors import ArgumentError, UnsupportedError
from ...options import plain
from .attend import attention
from .groups import is_length
from .heads import by_heads, shown


class _Groups:
    """Those that a program has set for ulysses and for the ring."""

    def __init__(self) -> None:
        self.ULYSSES_PG: Any = None
        self.RING_PG: Any = None

    def set_ulysses(self, group: Any) -> None:
        self.ULYSSES_PG = group

    def set_ring(self, group: Any) -> None:
        self.RING_PG = group


PROCESS_GROUP = _Groups()


class DistributedAttention(torch.nn.Module):
    """An attention that knows nothing of ranks, `local_attention(q, k, v, *args, **kwargs)`, of all rows of this rank's
    heads: for the rows that a rank has of all heads. What comes behind q, k and v goes to it, but for the number of the
    dim of samples and the rotation's cos and sin [rows, 1, 1, width], which come first where they are given."""

    def __init__(self, local_attention: Any, sequence_process_group: Any, scatter_idx: int = 2, gather_idx: int = 0,
                 sp_stream: Any = None):
        super().__init__()
        if not callable(local_attention):
            raise ArgumentError(f"local_attention is a {type(local_attention).__name__}, wanted one of q, k and v")
        self.local_attn, self.spg, self.dims = local_attention, sequence_process_group, (scatter_idx, gather_idx)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any,
                batch_dim_idx: int = 0, rotary_pos_emb: Any = None, **kwargs: Any) -> torch.Tensor:
        if args and type(args[0]) is int:
            rotary_pos_emb, args = args[1] if len(args) > 1 else rotary_pos_emb, args[2:]
        turns = None if rotary_pos_emb is None else _cos_sin(rotary_pos_emb)

        def local(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if turns is not None:
                q, k = _rotated(q, *turns), _rotated(k, *turns)
            return self.local_attn(q, k, v, *args, **kwargs)
        return by_heads(local, query, key, value, self.spg, *self.dims)


def _cos_sin(given: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """Of [rows, 1, 1, width], rows in the dim where they are in q."""
    if not isinstance(given, (tuple, list)) or len(given) != 2 or not all(
            isinstance(x, torch.Tensor) and x.dim() == 4 and x.shape == given[0].shape for x in given):
        raise ArgumentError("rotary_pos_emb: wanted cos and sin, two tensors [rows, 1, 1, width] of one shape")
    return given[0].transpose(0, 1), given[1].transpose(0, 1)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first of each head, as wide as cos; pairs are half of that apart."""
    if cos.shape[-1] > x.shape[-1] or cos.shape[-1] % 2:
        raise ArgumentError(f"rotary_pos_emb is {cos.shape[-1]} wide, wanted an even number up to {x.shape[-1]}")
    if any(here not in (1, there) for here, there in zip(cos.shape[:-1], x.shape)):
        raise ArgumentError(f"rotary_pos_emb has {cos.shape[1]} rows [rows, 1, 1, width], and q and k are "
                            f"{tuple(x.shape)}")
    turned, rest = x.split([cos.shape[-1], x.shape[-1] - cos.shape[-1]], -1)
    first, second = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-second, first), -1) * sin, rest), -1)


class OverGroups(torch.nn.Module):
    """Attention of q, k, v [b, rows of this rank, h, d] over the ranks of two groups or one, called as flash attention
    is."""

    def __init__(self, ulysses_group: Any, ring_group: Any, dims: Tuple[int, int], ring: str = "basic"):
        super().__init__()
        _need_dims(dims, (2, 1), "[b, s, h, d]")
        if not isinstance(ring, str) or not ring.startswith("basic"):
            raise UnsupportedError(f"ring_impl_type is {ring!r}, wanted 'basic': a rank's rows follow one another")
        self.ulysses_pg, self.ring_pg = ulysses_group, ring_group

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0,
                softmax_scale: Optional[float] = None, causal: bool = False, window_size: Tuple[int, int] = (-1, -1),
                softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
                return_attn_probs: bool = False) -> torch.Tensor:
        _without(window_size, dropout_p=dropout_p, softcap=softcap, alibi_slopes=alibi_slopes,
                 return_attn_probs=return_attn_probs)
        o: torch.Tensor = attention(query, key, value, self.ulysses_pg, self.ring_pg, causal=causal,
                                    scale=softmax_scale)
        return o


class PackedOverGroups(torch.nn.Module):
    """The same of q, k and v in one tensor [b, rows of this rank, 3, h, d]."""

    def __init__(self, ulysses_group: Any, ring_group: Any, dims: Tuple[int, int], ring: str = "basic"):
        _need_dims(dims, (3, 1), "[b, s, 3, h, d]")
        super().__init__()
        self.attention = OverGroups(ulysses_group, ring_group, (2, 1), ring)

    def forward(self, qkv: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        o: torch.Tensor = self.attention(*unpacked(qkv, 3), *args, **kwargs)
        return o


def unpacked(x: torch.Tensor, count: int) -> Tuple[torch.Tensor, ...]:
    """Those that are beside one another in [b, s, count, h, d]."""
    if not isinstance(x, torch.Tensor) or x.dim() != 5 or x.shape[2] != count:
        raise ArgumentError(f"{shown(x)}, wanted a tensor [b, s, {count}, h, d]")
    return x.unbind(2)


def round_ring(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
               softmax_scale: Optional[float] = None, causal: bool = False, window_size: Tuple[int, int] = (-1, -1),
               softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
               return_attn_probs: bool = False, group: Any = None, attn_type: Any = None,
               attn_processor: Any = None) -> Any:
    """o, or (o, lse, None), of [b, rows of this rank, h, d]."""
    _without(window_size, dropout_p=dropout_p, softcap=softcap, alibi_slopes=alibi_slopes)
    found = attention(q, k, v, None, dist.group.WORLD if group is None else group, causal=causal, scale=softmax_scale,
                      return_lse=bool(return_attn_probs))
    return (*found, None) if return_attn_probs else found


def rows_first(*xs: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """[b, h, s, d] -> [b, s, h, d], or back."""
    for x in xs:
        if not isinstance(x, torch.Tensor) or x.dim() != 4:
            raise ArgumentError(f"{shown(x)}, wanted a tensor [b, h, s, d]")
    return tuple(x.transpose(1, 2) for x in xs)


def heads_first(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ulysses_group: Any, ring_group: Any,
                dropout_p: float, is_causal: bool, joint: Any = None, strategy: Any = None) -> torch.Tensor:
    """`attention` of [b, h, s, d], with the arguments of torch's own. The rows of `joint`, which every rank has alike,
    stand in o before this rank's ("front") or behind them ("rear")."""
    _without(dropout_p=dropout_p)
    q, k, v = rows_first(query, key, value)
    if joint is None:
        return rows_first(attention(q, k, v, ulysses_group, ring_group, causal=is_causal))[0]
    if not isinstance(strategy, str) or strategy not in ("front", "rear"):
        raise ArgumentError(f"joint_strategy is {strategy!r}, wanted 'front' or 'rear'")
    o = rows_first(*attention(q, k, v, ulysses_group, ring_group, causal=is_causal, joint=rows_first(*joint)))
    return torch.cat(o if strategy == "rear" else o[::-1], 2)


def _need_dims(dims: Tuple[Any, Any], wanted: Tuple[int, int], form: str) -> None:
    if not all(map(is_length, dims)) or dims != wanted:
        raise UnsupportedError(f"scatter_idx and gather_idx are {dims}, wanted {wanted[0]} and {wanted[1]}: of {form}")


def _without(window_size: Any = None, **given: Any) -> None:
    if window_size is not None and plain(window_size) != (-1, -1):
        raise UnsupportedError(f"window_size is {window_size}: all rows are attended to")
    for name, option in given.items():
        if option is not None and (hasattr(option, "shape") or option):
            raise UnsupportedError(f"{name} is {option}, which attention over ranks does not know")


def grouped(ulysses: int, ring: int, ulysses_inside: bool = True) -> Tuple[Any, Any]:
    """This rank's groups of so many ranks, of ulysses and of the ring. Collective over all ranks. Those of the one
    inside follow one another; each of the ring has a rank of every group of ulysses, the other way round likewise."""
    ranks = dist.get_world_size()
    if type(ulysses) is not int or type(ring) is not int or ulysses < 1 or ring < 1 or ranks % (ulysses * ring):
        raise ArgumentError(f"groups of {ulysses} and {ring} ranks do not divide {ranks} ranks")
    inside, outside = (ulysses, ring) if ulysses_inside else (ring, ulysses)
    numbers = torch.arange(ranks).view(-1, outside, inside)
    both = [dist.new_subgroups_by_enumeration(of.reshape(-1, of.shape[2]).tolist())[0]
            for of in (numbers, numbers.transpose(1, 2))]
    return (both[0], both[1]) if ulysses_inside else (both[1], both[0])
