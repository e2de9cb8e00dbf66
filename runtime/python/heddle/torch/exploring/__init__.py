"""Which dims a model's modules mix, found by experiment."""
from .exploration import Exploration, Module
from .explorer import explore
from .probe import Finding

__all__ = ["Exploration", "Finding", "Module", "explore"]
