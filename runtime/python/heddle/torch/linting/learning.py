"""Modules that compute otherwise in training, which eval mode hides: means of rows that they learn."""
from __future__ import annotations

from typing import Dict, FrozenSet, Iterator, List, Tuple

import torch
from torch.nn.modules import batchnorm, instancenorm

from .watched import Watched

_LEARNING = batchnorm._BatchNorm, instancenorm._InstanceNorm


def learns(module: torch.nn.Module) -> bool:
    """What learns nothing takes means in eval mode, too."""
    return isinstance(module, _LEARNING) and module.training and module.track_running_stats and \
        not isinstance(module, torch.nn.SyncBatchNorm)


def learning(model: torch.nn.Module, every: List[Watched]) -> Iterator[Tuple[str, str, str]]:
    """Those that would of a rank's rows alone."""
    cut: Dict[str, FrozenSet[str]] = {seen.module: x.cut for seen in every[0].seen if seen.side == "given"
                                      for x in seen.held if x.cut}
    for name, module in model.named_modules():
        if name in cut and learns(module):
            dims = " and ".join(sorted(cut[name]))
            yield (name, f"'{name}' ({type(module).__name__}) is in training, where it takes means over rows of "
                   f"{dims}, which is cut there: they would be of this rank's rows alone",
                   "model.eval(), or a Gather before it and a Split behind")
