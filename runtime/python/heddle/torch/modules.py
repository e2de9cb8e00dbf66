"""A model on several ranks by hooks on its modules, which know nothing of it.

    handle = heddle.torch.parallelize(model, {
        "blocks.0": Split("hidden_states", "b s c", "s"),     # from here on every rank has its own rows
        "blocks.*.attn": Attend("s"),                         # what mixes rows
        "proj_out": Gather("output", "b s o", "s"),           # and from here on all of them again
    }, comm)
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, ClassVar, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch

from ..comm import Comm
from ..errors import ArgumentError, Error, UnsupportedError
from ..schedule import Schedule
from .agreement import agree
from .attending import Attend
from .beside import apart, beside
from .boundary import Entering, Leaving, Telling
from .halo import Halo, Numbered
from .hooks import hooked, matching
from .ones import filled
from .ranks import Dims, Ranks, need_name
from .step import Step
from .sums import Sums

_Apply = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Sizes(Step):
    """Learns the extents of whole dims from a tensor that every rank has, where later steps cannot tell them apart:
    `Sizes("hidden_states", "b _ t _ _")`."""

    what: str
    dims: str

    def _made(self, ranks: Ranks) -> _Apply:
        dims = Dims(self.dims)

        def apply(x: torch.Tensor) -> torch.Tensor:
            ranks.unfold(x, dims)
            return x
        return apply


@dataclass(frozen=True)
class Split(Step):
    """From a tensor that every rank has whole to this rank's block of the dim `over`. What it was computed from gets
    the gradient of this block alone: an addend. `b (1 + s) c` is an axis with a row in front of those of `s`, a token
    of a class say, which every rank keeps.

    optional  True: a tensor that has not these dims, in number or in the extents that are known, is left alone
    over      one dim; or several, ("l", "s"), whose rows stand one after another in an axis `l+s`: this rank's blocks
              of each, which other steps have told the extents of
    """

    what: str
    dims: str
    over: Union[str, Tuple[str, ...]]
    optional: bool = False

    def _made(self, ranks: Ranks) -> _Apply:
        return self._of_one(ranks, self.over) if isinstance(self.over, str) else self._of_several(ranks, self.over)

    def _of_several(self, ranks: Ranks, over: Tuple[str, ...]) -> _Apply:
        words = self.dims.split()
        if words.count("+".join(over)) != 1:
            raise ArgumentError(f"'{self.dims}' has no axis '{'+'.join(over)}'")
        at = words.index("+".join(over))

        def apply(x: torch.Tensor) -> torch.Tensor:
            rows, parts = ranks.sizes, [ranks.part(name) for name in over]
            lengths = [rows[name] for name in over]
            if x.dim() != len(words) or x.shape[at] != sum(lengths):
                raise ArgumentError(f"'{self.dims}': the tensor has the shape {tuple(x.shape)}, wanted "
                                    f"{sum(lengths)} rows in dim {at}")
            blocks = [piece.narrow(at, lo, n) for piece, (lo, n) in zip(x.split(lengths, at), parts)]
            return torch.cat([filled(block, [1 if axis == at else n for axis, n in enumerate(x.shape)])
                              for block in blocks], at)
        return apply

    def _of_one(self, ranks: Ranks, over: str) -> _Apply:
        text, on_others = apart(self.dims)
        dims = Dims(text)
        dims.need(over)

        def apply(x: torch.Tensor) -> torch.Tensor:
            try:
                unfolded = ranks.unfold(x, dims)
            except ArgumentError:
                if self.optional:
                    return x
                raise
            block = unfolded.narrow(dims.names.index(over), *ranks.part(over))
            # Without gaps, whose products torch rounds otherwise, and with its dims in memory in the order they had.
            return ranks.fold(block if block.is_contiguous() else block.clone(), dims, over)
        return on_others(apply)


@dataclass(frozen=True)
class Switch(Step):
    """From blocks of one dim to blocks of another. `as_`: the dims of the result, where they are ordered or folded
    otherwise: `Switch("output", "(b t) s c", "t", "s", as_="(b s) t c")`. Of rows beside, `(b t) (1 + s) c`, every rank
    has those of its block of t, or, cut along s, all. `what` may be several arguments, ("query", "key", "value"): those
    that are one tensor on all ranks are moved once, and are one tensor behind it."""

    moves: ClassVar[bool] = True
    what: Union[str, Tuple[str, ...]]
    dims: str
    from_: str
    to: str
    as_: Optional[str] = None

    def _made(self, ranks: Ranks) -> _Apply:
        text, on_others = apart(self.dims)
        dims, after = Dims(text), Dims(self.as_ or text)
        dims.need(self.from_, self.to)
        if self.from_ == self.to:
            raise ArgumentError(f"from '{self.from_}' to '{self.to}', wanted two dims")
        if sorted(after.names) != sorted(dims.names):
            raise ArgumentError(f"'{self.as_}' has not the dims of '{self.dims}'")

        def apply(x: torch.Tensor) -> torch.Tensor:
            x, axis = ranks.unfold(x, dims, self.from_), ranks.axis
            line = ranks.line(x, dims, (self.from_, self.to), f"{self.from_}@{axis}",
                              f"{self.to}@{axis} as {','.join(after.names)}")
            return ranks.fold(ranks.moved(x, line), after, self.to)
        return on_others(apply, self._beside(ranks, beside(self.dims)))

    def _beside(self, ranks: Ranks, text: str) -> Optional[_Apply]:
        """What rows that stand beside one of the two dims are of the other: from the whole to a block, or back."""
        if not text:
            return None
        if self.as_ is not None:
            raise ArgumentError(f"'{self.dims}' as '{self.as_}': rows beside others stay in their order")
        step = Split if self.to in Dims(text).names else Gather
        return step("", text, self.to if step is Split else self.from_)._made(ranks)


@dataclass(frozen=True)
class Gather(Step):
    """From blocks of a dim to the whole on every rank. `b (1 + s) c` as in Split, several arguments as in Switch."""

    moves: ClassVar[bool] = True
    what: Union[str, Tuple[str, ...]]
    dims: str
    over: str

    def _made(self, ranks: Ranks) -> _Apply:
        text, on_others = apart(self.dims)
        dims = Dims(text)
        dims.need(self.over)

        def apply(x: torch.Tensor) -> torch.Tensor:
            x = ranks.unfold(x, dims, self.over)
            line = ranks.line(x, dims, (self.over,), f"{self.over}@{ranks.axis}", "*")
            return ranks.fold(ranks.moved(x, line), dims)
        return on_others(apply)


@dataclass(frozen=True)
class Count(Step):
    """From a number of rows, the first of the whole dim `over` (those of a picture before others, those that a mask
    lets through), to how many of them this rank has, which may be none: `Count("num_tokens", "s")`. The number is an
    argument by itself, no tensor. Where it is the extent of the dim, by which a module gives tensors their shape, it
    is `Extent`."""

    what: str
    over: str
    wants: ClassVar[type] = int

    def _made(self, ranks: Ranks) -> Callable[[int], int]:
        need_name(self.over)

        def apply(count: int) -> int:
            lo, length = ranks.part(self.over)
            return min(max(count - lo, 0), length)
        return apply


@dataclass(frozen=True)
class Extent(Step):
    """From the extent of the whole dim `over` to that of what this rank has of it, one row of ones included on a rank
    without rows: `Extent("frames", "t")` for a module that is called with numbers to shape its tensors by. The number
    is an argument by itself, no tensor; another one than the dim's extent is refused."""

    what: str
    over: str
    wants: ClassVar[type] = int

    def _made(self, ranks: Ranks) -> Callable[[int], int]:
        need_name(self.over)

        def apply(extent: int) -> int:
            length = ranks.part(self.over)[1]
            if extent != ranks.sizes[self.over]:
                raise ArgumentError(f"'{self.what}' is {extent}, the whole dim {self.over} has "
                                    f"{ranks.sizes[self.over]}: Count is for the first rows of a dim")
            return max(length, 1)
        return apply


@dataclass(frozen=True)
class Total(Step):
    """The way back from `Extent`, for a module that gets the whole: from the extent of what this rank has of `over`, or
    so many for each of its rows, to that of the whole: `Total("height", "h")`. The number is an argument by itself. The
    ranks compare how many for each: MismatchError on all of them where one rank has others."""

    what: str
    over: str
    wants: ClassVar[type] = int

    def _made(self, ranks: Ranks) -> Callable[[int], int]:
        need_name(self.over)

        def apply(extent: int) -> int:
            length = max(ranks.part(self.over)[1], 1)  # without rows there is one of ones
            refused = ArgumentError(f"'{self.what}' is {extent}, and this rank has {length} of {self.over}: wanted as "
                                    "many, or so many for each") if extent % length != 0 else None
            times = extent // length
            agree(ranks.comm, f"Total of '{self.what}'", [(f"so many for each of {self.over}", times)], refused)
            return times * ranks.sizes[self.over]
        return apply


@dataclass(frozen=True)
class Without(Step):
    """An argument that must be None, `why` says in the refusal: `Without("attention_mask", "ring knows no mask")`."""

    what: str
    why: str
    wants: ClassVar[type] = object

    def _made(self, ranks: Ranks) -> Callable[[Any], Any]:
        def apply(value: Any) -> Any:
            raise UnsupportedError(f"'{self.what}' is there, wanted None: {self.why}")
        return apply


_STEPS = Sizes, Split, Switch, Gather, Count, Extent, Total, Without, Attend, Halo, Numbered, Sums


class Parallel:
    """A model with its hooks. `remove()` takes them off."""

    why: str  #: what was chosen, in one sentence

    def __init__(self, ranks: Ranks):
        self.comm = ranks.comm
        self._ranks = ranks
        self._handles: List[Any] = []

    @staticmethod
    def together(handles: "List[Parallel]") -> "Parallel":
        """The first handle, which is from now on that of all."""
        first, *others = handles
        first._handles += others
        first.why = "; ".join(handle.why for handle in handles)
        return first

    def remove(self) -> None:
        """The model is as it was before."""
        for handle in reversed(self._handles):
            handle.remove()
        self._handles.clear()


def parallelize(model: torch.nn.Module, plan: Any, comm: Comm) -> Parallel:
    """Puts hooks on the modules that the plan's patterns name (`*` stands for a part between two dots, "" is the
    model). A pattern has one step or a tuple of them; steps of a module happen in the plan's order: on its arguments
    before it runs, on its output (`output`, `output.0`) after. Of a dict that names a pattern twice Python keeps the
    last; a list of pairs is refused where it does.

    Outside of the model every rank computes what one rank would: arguments and results are whole, and so are the
    gradients of arguments. Gradients of parameters are addends: `reduce_gradients` adds them up. The loss is computed
    from what the model returns, alike on all ranks, and counts once. All ranks run the same graph, also those that get
    no rows.

    Collective: the ranks compare plan and model, and in every pass what it is given, what it returns and some of its
    parameters (of tensors in host memory a few elements, within rounding), so that MismatchError names the rank that
    has something else. ArgumentError where a pattern names no module, a step an argument that its module has not, or
    hooks for these ranks are there already.

    plan  may also be what `explore` found of this model, by which a plan is made and proved first on simulated ranks;
          the planner's Schedule for it, once the model was explored: heddle.plan(found.to_yaml(), comm.mesh, ...);
          or a Plan, as `found.plan(model, "[sp=4]")` makes one
    """
    def made() -> Tuple[Any, str]:
        found = plan.plan(model, comm.mesh) if hasattr(plan, "flow") else plan
        if isinstance(plan, Schedule):
            from .planning.scheduled import plan_by  # which is made of this
            found = plan_by(model, plan, comm.mesh)
        if not hasattr(found, "steps"):
            return found, "the plan that was given"
        return found.steps, "\n".join([found.why, *found.stages])
    return put_on(model, made, Ranks(comm))


def put_on(model: torch.nn.Module, made: Callable[[], Tuple[Any, str]], ranks: Ranks) -> Parallel:
    """As `parallelize`, by a plan that is made here, so that all ranks hear where one cannot; with what the handle says
    of it."""
    handle, refused = Parallel(ranks), None
    facts: List[Tuple[str, Any]] = []
    try:
        steps, handle.why = made()
        if not isinstance(model, torch.nn.Module):
            raise ArgumentError(f"parallelize: the model is a {type(model).__name__}, wanted a torch.nn.Module")
        facts = [("model", type(model).__name__),
                 *((f"parameter {name}", (x.dtype, tuple(x.shape))) for name, x in model.named_parameters())]
        _put(handle, model, steps, facts)
    except BaseException as error:
        handle.remove()
        if not isinstance(error, Error):
            raise
        refused = error
    try:
        agree(ranks.comm, "parallelize", facts, refused)
    except BaseException:
        handle.remove()
        raise
    return handle


def pairs_of(plan: Any) -> List[Tuple[Any, Any]]:
    """Patterns and their steps."""
    if isinstance(plan, Mapping):
        return list(plan.items())
    if not isinstance(plan, (list, tuple)) or not all(isinstance(pair, (list, tuple)) and len(pair) == 2
                                                      for pair in plan):
        raise ArgumentError(f"parallelize: the plan is a {type(plan).__name__}, wanted a mapping from patterns of "
                            "names of modules to steps, or a list of such pairs")
    seen = [pattern for pattern, _ in plan]
    twice = next((pattern for at, pattern in enumerate(seen) if pattern in seen[:at]), None)
    if twice is not None:
        raise ArgumentError(f"parallelize: the plan has '{twice}' twice: wanted its steps in one tuple, in their order")
    return list(plan)


def _put(handle: "Parallel", model: torch.nn.Module, plan: Any, facts: List[Tuple[str, Any]]) -> None:
    ranks, handles = handle._ranks, handle._handles
    for name, module in model.named_modules():
        if any(isinstance(hook, Entering) and hook.ranks.comm is ranks.comm
               for hook in module._forward_pre_hooks.values()):
            raise ArgumentError(f"parallelize: {f'{name!r} of ' if name else ''}{type(model).__name__} is parallelized "
                                "over these ranks already: handle.remove() first, and one plan for all")
    pairs = pairs_of(plan)
    cut = ranks.cuts
    handles.append(model.register_forward_pre_hook(Entering(ranks, model), with_kwargs=True))
    for pattern, steps in pairs:
        modules = matching(model, pattern)
        for step in steps if isinstance(steps, (list, tuple)) else [steps]:
            if not isinstance(step, _STEPS):
                raise ArgumentError(f"parallelize: '{pattern}' has the step {step!r}, wanted one of "
                                    f"{', '.join(kind.__name__ for kind in _STEPS)}, with its arguments")
            for module in modules:
                handles.append(hooked(module, pattern, step, ranks))
            facts.append((f"'{pattern}'", step))
            for names in (getattr(step, "over", ()), getattr(step, "to", ())):
                cut.update((names,) if isinstance(names, str) else names)
    handles.append(model.register_forward_hook(Leaving(ranks)))
    handles.append(model.register_forward_hook(Telling(ranks, sorted(cut)), always_call=True))
