"""Whether a plan holds on as many ranks as it is asked for, and where their parts are uneven."""
from __future__ import annotations

from typing import Optional

import torch

from ..exploring.exploration import Exploration
from ..proving import RANKS_MAX, Proof, further, prove
from .plan import Plan

_FULL_MAX = 3  #: ranks of which gradients are compared


def quickly(model: torch.nn.Module, plan: Plan, found: Exploration, ranks: int = 2) -> Proof:
    """Of the forward alone."""
    return prove(model, plan, *found.given[0], ranks=ranks, gradients=False, **found.given[1])


def proved(model: torch.nn.Module, plan: Plan, found: Exploration, size: int, quick: Optional[Proof] = None) -> Proof:
    """On few ranks with gradients; then the forward on as many as the plan is for, where these are more, and on some
    whose parts begin at rows without a common divisor, if no others did: there a window that pads itself is wrong."""
    args, kwargs = found.given
    quick = quick or quickly(model, plan, found)
    if not quick:
        return quick
    proof = prove(model, plan, *args, ranks=min(max(size, 2), _FULL_MAX), **kwargs)
    if not proof:
        return proof
    asked, fewest = _stand_in(size), min(proof.cut.values(), default=0)
    for ranks in further(asked, proof):
        wide = quickly(model, plan, found, ranks)
        if wide:
            proof.further.append(ranks)
        elif wide.error is None or ranks == asked and ranks <= fewest:  # parts that a module refuses are no wrong ones
            return wide
    return proof


def _stand_in(size: int) -> int:
    """For more ranks than are simulated a divisor of theirs."""
    if size <= RANKS_MAX:
        return size
    return next((n for n in range(RANKS_MAX, _FULL_MAX, -1) if size % n == 0), RANKS_MAX)
