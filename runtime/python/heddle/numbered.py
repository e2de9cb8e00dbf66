"""Communicators and plans by number, for operators of torch, which take only plain values."""
from __future__ import annotations

import itertools
import weakref
from typing import Any, TypeVar

from .errors import ArgumentError

_Own = TypeVar("_Own")

_numbers = itertools.count()
_BY_NUMBER: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def numbered(thing: Any) -> int:
    """The number of a new communicator or plan in this process. It is not kept alive by that."""
    number = next(_numbers)
    _BY_NUMBER[number] = thing
    return number


class OfThisProcess:
    """A communicator or plan: whatever holds it is copied with the same one (copy.deepcopy of a model, say)."""

    def __copy__(self: _Own) -> _Own:
        return self

    def __deepcopy__(self: _Own, _: Any) -> _Own:
        return self

    def __reduce__(self) -> Any:
        raise ArgumentError(f"a heddle.{type(self).__name__} is of this process and cannot be pickled: make it where "
                            "it is used, and save the state_dict() of a model that holds one")


def by_number(number: int) -> Any:
    thing = _BY_NUMBER.get(number)
    if thing is None:
        raise ArgumentError(f"the communicator or plan of number {number} is gone")
    return thing
