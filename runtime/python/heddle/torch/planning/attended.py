"""Plans of stages that mix all their rows by attention alone: rows are cut once, and attention is that of all ranks."""
from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set, Tuple

from ...errors import ArgumentError, UnsupportedError
from ..attending import Attend
from ..modules import Gather, Split
from .plan import Plan, Steps, lines_of

if TYPE_CHECKING:
    from ...schedule import Schedule
    from .draft import Draft

_JOINT = "rows"  #: of an axis that several dims have together


def attended_plans(draft: "Draft", schedule: "Schedule", size: int, method: str, saved: int) -> Iterator[Plan]:
    """Those of rows that have an axis of their own between stages; then those that have one together."""
    refused = None
    try:
        yield from _own_plans(draft, schedule, size, method, saved)
    except UnsupportedError as error:
        refused = error
    joined = list(_joined_plans(draft, schedule, size, method, saved))
    yield from joined
    if refused is not None and not joined:
        raise refused


def _own_plans(draft: "Draft", schedule: "Schedule", size: int, method: str, saved: int) -> Iterator[Plan]:
    from .draft import merged
    main, text, alike = _rows(draft)
    orders = [(main,)] if text is None else [(text, main), (main, text)]
    attending = _attending(draft, main, text, alike)
    chosen, why = _chosen(draft, schedule, attending, size, method, alike)
    # else the planner is asked again
    is_so = {stage.method for stage in schedule.stages} == set(chosen.values()) if draft.given is None else all(
        stage.method == chosen.get(stage.name, stage.method) for stage in schedule.stages)
    if draft.given is not None and not {stage.layout.split("@")[0] for stage in schedule.stages} <= {main, text}:
        raise UnsupportedError(f"the schedule of {schedule.model} has '{schedule.stages[0].name}' "
                               f"{schedule.stages[0].layout}, and rows of {main} attend")
    for over, gather in itertools.product(orders, draft.gathers(main)):
        steps = _splits(draft, main, text, over)
        for module, calls in attending:
            rows = {each.rows for each in calls}
            whole = sum(draft.extents[name] for name in over)
            steps.append((module, Attend(over[0] if len(over) == 1 else over if rows == {whole} else main,
                                         chosen[draft.stage_of(module)], saved, alike)))
        steps += gather
        yield Plan(merged([*draft.sizes(steps), *steps], draft.flow),
                   f"{draft.found.model}: rows of {' and '.join(over)} are cut, {why}",
                   lines_of(schedule) if is_so else [], schedule if is_so else None)


def _joined_plans(draft: "Draft", schedule: "Schedule", size: int, method: str, saved: int) -> Iterator[Plan]:
    """Of stages whose rows are those of text and of a picture in one axis: the axis is one dim, cut before the first of
    them. The stages before have the whole."""
    from .draft import merged
    for text in dict.fromkeys(word for stage in draft.stages for word in _joint_axes(stage.out)):
        active = [stage.name for stage in draft.stages if text in _joint_axes(stage.out)]
        calls = [draft.flow.calls[at] for at in draft.calls if draft.flow.calls[at].module in active]
        attentions = {name: _within(draft, name) for name in active}
        sizes = {n for each in attentions.values() for attention in each for n in (attention.rows, attention.keys)}
        if len(sizes) != 1 or not all(attentions.values()) or any(
                draft.found[each.module].alone for seen in attentions.values() for each in seen):
            continue
        heads = min(each.kv_heads for seen in attentions.values() for each in seen)
        one = method if method != "auto" else "ulysses" if heads >= size else "gather-kv"
        chosen, why = dict.fromkeys(active, one), f"{one} of {heads} heads"
        if draft.given is not None:
            chosen, why = _chosen(draft, schedule, list(attentions.items()), size, method, 0)
        places = {call.module: draft.found[call.module] for call in calls}
        steps: Any = [(call.module, Split(at.name, _one_dim(places[call.module].given[at.name], text), _JOINT))
                      for call in calls for at in call.given
                      if not any(draft.flow.calls[source].module in active for source in at.stages)
                      and places[call.module].given.get(at.name, "").count(text) == 1]  # of two it is a mask's
        steps += [(each.module, Attend(_JOINT, chosen[name], saved)) for name in active for each in attentions[name]]
        last = places[calls[-1].module]
        steps += [(last.name, Gather(f"output.{name}" if name else "output", _one_dim(of, text), _JOINT))
                  for name, of in last.out.items() if text in of]
        yield Plan(merged(steps, draft.flow), f"{draft.found.model}: rows of {text} are cut as one dim from "
                                  f"'{calls[0].module}' on, {why}")


def _joint_axes(texts: Dict[str, str]) -> List[str]:
    """Axes with rows of several dims one after another, tokens beside them or not."""
    first = _axes(next(iter(texts.values()), ""))
    return [word for word in first if len([part for part in word.strip("()").split(" + ") if not part.isdecimal()]) > 1]


def _one_dim(text: str, joint: str) -> str:
    """A tensor's text in which this axis is one dim."""
    return " ".join(_JOINT if word == joint else "b" if word == "b" else "_" for word in _axes(text))


def _axes(text: str) -> List[str]:
    """`b (l + s) _`: a word of each."""
    return re.findall(r"\([^()]*\)|[^\s()]+", text)


def _rows(draft: "Draft") -> Tuple[str, Optional[str], int]:
    """The dim of the activation, that of text whose rows attend with it, and how many tokens of a class do."""
    names = [name for name in draft.fused.parts if name != "b" and draft.extents.get(name, 0) > 1]
    sizes = {(each.rows, each.keys) for stage in draft.stages
             for each in _within(draft, stage.name)}
    result = " ".join(draft.found[""].out.values())
    main = [name for name in names if any(dim in draft.found.sequence() or dim in result.split()
                                          for dim in draft.fused.parts[name])]
    pairs = [(a, b) for a in main for b in names if a != b and any(
        rows == keys == draft.extents[a] + draft.extents[b] for rows, keys in sizes)]
    if pairs:  # the model returns rows of the one, and text is beside it
        return (*max(pairs, key=lambda pair: (draft.fused.parts[pair[0]][0] in result.split(),
                                              draft.extents[pair[0]])), 0)
    alone = [(name, more) for name in main for more in _tokens(draft, name)
             if (draft.extents[name] + more,) * 2 in sizes]
    if not alone:
        raise UnsupportedError(f"{draft.found.model}: '{draft.stages[0].name}' mixes "
                               f"{' '.join(draft.stages[0].mixed)}, and no scaled_dot_product_attention of torch in it "
                               "has rows of them: wanted stages that leave a dim free, or attend by it")
    name, more = max(alone, key=lambda each: draft.extents[each[0]])
    return name, None, more


def _tokens(draft: "Draft", name: str) -> Set[int]:
    """How many rows stand before those of a dim between stages."""
    texts = [at.text for number in draft.calls for at in draft.tensors(draft.flow.calls[number], "given")]
    found = [re.search(rf"\((\d+) \+ {name}\)", text) for text in texts]
    return {int(each[1]) for each in found if each} or {0}


def _within(draft: "Draft", stage: str) -> List[Any]:
    return [each for each in draft.flow.attentions if each.module == stage or each.module.startswith(f"{stage}.")]


def _attending(draft: "Draft", main: str, text: Optional[str], alike: int) -> List[Tuple[str, List[Any]]]:
    """Modules of stages whose attention sees rows that are cut."""
    whole = {draft.extents[main] + alike, draft.extents[main] + (draft.extents[text] if text else alike)}
    found: Dict[str, List[Any]] = {}
    for stage in draft.stages:
        for each in _within(draft, stage.name):
            if each.keys in whole and each.rows in whole:
                _need_not_alone(draft, each.module)
                if each not in found.setdefault(each.module, []):
                    found[each.module].append(each)
    return list(found.items())


def _need_not_alone(draft: "Draft", module: str) -> None:
    if draft.found[module].alone:
        raise UnsupportedError(f"the attention of '{module}' {draft.found[module].alone}, and a rank would do so with "
                               "its own alone")


def _splits(draft: "Draft", main: str, text: Optional[str], over: Tuple[str, ...]) -> Steps:
    """Of whatever comes whole into a stage."""
    plain: Any = []
    beside: Any = []
    active = {number for number in draft.calls  # those of text alone, before the others, stay whole
              if any(at.holds(main) or len(over) > 1 and main in at.beside
                     for at in draft.tensors(draft.flow.calls[number], "out"))}
    for number in sorted(active):
        call = draft.flow.calls[number]
        for at in draft.tensors(call, "given"):
            if at.passed.stages & active:
                continue
            for dim in (main, *([text] if text else [])):
                if at.holds(dim):
                    plain.append((call.module, Split(at.passed.name, at.text, dim)))
            if len(over) > 1 and not at.holds(main):
                axis = _joined(draft, at, over)
                if axis is not None:
                    beside.append((call.module, Split(at.passed.name, axis, over)))
    return plain + beside


def _joined(draft: "Draft", at: Any, over: Tuple[str, ...]) -> Optional[str]:
    """Rows of all of them in one axis, of something that is no mask of keys. Channels may be as many: where one of the
    dims varies rows were seen to."""
    whole, words = sum(draft.extents[name] for name in over), at.text.split()
    varies = any(part not in draft.found.fixed for name in over for part in draft.fused.parts[name])
    axes = [axis for axis, (n, word) in enumerate(zip(at.passed.shape, _axes(at.found)))
            if n == whole and ("+" in word or not varies)]
    if len(axes) != 1 or "(" in at.text or words[axes[0]] != "_" or "mask" in at.passed.name:
        return None
    return " ".join("+".join(over) if axis == axes[0] else word for axis, word in enumerate(words))


def need_method(draft: "Draft", method: str) -> None:
    masked = any(each.is_masked for stage in draft.stages for each in _within(draft, stage.name))
    if masked and method not in ("auto", "ulysses", "gather-kv"):
        raise ArgumentError(f"method is '{method}', and {draft.found.model} attends with a mask that is not of keys "
                            "alone: ulysses and gather-kv do")


def method_of(schedule: "Schedule", method: str) -> str:
    """Of a schedule that is given with halos or sums, where none is asked for."""
    planned = {stage.method for stage in schedule.stages} - {"local", "halo", "sums"}
    return next(iter(planned)) if method == "auto" and len(planned) == 1 else method


def methods_of(schedule: "Schedule", method: str) -> Dict[str, str]:
    """Of every stage of a schedule that is given: what it says, or what is asked for of those that attend."""
    return {stage.name: stage.method if method == "auto" or stage.method == "local" else method
            for stage in schedule.stages}


def attending_along(draft: "Draft", stage: str, dim: str, method: str) -> List[str]:
    """Modules of a stage whose attention has all rows of a dim, and no others."""
    extent = draft.extents.get(dim, 0)
    found = list(dict.fromkeys(each.module for each in _within(draft, stage) if each.rows == each.keys == extent))
    for module in found:
        _need_not_alone(draft, module)
    if not found:
        raise UnsupportedError(f"the schedule has '{stage}' cut along {dim} by {method}, and no "
                               f"scaled_dot_product_attention in it has {dim} for rows and keys")
    return found


def _chosen(draft: "Draft", schedule: "Schedule", attending: List[Tuple[str, List[Any]]], size: int, method: str,
            alike: int) -> Tuple[Dict[str, str], str]:
    """The methods of stages that attend, and why. A schedule that is given has one for each of them."""
    stages = list(dict.fromkeys(draft.stage_of(module) for module, _ in attending))
    if draft.given is None:
        heads = min(each.kv_heads for _, calls in attending for each in calls)
        one, why = _method(draft, schedule, method, heads, size) if not alike else (
            "gather-kv", f"gather-kv, since {alike} before them are alike on every rank")
        return dict.fromkeys(stages, one), why
    chosen = {name: each for name, each in methods_of(schedule, method).items() if name in stages}
    for name, each in chosen.items():
        if each == "local" or alike and each != "gather-kv":
            raise UnsupportedError(f"the schedule of {schedule.model} has '{name}' by {each}: "
                                   + (f"{alike} rows in front are alike on every rank, wanted gather-kv" if alike else
                                      "its rows attend, wanted a method for it"))
    every = list(chosen.values())
    said = " and ".join(f"{each} in {every.count(each)} of {len(every)} stages" for each in dict.fromkeys(every))
    return chosen, f"{said}, as {'the schedule has it' if method == 'auto' else 'asked for'}"


def _method(draft: "Draft", schedule: "Schedule", method: str, heads: int, size: int) -> Tuple[str, str]:
    if method != "auto":
        return method, f"{method}, as asked for"
    planned = {stage.method for stage in schedule.stages} - {"local", "halo", "sums"}
    if schedule.machine and len(planned) == 1:
        chosen = next(iter(planned))
        return chosen, f"{chosen}, since the planner predicts {schedule.predicted_s:.3g} s by it on {schedule.machine}"
    if heads >= size:
        return "ulysses", f"ulysses, since {heads} heads are enough for {size} ranks"
    return "gather-kv", f"gather-kv, since {heads} heads are not enough for {size} ranks by ulysses"
