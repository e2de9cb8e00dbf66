"""Copies of the objects that a call is given: it may write to them, and they are the caller's."""
from __future__ import annotations

import copy
import gc
import inspect
import types
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from .held import BASES, inside_of, slots_of

_PLAIN = (int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, types.FunctionType,
          types.BuiltinFunctionType, types.FrameType, types.TracebackType)  #: what a call does not change
_SHARED = (torch.nn.Module, torch.nn.Parameter, types.ModuleType)  #: and what is the model's own
_MOST = 1 << 16  #: objects in a copy
_TRIES = 16  #: to copy an object without what cannot be
_Memo = Dict[int, Any]


def copied(model: torch.nn.Module, value: Any, others: _Memo, memo: _Memo, alive: List[Any]) -> Any:
    """As copy.deepcopy has it, but modules and parameters, and sentinels that are known by being themselves, stay what
    they are, `others` take the places of tensors, and what cannot be copied does not hinder what can: an object whose
    class does not know how gets one that was not constructed, with copies of all that is in it; a lock or a Python
    generator stays itself. So does an object on which more hangs than anybody copies."""
    if isinstance(value, (*_PLAIN, *_SHARED, types.MethodType)) or _is_sentinel(model, value):
        return value
    parts = _parts(model, value)
    if parts is None:
        return value
    kept = {**memo, **{id(part): new for part, new in parts if new is not None}, **others}
    bare: List[Tuple[Any, Any]] = []
    for turn in range(_TRIES):
        mine = dict(kept)  # of a copy that fails nothing stays
        try:
            made = copy.deepcopy(value, mine)
            for old, new in bare:
                _fill(old, new, mine)
            if type(made) is not type(value):
                raise TypeError(f"a copy is a {type(made).__name__}")
        except Exception as error:  # whatever an object is
            failed = [part for part, new in parts if new is None and not _is_copied(part)] if turn == 0 else []
            for part in failed or [_failed(error, value)]:
                kept[id(part)] = new = _bare(part)
                bare += [(part, new)] if new is not part else []
            continue
        alive += [mine.pop(id(mine), None), bare, parts]
        memo.update(mine)
        return made
    return value


def _is_sentinel(model: torch.nn.Module, value: Any) -> bool:
    """Is it known by being itself alone? It has nothing else: nobody can write to it, or the model has it, too."""
    kind: Any = type(value)
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return False
    try:
        if getattr(value, "__dict__", None) or hasattr(kind, "__deepcopy__") or \
                tuple(value.__reduce_ex__(4)[1:]) != ((kind,), None, None, None):
            return False
    except Exception:  # whatever an object is
        return False
    can_be_written = hasattr(value, "__dict__") or any("__slots__" in vars(each) and each.__slots__
                                                       for each in kind.__mro__)
    return not can_be_written or any(value is each for module in model.modules() for each in _had_by(module))


def _had_by(module: torch.nn.Module) -> Iterator[Any]:
    """Its attributes, those of its class, and what its forward is given where nobody gives anything."""
    forward = inspect.unwrap(getattr(module.forward, "__func__", module.forward))
    yield from getattr(forward, "__defaults__", None) or ()
    yield from (getattr(forward, "__kwdefaults__", None) or {}).values()
    for has in (module, *type(module).__mro__):
        yield from vars(has).values()


def _parts(model: torch.nn.Module, value: Any) -> Optional[List[Tuple[Any, Any]]]:
    """What an object holds, and what takes its place: modules, parameters and sentinels themselves; of a result of
    others a clone; of random numbers others that go on alike. None: more than anybody copies."""
    seen: Dict[int, Tuple[Any, Any]] = {}
    found = [value]
    while found:
        part = found.pop()
        if id(part) in seen or isinstance(part, _PLAIN):
            continue
        new = part if isinstance(part, _SHARED) or _is_sentinel(model, part) else part.clone_state() if isinstance(
            part, torch.Generator) else part.clone() if isinstance(part, torch.Tensor) and not part.is_leaf else None
        seen[id(part)] = part, new
        if len(seen) > _MOST:
            return None
        found += gc.get_referents(part) if new is None else ()
    return list(seen.values())


def _is_copied(value: Any) -> bool:
    """By itself, whatever is in it."""
    if isinstance(value, (list, tuple, dict, set, frozenset, *_PLAIN)) or hasattr(type(value), "__deepcopy__"):
        return True
    try:
        return bool(value.__reduce_ex__(4))
    except Exception:  # whatever an object is
        return False


def _failed(error: Exception, value: Any) -> Any:
    """The innermost object of which a copy was being made."""
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code is copy.deepcopy.__code__:
            value = at.tb_frame.f_locals["x"]
        at = at.tb_next
    return value


def _bare(value: Any) -> Any:
    """One of its class that nobody constructed; itself, where its class is not Python's."""
    base = next(base for base in (*BASES, BaseException, object) if isinstance(value, base))
    try:
        return base.__new__(type(value))
    except Exception:  # of what is made otherwise
        return value


def _fill(old: Any, new: Any, memo: _Memo) -> None:
    if isinstance(getattr(old, "__dict__", None), dict):
        new.__dict__.update(copy.deepcopy(dict(old.__dict__), memo))
    for slot in slots_of(type(old)):
        for part in inside_of(slot, old):
            slot.__set__(new, copy.deepcopy(part, memo))
    base = next((base for base in BASES if isinstance(old, base)), None)
    if base is not None and issubclass(base, dict):
        base.update(new, copy.deepcopy(list(base.items(old)), memo))
    elif base is not None:
        (base.update if base is set else base.extend)(new, copy.deepcopy(list(base.__iter__(old)), memo))
    elif isinstance(old, BaseException):
        new.args = copy.deepcopy(old.args, memo)
