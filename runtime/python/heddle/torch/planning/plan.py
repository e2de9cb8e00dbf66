"""A plan, with what is known of it."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Optional, Tuple

import torch

from ...schedule import Schedule
from ..proving import Proof, prove

Steps = List[Tuple[str, Any]]


@dataclass
class Plan:
    """Steps for `parallelize`, from a pattern of names of modules to a step or a tuple of them, and why they are so.

    steps     as `parallelize` takes them, pairs in their order
    why       a sentence
    stages    a line for every stage: what it has of the activation
    schedule  the planner's, from which it was made; or the one it comes to, where it was made without
    proof     of the extents that the model was explored with
    """

    steps: Steps
    why: str = "the plan that was given"
    stages: List[str] = field(default_factory=list)
    schedule: Optional[Schedule] = None
    proof: Optional[Proof] = None

    def prove(self, model: torch.nn.Module, *args: Any, ranks: int = 3, gradients: bool = True, **kwargs: Any) -> Proof:
        """As `heddle.torch.prove`."""
        return prove(model, self, *args, ranks=ranks, gradients=gradients, **kwargs)

    def apart(self) -> List[Tuple[str, Any]]:
        """Each step with its module."""
        return [(name, step) for name, steps in self.steps
                for step in (steps if isinstance(steps, (list, tuple)) else (steps,))]

    def code(self) -> str:
        """The steps, as they would be written by hand."""
        lines = []
        for pattern, steps in self.steps:
            begin = f"    {pattern!r}: "
            if isinstance(steps, (list, tuple)):
                between = ",\n" + " " * (len(begin) + 1)
                lines.append(f"{begin}({between.join(map(str, steps))}{',' if len(steps) == 1 else ''}),")
            else:
                lines.append(f"{begin}{steps},")
        return "\n".join(["{", *lines, "}"])

    def __str__(self) -> str:
        return "\n".join([self.why, *self.stages, self.code(), *([str(self.proof)] if self.proof else [])])


def lines_of(schedule: Schedule) -> List[str]:
    """A line for every stage, and one for the end."""
    lines = []
    for stage, edge in zip(schedule.stages, schedule.edges):
        time = f", {stage.predicted_s + edge.predicted_s:.3g} s" if schedule.predicted_s else ""
        way = f" by {stage.method}" if stage.method != "local" else ""
        lines.append(f"  {stage.name}: {edge.kind} to {stage.layout}, {edge.bytes_total} bytes{way}"
                     f"{f', {stage.forward_bytes_total} bytes' if way else ''}{time}")
    if schedule.edges:
        end = schedule.edges[-1]
        lines.append(f"  end: {end.kind}, {end.bytes_total} bytes; {schedule.shape} on {schedule.mesh}")
    return lines
