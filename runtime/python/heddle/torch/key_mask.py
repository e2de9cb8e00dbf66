"""Masks of keys that go with the keys, wherever these go."""
from __future__ import annotations

from typing import Tuple

import torch
import torch.nn.functional as F

from ..errors import ArgumentError

_COLUMNS = 8  #: more, since kernels want widths of whole eights
_HIDDEN = -(2.0 ** 14)  #: of the score of a hidden key, whose weight is then 0, also in float16


def with_key_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor,
                  scale: float) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v [b, s, h, d], wider: scores of keys that the mask [b, s] hides (False) come to nothing, all others are as
    they were, and so are the first d of o. No sample may hide all of its keys: it would have as good as no mask."""
    if mask.dtype != torch.bool or mask.shape != k.shape[:2]:
        raise ArgumentError(f"key_mask is {mask.dtype}{tuple(mask.shape)}, wanted torch.bool{tuple(k.shape[:2])}: what "
                            "is seen of this rank's rows")
    if scale == 0:
        raise ArgumentError("key_mask: with a scale of 0 all scores are 0, and none can be hidden")
    q, k, v = (F.pad(x, (0, _COLUMNS)) for x in (q, k, v))
    q[..., -1] = min(1 / scale, 2.0 ** 15)
    k[..., -1] = torch.where(mask, 0.0, _HIDDEN).to(k.dtype)[:, :, None]
    return q, k, v
