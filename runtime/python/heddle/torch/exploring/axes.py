"""The dims of a model's arguments: named by the caller, or found by giving the model other extents."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

import torch

from ...errors import ArgumentError
from ..ranks import Dims
from .trees import Tensors, fresh, tensors_of

Shapes = Dict[str, Tuple[int, ...]]  #: of every tensor of every module's calls, by a name of all three
_STEPS = 1, 2, 4, 8, 16  #: by which an extent grows: a patch or a pyramid of resolutions takes none smaller
_NAMES = {1: "s", 2: "h w", 3: "f h w", 4: "n f h w"}


@dataclass
class Given:
    """A dim of the arguments."""

    name: str
    extent: int
    step: int = 0  #: the other extent is so much more; 0: the model takes no other


Axis = Tuple[str, int]  #: a tensor among the arguments, and which of its axes


class Axes:
    """Which dim every axis of the arguments is; channels are none."""

    def __init__(self) -> None:
        self.dims: Dict[str, Given] = {}
        self.of: Dict[Axis, str] = {}
        self.folded: Dict[Axis, Tuple[str, ...]] = {}  #: axes of several
        self.numbers: Dict[str, str] = {}  #: arguments that are the extent of a dim
        self.shapes: Dict[str, Shapes] = {}  #: with each dim's other extent

    def text(self, name: str, x: torch.Tensor) -> str:
        return " ".join(self.of.get((name, axis), "_") for axis in range(x.dim()))


def longer(x: torch.Tensor, axis: int, more: int) -> torch.Tensor:
    """Rows of its own once more behind them."""
    at = torch.arange(x.shape[axis] + more, device=x.device) % x.shape[axis]
    return x.index_select(axis, at)


def named(given: Tensors, texts: Mapping[str, str], numbers: Mapping[str, int]) -> Axes:
    """As the caller says: of tensors, and of numbers that are extents."""
    axes, folded = Axes(), []
    for name, text in texts.items():
        if name in numbers and isinstance(text, str):
            axes.numbers[name] = text
            continue
        if name not in given:
            raise ArgumentError(f"explore: dims are given for '{name}', and the arguments that are tensors are "
                                f"{', '.join(map(repr, given)) or 'none'}")
        dims, x = _said(name, text), given[name]
        if len(dims.groups) != x.dim():
            raise ArgumentError(f"explore: '{text}' for '{name}', which has the shape {tuple(x.shape)}: wanted a name "
                                "for every axis, _ where it is none")
        for axis, group in enumerate(dims.groups):
            if len(group) > 1:
                folded.append((name, axis, group, text))
            elif group[0] not in dims.unnamed and group[0] != "c":
                _same(axes, group[0], x.shape[axis], name)
                axes.of[name, axis] = group[0]
    for name, axis, group, text in folded:  # whose parts others have said
        extents = [axes.dims[word].extent for word in group if word in axes.dims]
        if len(extents) != len(group) or math.prod(extents) != given[name].shape[axis]:
            known = " ".join(f"{dim.name}={dim.extent}" for dim in axes.dims.values())
            raise ArgumentError(f"explore: '{text}' for '{name}', whose dim {axis} is {given[name].shape[axis]}: "
                                f"wanted the product of dims that other axes have, which are {known or 'none'}")
        axes.folded[name, axis] = group
    for name, word in axes.numbers.items():
        if word not in axes.dims:
            raise ArgumentError(f"explore: '{name}' is said to be the extent of '{word}', which no tensor has")
        _same(axes, word, numbers[name], name)
    return axes


def _said(name: str, text: str) -> Dims:
    try:
        return Dims(text)
    except ArgumentError as error:
        raise ArgumentError(f"explore: for '{name}', {error}") from None


def _same(axes: Axes, word: str, extent: int, name: str) -> None:
    there = axes.dims.setdefault(word, Given(word, extent))
    if there.extent != extent:
        raise ArgumentError(f"explore: '{word}' is {there.extent} and, in '{name}', {extent}: another extent wants "
                            "another name")


def channels_of(model: torch.nn.Module, sides: Tuple[str, ...] = ("in", "out")) -> Set[int]:
    """Numbers of channels that products and convolutions take, and make; and that the model's configuration has, where
    patches go through a product."""
    sizes = {vars(module).get(f"{side}_{name}") for module in model.modules() for side in sides
             for name in ("features", "channels")}
    sizes |= {getattr(getattr(model, "config", None), f"{side}_channels", None) for side in sides}
    return {size for size in sizes if isinstance(size, int)}


def _groups(given: Tensors) -> List[Tuple[int, List[Axis]]]:
    """Axes of one extent, which are taken to be one dim until each varies alone."""
    groups: Dict[Tuple[int, bool], List[Axis]] = {}
    for name, x in given.items():
        for axis in range(x.dim()):
            groups.setdefault((x.shape[axis], axis == 0), []).append((name, axis))
    return [(extent, group) for (extent, _), group in groups.items()]


def found(given: Tensors, model: torch.nn.Module, shapes: Shapes,
          runs: Callable[[List[Axis], int], Optional[Shapes]]) -> Axes:
    """Axes whose extents the model lets vary: together, else each alone."""
    axes, dims, channels = Axes(), [], channels_of(model, ("in",))
    for extent, group in _groups(given):
        counted = 0 if _are_channels(group, given, channels) else extent
        step, others = steady(group, counted, shapes, runs)
        is_twice = len({name for name, _ in group}) < len(group)  # two axes of one tensor
        alone = [steady([axis], counted, shapes, runs) for axis in group] if is_twice else []
        if alone and all(step for step, _ in alone):
            dims += [([axis], step, others) for axis, (step, others) in zip(group, alone)]
        elif is_twice and not step:  # rows and columns of a square that is fixed are two dims
            dims += [([axis], 0, None) for axis in group]
        else:
            dims.append((group, step, others))
    dims = [(group, step, others) for group, step, others in _together(dims, given, shapes, runs)
            if step or not _are_channels(group, given, channels)]
    for group, step, others in _with_names(dims, given):
        extent = given[group[0][0]].shape[group[0][1]]
        name = axes.of[group[0]] = _name(group, dims, given, axes)
        for axis in group:
            axes.of[axis] = name
        axes.dims[name] = Given(name, extent, step)
        if others is not None:
            axes.shapes[name] = others
    return axes


def _together(dims: List[Any], given: Tensors, shapes: Shapes,
              runs: Callable[[List[Axis], int], Optional[Shapes]]) -> List[Any]:
    """Positions `[s, 3]` beside rows `[b, s, c]`: a first axis and another one that vary as one, and not alone."""
    for dim in [dim for dim in dims if not dim[1] and dim[0][0][1] == 0]:
        extent = given[dim[0][0][0]].shape[0]
        rows = [other for other in dims if not other[1] and other[0][0][1] > 0
                and given[other[0][0][0]].shape[other[0][0][1]] == extent]
        if extent < 2 or len(rows) != 1:
            continue
        step, others = steady(rows[0][0] + dim[0], extent, shapes, runs)
        if step:
            dims = [each for each in dims if each is not dim and each is not rows[0]]
            dims.append((rows[0][0] + dim[0], step, others))
    return dims


def _are_channels(group: List[Axis], given: Tensors, channels: Set[int]) -> bool:
    name, axis = group[0]
    x = given[name]
    is_last = axis == x.dim() - 1 > 1 and not any(size in channels for size in x.shape[1:-1])  # else these are in it
    return axis > 0 and (x.shape[axis] in channels or is_last)


def steady(group: List[Axis], extent: int, shapes: Shapes,
           runs: Callable[[List[Axis], int], Optional[Shapes]]) -> Tuple[int, Optional[Shapes]]:
    """The smallest step with which all that depends on an axis is longer: a patch swallows smaller ones. Where the
    model takes none of them, the first few that the extent is several times: windows of three rows. `extent` is 0 where
    none of these is looked for."""
    best: Tuple[int, int, Optional[Shapes]] = (0, 0, None)
    multiples = [n for n in range(3, extent) if extent % n == 0 and n not in _STEPS][:4]
    for step in (*_STEPS, *multiples):
        other = runs(group, step) if step in _STEPS or not best[1] else None
        if other is not None:
            changed = sum(other[key] != shapes[key] for key in other if key in shapes)
            best = max(best, (changed, step, other), key=lambda each: each[0])
    return best[1], best[2]


def _with_names(dims: List[Any], given: Tensors) -> List[Any]:
    """Those of the largest argument first: its names are the plain ones."""
    order = sorted(given, key=lambda name: -given[name].dim())
    return sorted(dims, key=lambda dim: min((order.index(name), axis) for name, axis in dim[0]))


def _name(group: List[Axis], dims: List[Any], given: Tensors, axes: Axes) -> str:
    """b, then f h w or s of the first argument, then l of what comes beside it."""
    order = sorted(given, key=lambda name: -given[name].dim())
    tensor, axis = min(group, key=lambda at: (order.index(at[0]), at[1]))
    if axis == 0 and given[tensor].dim() > 1:
        wanted = "b"
    elif tensor == order[0]:
        mine = sorted(at for other, _, _ in dims for name, at in other if name == tensor and at > 0)
        wanted = _NAMES.get(len(mine), "n").split()[min(mine.index(axis), len(_NAMES.get(len(mine), "n").split()) - 1)]
    else:
        wanted = "l"
    name, number = wanted, 2
    while name in axes.dims:
        name, number = f"{wanted}{number}", number + 1
    return name


def grown(model: torch.nn.Module, args: Any, kwargs: Any, group: List[Axis], step: int,
          axes: Optional[Axes] = None) -> Tuple[Any, Any]:
    """The arguments with longer axes; of a dim that has a name, also where it is folded with others, or a number."""
    at = {name: [axis for other, axis in group if other == name] for name, _ in group}
    dim = axes.of[group[0]] if axes else ""
    folded = [(axis, names) for axis, names in axes.folded.items() if dim in names] if axes else []
    numbers = [name for name, word in axes.numbers.items() if word == dim] if axes else []

    def change(name: str, x: torch.Tensor) -> torch.Tensor:
        for axis in at.get(name, ()):
            x = longer(x, axis, step)
        for (other, axis), names in folded if axes else ():
            if other == name:
                extents = [axes.dims[word].extent for word in names] if axes else []
                x = longer(x.unflatten(axis, extents), axis + names.index(dim), step).flatten(
                    axis, axis + len(names) - 1)
        return x
    kwargs = {name: value + step if name in numbers else value for name, value in kwargs.items()}
    made: Tuple[Any, Any] = fresh(model, args, kwargs, change)
    return made


def call_name(module: str, at: int) -> str:
    """Of a module's first call, and of the others."""
    return f"{module}#{at}" if at > 0 else module


def shapes_of(model: torch.nn.Module, args: Any, kwargs: Any) -> Shapes:
    """Of every call of every module; what the model raises goes on."""
    shapes: Shapes = {}
    calls: Dict[str, int] = {}
    handles = []
    for name, module in model.named_modules():
        def look(_: Any, given: Any, named: Any, out: Any, name: str = name) -> None:
            call = call_name(name, calls.setdefault(name, 0))
            calls[name] += 1
            for side, value in (("in", given), ("in", named), ("out", out)):
                shapes.update({f"{call}:{side}:{at}": tuple(x.shape) for at, x in tensors_of(value).items()})
        handles.append(module.register_forward_hook(look, with_kwargs=True))
    try:
        args, kwargs = fresh(model, args, kwargs)
        model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return shapes
