"""Which flavors a gang gets: eligible ones, in order, with enough quota; and how small it may start."""

from shoal.engine.kueue.flavors.assign import Search
from shoal.engine.kueue.flavors.assignment import Assignment, Outcome

__all__ = ["Assignment", "Outcome", "Search"]
