"""A plan by hand, tried on ranks that are simulated: the first thing that goes wrong, its cause, and what mends it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch

from ...errors import ArgumentError, Error
from ..exploring import Exploration, explore
from ..proving.proof import Proof, prove
from .causes import causes_of
from .known import Known
from .learning import learned, learning
from .saved import saved_by
from .watched import Watched, is_blowing_up, watched


@dataclass(frozen=True)
class Fault:
    """Of a plan."""

    module: str  #: where a step has to be, or another one
    sentence: str
    mend: str

    def __str__(self) -> str:
        return f"{self.sentence}. {self.mend}"


def lint(model: torch.nn.Module, plan: Any, *args: Any, ranks: int = 3, found: Optional[Exploration] = None,
         **kwargs: Any) -> List[Fault]:
    """What is wrong with a plan by hand, with its cause: a module that mixes a dim which is cut there, a Split without
    a Gather, positions or masks that are whole beside rows that are cut, a side input that goes round the split, a
    tensor that counts on every rank, moves that a better plan saves. Nothing: the plan holds, as `prove` says.

        for fault in heddle.torch.lint(model, plan, hidden_states=x, timestep=t):
            print(fault)

    The model runs whole and on so many ranks, which are simulated in this process; nothing is left of that. Numbers
    that are wrong are put right where they are seen, so all faults of a pass are told, each module once, up to one that
    makes a rank raise something.

    plan   steps as `parallelize` takes them, or a Plan
    args   of a forward pass, of small extents that differ
    found  what `explore` found with these arguments, where it is there already: lint asks it for the names of dims, and
           for a plan that sends less

    What the whole model raises goes on. ArgumentError: ranks below 2, no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"lint: the model is a {type(model).__name__}, wanted a torch.nn.Module")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 2:
        raise ArgumentError(f"lint: ranks is {ranks!r}, wanted a number of at least 2")
    if found is not None and not isinstance(found, Exploration):
        raise ArgumentError(f"lint: found is a {type(found).__name__}, wanted what heddle.torch.explore returned")
    steps = getattr(plan, "steps", plan)
    every = watched(model, steps, args, kwargs, ranks, is_sharp=True)
    if found is None:
        try:
            found = explore(model, *args, **kwargs)
        except Error:  # then extents alone say which dim an axis is
            pass
    known = Known(found, max((each.sizes for each in every), key=len))
    causes = causes_of(model, steps, every, known)
    is_sharp = not (causes and is_blowing_up(model, args, kwargs))
    if not is_sharp:
        every = watched(model, steps, args, kwargs, ranks, is_sharp)
        causes = causes_of(model, steps, every, known)
    proof = prove(model, steps, *args, ranks=ranks, **kwargs)
    wrong = [Fault(module, sentence.replace("of ''", "of the model"), mend) for module, sentence, mend in causes]
    norms = [Fault(*said) for said in learning(model, every)]
    if wrong and not proof:  # else nobody sees these numbers: an argument that is not used, rows in another order
        around = {fault.module for fault in wrong if any(_is_in(norm, fault) for norm in norms)}
        if around:  # which may go wrong by their norm alone, or by what they do themselves
            with learned(model, [norm.module for norm in norms]):
                every = watched(model, steps, args, kwargs, ranks, is_sharp)
            around -= {module for module, _, _ in causes_of(model, steps, every, known)}
        around |= {norm.module for norm in norms}
        return norms + [fault for fault in wrong if fault.module not in around]
    faults = [*(Fault(*said) for said in _counted(every)), *norms]
    if not proof:
        return faults or [_unproved(proof)]
    order: Dict[Tuple[str, bool], int] = {}
    for at, seen in enumerate(every[0].seen):
        order.setdefault((seen.module, seen.side != "given"), at)
    saved = saved_by(model, steps, known, proof, ranks, args, kwargs, order)
    return faults + [Fault(*said) for said in saved]


def _is_in(norm: Fault, fault: Fault) -> bool:
    return norm.module != fault.module and f"{norm.module}.".startswith(f"{fault.module}." if fault.module else "")


def _counted(every: List[Watched]) -> List[Any]:
    """Tensors that leave a model otherwise than by its results."""
    made = []
    for name, x in every[0].kept.items():
        others = [each.kept.get(name) for each in every[1:]]
        same = all(y is not None and y.shape == x.shape and torch.equal(x, y) for y in others)
        module, _, attribute = name.rpartition(".")
        counts = f"a loss of it counts {len(every)} times, once on every rank" if same else \
            "a loss of it is of every rank's own rows, and its gradient no addend of the whole one's"
        made.append((module, f"'{module}' keeps '{attribute}', a tensor with a gradient that the model does not return"
                             f": {counts}", "Return it from the model, whose results count once"))
    return made


def _unproved(proof: Proof) -> Fault:
    return Fault(proof.worst, f"the plan does not hold on {proof}",
                 "What the steps cannot see counts otherwise there: a tensor that the model detaches or keeps")
