"""What was found, as a tree, a table and a model file."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import torch

from ...errors import UnsupportedError
from ..sums import NORMS
from .flow import Flow
from .probe import Finding
from .rows import Fused
from .wide import HALF

if TYPE_CHECKING:
    from ...schedule import Schedule
    from ..planning.plan import Plan

_DTYPES = {**{dtype: "bf16" for dtype in HALF}, torch.float64: "f64"}  #: of model files, whose attention has no f16


@dataclass
class Module:
    """A module that ran."""

    name: str  #: as in model.named_modules()
    kind: str  #: its class
    dims: Dict[str, Finding] = field(default_factory=dict)  #: of every dim that its tensors have
    given: Dict[str, str] = field(default_factory=dict)  #: arguments and their dims: `(b f) s _`
    out: Dict[str, str] = field(default_factory=dict)  #: results likewise
    weights: int = 0  #: parameters, those of what is in it included
    channels: int = 0  #: of its first result: of the last axis that is no dim
    dtype: Optional[torch.dtype] = None  #: of its first result, also where it was explored in float32 instead
    groups: int = 1  #: of channels, of a norm
    calls: int = 1  #: in one pass of the model
    later: List[str] = field(default_factory=list)  #: of calls after the first that have other dims: which
    numbered: Dict[str, str] = field(default_factory=dict)  #: arguments that are the numbers of a dim's rows
    is_block: bool = False  #: a module of a list
    alone: str = ""  #: what its attention does with the rows that it has, so that it wants all: numbers them by itself
    extents: Dict[str, int] = field(default_factory=dict)  #: of the dims, there

    def of(self, *kinds: str) -> Tuple[str, ...]:
        return tuple(name for name, found in self.dims.items() if found.kind in kinds)

    def join(self, later: "Module") -> None:
        """A call of other shapes: what holds for all calls is what is found."""
        for dim, found in later.dims.items():
            self.dims[dim] = self.dims[dim].joined(found) if dim in self.dims else found
        if (later.given, later.out) != (self.given, self.out):
            self.later.append(", ".join(f"{at} '{text}'" for at, text in later.given.items()))

    def need_one_way(self) -> None:
        """Steps name the dims that a tensor has in all calls."""
        if self.later:
            here = ", ".join(f"{at} '{text}'" for at, text in self.given.items())
            raise UnsupportedError(f"'{self.name}' is called with {here} and then with {self.later[0]}: a step on it "
                                   "has one text for all its calls")

    def unknown(self, why: str) -> None:
        self.dims = {dim: Finding("unknown", why) for dim in self.dims}

    @property
    def free(self) -> Tuple[str, ...]:
        return self.of("free")

    @property
    def mixed(self) -> Tuple[str, ...]:
        """All that must be whole: what is unknown, too."""
        return tuple(name for name, found in self.dims.items() if not found.is_free and found.kind != "table")


@dataclass
class Exploration:
    """The findings of `heddle.torch.explore`, in the order in which modules began."""

    model: str  #: its class
    dims: Dict[str, int]  #: and their extents in the arguments
    fixed: Tuple[str, ...]  #: of them those whose extent the model does not let vary
    modules: Dict[str, Module]
    notes: List[str] = field(default_factory=list)  #: sentences about what could not be found
    given: Tuple[Any, Dict[str, Any]] = field(default_factory=lambda: ((), {}))  #: the arguments
    flow: Flow = field(default_factory=Flow)  #: between stages
    learning: Tuple[str, ...] = ()  #: batch norms that were in training

    def __getitem__(self, name: str) -> Module:
        return self.modules[name]

    def __str__(self) -> str:
        """A tree."""
        sizes = " ".join(f"{name}={extent}{' (fixed)' if name in self.fixed else ''}"
                         for name, extent in self.dims.items())
        lines = [f"{self.model}: {sizes}"]
        for name, module in self.modules.items():
            if name:
                depth, short = self.placed(name)
                lines.append(f"{'  ' * depth}{short} ({module.kind}): {_summary(module)}")
            else:
                lines[0] += f"; {_summary(module)}"
        return "\n".join(lines + self.notes)

    def placed(self, name: str) -> Tuple[int, str]:
        """How deep a module stands in the tree of those that ran, and its name there."""
        above = [other for other in self.modules if other and name.startswith(f"{other}.")]
        return len(above) + 1 if name else 0, name[len(max(above, key=len)) + 1:] if above else name

    def table(self) -> str:
        """A line for every module and dim."""
        rows = [("module", "dim", "found", "why")]
        rows += [(name or "(model)", dim, str(found), found.why) for name, module in self.modules.items()
                 for dim, found in module.dims.items()]
        widths = [max(len(row[at]) for row in rows) for at in range(3)]
        return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]).rstrip()
                         for row in rows)

    def children(self, name: str) -> List[str]:
        """Modules that are called by this one's own code."""
        below = [other for other in self.modules if other != name and (not name or other.startswith(f"{name}."))]
        return [other for other in below if not any(other.startswith(f"{more}.") for more in below)]

    def stages(self) -> List[Module]:
        """What a schedule has: modules of lists, whose result has rows of a sequence. Where one mixes all its dims, and
        modules of lists within it mix some and leave others free, these."""
        blocks = [module for module in self.modules.values() if module.is_block and self._sequence(module.out)]
        found: List[Module] = []
        for module in blocks:
            if any(module.name.startswith(f"{stage.name}.") for stage in found):
                continue
            within = [other for other in blocks if other.name.startswith(f"{module.name}.")]
            free = any(dim in module.free for dim in self._sequence(module.out))
            if free or not any(map(self._is_split, within)):
                found.append(module)
        return found

    def _is_split(self, module: Module) -> bool:
        dims = self._sequence(module.out)
        return any(dim in module.free for dim in dims) and any(dim in module.mixed for dim in dims)

    def sequence(self) -> Tuple[str, ...]:
        """The dims of the activation between stages."""
        seen = {dim for module in self.stages() for dim in self._sequence(module.out)}
        return tuple(dim for dim in self.dims if dim in seen)

    def _sequence(self, out: Dict[str, str]) -> Tuple[str, ...]:
        first = next(iter(out.values()), "")
        words = first.replace("(", " ").replace(")", " ").replace("+", " ").split()
        return tuple(dim for dim in self.dims if dim in words and dim != "b")

    def plan(self, model: Any, mesh: str, *, schedule: Any = None, method: str = "auto", machine: Any = None,
             sizes: str = "", saved_forwards: int = 1) -> "Plan":
        """The steps for `parallelize` on such ranks, `[sp=4]`. The planner decides which dim is cut in each stage; the
        steps are tried on simulated ranks with the arguments that the model was explored with, and what does not hold
        there is not returned.

        model     the one that was explored, or another of its class and sizes
        schedule  one of `heddle.plan(found.to_yaml(), ...)`, whose layouts and methods every stage gets, and whose ends
                  are whole; None: the planner's best for `machine` and `sizes`
                  ("f=16,s=1590"), without a machine the one that moves the fewest bytes
        method    of stages that mix all their rows by attention, as of heddle.diffusers.parallelize

        UnsupportedError: no plan is known, or none holds; the sentence names the module. ArgumentError: a schedule of
        another model, or that cuts what a stage mixes; a machine or sizes that the planner does not know; a mesh of
        several axes.
        """
        from ..planning.found import plan_of  # which is made of this
        return plan_of(self, model, mesh, schedule=schedule, method=method, machine=machine, sizes=sizes,
                       saved_forwards=saved_forwards)

    def schedule(self, model: Any, plan: Any, mesh: str, *, machine: Any = None, sizes: str = "") -> "Schedule":
        """The way back: the planner's schedule for a plan, by hand too. What every stage has of the activation is seen
        on simulated ranks, and forced; so it says the bytes and, on a machine, the seconds that the plan takes.

        ArgumentError: a plan that does not run. InfeasibleError: a stage that the planner does not know so.
        """
        from ..planning.scheduled import schedule_of
        return schedule_of(self, model, plan, mesh, machine, sizes)

    def fused(self) -> Fused:
        """Dims as plans have them: `h w`, which no stage tells apart, as `s`."""
        texts = [text for stage in self.stages() for side in (stage.given, stage.out) for text in side.values()]
        return Fused(texts, list(self.dims))

    def planned(self) -> List[str]:
        """Those of them that a schedule knows: of the activation between stages."""
        sequence = self.sequence()
        return [name for name, run in self.fused().parts.items() if any(dim in sequence for dim in run)]

    def to_yaml(self) -> str:
        """A model file for `heddle plan`: its stages are modules, known by their figures. Products are counted as two
        for every weight, so what attention itself computes is not in them."""
        stages, fused, dims = self.stages(), self.fused(), self.planned()
        if not stages or not dims:
            raise UnsupportedError(f"{self.model}: no module of a list of modules has rows of a sequence, wanted some "
                                   "for a model file: name the dims, explore(..., dims={...})")
        extents = fused.extents({dim: next((stage.extents[dim] for stage in stages if dim in stage.extents),
                                           self.dims[dim]) for dim in self.dims})
        channels = max(stages[0].channels, 1)
        sizes = [f"  {dim}: {extents[dim]}" for dim in dims]
        batch = ["  b: {size: %d, role: batch}" % self.dims["b"]] if "b" in self.dims else []
        text = [f"model: {self.model.lower()}", "source: found by heddle.torch.explore",
                f"dtype: {_DTYPES.get(stages[0].dtype, 'f32')}", "dims:", *batch, *sizes,
                "  c: {size: %d, role: channel}" % channels,
                "tensors:", f"  x: [{', '.join([*(['b'] if batch else []), *dims, 'c'])}]", "stages:"]
        for stage in stages:
            over = [dim for dim in dims if any(part in stage.mixed for part in fused.parts[dim])]
            mixes = f", over: [{', '.join(over)}]" if len(over) > 1 else f", over: {over[0]}" if over else ""
            weights = f", weights: {stage.weights}" if stage.weights else ""
            text.append("  - {name: %s, kind: module%s%s, token_flops: %d%s}" % (
                stage.name, mixes, self._methods(stage, over, channels), max(2 * stage.weights, 1), weights))
        return "\n".join(text) + "\n"

    def _methods(self, stage: Module, over: List[str], channels: int) -> str:
        """Where rows of neighbours or sums are all that a stage wants, it gets these; where attention is all that mixes
        the one dim of a stage, it may be that of all ranks."""
        brought = [self._brought(stage.name, dim) for dim in over]
        rows, groups = [each[0] if each else 0 for each in brought], [each[1] if each else 0 for each in brought]
        if any(rows):
            return f", window: {rows[0] if len(over) == 1 else rows}, methods: [halo]"
        if over and all(groups) and channels % max(groups) == 0:
            return f", heads: {max(groups)}, methods: [sums]"
        attentions = [each for each in self.flow.attentions if f"{each.module}.".startswith(f"{stage.name}.")]
        if any(self.modules[each.module].alone for each in attentions):
            return ""
        heads = min((each.heads for each in attentions), default=0)
        if len(over) != 1 or heads == 0 or channels % heads or len(self._sequence(stage.out)) == 0:
            return ""
        methods = "ulysses, gather-kv" if any(each.is_masked for each in attentions) else "ulysses, gather-kv, ring"
        return f", heads: {heads}, methods: [{methods}]"


    def _brought(self, name: str, dim: str) -> Optional[Tuple[int, int]]:
        """Of other ranks, along a dim of the file: rows each way, and groups of which there are sums. None: neither of
        them would be enough."""
        seen = self.modules[name].dims.get(dim)
        if seen is None or seen.kind in ("free", "table"):
            return 0, 0
        if seen.is_near and not self._is_far_within(name, dim):
            return seen.rows, 0
        if seen.kind == "reduction" and self.modules[name].kind in NORMS:
            return 0, self.modules[name].groups
        each = [self._brought(child, dim) for child in self.children(name)]
        found = [every for every in each if every is not None]
        rows, groups = (sum(every[side] for every in found) for side in (0, 1))
        return (rows, groups) if len(found) == len(each) and (rows or groups) else None

    def _is_far_within(self, name: str, dim: str) -> bool:
        """Is there attention in it, or a module that wants rows from anywhere, whatever comes of it outside?"""
        below = [module for module in self.modules.values() if module.name.startswith(f"{name}.")]
        return any(f"{each.module}.".startswith(f"{name}.") for each in self.flow.attentions) or any(
            each.kind in ("mixes", "causal") and not each.is_near for module in below
            for each in (module.dims.get(dim),) if each is not None)


def _summary(module: Module) -> str:
    said = [f"{words} {' '.join(module.of(kind))}" for kind, words in (
        ("free", "free"), ("mixes", "mixes"), ("causal", "causal along"), ("reduction", "sums over"),
        ("table", "a table of"), ("unknown", "unknown:")) if module.of(kind)]
    said += [f"its attention {module.alone}"] if module.alone else []
    said += [f"{found} along {dim}" for dim, found in module.dims.items() if found.kind == "halo"]
    return "; ".join(said) or "no rows"
