"""Communicators and plans by number, for operators of torch, which take only plain values."""
from __future__ import annotations

import itertools
import weakref
from typing import Any

from .errors import ArgumentError

_numbers = itertools.count()
_BY_NUMBER: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def numbered(thing: Any) -> int:
    """The number of a new communicator or plan in this process. It is not kept alive by that."""
    number = next(_numbers)
    _BY_NUMBER[number] = thing
    return number


def by_number(number: int) -> Any:
    thing = _BY_NUMBER.get(number)
    if thing is None:
        raise ArgumentError(f"the communicator or plan of number {number} is gone")
    return thing
