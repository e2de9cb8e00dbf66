"""Attentions that differ in numbers only, for compiled graphs: one graph serves all of them."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Sequence

from .numbered import OfThisProcess, by_number, numbered

if TYPE_CHECKING:
    from .comm import Comm


class Family(OfThisProcess):
    """Plans of one kind, method and options. Their numbers are what the form of their problems has %d for, and
    key_lengths behind these."""

    def __init__(self, comm: "Comm", kind: Any, form: str, method: str, options: Dict[str, Any]):
        self._comm, self._kind, self._form, self._method, self._options = comm, kind, form, method, options
        self.log_sum_exp: bool = options.get("log_sum_exp", False)
        self.number = numbered(self)

    def for_graph(self) -> int:
        """Its number, for a graph that is being compiled: from now on it is kept until the communicator is closed."""
        self._comm._compiled.add(self)
        return self.number

    def plan(self, numbers: Sequence[int]) -> Any:
        """The plan of these numbers, kept by the communicator. Collective where it is made."""
        count, more = self._form.count("%d"), {}
        if len(numbers) > count:
            more["key_lengths"] = tuple(numbers[count:])
        return self._comm._attention(self._kind, self._form % tuple(numbers[:count]), self._method, None,
                                     {**self._options, **more})


def plan_of(numbers: Sequence[int], number: int) -> Any:
    """What an operator was told: a plan, or one of a family."""
    found = by_number(number)
    return found.plan(numbers) if isinstance(found, Family) else found
