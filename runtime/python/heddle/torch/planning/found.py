"""From what was found of a model, and the planner's schedule, to the steps of a plan."""
from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from ... import schedule as planner
from ...errors import ArgumentError, UnsupportedError
from ...line import mesh_of
from ...machine import MachineLike
from ...schedule import Schedule
from ..exploring.exploration import Exploration
from ..exploring.flow import Call, Passed
from ..modules import Gather, Sizes
from ..proving import Proof, prove
from ..ranks import Dims
from .along import along_plans, is_near
from .plan import Plan

_TRIES_MAX = 24
Steps = List[Tuple[str, Any]]


def plan_of(found: Exploration, model: torch.nn.Module, mesh: str, *, schedule: Optional[Schedule] = None,
            method: str = "auto", machine: Optional[MachineLike] = None, sizes: str = "",
            saved_forwards: int = 1) -> Plan:
    """The steps for this exploration's model, proved on ranks that are simulated."""
    if type(model).__name__ != found.model:
        raise ArgumentError(f"what was found is of {found.model}, and the model is a {type(model).__name__}")
    grid = mesh_of(mesh)
    if grid.naxes != 1:
        raise ArgumentError(f"the mesh is {mesh}, wanted one axis: [sp=4]")
    size = grid.axis[0].size
    tried: List[Tuple[Plan, Proof]] = []
    if schedule is None and is_near(found):
        for plans in along_plans(found, model, size, method, saved_forwards):
            quick = [(_quickly(model, plan, found), plan) for plan in plans]
            tried += [(plan, proof) for proof, plan in quick if not proof]
            for _, plan in sorted((each for each in quick if each[0]), key=lambda each: each[0].bytes_total):
                plan.proof = prove(model, plan, *found.given[0], ranks=min(max(size, 2), 3), **found.given[1])
                if plan.proof:
                    return plan
                tried.append((plan, plan.proof))
    draft = Draft(found, model)
    if schedule is not None and schedule.mesh != mesh:
        raise ArgumentError(f"the schedule of {schedule.model} is for {schedule.mesh}, and the ranks are {mesh}")
    if schedule is None:
        schedule = draft.scheduled(mesh, machine, sizes, method)
    for plan in itertools.islice(draft.plans(schedule, size, method, saved_forwards), _TRIES_MAX):
        proof = _proved(model, plan, found, min(size, 3))
        if proof:
            plan.proof, plan.schedule = proof, schedule
            return plan
        tried.append((plan, proof))
    said = f"the best of {len(tried)} plans does not hold on {tried[0][1]}" if tried else "no plan is known for it"
    raise UnsupportedError(f"{found.model} on {mesh}: {said}")


def _quickly(model: torch.nn.Module, plan: Plan, found: Exploration) -> Proof:
    return prove(model, plan, *found.given[0], ranks=2, gradients=False, **found.given[1])


def _proved(model: torch.nn.Module, plan: Plan, found: Exploration, ranks: int) -> Proof:
    args, kwargs = found.given
    quick = _quickly(model, plan, found)
    return prove(model, plan, *args, ranks=max(ranks, 2), **kwargs) if quick else quick


@dataclass(frozen=True)
class _At:
    """A tensor of a stage's call, as a step has it."""

    passed: Passed
    text: str
    beside: Set[str]

    def holds(self, dim: str) -> bool:
        return dim in Dims(self.text).names


class Draft:
    """What is found, in dims that steps can name."""

    def __init__(self, found: Exploration, model: torch.nn.Module):
        self.found, self.model, self.flow = found, model, found.flow
        self.stages = found.stages()
        if not self.stages:
            raise UnsupportedError(f"{found.model}: no module of a list of modules has rows of a sequence, wanted some "
                                   "that can be stages: name the dims, explore(..., dims={...})")
        self.fused = found.fused()
        self.extents: Dict[str, int] = {}
        for stage in self.stages:
            for name, extent in self.fused.extents(stage.extents).items():
                if self.extents.setdefault(name, extent) != extent:
                    self.extents[name] = 0  # another one in another stage: not to be cut
        names = {stage.name for stage in self.stages}
        self.calls = [at for at, call in enumerate(self.flow.calls) if call.module in names]
        self.free = {stage.name: [name for name, run in self.fused.parts.items() if name != "b"
                                  and all(dim in stage.free for dim in run) and self.extents.get(name, 0) > 0]
                     for stage in self.stages}
        self.is_switching = any(self.free.values())

    # --- what the planner decides -----------------------------------------------------------------------------------
    def scheduled(self, mesh: str, machine: Optional[MachineLike], sizes: str, method: str) -> Schedule:
        methods = None if self.is_switching else "" if method == "auto" else f"*={method}"
        if "b" in self.found.dims and "b=" not in sizes:  # samples are not this mesh's to cut
            sizes = f"b=1,{sizes}" if sizes else "b=1"
        return planner.plan(self.found.to_yaml(), mesh, machine=machine, sizes=sizes, methods=methods)

    def layouts(self, schedule: Schedule) -> Dict[str, Optional[str]]:
        """Of every stage the dim that is cut."""
        found: Dict[str, Optional[str]] = {}
        for stage in schedule.stages:
            found.setdefault(stage.name, stage.layout.split("@")[0] if "@" in stage.layout else None)
        missing = [stage.name for stage in self.stages if stage.name not in found]
        if missing:
            raise ArgumentError(f"the schedule of {schedule.model} has no stage '{missing[0]}', which "
                                f"{self.found.model} has: wanted one of heddle.plan(found.to_yaml(), ...)")
        for name, free in self.free.items():
            if found[name] not in (None, *free) and self.is_switching:
                raise ArgumentError(f"the schedule of {schedule.model} cuts '{found[name]}' in stage '{name}', which "
                                    f"mixes it: free there are {' '.join(free) or 'none'}")
        return found

    # --- tensors of calls -------------------------------------------------------------------------------------------
    def tensors(self, call: Call, side: str) -> List[_At]:
        module = self.found.modules.get(call.module)
        texts = {} if module is None else module.given if side == "given" else {
            f"output.{name}" if name else "output": text for name, text in module.out.items()}
        return [_At(passed, *self.fused.text(texts[passed.name])) for passed in getattr(call, side)
                if passed.name in texts]

    def plans(self, schedule: Schedule, size: int, method: str, saved: int) -> Iterator[Plan]:
        from .attended import attended_plans  # which builds on this
        from .switched import switched_plans
        yield from (switched_plans(self, schedule) if self.is_switching else
                    attended_plans(self, schedule, size, method, saved))

    # --- the ends ---------------------------------------------------------------------------------------------------
    def sizes(self, steps: Steps) -> Steps:
        """What has to be learned before, since steps find it folded with others: from tensors before the stages."""
        wanted = {name for _, step in steps for text in (getattr(step, "dims", ""), getattr(step, "as_", None) or "")
                  if text and "+" not in text for group in Dims(text).groups if len(group) > 1 for name in group
                  if not name.startswith("any")}
        made: Steps = []
        for call in self.flow.calls[: self.calls[0]]:
            for side in ("given", "out"):
                for at in self.tensors(call, side):
                    wanted -= self._learned(call, at, wanted, made)
        return made

    def _learned(self, call: Call, at: _At, wanted: Set[str], made: Steps) -> Set[str]:
        words = at.text.split() if "(" not in at.text else []
        alone = {name for name, n in zip(words, at.passed.shape) if name in wanted and n == self.extents_of(name)}
        if alone:
            made.append((call.module, Sizes(at.passed.name, " ".join(word if word in alone else "_"
                                                                     for word in words))))
            return alone
        return set()

    def extents_of(self, name: str) -> int:
        return self.found.dims["b"] if name == "b" and "b" in self.found.dims else self.extents.get(name, 0)

    def gathers(self, dim: str) -> List[Tuple[str, Any]]:
        """Where the whole may come together again, the narrowest place first."""
        last = max(self.flow.calls[at].ended for at in self.calls)
        stages = {self.flow.calls[at].module for at in self.calls}
        ways: List[Tuple[int, int, Tuple[str, Any]]] = []
        for call in self.flow.calls:
            inside = any(call.module.startswith(f"{stage}.") for stage in stages)
            if call.ended < last or inside or call.module == "" or not any(p.stages for p in call.out):
                continue
            module = self.found.modules[call.module]
            for at in self.tensors(call, "out"):
                if at.holds(dim) and (call.ended == last or self._is_free(module, dim)):
                    elems = 1
                    for n in at.passed.shape:
                        elems *= n
                    ways.append((elems, -call.ended, (call.module, Gather(at.passed.name, at.text, dim))))
        return [step for _, _, step in sorted(ways, key=lambda way: way[:2])]

    def _is_free(self, module: Any, dim: str) -> bool:
        return all(part in module.free for part in self.fused.parts[dim])


def merged(steps: Sequence[Tuple[str, Any]]) -> Steps:
    """Each module once, its steps in their order."""
    by_module: Dict[str, List[Any]] = {}
    for name, step in steps:
        if step not in by_module.setdefault(name, []):
            by_module[name].append(step)
    return [(name, each[0] if len(each) == 1 else tuple(each)) for name, each in by_module.items()]
