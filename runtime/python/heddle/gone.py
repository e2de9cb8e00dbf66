"""What is done when an object is gone, in C from beginning to end: where Python began, a signal's handler that raises
would come before, and Python drops what a finaliser has raised, and with it what it was about to free."""
from __future__ import annotations

import weakref
from typing import Any, Callable, Set


class _Reference(weakref.ref):
    __hash__ = object.__hash__  # of the reference: what it is to may have none
    _as_parameter_ = 0  #: of a function of ctypes, which is called with the reference behind what it was made with
    behind: Any  #: the reference that calls, which lives as long as this one


_KEPT: "Set[_Reference]" = set()


def when_gone(owner: Any, call: Callable[[Any], Any]) -> None:
    """call(something that nobody looks at) when `owner` is gone, on whatever thread; not at the end of the process.
    `call` is made in C alone: a partial of a method of a built-in type, or of a function of ctypes."""
    kept = _Reference(owner, _KEPT.discard)
    _KEPT.add(kept)
    kept.behind = _Reference(owner, call)  # from here on it is called, whatever is raised next


def is_watched(owner: Any) -> bool:
    """Has `when_gone` come so far that it will be called?"""
    return any(hasattr(reference, "behind") for reference in weakref.getweakrefs(owner))
