"""Moves that a plan could do without."""
from __future__ import annotations

from typing import Any, Iterator, List, Mapping, Optional, Tuple

import torch

from ...errors import Error
from ..attending import Attend
from ..exploring import Exploration
from ..hooks import is_of_output, matching
from ..modules import Gather, Split, Switch, pairs_of
from ..proving import Proof, further, prove
from .known import Known

Said = Tuple[str, str, str]
_PAIRS_MAX = 12


def saved_by(model: torch.nn.Module, steps: Any, known: Known, proof: Proof, ranks: int, args: Any, kwargs: Any,
             order: Mapping[Tuple[str, bool], int]) -> Iterator[Said]:
    """At most one: steps that undo one another, else a plan that is found and sends less. `order`: when modules were
    called first."""
    flat = [(pattern, step) for pattern, each in pairs_of(steps)
            for step in (each if isinstance(each, (list, tuple)) else (each,))]
    pairs = [(i, j) for i, a in enumerate(flat) for j, b in enumerate(flat) if _undone(a[1], b[1])
             and (_first(model, a, order), i) < (_first(model, b, order), j)]
    pairs = [(i, j) for i, j in pairs if not _is_mixed(model, flat[i], flat[j], known, order)]

    def forward(those: Any, size: int) -> Proof:
        return prove(model, those, *args, ranks=size, gradients=False, **kwargs)

    def holds(those: Any, other: Proof) -> bool:
        for size in further(ranks, other):
            if not forward(those, size):
                return False
            other.further.append(size)
        return True
    for i, j in pairs[:_PAIRS_MAX]:
        left = _together([pair for at, pair in enumerate(flat) if at not in (i, j)])
        other = forward(left, ranks)
        if other and other.bytes_total < proof.bytes_total and holds(left, other):
            yield (flat[i][0], f"{flat[i][1]} at '{flat[i][0]}' and {flat[j][1]} at '{flat[j][0]}' undo one another: "
                               f"{proof.bytes_total} bytes are sent in a forward, without both {other.bytes_total}",
                   "Leave both out")
            return
    better = _found(model, known.found, flat, ranks)
    if better is None:
        return
    theirs = forward(better, ranks)
    if theirs and theirs.bytes_total < proof.bytes_total:
        taken = [(move.what, move.bytes_total) for move in theirs.moves]
        first = proof.moves[0]
        for move in proof.moves:
            if (move.what, move.bytes_total) not in taken:
                first = move
                break
            taken.remove((move.what, move.bytes_total))
        yield (first.module, f"{proof.bytes_total} bytes are sent in a forward, and {theirs.bytes_total} are enough; "
                             f"the first that another plan saves is at '{first.module}': {first.what}",
               f"Take the plan that was found: {better}")


def _undone(a: Any, b: Any) -> bool:
    if isinstance(a, Switch) and isinstance(b, Switch):
        return (a.from_, a.to) == (b.to, b.from_)
    return isinstance(a, Gather) and isinstance(b, Split) and a.over == b.over


def _is_mixed(model: torch.nn.Module, gather: Any, split: Any, known: Known,
              order: Mapping[Tuple[str, bool], int]) -> bool:
    """Does a module that runs between them want the whole that they make?"""
    over = gather[1].from_ if isinstance(gather[1], Switch) else gather[1].over
    begin, end = _first(model, gather, order), _first(model, split, order)
    return any(kind not in ("free", "table") for (name, is_output), at in order.items()
               if not is_output and begin <= at and order.get((name, True), end + 1) <= end
               for dim in ((over,) if isinstance(over, str) else over) for kind in known.kinds(name, dim))


def _first(model: torch.nn.Module, entry: Any, order: Mapping[Tuple[str, bool], int]) -> int:
    """When it happens in a pass."""
    pattern, step = entry
    modules = {id(module) for module in matching(model, pattern)}
    is_output = is_of_output(step)
    return min((order[name, is_output] for name, module in model.named_modules()
                if id(module) in modules and (name, is_output) in order), default=-1)


def _together(flat: List[Any]) -> List[Any]:
    names = dict.fromkeys(pattern for pattern, _ in flat)
    return [(name, tuple(step for pattern, step in flat if pattern == name)) for name in names]


def _found(model: torch.nn.Module, found: Optional[Exploration], flat: List[Any], ranks: int) -> Any:
    methods = {step.method for _, step in flat if isinstance(step, Attend)}
    if found is None or len(methods) > 1:
        return None
    try:
        better = found.plan(model, f"[sp={ranks}]", method=next(iter(methods), "auto"))
    except Error:  # none is known
        return None
    is_all = better.schedule is not None and all("@" in stage.layout for stage in better.schedule.stages)
    return better if is_all or methods and "Attend" in str(better) else None  # one that is whole somewhere is another
