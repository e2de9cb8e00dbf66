"""Every module of a model under experiment, while the model runs once."""
from __future__ import annotations

import inspect
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ...errors import ArgumentError
from .axes import Axes, Axis, Shapes, call_name, channels_of, found, grown, named, shapes_of, steady
from .devices import need_one_device, need_runnable, note_dtypes
from .exploration import Exploration, Module
from .flow import argument_names, as_argument, flow_of
from .held import Held
from .kept import kept, learning_in, learns, note_writing, telling_values, writing
from .numbering import note_numbering
from .probe import Finding, Probe, Reading, called, numbered
from .solve import Folded, depends_on, extents_of, solved
from .trees import Tensors, fresh, need_copies, tensors_of
from .wide import widened

_WAYS_MAX = 4  #: to read the axes of one call
_CALLS_MAX = 6  #: of a module, of other shapes each
_CUT = "the model reaches more objects than are kept: what a forward writes to beyond modules' own attributes may be " \
       "changed"
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

    ArgumentError: no module, no tensor among the arguments, or one in what gives no copy; names of dims that do not
    fit; a batch norm in training that gets one value per channel. UnsupportedError: parameters, buffers or arguments
    on `meta` or on several devices; modules of torch.jit. What the model raises with the arguments as they are goes
    on, with a note where they are of another dtype than the parameters.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"explore: the model is a {type(model).__name__}, wanted a torch.nn.Module")
    if dims is not None and not isinstance(dims, Mapping) or progress is not None and not callable(progress):
        raise ArgumentError(f"explore: dims is a {type(dims).__name__}, progress a {type(progress).__name__}: wanted a "
                            "mapping from names of arguments to dims, and a function of a module's name")
    need_runnable("explore", model, args, kwargs)
    args, kwargs = _named_arguments(model, args, kwargs)
    given = {**tensors_of(args), **tensors_of(kwargs)}
    if not given:
        raise ArgumentError(f"explore: {type(model).__name__} was given no tensor, wanted the arguments of a forward")
    need_one_device("explore", model, args, kwargs)
    written: Dict[torch.Tensor, torch.Tensor] = {}
    with kept(model, args, kwargs, written=written), writing(model, written):
        need_copies("explore", model, args, kwargs)
        try:
            with telling_values(model):
                shapes = shapes_of(model, args, kwargs)
        except Exception as error:  # whatever a model raises goes on
            note_dtypes(error, model, args, kwargs)
            raise
    note_writing(model, written)
    asked = args, kwargs
    with kept(model, args, kwargs, written=written), widened(model, args, kwargs) as (args, kwargs, halves), \
            kept(model, args, kwargs, written=written) as put_back:
        axes = _axes(model, args, kwargs, given, dims, shapes, put_back)
        put_back()
        explorer = _Explorer(model, axes, shapes, progress)
        explorer.run(args, kwargs)
        explorer.notes += [_CUT] if Held(model, args, kwargs).is_cut else []
        explorer.notes += _in_training(model)
        fixed = tuple(name for name, dim in axes.dims.items() if dim.step == 0)
        made = Exploration(type(model).__name__, {name: dim.extent for name, dim in axes.dims.items()}, fixed,
                           {name: explorer.modules[name] for name in explorer.order}, explorer.notes, asked,
                           learning=learning_in(model))
        for name in made.modules.keys() & halves.keys():
            made.modules[name].dtype = halves[name]
        put_back()
        made.flow = flow_of(model, args, kwargs, [stage.name for stage in made.stages()])
        put_back()
        note_numbering(model, args, kwargs, made.modules, made.flow.attentions)
    _explored[model] = made
    return made


def _in_training(model: torch.nn.Module) -> List[str]:
    names = learning_in(model)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [f"'{names[0]}'{more} (batch norms) in training take means over rows: call model.eval() before, if the "
            "model is not to be trained"] if names else []


def explored(model: torch.nn.Module) -> Optional[Exploration]:
    """What was found of this model last, which a schedule knows by its stages' names alone."""
    return _explored.get(model)


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
          shapes: Shapes, put_back: Callable[[], None]) -> Axes:
    def runs(group: List[Axis], step: int) -> Optional[Shapes]:
        """The shapes with longer axes; None: the model refuses, or nothing that its modules make is longer."""
        more_args, more_kwargs = grown(model, args, kwargs, group, step, axes)
        put_back()
        try:
            other = shapes_of(model, more_args, more_kwargs)
        except Exception:  # whatever a model raises
            return None
        made = [key for key in other if ":out:" in key and key in shapes]  # else a patch has swallowed what is more
        return other if any(other[key] != shapes[key] for key in made) else None
    axes: Optional[Axes] = None
    if dims is None:
        return found(given, model, shapes, runs)
    numbers = {name: value for name, value in kwargs.items() if type(value) is int}
    axes = named(given, dims, numbers)
    for name, dim in axes.dims.items():
        group = [axis for axis, other in axes.of.items() if other == name]
        dim.step, others = steady(group, dim.extent, shapes, runs)
        if others is not None:
            axes.shapes[name] = others
    return axes


def _is_list(module: torch.nn.Module) -> bool:
    """Of blocks: a Sequential of layers (a product, an activation, a product) is not one."""
    if isinstance(module, torch.nn.Sequential):
        return all(any(child.children()) for child in module.children())
    return isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict))


class _Explorer:
    def __init__(self, model: torch.nn.Module, axes: Axes, shapes: Shapes, progress: Optional[Callable[[str], None]]):
        self.model, self.axes, self.shapes, self.progress = model, axes, shapes, progress
        self.extents = extents_of(axes, shapes)
        self.channels = channels_of(model)
        self.modules: Dict[str, Module] = {}
        self.order: List[str] = []
        self.notes: List[str] = []
        self._seen: Dict[Any, Dict[str, Finding]] = {}
        self._calls: Dict[str, List[Any]] = {}  # of modules: their shapes
        self._given: List[Tuple[Any, Any]] = []  # of the calls that run, the innermost last
        self._busy = False
        self._order: Dict[Any, Tuple[str, ...]] = {}  # of dims that are folded, where it was seen
        self._odd: Dict[str, str] = {}  # dims of the call at hand of which an axis is not understood, and why

    def run(self, args: Any, kwargs: Any) -> None:
        lists = {id(child) for module in self.model.modules() if _is_list(module) for child in module.children()}
        handles: List[Any] = []
        try:
            for name, module in self.model.named_modules():
                handles += self._hooks(name, module, id(module) in lists)
            args, kwargs = fresh(self.model, args, kwargs)
            self.model(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()

    def _hooks(self, name: str, module: torch.nn.Module, is_block: bool) -> List[Any]:
        def enter(_: Any, args: Any, kwargs: Any) -> None:
            if not self._busy:
                self.order += [] if name in self.order else [name]
                self._given.append(fresh(self.model, args, kwargs))

        def leave(_: Any, args: Any, kwargs: Any, out: Any) -> None:
            if self._busy:
                return
            given = self._given.pop()
            is_first = name not in self.modules
            if is_first and self.progress:
                self.progress(name)
            if not is_first:
                self.modules[name].calls += 1
            if not self._is_new(name, given, out):
                return
            self._busy = True
            before, held = torch.get_rng_state(), Held(module, *given, is_one_call=True)
            try:
                call = call_name(name, 0 if is_first else self.modules[name].calls - 1)
                made = self._explored(call, module, given, tensors_of(out))
                made.name, made.is_block = name, is_block
                if is_first:
                    self.modules[name] = made
                else:
                    self.modules[name].join(made)
            finally:
                held.put_back()
                torch.set_rng_state(before)
                self._busy = False
        return [module.register_forward_pre_hook(enter, with_kwargs=True),
                module.register_forward_hook(leave, with_kwargs=True)]

    def _is_new(self, name: str, given: Tuple[Any, Any], out: Any) -> bool:
        """Has no earlier call had the same shapes, with other extents, too?"""
        call = call_name(name, self.modules[name].calls - 1 if name in self.modules else 0)
        keys = [f"{call}:{side}:{at}" for side, value in (("in", given[0]), ("in", given[1]), ("out", out))
                for at in tensors_of(value)]
        others = self.axes.shapes.values()
        shapes = [(key[len(call):], self.shapes.get(key), [other.get(key) for other in others]) for key in keys]
        seen = self._calls.setdefault(name, [])
        if shapes in seen:
            return False
        seen.append(shapes)
        if len(seen) > _CALLS_MAX:
            self.modules[name].unknown(f"it is called with more than {_CALLS_MAX} kinds of shapes")
        return len(seen) <= _CALLS_MAX

    def _explored(self, name: str, module: torch.nn.Module, given: Tuple[Any, Any], out: Tensors) -> Module:
        self._odd = {}
        tensors = {**tensors_of(given[0]), **tensors_of(given[1])}
        ways = {side: {at: self._ways(f"{name}:{side}:{at}", x) for at, x in values.items()}
                for side, values in (("in", tensors), ("out", out))}
        made = Module(name, type(module).__name__, weights=sum(p.numel() for p in module.parameters()))
        made.groups = next((n for n in (getattr(module, name, None) for name in ("num_groups", "num_features"))
                            if isinstance(n, int)), 1)
        key = self._key(module, tensors, out)
        best: Dict[str, Finding] = {}
        most = max((len(way) for side in ways.values() for axes in side.values() for way in axes), default=1)
        for turn in range(min(most, _WAYS_MAX) or 1):
            reading = Reading(_turned(ways["in"], turn), _turned(ways["out"], turn))
            kept = (key, reading.key()) if key is not None else None
            findings = self._findings(module, given, reading, out) if kept not in self._seen else self._seen[kept]
            if kept is not None:
                self._seen[kept] = findings
            if turn == 0 or _plainness(findings) > _plainness(best):
                best = findings
                _written(made, reading, tensors, out, argument_names(module))
                self._keep_order(reading, findings)
            if all(f.is_free for f in findings.values()):
                break
        made.dims = {dim: best[dim] for dim in self.axes.dims if dim in best}
        return made

    def _key(self, module: torch.nn.Module, tensors: Tensors, out: Tensors) -> Any:
        """Torch's own modules are alike where their words and shapes are."""
        if not type(module).__module__.startswith("torch.nn.modules") or any(True for _ in module.children()):
            return None
        given = tuple((at, tuple(x.shape), x.dtype) for at, x in tensors.items())
        return type(module), module.extra_repr(), learns(module), given, tuple(tuple(x.shape) for x in out.values())

    def _ways(self, key: str, x: torch.Tensor) -> List[List[Folded]]:
        if self.shapes.get(key) != tuple(x.shape):
            return [[] for _ in x.shape]
        found = []
        for at, size in enumerate(x.shape):
            of = depends_on(self.axes, self.shapes, key, at) or set()
            alone = not of and not any(size == dim.extent for dim in self.axes.dims.values() if dim.step == 0)
            alone = alone and not self._may_be_folded(x, at)
            found.append([] if alone else solved(
                size, {dim: self.axes.shapes[dim][key][at] for dim in of}, self.axes, self.extents))
            found[-1] = [way for way in found[-1] if self._in_order(way)] or found[-1]
            if of and not found[-1]:
                why = (f"dim {at} of '{key.split(':', 1)[1]}' is {size}, which depends on {' '.join(sorted(of))} in a "
                       "way that is not understood")
                self._odd.update(dict.fromkeys(of, why))
                self.notes.append(f"{key.split(':')[0]}: {why}")
        return found

    def _keep_order(self, reading: Reading, findings: Dict[str, Finding]) -> None:
        """Of dims that stand folded on one side of a module and otherwise on the other, while no row reaches
        another one."""
        folded = [{part.dims for axes in side.values() for axis in axes for part in axis if len(part.dims) > 1}
                  for side in (reading.given, reading.out)]
        for dims in folded[0] ^ folded[1]:
            if all(dim in findings and findings[dim].is_apart for dim in dims):
                self._order.setdefault(frozenset(dims), dims)

    def _in_order(self, way: Folded) -> bool:
        return all(self._order.get(frozenset(part.dims), part.dims) == part.dims for part in way)

    def _may_be_folded(self, x: torch.Tensor, at: int) -> bool:
        """Where no dim varies, any axis beside channels may be made of dims."""
        is_fixed = all(dim.step == 0 for name, dim in self.axes.dims.items() if name != "b")
        beside = [size for axis, size in enumerate(x.shape) if axis != at]
        return is_fixed and at > 0 and x.dim() > 2 and x.shape[at] not in self.channels and any(
            size in self.channels for size in beside)

    def _findings(self, module: torch.nn.Module, given: Tuple[Any, Any], reading: Reading,
                  out: Tensors) -> Dict[str, Finding]:
        dims = reading.dims() | set(self._odd)
        run, finer = called(module, *given), called(module, *given, torch.float64)
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
                findings[dim] = Probe(dim, reading, run, whole, finer).finding()
            except Exception as error:  # whatever a model raises
                findings[dim] = Finding("unknown", f"with other rows of {dim} it raises {type(error).__name__}: "
                                                   f"{error}"[:200])
        return findings


def _plainness(findings: Mapping[str, Finding]) -> Tuple[int, int]:
    return sum(f.is_free for f in findings.values()), sum(f.is_apart for f in findings.values())


def _turned(ways: Mapping[str, List[List[Folded]]], turn: int) -> Dict[str, Sequence[Folded]]:
    return {at: [way[min(turn, len(way) - 1)] if way else () for way in axes] for at, axes in ways.items()}


def _written(made: Module, reading: Reading, tensors: Tensors, out: Tensors, names: List[str]) -> None:
    made.given = {as_argument(at, names): _text(reading.given[at], x) for at, x in tensors.items()}
    made.out = {at: _text(reading.out[at], y) for at, y in out.items()}
    for at, y in list(out.items())[:1]:
        plain = [size for size, axis in zip(y.shape, reading.out[at]) if not axis]
        made.channels, made.dtype = (plain or [*y.shape, 0])[-1] if y.dim() else 0, y.dtype
    made.numbered = {as_argument(at, names): dim for at, x in tensors.items()
                     for dim in [numbered(x, reading.given[at])] if dim}
    for axes in (*reading.given.values(), *reading.out.values()):
        for axis in axes:
            for part in axis:
                made.extents.update(zip(part.dims, part.extents))


def _text(axes: Any, x: torch.Tensor) -> str:
    """`(b f) (l + h w) (1 + h w) _`: parts that stand one behind another, tokens of a class by their number."""
    words = []
    for axis, size in zip(axes, x.shape):
        parts = [" ".join(part.dims) for part in axis]
        first, rest = (axis[0].begin, size - sum(part.length for part in axis)) if axis else (0, 0)
        parts = [*([str(first)] if first else []), *parts, *([str(rest - first)] if rest > first else [])]
        word = " + ".join(parts) or "_"
        words.append(f"({word})" if " " in word else word)
    return " ".join(words)
