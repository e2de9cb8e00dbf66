"""A model on ranks that are simulated, beside the whole: what every module is given there, and what it returns."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Container, Dict, List, Mapping, Optional, Tuple

import torch

from ..exploring.flow import argument_names, as_argument, as_output
from ..exploring.kept import telling_values
from ..exploring.trees import Tensors, numbers_of, replaced, tensors_of
from ..exploring.wide import widened
from ..hooks import around_in
from ..modules import put_on
from ..proving.copies import Copies
from ..proving.proof import blows_up, passed
from ..proving.simulated import Moved, SimulatedRanks
from ..proving.turns import Turns
from .pieces import Held, held, mended


@dataclass(frozen=True)
class Seen:
    """Of a call of a module on a rank."""

    side: str  #: "given" it, behind the steps; "made", before them; "left", behind them
    module: str
    held: List[Held]
    numbers: Dict[str, int] = field(default_factory=dict)  #: arguments that are one
    is_part: bool = False  #: a tensor has another shape than in the whole, whatever it holds


@dataclass
class Watched:
    """A pass, as one rank sees it."""

    seen: List[Seen] = field(default_factory=list)
    running: List[Tuple[str, Optional[Seen]]] = field(default_factory=list)  #: what it raised in, the innermost last
    sizes: Dict[str, int] = field(default_factory=dict)
    moves: List[Moved] = field(default_factory=list)
    kept: Dict[str, torch.Tensor] = field(default_factory=dict)  #: tensors with a graph that modules keep behind a pass
    error: Optional[Exception] = None


def watched(model: torch.nn.Module, steps: Any, args: Any, kwargs: Any, ranks: int, is_sharp: bool) -> List[Watched]:
    """Of every rank. What the whole model raises goes on."""
    with torch.inference_mode(False), widened(model, args, kwargs) as (args, kwargs, halves):
        return _watched(Copies(model, args, kwargs, is_sharp), steps, args, kwargs, ranks, halves)


def is_blowing_up(model: torch.nn.Module, args: Any, kwargs: Any) -> bool:
    """Are numbers that differ of roundings, with weights that are scaled?"""
    with torch.inference_mode(False), widened(model, args, kwargs) as (args, kwargs, _):
        return blows_up(Copies(model, args, kwargs), args, kwargs, True)


def _watched(copies: Copies, steps: Any, args: Any, kwargs: Any, ranks: int, halves: Container[str]) -> List[Watched]:
    whole: Dict[str, List[Tuple[Tensors, Tensors]]] = {}
    one = copies.one()
    for name, module in one.named_modules():
        _keep(name, module, whole)
    with telling_values(one):
        passed(one, args, kwargs, False)
    turns, every = Turns(ranks), [Watched() for _ in range(ranks)]

    def of_rank(rank: int) -> None:
        mine, each = SimulatedRanks(f"[sp={ranks}]", rank, turns, halves), copies.one()
        before = _graphs(each)
        watch = _Watch(every[rank], mine, whole)
        try:
            watch.before(each)
            put_on(each, lambda: (steps, ""), mine)
            watch.behind(each)
            passed(each, args, kwargs, True)
        except Exception as error:  # whatever a model raises
            every[rank].error = error
            raise
        finally:
            every[rank].sizes, every[rank].moves = dict(mine.sizes), mine.moves
        every[rank].kept = {name: x for name, x in _graphs(each).items() if name not in before}
    try:
        turns.run(of_rank)
    except Exception:  # which the ranks have kept
        pass
    return every


def _arguments(module: torch.nn.Module, args: Any, kwargs: Any) -> Tensors:
    names = argument_names(module)
    return {as_argument(at, names): x for values in (args, kwargs) for at, x in tensors_of(values).items()}


def _results(out: Any) -> Tensors:
    return {as_output(at): y for at, y in tensors_of(out).items()}


def _numbers(module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Dict[str, int]:
    names = argument_names(module)
    return {as_argument(at, names): n for values in (args, kwargs) for at, n in numbers_of(values).items()}


def _keep(name: str, module: torch.nn.Module, whole: Dict[str, List[Tuple[Tensors, Tensors]]]) -> None:
    given: List[Tensors] = []

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        given.append({at: x.detach().clone() for at, x in _arguments(module, args, kwargs).items()})

    def leave(_: Any, args: Any, kwargs: Any, out: Any) -> None:
        whole.setdefault(name, []).append((given.pop(), {at: y.detach().clone() for at, y in _results(out).items()}))
    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave, with_kwargs=True)


class _Watch:
    """Hooks around those of the steps."""

    def __init__(self, mine: Watched, ranks: SimulatedRanks, whole: Mapping[str, List[Tuple[Tensors, Tensors]]]):
        self._mine, self._ranks, self._whole = mine, ranks, whole
        self._begun: Dict[str, int] = {}
        self._calls: Dict[str, List[int]] = {}
        self._came: Tuple[Any, Any] = (), {}  # into the module that was entered last, before its steps

    def before(self, model: torch.nn.Module) -> None:
        for name, module in model.named_modules():
            def enter(_: Any, args: Any, kwargs: Any, name: str = name) -> None:
                self._came = args, kwargs
                self._begun[name] = self._begun.get(name, -1) + 1
                self._calls.setdefault(name, []).append(self._begun[name])
                self._mine.running.append((name, None))
                self._ranks.within.append(name)

            def made(_: Any, __: Any, out: Any, name: str = name) -> Any:
                if name not in self._ranks.around:
                    return self._result("made", name, out)
                return None
            module.register_forward_pre_hook(enter, with_kwargs=True)
            module.register_forward_hook(made)

    def behind(self, model: torch.nn.Module) -> None:
        self._ranks.around = around_in(model)
        for name, module in model.named_modules():
            def given(module: Any, args: Any, kwargs: Any, name: str = name) -> Any:
                is_wider = name in self._ranks.around  # it has others' rows, too
                came, named = self._came if is_wider else (args, kwargs)
                seen, whole = self._add("given", name, _arguments(module, came, named), 0,
                                        _numbers(module, came, named))
                self._mine.running[-1] = (name, seen)
                if is_wider or not any(x.is_other for x in seen.held):
                    return None
                names = argument_names(module)
                return tuple(self._mended(values, lambda at: as_argument(at, names), seen, whole)
                             for values in (args, kwargs))

            def left(_: Any, __: Any, out: Any, name: str = name) -> Any:
                is_wider = name in self._ranks.around  # of this rank's rows only now
                mended = self._result("made" if is_wider else "left", name, out) if is_wider or name else None
                self._calls[name].pop()
                self._mine.running.pop()
                self._ranks.within.pop()
                return mended
            module.register_forward_pre_hook(given, with_kwargs=True)
            module.register_forward_hook(left)

    def _result(self, side: str, name: str, out: Any) -> Any:
        """What goes on in place of it; None: it does."""
        seen, whole = self._add(side, name, _results(out), 1)
        return self._mended(out, as_output, seen, whole) if any(x.is_other for x in seen.held) else None

    def _mended(self, values: Any, as_place: Callable[[str], str], seen: Seen, whole: Tensors) -> Any:
        """With the numbers that they should have, so that further faults are seen."""
        wrong = {x.place for x in seen.held if x.is_other}

        def change(at: str, x: torch.Tensor) -> torch.Tensor:
            place = as_place(at)
            return mended(self._ranks, x, whole[place]) if place in wrong else x
        return replaced(values, change)

    def _add(self, side: str, name: str, tensors: Tensors, which: int,
             numbers: Optional[Dict[str, int]] = None) -> Tuple[Seen, Tensors]:
        calls, call = self._whole.get(name, []), self._calls[name][-1]
        there = calls[call][which] if call < len(calls) else {}
        whole = {} if self._ranks.is_wider(name) else there
        seen = Seen(side, name, [held(self._ranks, at, x.detach(), whole.get(at)) for at, x in tensors.items()],
                    numbers or {}, any(at in there and x.shape != there[at].shape for at, x in tensors.items()))
        self._mine.seen.append(seen)
        return seen, whole


def _graphs(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    """Tensors with a graph among the attributes of modules."""
    return {f"{name}.{at}" if name else at: x for name, module in model.named_modules()
            for at, x in tensors_of({key: value for key, value in vars(module).items()
                                     if not key.startswith("_") or isinstance(value, torch.Tensor)}).items()
            if x.grad_fn is not None}
