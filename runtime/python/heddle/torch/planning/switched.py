"""Plans of stages that leave some dim free: the dim that is cut is switched between them."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set

from ...errors import UnsupportedError
from ..attending import Attend
from ..exploring.flow import Call
from ..modules import Gather, Split, Switch
from .attended import attending_along, methods_of
from .plan import Plan, Steps, lines_of

if TYPE_CHECKING:
    from ...schedule import Schedule
    from .draft import Draft

Layouts = Dict[str, Optional[str]]


def switched_plans(draft: "Draft", schedule: "Schedule", method: str, saved: int) -> Iterator[Plan]:
    """Switches behind modules, before the next ones, or behind those of some lists alone: code between modules may have
    needs of its own. Stages that mix what they cut attend by all ranks, each by its method."""
    from .draft import merged
    layouts = draft.layouts(schedule)
    methods = {name: each for name, each in methods_of(schedule, method).items() if each != "local"}
    attends = [(module, Attend(dim, each, saved)) for name, each in methods.items() for dim in [layouts[name] or ""]
               for module in attending_along(draft, name, dim, each)]
    is_so = all(methods.get(stage.name, "local") == stage.method for stage in schedule.stages)
    lists = list(dict.fromkeys(_list_of(stage.name) for stage in draft.stages))
    behind: List[Set[str]] = [set(lists), set(), *({name} for name in lists if len(lists) > 1)]
    last = draft.flow.calls[draft.calls[-1]].module
    dim = layouts[last]
    for gather in (draft.gathers(dim) if dim else [[]]):
        for at_output in behind:
            try:
                steps = _Steps(draft, layouts, at_output).made()
            except UnsupportedError:
                if at_output is behind[-1] and not gather:
                    raise
                continue
            steps += attends + gather
            yield Plan(merged([*draft.sizes(steps), *steps], draft.flow),
                       f"{draft.found.model}: {_sentence(draft, layouts, methods)}",
                       lines_of(schedule) if is_so else [], schedule if is_so else None)


def _list_of(name: str) -> str:
    return name.rpartition(".")[0]


def _sentence(draft: "Draft", layouts: Layouts, methods: Dict[str, str]) -> str:
    kinds: Dict[str, List[str]] = {}
    for stage in draft.stages:
        by = f" by {methods[stage.name]}" if stage.name in methods else ""
        how = f"{layouts[stage.name] or 'nothing'} is cut{by}"
        kinds.setdefault(how, []).append(_list_of(stage.name))
    return "; ".join(f"{how} in {', '.join(dict.fromkeys(names))}" for how, names in kinds.items())


class _Steps:
    def __init__(self, draft: "Draft", layouts: Layouts, at_output: Set[str]):
        self.draft, self.layouts, self.at_output = draft, layouts, at_output
        #: what a call's results are cut along for those who take them
        self.leaves: Dict[int, Optional[str]] = {}

    def made(self) -> Steps:
        draft = self.draft
        steps: Any = []
        wanted = self._wanted()
        for at in draft.calls:
            call = draft.flow.calls[at]
            mine = self.layouts[call.module]
            steps += self._arguments(call, mine)
            self.leaves[at] = mine
            to = wanted.get(at, set())
            if len(to) == 1 and _list_of(call.module) in self.at_output and None not in to and mine:
                steps += self._switched_output(call, mine, next(iter(to)) or "")
                self.leaves[at] = next(iter(to))
        return steps

    def _wanted(self) -> Dict[int, Set[Optional[str]]]:
        """By whom a call's results are taken: what these want cut."""
        wanted: Dict[int, Set[Optional[str]]] = {}
        for at in self.draft.calls:
            call = self.draft.flow.calls[at]
            for passed in call.given:
                for source in passed.stages:
                    wanted.setdefault(source, set()).add(self.layouts[call.module])
        last = self.draft.calls[-1]
        for passed in self.draft.flow.calls[0].out:
            for source in passed.stages:
                wanted.setdefault(source, set()).add(self.layouts[self.draft.flow.calls[last].module])
        return wanted

    def _arguments(self, call: Call, mine: Optional[str]) -> Steps:
        steps: Any = []
        for at in self.draft.tensors(call, "given"):
            before = {self.leaves.get(source) for source in at.passed.stages}  # others have the whole
            if len(before) > 1:
                raise UnsupportedError(f"'{at.passed.name}' of '{call.module}' comes from stages that are cut along "
                                       f"{' and '.join(sorted(map(str, before)))}")
            was = next(iter(before), None)
            if mine in at.beside or was in at.beside:
                raise UnsupportedError(f"'{at.passed.name}' of '{call.module}' has {mine or was} beside other rows")
            if was == mine:
                continue
            if was is None and mine is not None and at.holds(mine):
                steps.append((call.module, Split(at.passed.name, at.text, mine)))
            elif was is not None and mine is None:
                steps.append((call.module, Gather(at.passed.name, at.text, was)))
            elif was is not None and mine is not None and at.holds(was) and at.holds(mine):
                steps.append((call.module, Switch(at.passed.name, at.text, was, mine)))
            elif was is not None:
                raise UnsupportedError(f"'{at.passed.name}' of '{call.module}' is cut along {was}, and has "
                                       f"'{at.text}': {mine} cannot be cut in its place")
        return steps

    def _switched_output(self, call: Call, mine: str, to: str) -> Steps:
        if mine == to:
            return []
        steps: Any = []
        for at in self.draft.tensors(call, "out"):
            if at.holds(mine) and at.holds(to):
                steps.append((call.module, Switch(at.passed.name, at.text, mine, to)))
            elif at.holds(mine) or at.holds(to):
                raise UnsupportedError(f"'{at.passed.name}' of '{call.module}' has '{at.text}': wanted {mine} and {to}")
        return steps
