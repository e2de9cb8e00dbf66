"""Plans of stages that mix all their rows by attention alone: rows are cut once, and attention is that of all ranks."""
from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set, Tuple

from ...errors import ArgumentError, UnsupportedError
from ..attending import Attend
from ..modules import Gather, Split
from .plan import Plan, lines_of

if TYPE_CHECKING:
    from ...schedule import Schedule
    from .found import Draft, Steps

_JOINT = "rows"  #: of an axis that several dims have together


def attended_plans(draft: "Draft", schedule: "Schedule", size: int, method: str, saved: int) -> Iterator[Plan]:
    """Those of rows that have an axis of their own between stages; then those that have one together."""
    refused = None
    try:
        yield from _own_plans(draft, schedule, size, method, saved)
    except UnsupportedError as error:
        refused = error
    joined = list(_joined_plans(draft, size, method, saved))
    yield from joined
    if refused is not None and not joined:
        raise refused


def _own_plans(draft: "Draft", schedule: "Schedule", size: int, method: str, saved: int) -> Iterator[Plan]:
    from .found import merged
    main, text, alike = _rows(draft)
    orders = [(main,)] if text is None else [(text, main), (main, text)]
    heads = min(each.kv_heads for name in _attending(draft, main, text, alike) for each in name[1])
    chosen, why = _method(draft, schedule, method, heads, size) if not alike else (
        "gather-kv", f"gather-kv, since {alike} before them are alike on every rank")
    is_so = {stage.method for stage in schedule.stages} == {chosen}  # else the planner is asked again
    for over, gather in itertools.product(orders, draft.gathers(main)):
        steps = _splits(draft, main, text, over)
        for module, calls in _attending(draft, main, text, alike):
            rows = {each.rows for each in calls}
            whole = sum(draft.extents[name] for name in over)
            steps.append((module, Attend(over[0] if len(over) == 1 else over if rows == {whole} else main, chosen,
                                         saved, alike)))
        steps += gather
        yield Plan(merged([*draft.sizes(steps), *steps]),
                   f"{draft.found.model}: rows of {' and '.join(over)} are cut, {why}",
                   lines_of(schedule) if is_so else [], schedule if is_so else None)


def _joined_plans(draft: "Draft", size: int, method: str, saved: int) -> Iterator[Plan]:
    """Of stages whose rows are those of text and of a picture in one axis: the axis is one dim, cut before the first of
    them. The stages before have the whole."""
    from .found import merged
    for text in dict.fromkeys(word for stage in draft.stages for word in _joint_axes(stage.out)):
        active = [stage.name for stage in draft.stages if text in _joint_axes(stage.out)]
        calls = [draft.flow.calls[at] for at in draft.calls if draft.flow.calls[at].module in active]
        attentions = {name: _within(draft, name) for name in active}
        sizes = {n for each in attentions.values() for attention in each for n in (attention.rows, attention.keys)}
        if len(sizes) != 1 or not all(attentions.values()):
            continue
        heads = min(each.kv_heads for seen in attentions.values() for each in seen)
        chosen = method if method != "auto" else "ulysses" if heads >= size else "gather-kv"
        places = {call.module: draft.found[call.module] for call in calls}
        steps: Any = [(call.module, Split(at.name, _one_dim(places[call.module].given[at.name], text), _JOINT))
                      for call in calls for at in call.given
                      if not any(draft.flow.calls[source].module in active for source in at.stages)
                      and places[call.module].given.get(at.name, "").count(text) == 1]  # of two it is a mask's
        steps += [(each.module, Attend(_JOINT, chosen, saved)) for seen in attentions.values() for each in seen]
        last = places[calls[-1].module]
        steps += [(last.name, Gather(f"output.{name}" if name else "output", _one_dim(of, text), _JOINT))
                  for name, of in last.out.items() if text in of]
        yield Plan(merged(steps), f"{draft.found.model}: rows of {text} are cut as one dim from "
                                  f"'{calls[0].module}' on, {chosen} of {heads} heads")


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
                if each not in found.setdefault(each.module, []):
                    found[each.module].append(each)
    return list(found.items())


def _splits(draft: "Draft", main: str, text: Optional[str], over: Tuple[str, ...]) -> "Steps":
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
    """Of a schedule that is given, where none is asked for. One for a machine says itself why it has it."""
    planned = {stage.method for stage in schedule.stages} - {"local", "halo", "sums"}
    return next(iter(planned)) if method == "auto" and len(planned) == 1 and not schedule.machine else method


def _method(draft: "Draft", schedule: "Schedule", method: str, heads: int, size: int) -> Tuple[str, str]:
    if method != "auto":
        return method, f"{method}, as asked for"
    planned = {stage.method for stage in schedule.stages} - {"local"}
    if schedule.machine and len(planned) == 1:
        chosen = next(iter(planned))
        return chosen, f"{chosen}, since the planner predicts {schedule.predicted_s:.3g} s by it on {schedule.machine}"
    if heads >= size:
        return "ulysses", f"ulysses, since {heads} heads are enough for {size} ranks"
    return "gather-kv", f"gather-kv, since {heads} heads are not enough for {size} ranks by ulysses"
