"""Copies of a model in which nothing is hidden: neither by gates that are zero nor by weights as training begins."""
from __future__ import annotations

import copy
from typing import Any, Dict, List

import torch
from torch.nn.modules.conv import _ConvNd

from ...errors import UnsupportedError
from ..exploring.kept import is_nothing, is_wide, set_eval, written_by

_GAIN_LEAST = 0.5  #: of a matrix, below which it is brought to one: torch's own begin at 0.58, those of 0.02 far below


class Copies:
    """Each has modules and buffers of its own, is in eval mode (but for norms that learn), and has the parameters in
    the model's memory, but for those that a forward writes to, and those that would hide what a plan does wrong:
    what is zero, or nearly so, is noise; a matrix of a small gain is scaled to one. With keys and queries of 0.02
    attention would be the mean of its rows, in whatever order. Without `is_sharp` no matrix is scaled."""

    def __init__(self, model: torch.nn.Module, args: Any, kwargs: Any, is_sharp: bool = True):
        self.model = model
        self._data: List[torch.Tensor] = []
        kernels = {id(p) for module in model.modules() if isinstance(module, _ConvNd) for p in module.parameters(False)}
        for at, p in enumerate(model.parameters()):
            if type(p) is not torch.nn.Parameter:
                raise UnsupportedError(f"prove: a parameter is a {type(p).__name__}, wanted a model before fully_shard")
            rows = p.shape[0] if id(p) in kernels or p.dim() < 2 else p.shape[:-1].numel()
            data = p.detach().clone() if p.is_inference() else p.detach()  # of the former no gradient is known
            self._data.append(_shown(at, data, rows if is_sharp else 0))
        written = written_by(model, args, kwargs)
        self._is_own = [name in written for name, _ in model.named_parameters()]

    def one(self) -> torch.nn.Module:
        model = self.model
        memo: Dict[int, Any] = {id(p): torch.nn.Parameter(data.clone() if is_own else data, p.requires_grad)
                                for p, data, is_own in zip(model.parameters(), self._data, self._is_own)}
        memo.update((id(x), x.clone()) for x in model.buffers() if x.layout is not torch.strided)
        memo.update((id(x), x.detach().clone()) for module in model.modules() for x in vars(module).values()
                    if isinstance(x, torch.Tensor) and not x.is_leaf)  # a weight that is computed, as weight_norm does
        try:
            made = copy.deepcopy(model, memo)
        except Exception as error:  # whatever a model keeps
            raise UnsupportedError(f"prove: {type(model).__name__} cannot be copied: {type(error).__name__}: {error}"
                                   ) from error
        for module in made.modules():  # whose parameters are the model's
            set_eval(module)
        return made


def _shown(at: int, data: torch.Tensor, rows: int) -> torch.Tensor:
    """`rows`: of all matrices of a stack, or kernels of a convolution; 0: nothing is scaled."""
    if is_nothing(data):
        draw = torch.Generator().manual_seed(at)
        return (torch.randn(data.shape, generator=draw, device="cpu") * 0.1).to(data.device, data.dtype)
    if rows == 0 or data.dim() < 2 or not data.is_floating_point() or data.numel() == 0 or not is_wide(data):
        return data
    norm = torch.linalg.vector_norm(data, dtype=torch.promote_types(data.dtype, torch.float32))
    gain = float(norm) / rows ** 0.5
    return data / gain if 0 < gain < _GAIN_LEAST else data
