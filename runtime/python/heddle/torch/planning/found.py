"""From what was found of a model, and the planner's schedule, to the steps of a plan."""
from __future__ import annotations

import itertools
from typing import Dict, List, Optional, Sequence, Tuple

import torch

from ... import schedule as planner
from ..._library import encoded
from ...attention import check_method, check_saved
from ...errors import ArgumentError, Error, InfeasibleError, UnsupportedError
from ...line import axis_of
from ...machine import MachineLike, machine_of
from ...schedule import Schedule
from ..attending import Attend
from ..exploring.exploration import Exploration
from ..exploring.kept import learning_in
from ..modules import Split
from ..proving import Proof
from .along import along_plans, is_near
from .asked import Asked, need_sizes
from .draft import Draft
from .mended import mended_plan, mended_steps
from .plan import Plan, lines_of
from .proved import proved, quickly
from .scheduled import need_followed, schedule_of, sent_of
from .texts import rows_of

_TRIES_MAX = 24


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
    axis, size = axis_of(mesh)
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ArgumentError(f"the schedule is a {type(schedule).__name__}, wanted one of heddle.plan")
    encoded("sizes", sizes)
    if schedule is not None and schedule.mesh != mesh:
        raise ArgumentError(f"the schedule of {schedule.model} is for {schedule.mesh}, and the ranks are {mesh}")
    if schedule is not None:
        need_followed(found, schedule)
    _need_known(found, mesh, machine, sizes)
    search = _Search(found, model, mesh, size, method, saved_forwards, Asked(found, sizes))
    plan = search.near() if schedule is None else None
    if schedule is not None and any(stage.method in ("halo", "sums") for stage in schedule.stages):
        plan = search.like(schedule)
    if plan is None:
        try:
            plan = search.mixed(machine, sizes) if schedule is None else None
            plan = plan or search.drafted(schedule, machine, sizes)
        except UnsupportedError as error:
            search.why = str(error)
    if schedule is None:
        plan = plan or search.along(True) or search.mended() or search.round() or search.apart()
    if plan is None:
        raise search.refused()
    plan.why += search.unfollowed + _unasked(plan, method)
    if plan.schedule is None:
        _told(plan, found, model, mesh, machine, sizes, schedule)
    if plan.schedule is not None:
        plan.why += _uncounted(plan, plan.schedule) + sent_of(found, plan, axis)
    plan.why += search.asked.said(plan, plan.proof) if plan.proof else ""
    return plan


def _need_known(found: Exploration, mesh: str, machine: Optional[MachineLike], sizes: str) -> None:
    """A machine or sizes that the planner does not know are refused, whatever plan there would be without them."""
    on = None if machine is None else machine_of(machine)
    if on is None and not sizes:
        return
    text = ""
    try:
        text = found.to_yaml()
        planner.plan(text, mesh, machine=on, sizes=sizes)
    except (InfeasibleError, UnsupportedError):
        pass
    if not text:  # it has no stages, and sizes of its dims none the less
        need_sizes(found, sizes)


def _unasked(plan: Plan, method: str) -> str:
    """Where a method was asked for and nothing attends by it."""
    has = {step.method for _, step in plan.apart() if isinstance(step, Attend)}
    other = f", but by {' and '.join(sorted(has))}" if has else ", what mixes rows has all of them"
    return "" if method in ("auto", *has) else f"; no attention is by {method}, as was asked for{other}"


def _uncounted(plan: Plan, schedule: Schedule) -> str:
    """Of rows that are cut beside those of the activation the schedule knows nothing."""
    known = {stage.layout.split("@")[0] for stage in schedule.stages}
    every = [step for _, steps in plan.steps for step in (steps if isinstance(steps, tuple) else (steps,))]
    beside = {dim for step in every if isinstance(step, Split)
              for dim in ((step.over,) if isinstance(step.over, str) else step.over)} - known
    return f"; the schedule's bytes are without the rows of {' '.join(sorted(beside))}" if beside else ""


def _told(plan: Plan, found: Exploration, model: torch.nn.Module, mesh: str, machine: Optional[MachineLike],
          sizes: str, given: Optional[Schedule]) -> None:
    """What the planner says of steps that it has not decided, or why it says nothing."""
    try:
        schedule = schedule_of(found, model, plan, mesh, machine, sizes)
    except Error as error:
        plan.why += f"; the planner has no schedule of it: {error}"
        return
    is_asked = {stage.name for stage in (given.stages if given else []) if "@" not in stage.layout}
    whole = next((stage.name for stage in schedule.stages if "@" not in stage.layout and stage.name not in is_asked),
                 None)
    if whole is None:
        plan.schedule, plan.stages = schedule, lines_of(schedule)
    else:
        plan.why += (f"; the planner has no schedule of it: in '{whole}' it cuts {' or '.join(found.planned())}, and "
                     "no part of them")


class _Search:
    """Plans of one model, until one holds."""

    def __init__(self, found: Exploration, model: torch.nn.Module, mesh: str, size: int, method: str, saved: int,
                 asked: Asked):
        self._found, self._model, self._mesh, self._size = found, model, mesh, size
        self._method, self._saved, self.asked = method, saved, asked
        self._tried: List[Tuple[Plan, Proof]] = []
        self.why = self.unfollowed = ""

    def refused(self) -> UnsupportedError:
        tried, found = self._tried, self._found
        if tried:
            return UnsupportedError(f"{found.model} on {self._mesh}: the best of {len(tried)} plans does not hold on "
                                    f"{tried[0][1]}{self._trained()}")
        stages = ", ".join(f"'{stage.name}' mixes {' '.join(stage.mixed)}" for stage in found.stages()[:4])
        where = stages or "no module is a stage"
        return UnsupportedError(self.why or f"{found.model} on {self._mesh}: no plan is known where {where}: wanted a "
                                            "module behind the last stage, or its result, with rows of one dim alone")

    def _trained(self) -> str:
        """Where the model is in another mode than the one that was explored."""
        norm = next((name for name in learning_in(self._model) if name not in self._found.learning), None)
        return "" if norm is None else f"; '{norm}' is in training, where it takes means over rows, and was not when " \
            "the model was explored: wanted model.eval(), or heddle.torch.explore in training, too"

    def near(self) -> Optional[Plan]:
        """With rows of neighbours and sums, where these are enough; with none of a dim that nothing mixes, if every
        rank gets rows of it."""
        found, times = self._found, self.asked.times
        if not is_near(found):
            return None
        wide = [dim for dim in found.dims if round(rows_of(found, dim) * times.get(dim, 1.0)) >= self._size]
        return (self.along(False, unmixed=True, dims=wide) if wide else None) or self.along(False)

    def round(self) -> Optional[Plan]:
        """Of stages that nothing mixes a dim from the arguments on, whose rows may go round them; or of one with fewer
        rows than ranks, where no neighbours' would do."""
        return self.along(False, unmixed=True) if self._found.stages() or is_near(self._found) else None

    def apart(self) -> Optional[Plan]:
        """Of each stage by itself, since code between them wants the whole."""
        return self.along(True, apart=True)

    def along(self, within: bool, unmixed: bool = False, dims: Sequence[str] = (),
              apart: bool = False) -> Optional[Plan]:
        found, model = self._found, self._model
        for plans in along_plans(found, model, self._size, self._method, self._saved, within, dims=dims,
                                 unmixed=unmixed, apart=apart):
            every = [(quickly(model, plan, found), plan) for plan in plans]
            self._tried += [(plan, proof) for proof, plan in every if not proof]
            every = [each for each in every if each[0]]
            for quick, plan in sorted(every, key=lambda each: self.asked.bytes_of(each[1], each[0])):
                plan.proof = self._proved(plan, quick)
                if plan.proof:
                    return plan
                self._tried.append((plan, plan.proof))
        return None

    def mended(self) -> Optional[Plan]:
        return mended_plan(self._found, self._model, self._size, self._method, self._saved, self._proved)

    def _proved(self, plan: Plan, quick: Optional[Proof] = None) -> Proof:
        return proved(self._model, plan, self._found, self._size, quick)

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
                plan.proof = self._proved(plan)
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
        first = len(self._tried)
        try:
            need_followed(self._found, schedule)
            plan = self.drafted(schedule, machine, sizes)
            if plan is not None:
                plan.why += f": the planner predicts {schedule.predicted_s:.3g} s by it on {schedule.machine}"
                return plan
            why = f"the best does not hold on {self._tried[first][1]}" if self._tried[first:] else "there are no steps"
        except (ArgumentError, UnsupportedError) as error:
            why = str(error)
        has = " and ".join(f"{method} in '{name}'" for method, name in by.items())
        self.unfollowed = f"; the fewest seconds on {schedule.machine} are those of {has}, which no plan has: {why}"
        return None

    def drafted(self, schedule: Optional[Schedule], machine: Optional[MachineLike], sizes: str) -> Optional[Plan]:
        """By the planner's schedule; by one that is given every stage has its layout and its method."""
        from .attended import need_method  # which builds on this
        draft, method = Draft(self._found, self._model, schedule), self._method
        for each in dict.fromkeys([method, *(stage.method for stage in (schedule.stages if schedule else []))]):
            if each != "local":
                need_method(draft, each)
        refused: List[Error] = []
        for one in [draft, *draft.narrow()]:
            for one.is_switching in (one.ways() if schedule is None else one.ways_of(schedule)):
                plan = self._of_draft(one, schedule, machine, sizes, refused)
                if plan is not None:
                    return plan
        if refused:
            raise refused[0] if schedule is not None else UnsupportedError(str(refused[0]))
        return None

    def _of_draft(self, draft: "Draft", schedule: Optional[Schedule], machine: Optional[MachineLike], sizes: str,
                  refused: List[Error]) -> Optional[Plan]:
        first = len(self._tried)
        try:
            plans = draft.plans(schedule or draft.scheduled(self._mesh, machine, sizes, self._method), self._size,
                                self._method, self._saved)
            for plan in itertools.islice(plans, _TRIES_MAX):
                proof = self._proved(plan)
                if proof:
                    plan.proof = proof
                    may_be_switched = schedule is None and self._method == "auto" and self._may_be_switched(plan)
                    return self._of_fewer_bytes(plan) if may_be_switched else plan
                self._tried.append((plan, proof))
        except (UnsupportedError, ArgumentError) as error:
            refused.append(error)
        if schedule is not None or draft.is_switching or len(self._tried) == first:
            return None
        mended = mended_steps(draft, *self._tried[first], self._proved)
        return mended and self._of_fewer_bytes(mended)

    def _may_be_switched(self, plan: Plan) -> bool:
        """Does attention of all ranks, which nothing hides, leave a dim free?"""
        attends = [(name, step.method) for name, step in plan.apart() if isinstance(step, Attend)]
        return any(set(self._found[name].free) - {"b"} for name, _ in attends) and all(
            method in ("ulysses", "gather-kv") for _, method in attends)

    def _of_fewer_bytes(self, plan: Plan) -> Plan:
        """It, or one that cuts a dim from the first stage to the last, with neighbours, sums and switches."""
        other = self.along(True)
        return other if other and other.proof and plan.proof and (
            self.asked.bytes_of(other, other.proof) < self.asked.bytes_of(plan, plan.proof)) else plan


def _differs(wanted: Schedule, seen: Schedule) -> str:
    """The first stage that a schedule has otherwise."""
    for want, got in zip(wanted.stages, seen.stages):
        if (want.name, want.layout, want.method) != (got.name, got.layout, got.method):
            return f"'{got.name}' has {got.layout} by {got.method}, and not {want.layout} by {want.method}"
    return ""

