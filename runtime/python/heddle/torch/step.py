"""What steps of a plan have alike."""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Step:
    """One of a plan's, for a module: `Split`, `Switch`, `Attend` and the others."""

    moves: ClassVar[bool] = False  #: may it be of several arguments, which it moves?

    def __str__(self) -> str:
        """As it would be written by hand: without what is so by itself, but for the method of an attention, which one
        wants to see."""
        given = [(each, getattr(self, each.name)) for each in dataclasses.fields(self)]
        words = [repr(value) if each.default is dataclasses.MISSING else f"{each.name}={value!r}"
                 for each, value in given
                 if each.default is dataclasses.MISSING or each.name == "method" or value != each.default]
        return f"{type(self).__name__}({', '.join(words)})"

    def of(self, what: Any) -> str:
        """The same, of one of its arguments."""
        one: Any = self
        return str(dataclasses.replace(one, what=what) if self.moves else one)
