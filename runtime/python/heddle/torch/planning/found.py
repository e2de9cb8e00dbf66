"""From what was found of a model, and the planner's schedule, to the steps of a plan."""
from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from ... import schedule as planner
from ..._library import encoded
from ...attention import check_method, check_saved
from ...errors import ArgumentError, Error, InfeasibleError, UnsupportedError
from ...line import mesh_of
from ...machine import MachineLike, machine_of
from ...schedule import Schedule
from ..beside import apart
from ..exploring.exploration import Exploration
from ..exploring.flow import Call, Passed
from ..exploring.rows import is_of_pairs
from ..modules import Gather, Sizes, Split
from ..proving import Proof, prove
from ..ranks import Dims
from .along import along_plans, is_near
from .mended import mended_plan
from .plan import Plan, lines_of
from .scheduled import need_followed, schedule_of, sent_of

_TRIES_MAX = 24
Steps = List[Tuple[str, Any]]


def plan_of(found: Exploration, model: torch.nn.Module, mesh: str, *, schedule: Optional[Schedule] = None,
            method: str = "auto", machine: Optional[MachineLike] = None, sizes: str = "",
            saved_forwards: int = 1) -> Plan:
    """The steps for this exploration's model, proved on ranks that are simulated."""
    if type(model).__name__ != found.model:
        raise ArgumentError(f"what was found is of {found.model}, and the model is a {type(model).__name__}")
    if method != "auto":
        check_method(method)
    if method == "local":
        raise ArgumentError("method is local, which is attention of a rank's rows alone: wanted one of all ranks")
    check_saved("plan", saved_forwards)
    grid = mesh_of(mesh)
    if grid.naxes != 1:
        raise ArgumentError(f"the mesh is {mesh}, wanted one axis: [sp=4]")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ArgumentError(f"the schedule is a {type(schedule).__name__}, wanted one of heddle.plan")
    encoded("sizes", sizes)
    if schedule is not None and schedule.mesh != mesh:
        raise ArgumentError(f"the schedule of {schedule.model} is for {schedule.mesh}, and the ranks are {mesh}")
    if schedule is not None:
        need_followed(found, schedule)
    _need_known(found, mesh, machine, sizes)
    search = _Search(found, model, mesh, grid.axis[0].size, method, saved_forwards)
    plan = search.along(False) if schedule is None and is_near(found) else None
    if schedule is not None and any(stage.method in ("halo", "sums") for stage in schedule.stages):
        plan = search.like(schedule)
    if plan is None:
        try:
            plan = search.mixed(machine, sizes) if schedule is None else None
            plan = plan or search.drafted(schedule, machine, sizes)
        except UnsupportedError as error:
            search.why = str(error)
    if schedule is None:
        plan = plan or search.along(True) or search.mended()
    if plan is None:
        raise search.refused()
    plan.why += search.unfollowed
    if plan.schedule is None:
        _told(plan, found, model, mesh, machine, sizes)
    if plan.schedule is not None:
        plan.why += _uncounted(plan, plan.schedule) + sent_of(found, plan, grid.axis[0].name.decode())
    return plan


def _need_known(found: Exploration, mesh: str, machine: Optional[MachineLike], sizes: str) -> None:
    """A machine or sizes that the planner does not know are refused, whatever plan there would be without them."""
    on = None if machine is None else machine_of(machine)
    if on is not None or sizes:
        try:
            planner.plan(found.to_yaml(), mesh, machine=on, sizes=sizes)
        except (InfeasibleError, UnsupportedError):
            pass


def _uncounted(plan: Plan, schedule: Schedule) -> str:
    """Of rows that are cut beside those of the activation the schedule knows nothing."""
    known = {stage.layout.split("@")[0] for stage in schedule.stages}
    every = [step for _, steps in plan.steps for step in (steps if isinstance(steps, tuple) else (steps,))]
    beside = {dim for step in every if isinstance(step, Split)
              for dim in ((step.over,) if isinstance(step.over, str) else step.over)} - known
    return f"; the schedule's bytes are without the rows of {' '.join(sorted(beside))}" if beside else ""


def _told(plan: Plan, found: Exploration, model: torch.nn.Module, mesh: str, machine: Optional[MachineLike],
          sizes: str) -> None:
    """What the planner says of steps that it has not decided, or why it says nothing."""
    try:
        schedule = schedule_of(found, model, plan, mesh, machine, sizes)
    except Error as error:
        plan.why += f"; the planner has no schedule of it: {error}"
        return
    whole = next((stage.name for stage in schedule.stages if "@" not in stage.layout), None)
    if whole is None:
        plan.schedule, plan.stages = schedule, lines_of(schedule)
    else:
        plan.why += (f"; the planner has no schedule of it: in '{whole}' it cuts {' or '.join(found.planned())}, and "
                     "no part of them")


class _Search:
    """Plans of one model, until one holds."""

    def __init__(self, found: Exploration, model: torch.nn.Module, mesh: str, size: int, method: str, saved: int):
        self._found, self._model, self._mesh, self._size = found, model, mesh, size
        self._method, self._saved = method, saved
        self._tried: List[Tuple[Plan, Proof]] = []
        self.why = self.unfollowed = ""

    def refused(self) -> UnsupportedError:
        tried, found = self._tried, self._found
        if tried:
            return UnsupportedError(f"{found.model} on {self._mesh}: the best of {len(tried)} plans does not hold on "
                                    f"{tried[0][1]}")
        stages = ", ".join(f"'{stage.name}' mixes {' '.join(stage.mixed)}" for stage in found.stages()[:4])
        where = stages or "no module is a stage"
        return UnsupportedError(self.why or f"{found.model} on {self._mesh}: no plan is known where {where}: wanted a "
                                            "module behind the last stage, or its result, with rows of one dim alone")

    def along(self, within: bool) -> Optional[Plan]:
        found, model = self._found, self._model
        for plans in along_plans(found, model, self._size, self._method, self._saved, within):
            quick = [(_quickly(model, plan, found), plan) for plan in plans]
            self._tried += [(plan, proof) for proof, plan in quick if not proof]
            for _, plan in sorted((each for each in quick if each[0]), key=lambda each: each[0].bytes_total):
                plan.proof = prove(model, plan, *found.given[0], ranks=min(max(self._size, 2), 3), **found.given[1])
                if plan.proof:
                    return plan
                self._tried.append((plan, plan.proof))
        return None

    def mended(self) -> Optional[Plan]:
        size = min(self._size, 3)
        return mended_plan(self._found, self._model, self._size, self._method, self._saved,
                           lambda plan: _proved(self._model, plan, self._found, size))

    def like(self, schedule: Schedule) -> Plan:
        """By a schedule that has halos or sums. Steps with these cut one dim all the way, so it is the one of them that
        has every stage as the schedule has it."""
        from .attended import method_of
        found, model, method = self._found, self._model, method_of(schedule, self._method)
        others: List[str] = []
        for plan in itertools.chain.from_iterable(plans for within in (False, True) for plans in along_plans(
                found, model, self._size, method, self._saved, within)):
            try:
                differs = _differs(schedule, schedule_of(found, model, plan, self._mesh, None, ""))
            except Error as error:
                differs = str(error)
            if not differs:
                plan.proof = _proved(model, plan, found, min(self._size, 3))
                if plan.proof:
                    plan.schedule, plan.stages = schedule, lines_of(schedule)
                    return plan
                differs = str(plan.proof)
            others.append(f"{plan.why}: {differs}")
        near = next(stage for stage in schedule.stages if stage.method in ("halo", "sums"))
        raise UnsupportedError(f"the schedule of {schedule.model} has '{near.name}' {near.layout} by {near.method}: a "
                               "plan with halos or sums cuts one dim all the way, and none has all stages so: "
                               f"{'; '.join(dict.fromkeys(others)) or 'there is none'}")

    def mixed(self, machine: Optional[MachineLike], sizes: str) -> Optional[Plan]:
        """By the schedule of the fewest seconds, where stages attend by several methods, or by one and are switched."""
        if machine is None or self._method != "auto":
            return None
        draft = Draft(self._found, self._model)
        try:
            schedule = draft.scheduled(self._mesh, machine, sizes, "auto", is_mixed=True)
        except (InfeasibleError, UnsupportedError):
            return None
        by: Dict[str, str] = {stage.method: stage.name for stage in schedule.stages if stage.method != "local"}
        if len(by) < (1 if draft.is_switching else 2) or not {"halo", "sums"}.isdisjoint(by):
            return None
        try:
            need_followed(self._found, schedule)
            plan = self.drafted(schedule, machine, sizes)
            if plan is not None:
                plan.why += f": the planner predicts {schedule.predicted_s:.3g} s by it on {schedule.machine}"
            return plan
        except (ArgumentError, UnsupportedError) as error:
            has = " and ".join(f"{method} in '{name}'" for method, name in by.items())
            self.unfollowed = (f"; the fewest seconds on {schedule.machine} are those of {has}, which no plan has: "
                               f"{error}")
        return None

    def drafted(self, schedule: Optional[Schedule], machine: Optional[MachineLike], sizes: str) -> Optional[Plan]:
        """By the planner's schedule; by one that is given every stage has its layout and its method."""
        from .attended import need_method  # which builds on this
        draft, method = Draft(self._found, self._model, schedule), self._method
        for each in {method, *(stage.method for stage in (schedule.stages if schedule else []))} - {"local"}:
            need_method(draft, each)
        refused: Optional[Error] = None
        for draft.is_switching in (draft.ways() if schedule is None else draft.ways_of(schedule)):
            try:
                plans = draft.plans(schedule or draft.scheduled(self._mesh, machine, sizes, method), self._size,
                                    method, self._saved)
                for plan in itertools.islice(plans, _TRIES_MAX):
                    proof = _proved(self._model, plan, self._found, min(self._size, 3))
                    if proof:
                        plan.proof = proof
                        return plan
                    self._tried.append((plan, proof))
            except (UnsupportedError, ArgumentError) as error:
                refused = refused or error
        if refused is not None:
            raise refused if schedule is not None else UnsupportedError(str(refused))
        return None


def _differs(wanted: Schedule, seen: Schedule) -> str:
    """The first stage that a schedule has otherwise."""
    for want, got in zip(wanted.stages, seen.stages):
        if (want.name, want.layout, want.method) != (got.name, got.layout, got.method):
            return f"'{got.name}' has {got.layout} by {got.method}, and not {want.layout} by {want.method}"
    return ""


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
    found: str  #: its text in the dims of the exploration
    text: str
    beside: Set[str]

    def holds(self, dim: str) -> bool:
        return dim in Dims(apart(self.text)[0]).names


class Draft:
    """What is found, in dims that steps can name."""

    def __init__(self, found: Exploration, model: torch.nn.Module, given: Optional[Schedule] = None):
        self.found, self.model, self.flow, self.given = found, model, found.flow, given
        self.stages = found.stages()
        if not self.stages:
            raise UnsupportedError(f"{found.model}: no module of a list of modules has rows of a sequence, wanted some "
                                   "that can be stages: name the dims, explore(..., dims={...})")
        for stage in self.stages:
            stage.need_one_way()
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

    def ways(self) -> List[bool]:
        """Is the dim that is cut switched between stages? Where those that leave one free mix nothing (projections of
        texts), rows may as well be cut once."""
        mixes = [stage for stage in self.stages if set(stage.mixed) - {"b"}]
        may_be_cut_once = bool(mixes) and not any(self.free[stage.name] for stage in mixes)
        return [*([False] if may_be_cut_once else []), *([True] if any(self.free.values()) else [])] or [False]

    def ways_of(self, schedule: Schedule) -> List[bool]:
        """Those of a schedule that is given: rows may be cut once where all stages cut them and one of them attends."""
        cut = {stage.layout for stage in schedule.stages}
        is_once = len(cut) == 1 and "@" in min(cut) and any(stage.method != "local" for stage in schedule.stages)
        return [False, True] if is_once else [True]

    # --- what the planner decides -----------------------------------------------------------------------------------
    def scheduled(self, mesh: str, machine: Optional[MachineLike], sizes: str, method: str,
                  is_mixed: bool = False) -> Schedule:
        methods = None if self.is_switching and not is_mixed else "" if method == "auto" else f"*={method}"
        if "b" in self.found.dims and "b=" not in sizes:  # samples are not this mesh's to cut
            sizes = f"b=1,{sizes}" if sizes else "b=1"
        model = self.found.to_yaml()
        try:
            return planner.plan(model, mesh, machine=machine, sizes=sizes, methods=methods)
        except ArgumentError:  # stages whose rows are those of several dims in one axis have no method in the file
            if not methods:
                raise
            return planner.plan(model, mesh, machine=machine, sizes=sizes, methods="")

    def layouts(self, schedule: Schedule) -> Dict[str, Optional[str]]:
        """Of every stage the dim that is cut."""
        found: Dict[str, Optional[str]] = {}
        methods = {stage.name: stage.method for stage in schedule.stages}
        for stage in schedule.stages:
            found.setdefault(stage.name, stage.layout.split("@")[0] if "@" in stage.layout else None)
        for name, free in self.free.items():
            if found[name] not in (None, *free) and methods[name] == "local":
                has = set(self.found[name].dims) & set(self.fused.parts.get(found[name] or "", ()))
                how = "mixes it" if has else "has none of it"
                raise ArgumentError(f"the schedule of {schedule.model} cuts '{found[name]}' in stage '{name}', which "
                                    f"{how}: free there are {' '.join(free) or 'none'}")
        return found

    # --- tensors of calls -------------------------------------------------------------------------------------------
    def tensors(self, call: Call, side: str) -> List[_At]:
        """But for those of all rows with all, which are whole."""
        module = self.found.modules.get(call.module)
        texts = {} if module is None else module.given if side == "given" else {
            f"output.{name}" if name else "output": text for name, text in module.out.items()}
        return [_At(passed, texts[passed.name], *self.fused.text(texts[passed.name])) for passed in getattr(call, side)
                if passed.name in texts and not is_of_pairs(
                    texts[passed.name], shape=passed.shape)]

    def stage_of(self, module: str) -> str:
        return next(stage.name for stage in self.stages if f"{module}.".startswith(f"{stage.name}."))

    def plans(self, schedule: Schedule, size: int, method: str, saved: int) -> Iterator[Plan]:
        from .attended import attended_plans  # which builds on this
        from .switched import switched_plans
        yield from (switched_plans(self, schedule, method, saved) if self.is_switching else
                    attended_plans(self, schedule, size, method, saved))

    # --- the ends ---------------------------------------------------------------------------------------------------
    def sizes(self, steps: Steps) -> Steps:
        """What has to be learned before, since steps find it folded with others: from tensors before the stages."""
        wanted = {name for _, step in steps for text in (getattr(step, "dims", ""), getattr(step, "as_", None) or "")
                  for text in [apart(text)[0]] if text and "+" not in text
                  for group in Dims(text).groups if len(group) > 1 for name in group
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

    def gathers(self, dim: str) -> List[Steps]:
        """Where the whole may come together again, the narrowest place first; of several results that stages make (the
        residuals of a controlnet) there."""
        results = [at for at in self.tensors(self.flow.calls[0], "out") if at.passed.stages and at.holds(dim)]
        if len(results) > 1:
            return [[("", Gather(at.passed.name, at.text, dim)) for at in results]]
        last = max(self.flow.calls[at].ended for at in self.calls)
        early = {call.module for call in self.flow.calls if call.ended < last}  # a step is for all calls of a module
        stages = {self.flow.calls[at].module for at in self.calls}
        ways: List[Tuple[int, int, Tuple[str, Any]]] = []
        for call in self.flow.calls:
            inside = any(call.module.startswith(f"{stage}.") for stage in stages)
            if call.module in early or inside or call.module == "" or not any(p.stages for p in call.out):
                continue
            module = self.found.modules[call.module]
            for at in self.tensors(call, "out"):
                if at.holds(dim) and (call.ended == last or self._is_free(module, dim)):
                    elems = 1
                    for n in at.passed.shape:
                        elems *= n
                    ways.append((elems, -call.ended, (call.module, Gather(at.passed.name, at.text, dim))))
        return [[step] for _, _, step in sorted(ways, key=lambda way: way[:2])]

    def _is_free(self, module: Any, dim: str) -> bool:
        return all(part in module.free for part in self.fused.parts[dim])


def merged(steps: Sequence[Tuple[str, Any]]) -> Steps:
    """Each module once, its steps in their order."""
    by_module: Dict[str, List[Any]] = {}
    for name, step in steps:
        if step not in by_module.setdefault(name, []):
            by_module[name].append(step)
    return [(name, each[0] if len(each) == 1 else tuple(each)) for name, each in by_module.items()]
