"""What is wrong with a plan by hand, where, and what mends it."""
from .lint import Fault, lint

__all__ = ["Fault", "lint"]
