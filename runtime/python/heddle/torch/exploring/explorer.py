"""Every module of a model under experiment, while the model runs once."""
from __future__ import annotations

import inspect
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ...errors import ArgumentError, UnsupportedError
from .axes import Axes, Axis, Shapes, found, grown, named, shapes_of, steady
from .exploration import Exploration, Module
from .flow import argument_names, as_argument, flow_of
from .kept import kept
from .probe import Finding, Probe, Reading, called, numbered
from .solve import Folded, depends_on, extents_of, solved
from .trees import Tensors, replaced, tensors_of

_WAYS_MAX = 4  #: to read the axes of one call
_explored: "weakref.WeakKeyDictionary[torch.nn.Module, Exploration]" = weakref.WeakKeyDictionary()


def explore(model: torch.nn.Module, *args: Any, dims: Optional[Mapping[str, str]] = None,
            progress: Optional[Callable[[str], None]] = None, **kwargs: Any) -> Exploration:
    """Finds by experiment, for every module and every dim of the arguments, whether rows go through independently of
    one another (free) or not.

        found = heddle.torch.explore(transformer, hidden_states=x, timestep=t, encoder_hidden_states=text)
        print(found)

    The arguments are those of a forward pass, of small extents that differ. The model is run with other extents, and
    each of its modules on changed rows and on fewer rows; it is afterwards as it was, and so are the random numbers.

    dims      what the axes of arguments are, where it cannot be found: {"hidden_states": "b c f h w"}, `c` and `_` for
              channels; `(b f) l c` where axes are folded, {"num_frames": "f"} of a number that is an extent
    progress  is called with the name of every module

    ArgumentError: no module, no tensor among the arguments, names of dims that do not fit. UnsupportedError: parameters
    on `meta` or on several devices. What the model raises with the arguments as they are goes on.
    """
    _check(model)
    args, kwargs = _named_arguments(model, args, kwargs)
    given = {**tensors_of(args), **tensors_of(kwargs)}
    if not given:
        raise ArgumentError(f"explore: {type(model).__name__} was given no tensor, wanted the arguments of a forward")
    with kept(model):
        shapes = shapes_of(model, args, kwargs)
        axes = _axes(model, args, kwargs, given, dims, shapes)
        explorer = _Explorer(model, axes, shapes, progress)
        explorer.run(args, kwargs)
        fixed = tuple(name for name, dim in axes.dims.items() if dim.step == 0)
        made = Exploration(type(model).__name__, {name: dim.extent for name, dim in axes.dims.items()}, fixed,
                           {name: explorer.modules[name] for name in explorer.order}, explorer.notes, (args, kwargs))
        made.flow = flow_of(model, args, kwargs, [stage.name for stage in made.stages()])
    _explored[model] = made
    return made


def explored(model: torch.nn.Module) -> Optional[Exploration]:
    """What was found of this model last, which a schedule knows by its stages' names alone."""
    return _explored.get(model)


def _check(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"explore: the model is a {type(model).__name__}, wanted a torch.nn.Module")
    devices: Dict[str, str] = {}
    for name, p in model.named_parameters():
        devices.setdefault(str(p.device), name)
    if "meta" in devices:
        raise UnsupportedError(f"explore: '{devices['meta']}' is on the device meta, where nothing is computed: wanted "
                               "parameters with elements")
    if len(devices) > 1:
        raise UnsupportedError("explore: " + ", ".join(f"'{name}' is on {device}" for device, name in devices.items())
                               + ": wanted all parameters on one device")


def _named_arguments(model: torch.nn.Module, args: Any, kwargs: Any) -> Tuple[Any, Dict[str, Any]]:
    """By name where the forward has names for them."""
    signature = inspect.signature(model.forward)
    if any(p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in signature.parameters.values()):
        return args, kwargs
    try:
        bound = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise ArgumentError(f"explore: {type(model).__name__}.forward: {error}") from None
    more = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    return (), {**bound, **(bound.pop(more, {}) if more else {})}


def _axes(model: torch.nn.Module, args: Any, kwargs: Any, given: Tensors, dims: Optional[Mapping[str, str]],
          shapes: Shapes) -> Axes:
    def runs(group: List[Axis], step: int) -> Optional[Shapes]:
        """The shapes with longer axes; None: the model refuses, or nothing inside it is longer."""
        more_args, more_kwargs = grown(args, kwargs, group, step, axes)
        try:
            other = shapes_of(model, more_args, more_kwargs)
        except Exception:  # whatever a model raises
            return None
        inside = [key for key in other if not key.startswith(":in:") and key in shapes]
        return other if any(other[key] != shapes[key] for key in inside) else None
    axes: Optional[Axes] = None
    if dims is None:
        return found(given, model, shapes, runs)
    numbers = {name: value for name, value in kwargs.items() if type(value) is int}
    axes = named(given, dims, numbers)
    for name, dim in axes.dims.items():
        group = [axis for axis, other in axes.of.items() if other == name]
        dim.step, others = steady(group, shapes, runs)
        if others is not None:
            axes.shapes[name] = others
    return axes


class _Explorer:
    def __init__(self, model: torch.nn.Module, axes: Axes, shapes: Shapes, progress: Optional[Callable[[str], None]]):
        self.model, self.axes, self.shapes, self.progress = model, axes, shapes, progress
        self.extents = extents_of(axes, shapes)
        self.modules: Dict[str, Module] = {}
        self.order: List[str] = []
        self.notes: List[str] = []
        self._seen: Dict[Any, Dict[str, Finding]] = {}
        self._given: List[Tuple[Any, Any]] = []  # of the calls that run, the innermost last
        self._busy = False
        self._odd: Dict[str, str] = {}  # dims of the call at hand of which an axis is not understood, and why

    def run(self, args: Any, kwargs: Any) -> None:
        lists = {id(child) for module in self.model.modules() if isinstance(module, torch.nn.ModuleList)
                 for child in module}
        handles: List[Any] = []
        try:
            for name, module in self.model.named_modules():
                handles += self._hooks(name, module, id(module) in lists)
            self.model(*replaced(args, lambda _, x: x.clone()), **replaced(kwargs, lambda _, x: x.clone()))
        finally:
            for handle in handles:
                handle.remove()

    def _hooks(self, name: str, module: torch.nn.Module, is_block: bool) -> List[Any]:
        def enter(_: Any, args: Any, kwargs: Any) -> None:
            if not self._busy:
                self.order += [] if name in self.order else [name]
                self._given.append((replaced(args, lambda _, x: x.clone()), replaced(kwargs, lambda _, x: x.clone())))

        def leave(_: Any, args: Any, kwargs: Any, out: Any) -> None:
            if self._busy:
                return
            given = self._given.pop()
            if name in self.modules:
                self.modules[name].calls += 1
                return
            if self.progress:
                self.progress(name)
            self._busy = True
            before = torch.get_rng_state()
            try:
                self.modules[name] = self._explored(name, module, given, tensors_of(out))
                self.modules[name].is_block = is_block
            finally:
                torch.set_rng_state(before)
                self._busy = False
        return [module.register_forward_pre_hook(enter, with_kwargs=True),
                module.register_forward_hook(leave, with_kwargs=True)]

    def _explored(self, name: str, module: torch.nn.Module, given: Tuple[Any, Any], out: Tensors) -> Module:
        self._odd = {}
        tensors = {**tensors_of(given[0]), **tensors_of(given[1])}
        ways = {side: {at: self._ways(f"{name}:{side}:{at}", x) for at, x in values.items()}
                for side, values in (("in", tensors), ("out", out))}
        made = Module(name, type(module).__name__, weights=sum(p.numel() for p in module.parameters()))
        first = next(iter(out.values()), None)
        made.channels = first.shape[-1] if first is not None and first.dim() else 0
        key = self._key(module, tensors, out)
        best: Dict[str, Finding] = {}
        for turn in range(min(max((len(way) for side in ways.values() for axes in side.values() for way in axes),
                                  default=1), _WAYS_MAX) or 1):
            reading = Reading(_turned(ways["in"], turn), _turned(ways["out"], turn))
            findings = self._findings(module, given, reading, out) if key is None or (key, turn) not in self._seen \
                else self._seen[key, turn]
            if key is not None:
                self._seen[key, turn] = findings
            if turn == 0 or sum(f.is_free for f in findings.values()) > sum(f.is_free for f in best.values()):
                best = findings
                _written(made, reading, tensors, out, argument_names(module))
        made.dims = {dim: best[dim] for dim in self.axes.dims if dim in best}
        return made

    def _key(self, module: torch.nn.Module, tensors: Tensors, out: Tensors) -> Any:
        """Torch's own modules are alike where their words and shapes are."""
        if not type(module).__module__.startswith("torch.nn.modules") or any(True for _ in module.children()):
            return None
        return type(module), module.extra_repr(), tuple((at, tuple(x.shape), x.dtype) for at, x in tensors.items()), \
            tuple(tuple(x.shape) for x in out.values())

    def _ways(self, key: str, x: torch.Tensor) -> List[List[Folded]]:
        if self.shapes.get(key) != tuple(x.shape):
            return [[] for _ in x.shape]
        found = []
        for at, size in enumerate(x.shape):
            of = depends_on(self.axes, self.shapes, key, at) or set()
            alone = not of and not any(size == dim.extent for dim in self.axes.dims.values() if dim.step == 0)
            found.append([] if alone else solved(
                size, {dim: self.axes.shapes[dim][key][at] for dim in of}, self.axes, self.extents))
            if of and not found[-1]:
                why = (f"dim {at} of '{key.split(':', 1)[1]}' is {size}, which depends on {' '.join(sorted(of))} in a "
                       "way that is not understood")
                self._odd.update(dict.fromkeys(of, why))
                self.notes.append(f"{key.split(':')[0]}: {why}")
        return found

    def _findings(self, module: torch.nn.Module, given: Tuple[Any, Any], reading: Reading,
                  out: Tensors) -> Dict[str, Finding]:
        dims = reading.dims() | set(self._odd)
        run = called(module, *given)
        try:
            whole = run(lambda _, x: x)
            again = run(lambda _, x: x)
        except Exception as error:  # whatever a model raises
            return {dim: Finding("unknown", f"alone it raises {type(error).__name__}: {error}"[:200]) for dim in dims}
        if any(not torch.equal(y.nan_to_num(), again[at].nan_to_num()) for at, y in whole.items()):
            return {dim: Finding("unknown", "the same arguments gave two results: it keeps state") for dim in dims}
        findings: Dict[str, Finding] = {}
        for dim in sorted(dims):
            if dim in self._odd:
                findings[dim] = Finding("unknown", self._odd[dim])
                continue
            try:
                findings[dim] = Probe(dim, reading, run, whole).finding()
            except Exception as error:  # whatever a model raises
                findings[dim] = Finding("unknown", f"with other rows of {dim} it raises {type(error).__name__}: "
                                                   f"{error}"[:200])
        return findings


def _turned(ways: Mapping[str, List[List[Folded]]], turn: int) -> Dict[str, Sequence[Folded]]:
    return {at: [way[min(turn, len(way) - 1)] if way else () for way in axes] for at, axes in ways.items()}


def _written(made: Module, reading: Reading, tensors: Tensors, out: Tensors, names: List[str]) -> None:
    made.given = {as_argument(at, names): _text(reading.given[at]) for at in tensors}
    made.out = {at: _text(reading.out[at]) for at in out}
    made.numbered = {as_argument(at, names): dim for at, x in tensors.items()
                     for dim in [numbered(x, reading.given[at])] if dim}
    for axes in (*reading.given.values(), *reading.out.values()):
        for axis in axes:
            for part in axis:
                made.extents.update(zip(part.dims, part.extents))


def _text(axes: Any) -> str:
    """`(b f) l+h w _`, as Split and its like have it where nothing stands beside something."""
    words = []
    for axis in axes:
        parts = [" ".join(part.dims) for part in axis]
        words.append(f"({parts[0]})" if len(parts) == 1 and " " in parts[0] else
                     f"({' + '.join(parts)})" if parts else "_")
    return " ".join(word[1:-1] if word.startswith("(") and " " not in word else word for word in words)
