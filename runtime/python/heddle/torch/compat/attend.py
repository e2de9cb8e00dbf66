"""Attention over the ranks of one or two process groups, as backends call it."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ...attention import Attention, check_saved
from ...errors import ArgumentError, UnsupportedError
from ...options import scale_of
from ..attention_op import attention as planned, nothing_of, of_family
from ..blocks import accumulated
from ..eager import static
from ..key_mask import with_key_mask
from .exchange import all_to_all, gather, ranks_of, split
from .groups import balanced, checked, comm_of, flag_of, is_length, rank_of
from .heads import check_qkv, heads_of, heads_to_rows, qkv_to_heads

_ROWS, _HEADS = 1, 2  #: of [b, s, h, d]
_Tensors = Tuple[torch.Tensor, ...]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ulysses_group: Any = None, ring_group: Any = None, *,
              causal: bool = False, scale: Any = None, key_mask: Optional[torch.Tensor] = None,
              joint: Optional[_Tensors] = None, joint_mask: Optional[torch.Tensor] = None,
              return_lse: bool = False, sizes: Optional[Sequence[int]] = None,
              ring_sizes: Optional[Sequence[int]] = None, chunks: int = 1, saved_forwards: int = 1) -> Any:
    """o [b, s/n, h, d] of this rank's rows q, k, v [b, s/n, h, d] of a sequence that is sharded over the ranks of both
    groups: the ring's blocks are one after another, each cut over a group of ulysses. Any rows and heads; k and v may
    have fewer heads; o has its gradient. Collective over both groups. Where neither is given, the default group is that
    of ulysses.

    ulysses_group   whose ranks exchange rows for heads
    ring_group      round which keys and values come
    scale           a number, or a tensor of one; None: 1 / sqrt(d)
    key_mask        [b, s/n], False: a key of this rank's rows that nobody sees; of every sample somebody's key is seen
    joint_mask      [b, l], the same of `joint`
    joint           q, k, v [b, l, h, d] that every rank has alike (of a text): all rows see their keys, and they see
                    all. Ranks share their heads and, over the ring, their rows. Returns (o, o of these), of which the
                    second is whole on every rank, as `gather` has it
    return_lse      True: (o, lse), lse [b, h, s/n] in float32 at least, with its gradient; with `joint` both are pairs
    sizes           rows of the ranks of this rank's ulysses group; None: as many as this one has
    ring_sizes      rows of each of the ring's blocks; None: as many as this one has. Wrong ones are MismatchError
    chunks          > 1: so many parts of the heads, of which one is exchanged while the one before is attended to
    saved_forwards  of the ring's plan (`comm.attention`)
    """
    check_qkv(q, k, v)
    _need_scores(q, saved_forwards)
    if joint is None and joint_mask is not None:
        raise ArgumentError("attention: joint_mask without joint")
    causal = flag_of("attention: causal", causal)
    if joint is not None:
        if not isinstance(joint, (list, tuple)) or len(joint) != 3:
            raise ArgumentError(f"attention: joint is a {type(joint).__name__}, wanted q, k and v")
        _need_beside(q, joint)
        if causal:
            raise ArgumentError("attention: joint rows have no place in a causal sequence")
    if ulysses_group is None and ring_group is None:
        ulysses_group = dist.group.WORLD
    width, return_lse = static(q.shape[3]), flag_of("attention: return_lse", return_lse)
    q, joint, scale = _scaled(q, joint, scale, width)
    if key_mask is not None or joint_mask is not None:
        q, k, v = _masked((q, k, v), key_mask, scale)
        joint = None if joint is None else _masked(joint, joint_mask, scale)
    call = _Call(ulysses_group, ring_group, q.shape[_ROWS], sizes, ring_sizes, joint)
    options = {"causal": causal, "scale": scale, "log_sum_exp": return_lse, "saved_forwards": saved_forwards}
    parts = _parts((q, k, v), joint, chunks)
    found: List[Tuple[_Tensors, _Tensors]] = []
    coming, going = call.to_heads(parts[0], chunks > 1), []
    for at, part in enumerate(parts):
        here = coming()
        if at + 1 < len(parts):
            coming = call.to_heads(parts[at + 1], True)
        o, lse = call.attend(here, part, options)
        going.append((call.to_rows(o, part, chunks > 1), call.lse_to_rows(lse, part) if return_lse else ()))
    found = [(back(), lse) for back, lse in going]
    os = tuple((torch.cat(xs, _HEADS) if chunks > 1 else xs[0])[..., :width] for xs in zip(*(os for os, _ in found)))
    lses = tuple(torch.cat(xs, 1) if chunks > 1 else xs[0] for xs in zip(*(lses for _, lses in found)))
    if joint is None:
        return (os[0], lses[0]) if return_lse else os[0]
    return (os, lses) if return_lse else os


def _need_scores(q: torch.Tensor, saved_forwards: Any) -> None:
    if not q.is_floating_point() or q.dtype.itemsize < 2:
        raise UnsupportedError(f"attention stores floating numbers, not {q.dtype}, and those of 2 bytes at least")
    if not torch.compiler.is_compiling():
        check_saved("attention", int(saved_forwards) if is_length(saved_forwards) else saved_forwards)
    if q.shape[3] == 0:
        raise ArgumentError(f"attention: q is {tuple(q.shape)}, and heads without width have no scores")


def _need_beside(q: torch.Tensor, joint: _Tensors) -> None:
    check_qkv(*joint)
    x = joint[0]
    if (x.dtype, x.device, x.shape[0]) != (q.dtype, q.device, q.shape[0]):
        raise ArgumentError(f"attention: joint is {x.dtype}{tuple(x.shape)} on {x.device} beside {q.dtype}"
                            f"{tuple(q.shape)} on {q.device}: wanted one dtype, one device and as many samples")


def _scaled(q: torch.Tensor, joint: Any, scale: Any, width: int) -> Tuple[torch.Tensor, Any, Any]:
    """q, that of `joint`, and the scale as a number. A compiler does not know a tensor's: q is multiplied by it."""
    usual = width ** -0.5
    if scale is None or not torch.compiler.is_compiling() or isinstance(scale, (int, float)):
        is_plain = torch.compiler.is_compiling()  # its number stays
        return q, joint, usual if scale is None else scale if is_plain else scale_of("attention", scale)
    by = torch.as_tensor(scale)
    if by.numel() != 1 or by.is_complex() or by.requires_grad:
        raise ArgumentError("attention: scale is a tensor, wanted one of one number, without a gradient")
    by = by.reshape(()).to(torch.float64) / usual
    q, *other = ((x * by.to(x.device)).to(x.dtype) for x in (q, *(joint or ())[:1]))
    return q, joint and (other[0], *joint[1:]), usual


def _masked(qkv: _Tensors, mask: Optional[torch.Tensor], scale: float) -> _Tensors:
    q, k, v = qkv
    return with_key_mask(q, k, v, k.new_ones(k.shape[:_HEADS], dtype=torch.bool) if mask is None else mask, scale)


def _parts(qkv: _Tensors, joint: Optional[_Tensors], chunks: int) -> List[Tuple[_Tensors, _Tensors]]:
    """Of the heads: q, k, v and those of `joint`."""
    heads, key_heads = qkv[0].shape[_HEADS], qkv[1].shape[_HEADS]
    if not is_length(chunks) or not 1 <= chunks <= max(key_heads, 1):
        raise ArgumentError(f"attention: {chunks} chunks of {key_heads} key heads")
    chunks = int(chunks)
    if joint is not None and joint[0].shape[_HEADS:] + joint[1].shape[_HEADS:] != \
            qkv[0].shape[_HEADS:] + qkv[1].shape[_HEADS:]:
        raise ArgumentError(f"attention: joint has other heads, {tuple(joint[0].shape)} beside {tuple(qkv[0].shape)}")
    cut = balanced(key_heads, chunks)

    def of(xs: Optional[_Tensors]) -> List[_Tensors]:
        if xs is None:
            return [()] * chunks
        return list(zip(*(x.split([n * x.shape[_HEADS] // max(key_heads, 1) for n in cut], _HEADS) for x in xs)))
    return list(zip(of(qkv), of(joint))) if heads else [(qkv, joint or ())]


@torch.compiler.assume_constant_result
def _family_of(group: Any, form: str, method: str, *options: Tuple[str, Any]) -> int:
    return comm_of(group).family(Attention, form, method, dict(options)).for_graph()


class _Call:
    """Who has which rows, and what goes where."""

    def __init__(self, ulysses: Any, ring: Any, length: int, sizes: Optional[Sequence[int]],
                 ring_sizes: Optional[Sequence[int]], joint: Optional[_Tensors]):
        self.ulysses, self.ring = ulysses, ring
        self.over, self.around = (1 if group is None else ranks_of(group) for group in (ulysses, ring))
        self.rows = [length] * self.over if sizes is None else list(checked("sizes", sizes, self.over))
        whole = sum(self.rows)
        blocks = [whole] * self.around if ring_sizes is None else checked("ring_sizes", ring_sizes, self.around)
        self.joint_rows = balanced(0 if joint is None else joint[0].shape[_ROWS], self.around)
        self.blocks = [a + b for a, b in zip(blocks, self.joint_rows)]
        at = 0 if ring is None else rank_of(ring)
        if blocks[at] != whole:
            raise ArgumentError(f"attention: ring_sizes says {blocks[at]} rows of this rank's block, sizes {whole}")

    def cut(self, part: Tuple[_Tensors, _Tensors]) -> List[int]:
        """A part's query heads of the ranks of ulysses."""
        q, k, _ = part[0]
        return heads_of(q.shape[_HEADS], k.shape[_HEADS], self.over)[0]

    def to_heads(self, part: Tuple[_Tensors, _Tensors], beside: bool) -> Callable[[], _Tensors]:
        """Of a part all rows that this rank attends to, of its heads: a call that waits for them."""
        xs, joint = part
        if self.over == 1:
            moved: Callable[[], _Tensors] = lambda: xs
        elif beside:
            handles = [all_to_all(x, _HEADS, _ROWS, self.ulysses, gather_sizes=self.rows,
                                  scatter_sizes=self._heads(x, part), async_op=True) for x in xs]
            moved = lambda: tuple(handle.wait() for handle in handles)
        else:
            q, k, v = xs
            there = qkv_to_heads(q, k, v, self.ulysses, sizes=self.rows)
            moved = lambda: there
        if not joint:
            return moved
        own = [self._shared(x, part) for x in joint]
        return lambda: tuple(torch.cat(pair, _ROWS) for pair in zip(moved(), own))

    def _heads(self, x: torch.Tensor, part: Tuple[_Tensors, _Tensors]) -> List[int]:
        return heads_of(x.shape[_HEADS], part[0][1].shape[_HEADS], self.over)[0]

    def _shared(self, x: torch.Tensor, part: Tuple[_Tensors, _Tensors]) -> torch.Tensor:
        """This rank's heads and rows of one of `joint`."""
        if self.over > 1:
            x = split(x, _HEADS, self.ulysses, sizes=self._heads(x, part))
        return x if self.around == 1 else split(x, _ROWS, self.ring, sizes=self.joint_rows)

    def attend(self, xs: _Tensors, part: Tuple[_Tensors, _Tensors], options: Any) -> Tuple[torch.Tensor, Any]:
        q, k, v = xs
        b, _, h, d = q.shape
        if h == 0:  # the others of the ring have none either
            o = nothing_of(q, k, v)
            return o, o.sum(3).transpose(1, 2).to(accumulated(o.dtype))
        if self.around == 1 and not options["log_sum_exp"]:
            o = torch.nn.functional.scaled_dot_product_attention(
                *(x.transpose(1, 2) for x in xs), is_causal=options["causal"], scale=options["scale"],
                enable_gqa=True if h != k.shape[_HEADS] else False)  # no symbol of a compiler
            return o.transpose(1, 2), None
        group, method = self.ulysses if self.ring is None else self.ring, "local" if self.around == 1 else "ring"
        if torch.compiler.is_compiling():
            options = {**options, "kv_heads": k.shape[_HEADS], "scale": float(options["scale"])}
            options.update((name, static(options[name])) for name in ("kv_heads", "saved_forwards", "scale"))
            form = f"f32[b=%d s=%d h=%d d=%d] on [sp={ranks_of(group)}]: {self._cut(['%d'] * self.around)}"
            numbers = [b, sum(self.blocks), h, d, *(self.blocks if self.around > 1 else ())]
            family = _family_of(group, form, method, *options.items())
            return of_family(q, k, v, numbers, family, options["log_sum_exp"], method)
        comm = comm_of(group)
        plan = comm.attention(f"f32[b={b} s={sum(self.blocks)} h={h} d={d}] on [sp={comm.size}]: "
                              f"{self._cut(self.blocks)}", method, kv_heads=k.shape[_HEADS], **options)
        found = planned(q, k, v, plan, heads_first=False)
        return found if options["log_sum_exp"] else (found, None)

    def _cut(self, lengths: Sequence[Any]) -> str:
        return "*" if self.around == 1 else f"s@sp({' '.join(map(str, lengths))})"

    def to_rows(self, o: torch.Tensor, part: Tuple[_Tensors, _Tensors], beside: bool) -> Callable[[], _Tensors]:
        """The way back of o, and of what it has of `joint`."""
        o, *joint = o.split([sum(self.rows), o.shape[_ROWS] - sum(self.rows)], _ROWS) if part[1] else [o]
        cut = self.cut(part)
        more = tuple(self._gathered(x, _ROWS, _HEADS, cut) for x in joint)
        if self.over == 1:
            return lambda: (o, *more)
        if beside:
            handle = all_to_all(o, _ROWS, _HEADS, self.ulysses, gather_sizes=cut, scatter_sizes=self.rows,
                                async_op=True)
            return lambda: (handle.wait(), *more)
        back = heads_to_rows(o, self.ulysses, sizes=self.rows, heads=cut)
        return lambda: (back, *more)

    def lse_to_rows(self, lse: torch.Tensor, part: Tuple[_Tensors, _Tensors]) -> _Tensors:
        """[b, h, s]"""
        lse, *joint = lse.split([sum(self.rows), lse.shape[2] - sum(self.rows)], 2) if part[1] else [lse]
        cut = self.cut(part)
        more = tuple(self._gathered(x, 2, 1, cut) for x in joint)
        return (lse if self.over == 1 else all_to_all(lse, 2, 1, self.ulysses, gather_sizes=cut,
                                                      scatter_sizes=self.rows), *more)

    def _gathered(self, x: torch.Tensor, rows: int, heads: int, cut: Sequence[int]) -> torch.Tensor:
        if self.around > 1:
            x = gather(x, rows, self.ring, sizes=self.joint_rows)
        return x if self.over == 1 else gather(x, heads, self.ulysses, sizes=cut)
