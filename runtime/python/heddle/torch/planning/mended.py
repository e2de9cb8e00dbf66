"""Plans of which a module in which one goes wrong gets the whole."""
from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Set

import torch

from ...errors import UnsupportedError
from ..exploring.exploration import Exploration
from ..modules import Gather, Split
from ..proving import Proof
from .along import along_plans
from .plan import Plan

if TYPE_CHECKING:
    from .draft import Draft

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


def mended_steps(draft: "Draft", plan: Plan, proof: Proof, prove: Callable[[Plan], Proof]) -> Optional[Plan]:
    """The same of a plan that cuts rows once for all stages; of modules that are none, and have no steps."""
    from .draft import merged
    over = {step.over for _, step in plan.apart() if isinstance(step, Split)}
    dim = over.pop() if len(over) == 1 else ""
    if not isinstance(dim, str) or not dim:
        return None
    whole: Set[str] = set()
    for _ in range(_TRIES_MAX):
        at = proof.worst
        while at in whole:
            at = _around(draft.found, at)
        if at not in draft.found.modules or not at or any(_is_within(name, at) for name, _ in plan.steps):
            return None
        whole |= _alike(draft.found, at)
        try:
            steps = [step for name in sorted(whole) if not any(_is_within(name, other) for other in whole - {name})
                     for step in _whole(draft, name, dim)]
        except UnsupportedError:
            return None
        if not any(name == at for name, _ in steps):  # it has none of the rows
            continue
        names = list(dict(steps))
        who = ", ".join(map(repr, names)) + (" have" if len(names) > 1 else " has")
        tried = Plan(merged([*plan.apart(), *steps], draft.flow), f"{plan.why}; {who} the whole")
        proof = tried.proof = prove(tried)
        if proof:
            return tried
    return None


def _whole(draft: "Draft", name: str, dim: str) -> List[Any]:
    """Steps by which it has the whole."""
    draft.found[name].need_one_way()
    call = next(call for call in draft.flow.calls if call.module == name)
    given, out = ([at for at in draft.tensors(call, side) if at.holds(dim) and draft.has_all(at, dim)]
                  for side in ("given", "out"))
    return [*((name, Gather(at.passed.name, at.text, dim)) for at in given),
            *((name, Split(at.passed.name, at.text, dim)) for at in out)]


def _is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


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
        return re.sub(r"(?<![^.])\d+(?![^.])", "_", of)  # `blocks.0`, and not `mix1`
    return {other for other, module in found.modules.items()
            if place(other) == place(name) and module.kind == found[name].kind}
