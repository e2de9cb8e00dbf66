"""Attention that numbers or counts its rows by itself: of a block of them it would make others."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import torch
from torch.overrides import TorchFunctionMode

from ..key_mask import of_scores
from .exploration import Module
from .flow import Attention, argument_names, as_argument
from .held import Held
from .probe import Run, called
from .rows import words_of
from .trees import fresh, tensors_of

_WITHIN = 1e-4  #: of the largest element: products of rows elsewhere round otherwise


@dataclass(frozen=True)
class _Call:
    """What attention is given."""

    rows: Tuple[torch.Tensor, ...]  #: queries, keys and values
    mask: Optional[torch.Tensor]
    how: Tuple[Any, ...]  #: whatever else is said


class _Asked(TorchFunctionMode):
    """Without its mask, which need not fit fewer rows."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: List[_Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return self._keep(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _keep(self, attend: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attn_mask: Optional[torch.Tensor] = None, dropout_p: float = 0.0, is_causal: bool = False,
              scale: Optional[float] = None, **more: Any) -> torch.Tensor:
        mask = None if attn_mask is None else of_scores(attn_mask, query, key)
        self.calls.append(_Call(tuple(x.detach().clone() for x in (query, key, value)), mask,
                                (is_causal, None if scale is None else float(scale))))
        return attend(query, key, value, None, dropout_p, is_causal, scale=scale, **more)


def note_numbering(model: torch.nn.Module, args: Any, kwargs: Mapping[str, Any], modules: Mapping[str, Module],
                   attentions: Sequence[Attention]) -> None:
    """One forward, in which each module that attends is run by itself, too."""
    rows: Dict[str, Set[int]] = {}
    for each in attentions:
        if each.rows == each.keys and each.rows > 2 and _is_plain(modules, each.module):
            rows.setdefault(each.module, set()).add(each.rows)
    handles: List[Any] = []

    def watch(name: str, module: torch.nn.Module) -> None:
        def enter(_: Any, given: Any, named: Any) -> None:
            handle.remove()  # once, and not when it runs by itself
            held = Held(module, given, named, is_one_call=True)
            each = (_alone(module, given, named, modules[name], n) for n in sorted(rows[name]))
            modules[name].alone = next(filter(None, each), "")
            held.put_back()
        handle = module.register_forward_pre_hook(enter, with_kwargs=True)
        handles.append(handle)
    try:
        for name, module in model.named_modules():
            if name in rows:
                watch(name, module)
        given, named = fresh(model, args, kwargs)
        model(*given, **named)
    finally:
        for handle in handles:
            handle.remove()


def _alone(module: torch.nn.Module, args: Any, kwargs: Any, found: Module, n: int) -> str:
    """With its rows turned round, are queries, keys and values others than those of before, turned likewise? Without
    the last one, is anything of the others other?"""
    run, said = called(module, args, kwargs), ""
    for axes in _axes_of_rows(module, args, kwargs, found, n):
        said = _alone_along(run, axes, n)
        if not said:
            break
    return said


def _alone_along(run: Run, axes: Mapping[str, Sequence[int]], n: int) -> str:
    by = next(by for by in range(n // 2, 0, -1) if math.gcd(by, n) == 1)  # no period of the numbers goes by

    def turned(at: str, x: torch.Tensor) -> torch.Tensor:
        return x.roll([by] * len(axes[at]), axes[at]) if axes.get(at) else x

    def fewer(at: str, x: torch.Tensor) -> torch.Tensor:
        return x.narrow(axes[at][0], 0, n - 1) if len(axes.get(at, ())) == 1 else x  # of pairs every rank has all
    try:
        whole, other = (_asked(run, change) for change in (lambda _, x: x, turned))
        if len(whole) == len(other) and any(
                _is_other(a.roll(by, 2), b) for one, two in zip(whole, other)
                if _has_rows(one, n) and _has_rows(two, n) for a, b in zip(one.rows, two.rows)):
            return "numbers its rows by itself"
        part = _asked(run, fewer)
    except Exception:  # whatever a model raises
        return ""
    for one, two in zip(whole, part) if len(whole) == len(part) else ():
        if _has_rows(one, n) and _has_rows(two, n - 1):
            if one.how != two.how or any(_is_other(a[:, :, :-1], b) for a, b in zip(one.rows, two.rows)):
                return "counts its rows"
            if not _is_given(one.mask, two.mask, n):
                return "makes its mask by itself"
    return ""


def _asked(run: Run, change: Any) -> List[_Call]:
    with _Asked() as asked:
        run(change)
    return asked.calls


def _has_rows(call: _Call, n: int) -> bool:
    return all(x.dim() == 4 and x.shape[2] == n for x in call.rows)


def _is_given(whole: Optional[torch.Tensor], part: Optional[torch.Tensor], n: int) -> bool:
    """Is the mask of fewer rows that of all, which came from elsewhere, or one of keys, which go with them?"""
    if whole is None or part is None:
        return whole is part
    if whole.shape != part.shape:
        is_of_keys = part.shape[-2] == 1 == whole.shape[-2] and part.shape[-1] == n - 1
        whole = whole[..., :-1] if is_of_keys and whole.shape[-1] == n else whole
    return whole.shape == part.shape and bool((whole == part).all())


def _axes_of_rows(module: torch.nn.Module, args: Any, kwargs: Any, found: Module, n: int) -> List[Dict[str, List[int]]]:
    """Of its arguments, those of so many rows, for each dim that may be theirs, where a tensor has several; none where
    an argument has others: of a text that goes beside them."""
    names = argument_names(module)
    words: Dict[str, Dict[int, str]] = {}
    for at, x in (*tensors_of(args).items(), *tensors_of(kwargs).items()):
        text = words_of(found.given.get(as_argument(at, names), ""))
        rows = [axis for axis, word in enumerate(text) if any(
            dim != "b" and not dim.isdecimal() for part in word for dim in part)] if len(text) == x.dim() else []
        words[at] = {axis: str(text[axis]) for axis in rows if x.shape[axis] == n}
        if rows and not words[at]:
            return []
    dims = sorted({word for each in words.values() if len(set(each.values())) > 1 for word in each.values()})
    return [{at: [axis for axis, word in each.items() if word == dim or word not in dims] for at, each in words.items()}
            for dim in (dims or [""])] if any(words.values()) else []


def _is_plain(modules: Mapping[str, Module], name: str) -> bool:
    """Is attention all in it that mixes rows? Else queries come of neighbours, whose rows are others when they turn."""
    inside = f"{name}." if name else ""
    within = [module for other, module in modules.items() if other != name and other.startswith(inside)]
    return name in modules and not any(seen.kind in ("halo", "causal", "reduction", "mixes") for module in within
                                       for seen in module.dims.values())


def _is_other(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape != b.shape or bool(((a - b).abs() > _WITHIN * a.abs().max()).any())
