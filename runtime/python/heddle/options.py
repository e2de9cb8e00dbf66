"""Options of attentions, as they are kept."""
from __future__ import annotations

import collections.abc
import math
import numbers
from typing import Any, Optional

from .errors import ArgumentError

_LISTS = (list, tuple, collections.abc.KeysView, collections.abc.ValuesView)


def plain(option: Any) -> Any:
    """Of a list, an array or a tensor, which the caller may change afterwards, the numbers."""
    try:
        option = option.tolist() if hasattr(option, "tolist") else option
        return tuple(map(plain, option)) if isinstance(option, _LISTS) else option
    except (RuntimeError, TypeError):  # of a tensor without elements, on meta or sparse; of a list in itself
        raise ArgumentError(f"a {type(option).__name__} shows no numbers, wanted some in host memory") from None


def of_numbers(what: str, option: Any) -> Any:
    try:
        return plain(option)
    except ArgumentError as error:
        raise ArgumentError(f"{what}: {error}") from None


def scale_of(what: str, scale: Any) -> Optional[float]:
    """A scale, which may be an array or a tensor of one number."""
    found = of_numbers(f"{what}: scale", scale)
    while isinstance(found, tuple) and len(found) == 1:
        found = found[0]
    if found is not None and not isinstance(found, numbers.Real):
        raise ArgumentError(f"{what}: scale is {scale!r}, wanted a number")
    if getattr(scale, "requires_grad", False):
        raise ArgumentError(f"{what}: the scale wants a gradient, which attention does not give it: multiply q by it")
    try:
        number = None if found is None else float(found)
    except OverflowError:
        number = math.inf
    if number is not None and not math.isfinite(number):
        raise ArgumentError(f"{what}: scale is {number}, wanted a finite number")
    return number


def listed(what: str, option: Any) -> Any:
    """Numbers in a list, or None."""
    found = of_numbers(what, option)
    if found is None or isinstance(found, tuple) and all(isinstance(each, numbers.Real) for each in found):
        return found
    raise ArgumentError(f"{what} is {option!r}, wanted a list of numbers")
