"""A plan against the whole model: ranks that are simulated one after the other in one process."""
from .proof import Proof, prove

__all__ = ["Proof", "prove"]
