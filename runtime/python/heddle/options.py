"""Options of attentions, as they are kept."""
from __future__ import annotations

import collections.abc
import numbers
from typing import Any, Optional

from .errors import ArgumentError

_LISTS = (list, tuple, collections.abc.KeysView, collections.abc.ValuesView)


def plain(option: Any) -> Any:
    """Of a list, an array or a tensor, which the caller may change afterwards, the numbers."""
    option = option.tolist() if hasattr(option, "tolist") else option
    return tuple(map(plain, option)) if isinstance(option, _LISTS) else option


def scale_of(what: str, scale: Any) -> Optional[float]:
    """A scale, which may be an array or a tensor of one number."""
    found = plain(scale)
    while isinstance(found, tuple) and len(found) == 1:
        found = found[0]
    if found is not None and not isinstance(found, numbers.Real):
        raise ArgumentError(f"{what}: scale is {scale!r}, wanted a number")
    if getattr(scale, "requires_grad", False):
        raise ArgumentError(f"{what}: the scale wants a gradient, which attention does not give it: multiply q by it")
    return None if found is None else float(found)


def listed(what: str, option: Any) -> Any:
    """Numbers in a list, or None."""
    found = plain(option)
    if found is None or isinstance(found, tuple) and all(isinstance(each, numbers.Real) for each in found):
        return found
    raise ArgumentError(f"{what} is {option!r}, wanted a list of numbers")
