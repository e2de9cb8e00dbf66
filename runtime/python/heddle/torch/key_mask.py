"""What is added to the scores of keys, wherever these go: it goes with them, in columns of their own."""
from __future__ import annotations

import math
from typing import Tuple

import torch
import torch.nn.functional as F

from ..errors import ArgumentError, UnsupportedError

_COLUMNS = 8  #: more, since kernels want widths of whole eights
_HIDDEN = -(2.0 ** 14)  #: of the score of a hidden key, whose weight is then 0, also in float16
_QKV = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def with_key_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float) -> _QKV:
    """q, k, v [b, s, h, d], wider: scores of keys that the mask [b, s] hides (False) come to nothing, all others are as
    they were, and so are the first d of o. No sample may hide all of its keys: it would have as good as no mask."""
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.shape != k.shape[:2]:
        shown = f"{mask.dtype}{tuple(mask.shape)}" if isinstance(mask, torch.Tensor) else f"a {type(mask).__name__}"
        raise ArgumentError(f"key_mask is {shown}, wanted torch.bool{tuple(k.shape[:2])}: what "
                            "is seen of this rank's rows")
    if scale == 0:
        raise ArgumentError("key_mask: with a scale of 0 all scores are 0, and none can be hidden")
    return with_key_scores(q, k, v, mask[:, :, None], scale)


def with_key_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, more: torch.Tensor, scale: float) -> _QKV:
    """The same with what is added to the scores of keys, [b or 1, s, h or 1], within 2^14 either way; or, of bool,
    where they are seen. Its gradient is that of the scores. Two columns have it, the second what the first rounds."""
    q, k, v = (F.pad(x, (0, _COLUMNS)) for x in (q, k, v))
    unit = math.copysign(2.0 ** min(math.floor(-math.log2(abs(scale))), 15), scale)
    if more.dtype == torch.bool:
        more = torch.where(more, 0.0, _HIDDEN)
    wide = more.to(torch.promote_types(more.dtype, torch.float32)).clamp(_HIDDEN, -_HIDDEN) / (scale * unit)
    wide = wide.clamp(2 * _HIDDEN, -2 * _HIDDEN)
    first = wide.to(k.dtype)
    q[..., -2:] = unit
    k[..., -2] = first
    k[..., -1] = (wide.detach() - first.detach()).to(k.dtype)
    return q, k, v


def of_scores(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A mask as scaled_dot_product_attention takes it of q [b, h, rows, d] and some keys, with all four dims and an
    extent of 1 where it is one number expanded."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ArgumentError(f"the mask is of {mask.dtype}, wanted torch.bool or a floating type")
    shape = (1, 1, 1, 1, *mask.shape)[-4:]
    if mask.dim() > 4 or shape[0] not in (1, q.shape[0]) or shape[1] not in (1, q.shape[1]):
        raise ArgumentError(f"the mask is {tuple(mask.shape)}, wanted [b, h, rows, keys] with b={q.shape[0]}, "
                            f"h={q.shape[1]}, or 1 of them")
    mask = mask.reshape(shape) if mask.dim() < 4 else mask
    for dim in range(3):
        if mask.shape[dim] > 1 and mask.stride(dim) == 0:
            mask = mask.narrow(dim, 0, 1)
    return mask


def of_keys(mask: torch.Tensor, method: str, heads: int, kv_heads: int) -> torch.Tensor:
    """What `with_key_scores` takes of a mask `of_scores` gives, [b or 1, keys, h or 1]."""
    if mask.shape[2] > 1:
        raise UnsupportedError(f"{method} knows masks of keys, which are the same for all rows, [_, _, 1, keys]; this "
                               f"is {tuple(mask.shape)}: ulysses and gather-kv know others")
    if mask.shape[1] > 1 and heads != kv_heads:
        raise UnsupportedError(f"{method} knows masks of keys that differ by head where there are as many key heads; "
                               f"here are {heads} and {kv_heads}")
    return mask[:, :, 0].transpose(1, 2)
