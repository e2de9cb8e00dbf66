"""A plan, with what is known of it."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Optional, Tuple

import torch

from ...schedule import Schedule
from ..proving import Proof, prove


@dataclass
class Plan:
    """Steps for `parallelize`, from a pattern of names of modules to a step or a tuple of them, and why they are so.

    steps     as `parallelize` takes them, pairs in their order
    why       a sentence
    stages    a line for every stage: what it has of the activation
    schedule  the planner's, from which it was made
    proof     of the extents that the model was explored with
    """

    steps: List[Tuple[str, Any]]
    why: str = "the plan that was given"
    stages: List[str] = field(default_factory=list)
    schedule: Optional[Schedule] = None
    proof: Optional[Proof] = None

    def prove(self, model: torch.nn.Module, *args: Any, ranks: int = 3, gradients: bool = True, **kwargs: Any) -> Proof:
        """As `heddle.torch.prove`."""
        return prove(model, self, *args, ranks=ranks, gradients=gradients, **kwargs)

    def __str__(self) -> str:
        """The steps, as they would be written by hand."""
        lines = [self.why, *self.stages, "{"]
        for pattern, steps in self.steps:
            steps = steps if isinstance(steps, (list, tuple)) else (steps,)
            lines.append(f"    {pattern!r}: {', '.join(map(str, steps))},")
        return "\n".join([*lines, "}", *([str(self.proof)] if self.proof else [])])
