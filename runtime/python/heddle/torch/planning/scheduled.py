"""Between the planner's schedules and plans, both ways."""
from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from ... import schedule as planner
from ...errors import ArgumentError, Error, MismatchError
from ...line import axis_of, layout_text
from ...machine import MachineLike
from ...schedule import Schedule
from ..attending import Attend
from ..exploring.exploration import Exploration
from ..exploring.explorer import explored
from ..halo import Halo
from ..hooks import matching
from ..linting.watched import Watched, watched
from ..modules import pairs_of
from ..sums import Sums


_SEEN_MAX = 3  #: ranks, which are enough to see what stages have


def plan_by(model: torch.nn.Module, schedule: Schedule, mesh: str) -> Any:
    """Steps for a schedule of a model that was explored."""
    found = explored(model)
    if found is None:
        raise ArgumentError(f"parallelize: the schedule of {schedule.model} says which dim its stages have, and not "
                            f"how {type(model).__name__} has it: wanted heddle.torch.explore(model, ...) before, and "
                            "the schedule of heddle.plan(found.to_yaml(), ...)")
    return found.plan(model, mesh, schedule=schedule)


def need_followed(found: Exploration, schedule: Schedule) -> None:
    """Refuses a schedule with what no plan for `parallelize` has: other stages, samples that are cut, cut ends."""
    stages = {stage.name: [seen for seen in schedule.stages if seen.name == stage.name] for stage in found.stages()}
    ours = "wanted one of heddle.plan(found.to_yaml(), ...)"
    for name, seen in stages.items():
        if len(seen) != 1:
            how = f"{len(seen)} times the" if seen else "no"
            raise ArgumentError(f"the schedule of {schedule.model} has {how} stage '{name}', which {found.model} has: "
                                f"{ours}")
    for stage in schedule.stages:
        if stage.name not in stages:
            raise ArgumentError(f"the schedule of {schedule.model} has the stage '{stage.name}', which {found.model} "
                                f"has not: {ours}")
        if stage.layout.startswith("b@"):
            raise ArgumentError(f"the schedule of {schedule.model} has '{stage.name}' {stage.layout} by "
                                f"{stage.method}: samples are not cut here, wanted heddle.plan(..., sizes=\"b=1\")")
    first, last = schedule.edges[0].line._c, schedule.edges[-1].line._c
    begin, end = layout_text(first.from_, first.shape, first.mesh), layout_text(last.to, last.shape, last.mesh)
    if schedule.edges[0].bytes_total > 0:
        raise ArgumentError(f"the schedule of {schedule.model} begins with {begin} and has '{schedule.stages[0].name}' "
                            f"{schedule.stages[0].layout}: what a model is given is whole on every rank, wanted "
                            "heddle.plan without prologue")
    if "@" in end:
        raise ArgumentError(f"the schedule of {schedule.model} ends with {end} behind '{schedule.stages[-1].name}': "
                            "what a model returns is whole on every rank, wanted heddle.plan without epilogue")


def schedule_of(found: Exploration, model: torch.nn.Module, plan: Any, mesh: str, machine: Optional[MachineLike],
                sizes: str) -> Schedule:
    """What the ranks of this plan have in every stage, forced upon the planner."""
    axis, size = axis_of(mesh)
    steps, (args, kwargs) = getattr(plan, "steps", plan), found.given
    every = watched(model, steps, args, kwargs, min(max(size, 2), _SEEN_MAX), is_sharp=False)
    error = next((each.error for each in every if each.error is not None
                  and not isinstance(each.error, MismatchError)), every[0].error)
    if error is not None:
        raise ArgumentError(f"the plan does not run on {mesh}: {error}") from error
    forced = [f"{name}={layout}" for name, layout in _layouts(found, model, steps, every[0], axis).items()]
    fixed = f"b=1,{sizes}".rstrip(",") if "b" in found.dims and "b=" not in sizes else sizes
    return planner.plan(found.to_yaml(), mesh, machine=machine, sizes=fixed, force=";".join(forced), methods="",
                        slack_percent=100 * size)  # a stage that is whole is as uneven as can be


def sent_of(found: Exploration, plan: Any, axis: str) -> str:
    """What went in the plan's proof, where its schedule counts other bytes of that: of tensors with fewer channels than
    the first stage has, say."""
    ranks, batch, first = plan.proof.ranks, found.dims.get("b", 1), found.stages()[0].channels
    forced = ";".join(f"{stage.name}={stage.layout}/{stage.method}" for stage in plan.schedule.stages)
    try:
        counted = batch * planner.plan(found.to_yaml(), f"[{axis}={ranks}]", sizes="b=1" if "b" in found.dims else "",
                                       force=forced, methods="", slack_percent=100 * ranks).bytes_total
    except Error:  # so few ranks cannot be as it says
        return ""
    if counted == plan.proof.bytes_total:
        return ""
    other = [f"'{stage.name}' has {stage.channels}" for stage in found.stages() if stage.channels != first]
    whose = f", of {first} channels: {', '.join(other[:3])}" if other else ""
    return (f"; of the extents that were explored {plan.proof.bytes_total} bytes go on {ranks} ranks, and the schedule "
            f"counts {counted}{whose}")


def _layouts(found: Exploration, model: torch.nn.Module, steps: Any, seen: Watched, axis: str) -> Dict[str, str]:
    fused = found.fused()
    layouts: Dict[str, str] = {}
    for stage in found.stages():
        extents = fused.extents(stage.extents)
        made = next((each for each in seen.seen if each.side == "made" and each.module == stage.name), None)
        held = made.held if made else []
        cut = sorted(next((x.cut for x in held if x.cut), ()))
        names = [name for name, extent in extents.items() for mine in cut if extent == seen.sizes[mine] and name != "b"]
        over, method = _method(model, steps, stage.name)
        if over in extents and not (held and all(x.is_whole for x in held)):
            names.append(over)  # rows beside those that are alike, of which nothing is seen
        layouts[stage.name] = f"{names[0]}@{axis}/{method}" if names else "*/local"
    return layouts


def _method(model: torch.nn.Module, steps: Any, stage: str) -> Tuple[str, str]:
    """The dim of attention in it, and its method; else what the planner calls what it wants of other ranks."""
    names = {id(module): name for name, module in model.named_modules()}
    within = [step for pattern, each in pairs_of(steps)
              for step in (each if isinstance(each, (list, tuple)) else [each])
              if isinstance(step, (Attend, Halo, Sums)) and any(
                  f"{names[id(module)]}.".startswith(f"{stage}.") for module in matching(model, pattern))]
    attend = next((step for step in within if isinstance(step, Attend)), None)
    if attend is not None:
        return attend.over if isinstance(attend.over, str) else "", attend.method
    return "", "halo" if any(isinstance(step, Halo) for step in within) else "sums" if within else "local"
