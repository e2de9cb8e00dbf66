"""The plans of a compiler's graph. A file of its own, imported where something is compiled: what marks the function
imports torch's compiler, which takes seconds."""
import torch

from ..numbered import by_number


@torch.compiler.assume_constant_result
def for_graph(family: int) -> int:
    """A family's number in a graph. The communicator keeps the family from now on."""
    found: int = by_number(family).for_graph()
    return found
