"""Norms over a dim that is cut: every rank's sums, and how many rows they are of."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional

import torch

from ..errors import ArgumentError, UnsupportedError
from .blocks import accumulated
from .ranks import Ranks, need_name
from .within import Mode

_norms = torch.nn.functional


@dataclass(frozen=True)
class Sums:
    """Within the module torch.nn.functional.group_norm and instance_norm are over all rows of the dim `over`, of which
    this rank has a block: each rank's mean and sum of squares about it go to all, who put them together, counting the
    rows of each. What would learn running statistics of them is refused, and so is a module that calls no norm, when
    it runs."""

    over: str

    def __post_init__(self) -> None:
        need_name(self.over)

    def _mode(self, ranks: Ranks, where: str) -> Mode:
        return _Summing(self, ranks, f"{where}{self}")


class _Summing(Mode):
    none = ("called no group_norm, instance_norm or batch_norm of torch.nn.functional: its sums, if it has some, were "
            "of this rank's rows alone")

    def __init__(self, step: Sums, ranks: Ranks, where: str):
        super().__init__()
        self._over, self._ranks, self._where = step.over, ranks, where

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        norm = _OF.get(func)
        if norm is None:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        try:
            return norm(self, *args, **(kwargs or {}))
        except (ArgumentError, UnsupportedError) as error:
            raise type(error)(f"{self._where}: {error}") from error

    def _group_norm(self, input: torch.Tensor, num_groups: int, weight: Optional[torch.Tensor] = None,
                    bias: Optional[torch.Tensor] = None, eps: float = 1e-5) -> torch.Tensor:
        b, c = input.shape[:2]
        x = input.reshape(b, num_groups, -1).to(accumulated(input.dtype))
        y = self._normed(x, input, eps).reshape(input.shape)
        shape = (1, c, *[1] * (input.dim() - 2))
        y = y if weight is None else y * weight.reshape(shape)
        return (y if bias is None else y + bias.reshape(shape)).to(input.dtype)

    def _instance_norm(self, input: torch.Tensor, running_mean: Optional[torch.Tensor] = None,
                       running_var: Optional[torch.Tensor] = None, weight: Optional[torch.Tensor] = None,
                       bias: Optional[torch.Tensor] = None, use_input_stats: bool = True, momentum: float = 0.1,
                       eps: float = 1e-5) -> torch.Tensor:
        if not use_input_stats:
            return _norms.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        if running_mean is not None:
            raise UnsupportedError("instance_norm keeps running statistics, wanted one that does not")
        return self._group_norm(input, input.shape[1], weight, bias, eps)

    def _batch_norm(self, input: torch.Tensor, running_mean: Optional[torch.Tensor],
                    running_var: Optional[torch.Tensor], weight: Optional[torch.Tensor] = None,
                    bias: Optional[torch.Tensor] = None, training: bool = False, momentum: float = 0.1,
                    eps: float = 1e-5) -> torch.Tensor:
        if training:
            raise UnsupportedError("batch_norm in training keeps running statistics: wanted model.eval()")
        return _norms.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)

    def _normed(self, x: torch.Tensor, given: torch.Tensor, eps: float) -> torch.Tensor:
        """x[b, groups, elements], of all ranks' elements."""
        ranks, whole = self._ranks, self._ranks.sizes.get(self._over)
        rows = max(ranks.part(self._over)[1], 1)
        each, more = divmod(x.shape[2], rows)
        if more or whole is None:
            raise ArgumentError(f"{tuple(given.shape)} has {x.shape[2]} elements in a group, which are no whole number "
                                f"for each of this rank's {rows} rows of {self._over}")
        counts = x.new_tensor([each * ranks.part(self._over, rank)[1] for rank in range(ranks.comm.size)])
        mean = x.mean(2)
        apart = (x - mean[:, :, None]).square().sum(2)
        mine = torch.stack([mean, apart])
        # Every group's sum of squares is about a mean of its own, so nothing is lost where means are large.
        sums = ranks.moved(mine.reshape(1, -1), f"f32[r={ranks.comm.size} n={mine.numel()}] on {ranks.comm.mesh}: "
                                                f"r@{ranks.axis} -> *").reshape(-1, *mine.shape)
        counts = counts[:, None, None]
        total = each * whole
        mean = (sums[:, 0] * counts).sum(0) / total
        apart = (sums[:, 1] * counts.sign() + counts * (sums[:, 0] - mean).square()).sum(0)
        return (x - mean[:, :, None]) * torch.rsqrt(apart / total + eps)[:, :, None]


_OF: Dict[Any, Callable[..., torch.Tensor]] = {
    _norms.group_norm: _Summing._group_norm, _norms.instance_norm: _Summing._instance_norm,
    _norms.batch_norm: _Summing._batch_norm}
