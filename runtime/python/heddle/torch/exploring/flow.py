"""Where the tensors of stages come from and go to, and which modules attend: seen while the model runs once."""
from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, List, Mapping, Sequence, Tuple

import torch
from torch.overrides import TorchFunctionMode

from ...errors import ArgumentError, UnsupportedError
from ..key_mask import of_keys, of_scores
from .trees import fresh, numbers_of, tensors_of

_FROM = "_heddle_from"
_None: FrozenSet[int] = frozenset()


@dataclass(frozen=True)
class Passed:
    """A tensor that a module takes or returns."""

    name: str  #: `hidden_states`, `rotary_emb.0`, `output`, `output.1`: as a step has it
    shape: Tuple[int, ...]
    stages: FrozenSet[int]  #: calls of stages of whose results it was computed, those nearest to it


@dataclass
class Call:
    """Of a module, in the order of their beginnings."""

    module: str
    given: List[Passed]
    out: List[Passed] = field(default_factory=list)
    numbers: Dict[str, int] = field(default_factory=dict)  #: arguments that are one, `size.0` in a tuple
    counted: Dict[str, int] = field(default_factory=dict)  #: results that are one
    ended: int = 0  #: place in the order of their ends
    one: List[List[str]] = field(default_factory=list)  #: arguments that are one tensor


@dataclass(frozen=True)
class Attention:
    """A call of torch's scaled_dot_product_attention."""

    module: str  #: the innermost that runs
    heads: int
    kv_heads: int
    rows: int  #: of queries
    keys: int
    is_masked: bool  #: not of keys alone, which go with them wherever these go
    dropout: float = 0.0


@dataclass
class Flow:
    calls: List[Call] = field(default_factory=list)
    attentions: List[Attention] = field(default_factory=list)


def _origin(values: Any) -> FrozenSet[int]:
    found = _None
    for x in tensors_of(values).values():
        found |= getattr(x, _FROM, _None)
    return found


class _Seen(TorchFunctionMode):
    """Results are of the stages of which arguments are."""

    def __init__(self, flow: Flow, within: List[str]):
        super().__init__()
        self._flow, self._within = flow, within

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            self._attention(*args, **kwargs)
        of = _origin(args) | _origin(kwargs)
        out = func(*args, **kwargs)
        if of:
            for y in tensors_of(out).values():
                setattr(y, _FROM, of)
            if getattr(func, "__name__", "").startswith(("__setitem__", "__i")) and isinstance(args[0], torch.Tensor):
                setattr(args[0], _FROM, of)
        return out

    def _attention(self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
                   **_: Any) -> None:
        if isinstance(query, torch.Tensor) and query.dim() == 4:
            self._flow.attentions.append(Attention(self._within[-1] if self._within else "", query.shape[1],
                                                   key.shape[1], query.shape[2], key.shape[2],
                                                   not _is_of_keys(attn_mask, query, key), dropout_p))


def _is_of_keys(mask: Any, query: torch.Tensor, key: torch.Tensor) -> bool:
    try:
        return mask is None or of_keys(of_scores(mask, query, key), "ring", query.shape[1], key.shape[1]) is not None
    except (ArgumentError, UnsupportedError):
        return False


def argument_names(module: torch.nn.Module) -> List[str]:
    """Of positions."""
    parameters = inspect.signature(module.forward).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def as_argument(name: str, names: Sequence[str]) -> str:
    """`0.1`, a place among the arguments as they came, by the argument's name."""
    first, _, rest = name.partition(".")
    if first.isdigit() and int(first) < len(names):
        return f"{names[int(first)]}.{rest}" if rest else names[int(first)]
    return name


def as_output(name: str) -> str:
    return f"output.{name}" if name else "output"


def flow_of(model: torch.nn.Module, args: Any, kwargs: Mapping[str, Any], stages: Sequence[str]) -> Flow:
    """One forward. A stage's results are of this call alone, whatever went into it."""
    flow, ends = Flow(), [0]
    within: List[str] = []
    handles: List[Any] = []
    open_calls: List[int] = []
    for name, module in model.named_modules():
        names = argument_names(module)

        def enter(_: Any, given: Any, named: Any, name: str = name, names: Any = names) -> None:
            within.append(name)
            open_calls.append(len(flow.calls))
            tensors = {as_argument(at, names): x for values in (given, named) for at, x in tensors_of(values).items()}
            ones: Dict[int, List[str]] = {}
            for at, x in tensors.items():
                ones.setdefault(id(x), []).append(at)
            flow.calls.append(Call(
                name, [Passed(at, tuple(x.shape), getattr(x, _FROM, _None)) for at, x in tensors.items()],
                numbers={as_argument(at, names): value for values in (given, named)
                         for at, value in numbers_of(values).items()}, one=list(ones.values())))

        def leave(_: Any, given: Any, named: Any, out: Any, name: str = name) -> None:
            within.pop()
            at = open_calls.pop()
            flow.calls[at].ended, ends[0] = ends[0], ends[0] + 1
            results = list(tensors_of(out).items())
            flow.calls[at].out = [Passed(as_output(place), tuple(y.shape), getattr(y, _FROM, _None))
                                  for place, y in results]
            flow.calls[at].counted = {as_output(place): n for place, n in numbers_of(out).items()}
            if name in stages:
                for _, y in results:
                    setattr(y, _FROM, frozenset({at}))
        handles += [module.register_forward_pre_hook(enter, with_kwargs=True),
                    module.register_forward_hook(leave, with_kwargs=True)]
    try:
        with _Seen(flow, within):
            args, kwargs = fresh(model, args, kwargs)
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return flow
