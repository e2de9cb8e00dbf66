"""Modules that compute otherwise in training, which eval mode hides: means of rows that they learn."""
from __future__ import annotations

import contextlib
from typing import Dict, FrozenSet, Iterable, Iterator, List, Tuple

import torch

from ..exploring.kept import learns
from .watched import Watched


@contextlib.contextmanager
def learned(model: torch.nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Within, these norms are in eval mode: what goes wrong none the less is not theirs."""
    norms = [model.get_submodule(name) for name in names]
    try:
        for norm in norms:
            norm.training = False
        yield
    finally:
        for norm in norms:
            norm.training = True


def learning(model: torch.nn.Module, every: List[Watched]) -> Iterator[Tuple[str, str, str]]:
    """Those that would of a rank's rows alone."""
    given = [seen for each in every for seen in each.seen if seen.side == "given"]
    parts = {seen.module for seen in given if seen.is_part}
    cut: Dict[str, FrozenSet[str]] = {seen.module: x.cut for seen in given for x in seen.held if x.cut}
    for name, module in model.named_modules():
        if name in parts and learns(module):
            within = [outer for outer in cut if outer in ("", name) or name.startswith(f"{outer}.")]
            dims = " and ".join(sorted(cut[max(within, key=len)])) if within else ""
            rows = f"rows of {dims}, which is cut there" if dims else "rows that are cut there"
            yield (name, f"'{name}' ({type(module).__name__}) is in training, where it takes means over {rows}: they "
                   "would be of this rank's rows alone",
                   "model.eval(), or a Gather before it and a Split behind, with no Halo round them")
