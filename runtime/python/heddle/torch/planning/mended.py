"""Plans that cut one dim all the way, of which a module in which one goes wrong gets the whole."""
from __future__ import annotations

import itertools
import re
from typing import Callable, Optional, Set

import torch

from ..exploring.exploration import Exploration
from ..proving import Proof
from .along import along_plans
from .plan import Plan

_TRIES_MAX = 24


def mended_plan(found: Exploration, model: torch.nn.Module, size: int, method: str, saved: int,
                prove: Callable[[Plan], Proof]) -> Optional[Plan]:
    """A module in which a plan goes wrong, and those in other places that are alike, get the whole; if that does not
    help, what is around it. None: all stages would."""
    stages = {stage.name for stage in found.stages()}
    tries = itertools.count()
    for within, dim in itertools.product((False, True), found.dims):
        whole: Set[str] = set()
        at = ""
        while not stages or not stages <= whole:
            failed = ""
            plans = along_plans(found, model, size, method, saved, within, whole, [dim])
            for plan in itertools.chain.from_iterable(plans):
                if next(tries) >= _TRIES_MAX:
                    return None
                plan.proof = prove(plan)
                if plan.proof:
                    return plan
                failed = failed or plan.proof.worst
            at = failed or at
            while at in whole:
                at = _around(found, at)
            if at not in found.modules or not at:
                break
            whole |= _alike(found, at)
    return None


def _around(found: Exploration, name: str) -> str:
    """The module that calls it."""
    while name:
        name = name.rpartition(".")[0]
        if name in found.modules:
            break
    return name


def _alike(found: Exploration, name: str) -> Set[str]:
    """It, and those that have its place in other blocks."""
    def place(of: str) -> str:
        return re.sub(r"\d+", "_", of)
    return {other for other, module in found.modules.items()
            if place(other) == place(name) and module.kind == found[name].kind}
