"""Plans that cut one dim all the way, from a model's arguments to its results or from the first stage to the last: what
mixes it has rows of neighbours, sums, or attention of all ranks, or is cut along another dim while it runs; it has the
whole where nothing of these serves."""
from __future__ import annotations

import contextlib
import itertools
import math
from typing import AbstractSet, Any, Dict, Iterator, List, Sequence, Tuple

import torch

from ...errors import UnsupportedError
from ..attending import Attend
from ..exploring.exploration import Exploration, Module
from ..exploring.flow import Call, as_output
from ..exploring.rows import words_of
from ..exploring.trees import numbers_of
from ..halo import Halo, Numbered
from ..modules import Extent, Gather, Sizes, Split, Switch, Total
from ..sums import NORMS, Sums
from .plan import Plan, Steps
from .texts import Texts


def is_near(found: Exploration) -> bool:
    """Are there modules of which rows of neighbours or sums are all that they want?"""
    return any(seen.kind in ("halo", "reduction") for module in found.modules.values() for seen in module.dims.values())


def along_plans(found: Exploration, model: torch.nn.Module, size: int, method: str, saved: int,
                within: bool = False, whole: AbstractSet[str] = frozenset(), dims: Sequence[str] = (),
                unmixed: bool = False, apart: bool = False) -> Iterator[List[Plan]]:
    """Of every dim of the arguments, those together, and first, of which the fewest modules want the whole. `within`:
    from the first stage to the last; `apart`: in each stage by itself. `whole`: modules that get the whole, whatever
    they mix. `dims`: else all. `unmixed`: of those alone that nothing mixes, which are else left to stages."""
    drafts: List[_Along] = []
    ways = [(Attend, Switch), (Attend,), *([(Switch, Attend)] if method == "auto" else [])]
    for dim, kinds in itertools.product(dims or found.dims, ways):
        draft = _Along(found, model, dim, size, method, saved, kinds, whole)
        if dim != "b" and (dim in found.sequence() if within else draft.is_sequence()):
            try:
                draft.make(within, unmixed, apart)
            except UnsupportedError:
                continue
            drafts += [] if any(draft.steps == other.steps for other in drafts) else [draft]
    for wanted in sorted({draft.whole() for draft in drafts}):
        yield [draft.plan(steps) for draft in drafts if draft.whole() == wanted for steps in draft.ways()]


class _Along(Texts):
    def __init__(self, found: Exploration, model: torch.nn.Module, dim: str, size: int, method: str, saved: int,
                 kinds: Sequence[type], given_whole: AbstractSet[str]):
        super().__init__(found, dim)
        self.gathers = 0
        self._where = "all the way"
        self._kinds = kinds  #: of steps for what mixes the dim, in the order in which they are tried
        self._given_whole = given_whole
        self._pairs = 0  # modules that want the whole, since they make pairs of rows or take some
        self._size, self._method, self._saved = size, method, saved
        self.steps: Steps = []
        self._ends: List[Steps] = [[]]  #: where the whole comes together again
        self._numbers: Steps = []
        self._totals: Steps = []
        self._counts: Steps = []  # of numbers in tuples, and of those that a module returns which has the whole
        self._modules = dict(model.named_modules())

    def is_sequence(self) -> bool:
        return any(self.dim in text.replace("(", " ").replace(")", " ").split() for text in self.found[""].out.values())

    def whole(self) -> Tuple[int, int]:
        """How many modules want the whole. Those of pairs are whole blocks, so they count more."""
        return self._pairs, self.gathers

    def plan(self, steps: Steps) -> Plan:
        from .draft import merged
        plan = Plan(merged(steps, self.found.flow))
        kinds = [type(step).__name__ for _, step in plan.apart()]
        counts = {kind: kinds.count(kind) for kind in ("Halo", "Sums", "Attend", "Switch", "Numbered")}
        counts["Gather"] = self.gathers
        said = ", ".join(f"{count} by {kind}" for kind, count in counts.items() if count) or "nothing mixes it"
        plan.why = f"{self.found.model}: {self.dim} is cut {self._where}; {said}"
        return plan

    def ways(self) -> Iterator[Steps]:
        """Numbers of rows may be the model's own, or be given to it; and their number, where a module has the whole, or
        where it stands in a tuple, which may say something else."""
        extents: List[List[Steps]] = [[[], more] if more else [[]] for more in (self._totals, self._counts)]
        for end, *chosen in itertools.product(self._ends, *extents):
            yield list(itertools.chain(self.steps, self._numbers, *chosen, end))
            if self._numbers:
                yield list(itertools.chain(self.steps, *chosen, end))

    def make(self, within: bool, unmixed: bool, apart: bool) -> None:
        if self._rows < 2:
            raise UnsupportedError(f"{self.dim} has {self._rows} rows that can be cut")
        self._ends = self._apart() if apart else self._stages() if within else self._model()
        kinds = {type(step) for _, step in self.steps}
        if kinds.isdisjoint((Attend, Halo, Sums, Switch, Gather)) != unmixed:
            raise UnsupportedError(f"{'something' if unmixed else 'nothing'} mixes {self.dim}")
        if not within and not unmixed and kinds.isdisjoint((Attend, Halo, Sums, Switch)):
            raise UnsupportedError(f"nothing that mixes {self.dim} would do with less than the whole")
        self.steps = self._sizes() + self.steps

    def _stages(self) -> List[Steps]:
        """From what comes whole into them to the results of the last."""
        calls = self._calls()
        for call in calls:
            self._split(call, [at.name for at in call.given if not at.stages])
        for name in dict.fromkeys(call.module for call in calls):
            self._visit(name)
        return self._ends_behind(calls[-1]) if calls else [[]]

    def _apart(self) -> List[Steps]:
        """From what comes into each to what it makes, since code between them wants the whole."""
        self._where = "in each stage by itself"
        for call in {call.module: call for call in self._calls()}.values():
            before = self._state()
            self._split(call, [at.name for at in call.given])
            self._visit(call.module)
            if any(name == call.module and isinstance(step, Gather) for name, step in self.steps[len(before[0]):]):
                self._back(before)  # it has the whole, as it comes
                self.gathers += 1
            else:
                self.steps += self._ends_at(call)
        return [[]]

    def _calls(self) -> List[Call]:
        """Of stages, once the dim's extent is known."""
        sizes: Steps = [("", Sizes(name, self._whole(text))) for name, text in self.found[""].given.items()
                        if any(axis == [(self.dim,)] for axis in words_of(text))]
        self.steps = sizes[:1]
        names = [stage.name for stage in self.found.stages()]
        return [call for call in self.found.flow.calls if call.module in names]

    def _split(self, call: Call, names: Sequence[str]) -> None:
        module = self.found[call.module]
        given, extents = self._cut(module, "given"), module.extents
        self.steps += [(call.module, Split(name, self._text(given[name]), self.dim)) for name in names if name in given]
        self._add_extents(call.module, [name for name, n in call.numbers.items() if self._is_extent(n, extents)])

    def _ends_behind(self, stage: Call) -> List[Steps]:
        """What the last stage makes is whole there, or where a module that mixes nothing has made less of it."""
        calls = self.found.flow.calls
        early = {call.module for call in calls if call.ended <= stage.ended}  # a step is for all calls of a module
        ways = {math.prod(stage.out[0].shape): self._ends_at(stage)}
        for call in calls:
            is_free = self.dim in self.found[call.module].free and len(call.out) == 1 and bool(call.out[0].stages)
            if call.module and call.module not in early and is_free and math.prod(call.out[0].shape) < min(ways):
                with contextlib.suppress(UnsupportedError):
                    ways[math.prod(call.out[0].shape)] = self._ends_at(call)
        return [ways[elements] for elements in sorted(ways) if ways[elements]] or [[]]

    def _ends_at(self, call: Call) -> Steps:
        return [(call.module, Gather(place, self._text(text), self.dim))
                for place, text in self._cut(self.found[call.module], "out").items()]

    def _model(self) -> List[Steps]:
        root = self.found[""]
        self.steps = [("", Split(name, self._whole(text), self.dim))
                      for name, text in sorted(self._cut(root, "given").items(), key=lambda each: "(" in each[1])]
        if self._unit == 1:
            numbers = numbers_of(self.found.given[1]).items()
            self._add_extents("", [name for name, n in numbers if n == self.found.dims[self.dim]])
        if not self.steps:
            raise UnsupportedError(f"no argument has {self.dim}")
        ends = [("", Gather(place, self._text(text), self.dim)) for place, text in self._cut(root, "out").items()]
        for name in self.found.children(""):
            self._visit(name)
        return [ends]

    def _add_extents(self, module: str, names: Sequence[str]) -> None:
        for name in names:
            (self._counts if "." in name else self.steps).append((module, Extent(name, self.dim)))

    def _visit(self, name: str) -> None:
        module = self.found[name]
        self._numbers += [(name, Numbered(at, self._text(module.given[at]), self.dim)) for at in module.numbered
                          if module.numbered[at] == self.dim]
        if name in self._given_whole:
            self.steps += self._gathered(module)
            return
        seen = module.dims.get(self.dim)
        if seen is None or seen.kind == "table":
            return
        if seen.is_free:
            for child in self.found.children(name):
                self._visit_numbers(child)
            return
        children = self.found.children(name)
        attends = any(each.module == name for each in self.found.flow.attentions)
        is_by_children = any(map(self._is_mixing, children)) or bool(children) and "it raises" in seen.why
        is_by_children = is_by_children and all(
            self._is_whole(child) and self._has_tokens(child) <= self._has_tokens(name) for child in children)
        own = self._own(module) if attends or not is_by_children else []
        self.steps += own
        if is_by_children and not any(isinstance(step, Gather) for _, step in own):
            self._visit_each(module, children)

    def _visit_each(self, module: Module, children: List[str]) -> None:
        """Where steps cannot say it of one of them, all of the module has the whole; where they switch more than the
        module's own arguments and results, it is switched as one."""
        before = self._state()
        try:
            for child in children:
                self._visit(child)
        except UnsupportedError:
            self._back(before)
            self.steps = [step for step in self.steps if step[0] != module.name] + self._gathered(module)
            return
        if self._kinds[0] is not Switch or module.later:
            return
        after, within = self._state(), self.steps[len(before[0]):]
        own = self._switched(module)
        is_less = own and all(isinstance(step, (Gather, Split, Switch)) for _, step in within) and (
            self._sent(own) < self._sent(within))
        if not is_less:
            self._back(after)
            return
        named = self._named
        self._back(before)
        self._named |= named
        self.steps += own

    def _state(self) -> Tuple[Any, ...]:
        return (list(self.steps), list(self._numbers), list(self._totals), list(self._counts), self.gathers,
                self._pairs, set(self._named))

    def _back(self, state: Tuple[Any, ...]) -> None:
        (self.steps, self._numbers, self._totals, self._counts, self.gathers, self._pairs, self._named) = state

    def _sent(self, steps: Steps) -> int:
        """Elements that go: of a gather as often as there are ranks."""
        from .draft import merged
        sent = 0
        for name, step in Plan(merged(steps, self.found.flow)).apart():
            what = step.what[0] if isinstance(step.what, tuple) else step.what
            elements = sum(math.prod(at.shape) for call in self.found.flow.calls if call.module == name
                           for at in (*call.given, *call.out) if at.name == what)
            sent += elements * {Split: 0, Switch: 1, Gather: self._size}[type(step)]
        return sent

    def _visit_numbers(self, name: str) -> None:
        if self.found[name].numbered:
            self._visit(name)

    def _is_mixing(self, name: str) -> bool:
        seen = self.found[name].dims.get(self.dim)
        return name in self._given_whole or seen is not None and not seen.is_free and seen.kind != "table" or any(
            map(self._is_mixing, self.found.children(name)))

    def _is_whole(self, name: str) -> bool:
        """Does it take rows that a rank can have its block of, and of all with all none but masks of its attention?"""
        attends = any(f"{each.module}.".startswith(f"{name}.") for each in self.found.flow.attentions)
        for _, text, shape, is_pairs in self._tensors(self.found[name], "given"):
            rows = next((n for axis, n in zip(words_of(text), shape) if axis == [(self.dim,)]), 0)
            if not attends if is_pairs else rows % self._rows:
                return False
        return True

    def _has_tokens(self, name: str) -> bool:
        """Rows beside those of the dim: if its parent has none, it has put them there, as a padding."""
        return any(part[0].isdecimal() for text in self.found[name].given.values() for axis in words_of(text)
                   if any(self.dim in part for part in axis) for part in axis)

    def _own(self, module: Module) -> Steps:
        """What the module's own code does."""
        module.need_one_way()
        seen, name = module.dims[self.dim], module.name
        given, out = self._cut(module, "given"), self._cut(module, "out")
        is_pairs = any(each[3] for side in ("given", "out") for each in self._tensors(module, side))
        attentions = [each for each in self.found.flow.attentions if each.module == name]
        if self._kinds[0] is Switch and attentions:
            switched = self._switched(module)
            if switched:
                return switched
        if attentions and not module.alone and all(
                each.rows == each.keys == module.extents.get(self.dim) for each in attentions):
            heads = min(each.kv_heads for each in attentions)
            auto = "ulysses" if heads >= self._size else "gather-kv"
            return [(name, Attend(self.dim, auto if self._method == "auto" else self._method, self._saved))]
        if not attentions and not is_pairs and len(given) == 1 and len(out) == 1:
            (what, text), (place, after) = ((at, self._text(of)) for side in (given, out) for at, of in side.items())
            ends = {"out": place, "out_dims": "" if after == text else after}
            is_beside = "+" in text or "+" in after  # rows that every rank has, which are no neighbours of a block's
            if seen.is_near and not is_beside:
                reach = seen.rows * seen.times
                return [(name, Halo(what, text, self.dim, reach, 0 if seen.kind == "causal" else reach, **ends))]
            if seen.is_apart and not is_beside:
                return [(name, Numbered(what, text, self.dim, **ends))]
        if not attentions and not is_pairs and seen.kind == "reduction" and type(self._modules[name]).__name__ in NORMS:
            return [(name, Sums(self.dim))]
        is_own = bool(module.alone) or not attentions  # and no attention that other ranks could be in
        switched = self._switched(module) if Switch in self._kinds and is_own else []
        return switched or self._gathered(module)

    def _gathered(self, module: Module) -> Steps:
        """It has the whole."""
        module.need_one_way()
        name, sides = module.name, ("given", "out")
        self.gathers += 1
        self._pairs += any(each[3] for side in sides for each in self._tensors(module, side))
        call = next((call for call in self.found.flow.calls if call.module == name), None)
        if call:
            self._totals += [(name, Total(at, self.dim)) for at, n in call.numbers.items()
                             if self._is_extent(n, module.extents)]
            self._counts += [(name, Extent(at, self.dim)) for at, n in call.counted.items()
                             if self._is_extent(n, module.extents)]
        given, out = (self._cut(module, side).items() for side in sides)
        return [*((name, Gather(at, self._text(text), self.dim)) for at, text in given),
                *((name, Split(at, self._text(text), self.dim)) for at, text in out)]

    def _is_extent(self, value: int, extents: Dict[str, int]) -> bool:
        """Of this dim, and of no other one?"""
        return [dim for dim, extent in extents.items() if extent == value] == [self.dim]

    def _switched(self, module: Module) -> Steps:
        """Blocks of another dim while it runs, along which it is free; none: there is no such dim."""
        for other in sorted(module.free, key=lambda dim: -module.extents.get(dim, 0)):
            if other in ("b", self.dim) or module.extents.get(other, 0) < 2 or not self._is_plain(other):
                continue
            try:
                there = [self._turned(module.name, name, text, self.dim, other) for name, text in module.given.items()]
                back = [self._turned(module.name, as_output(name), text, other, self.dim)
                        for name, text in module.out.items()]
            except UnsupportedError:
                continue
            self._named.add(other)
            return [step for step in there + back if step[1] is not None]
        return []

    def _turned(self, module: str, place: str, text: str, from_: str, to: str) -> Tuple[str, Any]:
        """What brings a tensor from blocks of one dim to blocks of another."""
        has = [dim for dim in (from_, to) if self._has(text, dim)]
        if not has:
            return module, None
        if to == self.dim and has == [from_, to] and self._is_of_two(text):
            return module, Gather(place, self._text(text, from_), from_)  # of pairs every rank has all
        words = self._text(text, *has)
        if any(words.replace("(", " ").replace(")", " ").split().count(dim) != 1 for dim in has):
            raise UnsupportedError(f"'{text}' has {' or '.join(has)} more than once")
        if len(has) == 2:
            return module, Switch(place, words, from_, to)
        if has == [from_]:
            return module, Gather(place, words, from_)
        return module, Split(place, words, to)
