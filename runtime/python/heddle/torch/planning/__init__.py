"""Plans for `parallelize`: found by experiment, decided by the planner, proved."""
from .plan import Plan

__all__ = ["Plan"]
