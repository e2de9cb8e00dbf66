"""A plan against the whole model: ranks that are simulated one after the other in one process."""
from .further import RANKS_MAX, further
from .proof import Proof, prove

__all__ = ["RANKS_MAX", "Proof", "further", "prove"]
