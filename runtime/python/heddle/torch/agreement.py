"""What all ranks of a model must have alike, compared where they would go on with it: who has something else is named
on every rank, before any of them waits for what does not come or computes from pieces of different tensors."""
from __future__ import annotations

import functools
import hashlib
import itertools
import math
import struct
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

import torch

from ..comm import Comm
from ..errors import Error, MismatchError

Facts = Sequence[Tuple[str, Any]]  #: names, and what there is, which prints alike where it is alike
_Seen = Tuple[str, float, float]  #: a tensor's name, an element, and how far another rank's may be, of the largest

Watched = List[Tuple[str, torch.nn.Module, str]]  #: parameters: what they are called, where, and there

_SEEN_MAX = 48  #: elements that are compared
_EACH = 4  #: of every tensor
_PARAMETERS = 4  #: of which a few elements are
_WORD = struct.Struct(f"=16s{_SEEN_MAX}d")


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compiler.disable where something is compiled: that takes seconds to import, which nobody else waits for."""
    @functools.wraps(function)
    def call(*given: Any) -> Any:
        return (torch.compiler.disable(function) if torch.compiler.is_compiling() else function)(*given)
    return call


@not_compiled
def agree(comm: Comm, what: str, facts: Facts, refused: Optional[Error] = None, seen: Sequence[_Seen] = ()) -> None:
    """Raises MismatchError on every rank unless all ranks are here with the same facts, and numbers as near; what this
    rank has refused is raised here, the other ranks get its sentence. Collective."""
    lines = [f"refused: {refused}"] if refused else [f"{name}: {value}" for name, value in (("in", what), *facts)]
    numbers = [number for _, number, _ in seen] + [0.0] * (_SEEN_MAX - len(seen))
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=16).digest()
    gathered = comm.allgather(_WORD.pack(digest, *numbers))
    words = [_WORD.unpack(word) for word in gathered] if len(set(gathered)) > 1 else []
    if any(word[0] != words[0][0] for word in words):
        _tell(comm, what, lines, refused)
    if refused:  # on every rank, in the same words
        raise refused
    if words:
        _compare(what, seen, [word[1:] for word in words])


def _compare(what: str, seen: Sequence[_Seen], numbers: List[Tuple[float, ...]]) -> None:
    first = numbers[0]
    largest: Dict[str, float] = {}
    for (name, _, _), a in zip(seen, first):
        largest[name] = max(largest.get(name, 0.0), abs(a) if math.isfinite(a) else 0.0)
    for rank, theirs in enumerate(numbers):
        for (name, _, within), a, b in zip(seen, first, theirs):
            if not math.isclose(a, b, rel_tol=within, abs_tol=within * largest[name]) and not (
                    math.isnan(a) and math.isnan(b)):
                raise MismatchError(f"{what}: {name} has other elements on rank {rank} ({b:.6g}) than on rank 0 "
                                    f"({a:.6g}): wanted the same tensor on every rank")


def _tell(comm: Comm, what: str, lines: List[str], refused: Optional[Error]) -> NoReturn:
    """Ranks differ: the first that does, and the first line."""
    mine = "\n".join(lines).encode()
    longest = max(struct.unpack("=q", length)[0] for length in comm.allgather(struct.pack("=q", len(mine))))
    texts = [text.rstrip(b"\0").decode().split("\n") for text in comm.allgather(mine.ljust(longest, b"\0"))]
    if refused:
        raise refused
    for rank, text in enumerate(texts):
        if text[0].startswith("refused: "):
            raise MismatchError(f"{what}: rank {rank} {' '.join(text)}")
    rank = next(rank for rank, text in enumerate(texts) if text != texts[0])
    pairs = itertools.zip_longest(texts[0], texts[rank], fillvalue="nothing")
    a, b = next(pair for pair in pairs if pair[0] != pair[1])
    raise MismatchError(f"{what}: rank {rank} has {b}, rank 0 has {a}: wanted the same on every rank")


def watched_in(model: torch.nn.Module) -> Watched:
    """A few of its parameters, which are looked up in every pass: they may be exchanged."""
    found = [(f"parameter '{name}.{own}'" if name else f"parameter '{own}'", module, own)
             for name, module in model.named_modules() for own in module._parameters]
    return found[:: max(-(-len(found) // _PARAMETERS), 1)]


@not_compiled
def begun(comm: Comm, model: torch.nn.Module, watched: Watched, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    """A pass of a model: all ranks are in one, in the same mode, with the same arguments and parameters."""
    facts: List[Tuple[str, Any]] = [
        ("train", model.training), ("gradients", torch.is_grad_enabled()),
        ("inference_mode", torch.is_inference_mode_enabled()),
        ("autocast", [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)])]
    seen: List[_Seen] = []
    for name, value in itertools.chain(((f"argument {at}", value) for at, value in enumerate(args)),
                                       ((f"argument '{name}'", kwargs[name]) for name in sorted(kwargs))):
        _look(name, value, facts, seen)
    for name, module, own in watched:
        _see(name, getattr(module, own, None), seen)
    agree(comm, "forward of a model", facts, None, seen[:_SEEN_MAX])


@not_compiled
def alike(comm: Comm, what: str, name: str, value: Any) -> None:
    """What every rank has whole there."""
    facts: List[Tuple[str, Any]] = []
    seen: List[_Seen] = []
    _look(name, value, facts, seen)
    agree(comm, what, facts, None, seen[:_SEEN_MAX])


def _look(name: str, value: Any, facts: List[Tuple[str, Any]], seen: List[_Seen]) -> None:
    if isinstance(value, torch.Tensor):
        facts.append((name, f"{value.dtype}{tuple(value.shape)} on {value.device.type}"
                            f"{', wants a gradient' if value.requires_grad else ''}"))
        _see(name, value, seen)
    elif isinstance(value, (tuple, list)):
        facts.append((name, f"{type(value).__name__} of {len(value)}"))
        for at, part in enumerate(value):
            _look(f"{name}.{at}", part, facts, seen)
    elif isinstance(value, Mapping):
        facts.append((name, f"{type(value).__name__} of {', '.join(map(str, value))}"))
        for key, part in value.items():
            _look(f"{name}.{key}", part, facts, seen)
    elif value is None or isinstance(value, (bool, int, float, str)):
        facts.append((name, repr(value)))
    else:
        facts.append((name, type(value).__name__))


def _see(name: str, x: torch.Tensor, seen: List[_Seen]) -> None:
    """A few elements, of a dense tensor in host memory: a device would have to be waited for."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or not x.is_cpu or x.layout is not torch.strided or (
            x.is_nested or x.is_complex()):
        return
    x, axis = x.detach(), 0
    while x.dim() > 1:  # the middle of every dim but the longest: no copy, whatever its strides
        axis = 1 if x.shape[0] > x.shape[1] else 0
        x = x.select(axis, x.shape[axis] // 2) if x.shape[axis] else x.flatten()
    within = torch.finfo(x.dtype).eps ** 0.5 if x.is_floating_point() else 0.0
    step = max((x.numel() - 1) // (_EACH - 1), 1)
    seen.extend((name, float(number), within) for number in x.reshape(-1)[::step][:_EACH].tolist())
