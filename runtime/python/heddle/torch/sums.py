"""Norms over a dim that is cut: every rank's sums, and how many elements they are of."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch

from ..errors import ArgumentError, UnsupportedError
from .blocks import accumulated
from .ranks import Ranks, need_name
from .step import Step
from .within import Mode

_norms = torch.nn.functional


@dataclass(frozen=True)
class Sums(Step):
    """Within the module torch.nn.functional.group_norm, instance_norm, layer_norm and rms_norm are over all rows of the
    dim `over`, of which this rank has a block: each rank's mean and sum of squares about it (of rms_norm the sum of
    squares) go to all, who put them together, counting the rows of each. Of weights that have the dim a rank takes
    those of its rows. What would learn running statistics of them is refused, and so is a module that calls no norm,
    when it runs."""

    over: str

    def __post_init__(self) -> None:
        need_name(self.over)

    def _mode(self, ranks: Ranks, where: str) -> Mode:
        return _Summing(self, ranks, f"{where}{self}")


class _Summing(Mode):
    none = ("called no group_norm, instance_norm, layer_norm, rms_norm or batch_norm of torch.nn.functional: its sums, "
            "if it has some, were of this rank's rows alone")

    def __init__(self, step: Sums, ranks: Ranks, where: str):
        super().__init__()
        self._over, self._ranks, self._where = step.over, ranks, where

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        norm = _OF.get(func)
        if norm is None:
            return func(*args, **(kwargs or {}))
        if func in _OF_LAST_DIMS and self._has_its_rows(*args, **(kwargs or {})):
            return func(*args, **(kwargs or {}))
        self.calls += 1
        try:
            return norm(self, *args, **(kwargs or {}))
        except (ArgumentError, UnsupportedError) as error:
            raise type(error)(f"{self._where}: {error}") from error

    def _has_its_rows(self, input: torch.Tensor, normalized_shape: Sequence[int], *_: Any, **__: Any) -> bool:
        """A norm over dims that are whole here, as one over channels is."""
        is_cut = max(self._ranks.part(self._over)[1], 1) != self._ranks.sizes[self._over]
        return is_cut and tuple(input.shape[-len(normalized_shape):]) == tuple(normalized_shape)

    def _group_norm(self, input: torch.Tensor, num_groups: int, weight: Optional[torch.Tensor] = None,
                    bias: Optional[torch.Tensor] = None, eps: float = 1e-5) -> torch.Tensor:
        b, c = input.shape[:2]
        y = self._normed(input.reshape(b, num_groups, -1), input, eps).reshape(input.shape)
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

    def _layer_norm(self, input: torch.Tensor, normalized_shape: Sequence[int], weight: Optional[torch.Tensor] = None,
                    bias: Optional[torch.Tensor] = None, eps: float = 1e-5) -> torch.Tensor:
        return self._of_last_dims(self._normed, input, normalized_shape, weight, bias, eps)

    def _rms_norm(self, input: torch.Tensor, normalized_shape: Sequence[int], weight: Optional[torch.Tensor] = None,
                  eps: Optional[float] = None) -> torch.Tensor:
        eps = torch.finfo(accumulated(input.dtype)).eps if eps is None else eps
        return self._of_last_dims(self._scaled, input, normalized_shape, weight, None, eps)

    def _of_last_dims(self, norm: Callable[..., torch.Tensor], input: torch.Tensor, normalized_shape: Sequence[int],
                      weight: Optional[torch.Tensor], bias: Optional[torch.Tensor], eps: float) -> torch.Tensor:
        at = input.dim() - len(normalized_shape)
        take = self._rows_of(input.shape[max(at, 0):], normalized_shape)
        y = norm(input.reshape(1, input.shape[:at].numel(), -1), input, eps).reshape(input.shape)
        y = y if weight is None else y * take(weight)
        return (y if bias is None else y + take(bias)).to(input.dtype)

    def _rows_of(self, mine: Sequence[int], whole: Sequence[int]) -> Callable[[torch.Tensor], torch.Tensor]:
        """Of weights of the whole those that this rank's rows have."""
        (lo, length), extent = self._ranks.part(self._over), self._ranks.sizes[self._over]
        rows, axes = max(length, 1), [axis for axis, (n, m) in enumerate(zip(mine, whole)) if n != m]
        if not axes and rows == extent:
            return lambda x: x
        if len(axes) != 1 or mine[axes[0]] * extent != whole[axes[0]] * rows:
            raise ArgumentError(f"a norm over {tuple(whole)} of rows of {tuple(mine)}: wanted {self._over}, of which "
                                f"this rank has {length} of {extent}, in one of these dims")
        times = whole[axes[0]] // extent
        return lambda x: x.narrow(axes[0], min(lo, extent - 1) * times, rows * times)

    def _sums(self, x: torch.Tensor, mine: torch.Tensor, given: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, int]:
        """Of all ranks [ranks, ...], what this one has of x[b, groups, elements]; the elements of each, and of all."""
        ranks, whole = self._ranks, self._ranks.sizes.get(self._over)
        rows = max(ranks.part(self._over)[1], 1)
        each, more = divmod(x.shape[2], rows)
        if more or whole is None:
            raise ArgumentError(f"{tuple(given.shape)} has {x.shape[2]} elements in a group, which are no whole number "
                                f"for each of this rank's {rows} rows of {self._over}")
        counts = x.new_tensor([each * ranks.part(self._over, rank)[1] for rank in range(ranks.comm.size)])
        line = f"f32[r={ranks.comm.size} n={mine.numel()}] on {ranks.comm.mesh}: r@{ranks.axis} -> *"
        sums = ranks.moved(mine.reshape(1, -1), line).reshape(-1, *mine.shape)
        return sums, counts[:, None, None], each * whole

    def _normed(self, x: torch.Tensor, given: torch.Tensor, eps: float) -> torch.Tensor:
        """x[b, groups, elements], of all ranks' elements."""
        x = x.to(accumulated(x.dtype))
        mean = x.mean(2)
        apart = (x - mean[:, :, None]).square().sum(2)
        # Every group's sum of squares is about a mean of its own, so nothing is lost where means are large.
        sums, counts, total = self._sums(x, torch.stack([mean, apart]), given)
        mean = (sums[:, 0] * counts).sum(0) / total
        apart = (sums[:, 1] * counts.sign() + counts * (sums[:, 0] - mean).square()).sum(0)
        return (x - mean[:, :, None]) * torch.rsqrt(apart / total + eps)[:, :, None]

    def _scaled(self, x: torch.Tensor, given: torch.Tensor, eps: float) -> torch.Tensor:
        """As `_normed`, by the mean of squares alone."""
        x = x.to(accumulated(x.dtype))
        sums, counts, total = self._sums(x, x.square().sum(2), given)
        return x * torch.rsqrt((sums * counts.sign()).sum(0) / total + eps)[:, :, None]


_OF: Dict[Any, Callable[..., torch.Tensor]] = {
    _norms.group_norm: _Summing._group_norm, _norms.instance_norm: _Summing._instance_norm,
    _norms.batch_norm: _Summing._batch_norm, _norms.layer_norm: _Summing._layer_norm,
    _norms.rms_norm: _Summing._rms_norm}
_OF_LAST_DIMS = _norms.layer_norm, _norms.rms_norm

#: torch's modules whose sums over rows these are
NORMS = "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LayerNorm", "RMSNorm"
