"""RayCluster: its reconciler, and everything a cluster has besides the contents of its pods."""

from shoal.controllers.ray.cluster.reconciler import ClusterReconciler, is_ours

__all__ = ["ClusterReconciler", "is_ours"]
