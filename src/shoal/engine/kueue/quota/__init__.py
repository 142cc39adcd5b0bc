"""The quota tree: what each ClusterQueue and Cohort may use, uses, and can still get."""

from shoal.engine.kueue.quota.forest import Forest
from shoal.engine.kueue.quota.tree import Node

__all__ = ["Forest", "Node"]
