"""Globals that the methods of a class name: a counter, a table of what was made before."""
from __future__ import annotations

import dis
import types
import weakref
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

Named = Tuple[Dict[str, Any], Set[str], Set[str]]  #: of a file: its globals, those that are set, those that are read
_SETS = ("STORE_GLOBAL", "DELETE_GLOBAL")
_of: "weakref.WeakKeyDictionary[type, List[Named]]" = weakref.WeakKeyDictionary()


def globals_of(kind: type, is_place: Callable[[Any], bool]) -> List[Named]:
    """Those that they set, and of those that they read the places that one can write to; also of the functions of their
    package that they name. As they are when a class is first looked at."""
    if kind not in _of:
        found: Dict[int, Named] = {}
        todo, seen = list(vars(kind).values()), set()  # type: ignore[var-annotated]
        while todo:
            value = todo.pop()
            todo += _inner(value)
            if isinstance(value, types.FunctionType) and value not in seen and _package(value) == _package(kind):
                seen.add(value)
                there, stored, read = found.setdefault(id(value.__globals__), (value.__globals__, set(), set()))
                for name, is_set in _names(value.__code__, there):
                    part = there.get(name)
                    if is_set or is_place(part):
                        (stored if is_set else read).add(name)
                    else:
                        todo.append(part)
        _of[kind] = [each for each in found.values() if each[1] or each[2]]
    return _of[kind]


def _package(of: Any) -> str:
    return (of.__module__ or "").partition(".")[0]


def _inner(value: Any) -> List[Any]:
    """What another function stands for."""
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    return [vars(value).get("__wrapped__")] if isinstance(value, types.FunctionType) else []


def _names(code: types.CodeType, there: Dict[str, Any]) -> Iterator[Tuple[str, bool]]:
    """Global ones, and whether it sets them."""
    sets = {dis.opmap[name] for name in _SETS} & set(code.co_code[::2])
    if sets or any(name in there and not isinstance(there[name], (type, types.ModuleType)) for name in code.co_names):
        for each in dis.get_instructions(code):
            if each.opname in ("LOAD_GLOBAL", *_SETS):
                yield each.argval, each.opname in _SETS
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part, there)
