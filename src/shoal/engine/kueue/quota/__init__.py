"""The quota tree: what each ClusterQueue and Cohort may use, uses, and can still get."""

from shoal.engine.kueue.quota.forest import CohortForest
from shoal.engine.kueue.quota.tree import QuotaTreeNode

__all__ = ["CohortForest", "QuotaTreeNode"]
