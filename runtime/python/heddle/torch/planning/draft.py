"""What is found of a model, in dims that steps can name."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from ... import schedule as planner
from ...errors import ArgumentError, UnsupportedError
from ...machine import MachineLike
from ...schedule import Schedule
from ..beside import apart
from ..exploring.exploration import Exploration
from ..exploring.flow import Call, Flow, Passed
from ..exploring.rows import is_of_pairs
from ..modules import Gather, Sizes, Switch
from ..ranks import Dims
from .plan import Plan, Steps


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

    def __init__(self, found: Exploration, model: torch.nn.Module, given: Optional[Schedule] = None,
                 only: Optional[Set[str]] = None):
        self.found, self.model, self.flow, self.given = found, model, found.flow, given
        self.stages = [stage for stage in found.stages() if only is None or stage.name in only]
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

    def narrow(self) -> List["Draft"]:
        """Of the stages alone whose rows are as many as those that most weights see, where others have others: the
        convolutions before a speech model's blocks."""
        weights: Dict[Tuple[str, int], int] = {}
        rows = {stage.name: self.fused.extents(stage.extents) for stage in self.stages}
        for stage in self.stages:
            for each in rows[stage.name].items():
                weights[each] = weights.get(each, 0) + stage.weights
        most = {name: max((each for each in weights if each[0] == name), key=lambda each: weights[each])
                for name, _ in weights}
        only = {name for name, each in rows.items() if all(most[dim] == (dim, n) for dim, n in each.items())
                and self._is_even(name, each)}
        return [Draft(self.found, self.model, None, only)] if 0 < len(only) < len(rows) and self.given is None else []

    def _is_even(self, stage: str, rows: Dict[str, int]) -> bool:
        """Has it as many rows on both sides?"""
        texts = [(at.text.split(), at.passed.shape) for call in self.flow.calls if call.module == stage
                 for side in ("given", "out") for at in self.tensors(call, side)]
        return all(rows.get(word, n) == n for words, shape in texts if len(words) == len(shape)
                   for word, n in zip(words, shape) if word != "b")

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
        methods = "*=local" if self.is_switching and not is_mixed else "" if method == "auto" else f"*={method}"
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

    def has_all(self, at: _At, dim: str) -> bool:
        """As many rows as the stages have?"""
        words = at.text.split() if "(" not in at.text else []
        return all(n == self.extents.get(dim) for word, n in zip(words, at.passed.shape) if word == dim)

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
                  for text in [apart(text)[0]] if text and "+" not in text for dims in [Dims(text)]
                  for group in dims.groups if len(group) > 1 for name in group if name not in dims.unnamed}
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
        results = [at for at in self.tensors(self.flow.calls[0], "out") if at.passed.stages & set(self.calls)
                   and at.holds(dim)]
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


def merged(steps: Sequence[Tuple[str, Any]], flow: Flow) -> Steps:
    """Each module once, its steps in their order, none twice. Arguments that are one tensor in all calls have one step
    that moves it, unless another step of one of them would then come on its other side."""
    calls: Dict[str, List[Call]] = {}
    for call in flow.calls:
        calls.setdefault(call.module, []).append(call)
    by_module: Dict[str, List[List[Any]]] = {}
    for name, step in steps:
        joined = by_module.setdefault(name, [])
        if not any(step in alike for alike in joined):
            _join(joined, step, calls.get(name, []))
    made = {name: [each[0] if len(each) == 1 else replace(each[0], what=tuple(step.what for step in each))
                   for each in joined] for name, joined in by_module.items()}
    return [(name, each[0] if len(each) == 1 else tuple(each)) for name, each in made.items()]


def _join(joined: List[List[Any]], step: Any, calls: Sequence[Call]) -> None:
    """To the last of those that move the same tensor, if none of what it moves is another step's since."""
    mine = getattr(step, "what", None)
    for alike in reversed(joined):
        first = alike[0]
        if isinstance(step, (Gather, Switch)) and type(step) is type(first) and calls and (
                replace(step, what=first.what) == first) and all(
                any(mine in one and first.what in one for one in call.one) for call in calls):
            alike.append(step)
            return
        if mine in [getattr(each, "what", None) for each in alike]:
            break
    joined.append([step])
