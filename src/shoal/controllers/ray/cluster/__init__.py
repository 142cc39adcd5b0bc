"""RayCluster: its reconciler, and everything a cluster has besides the contents of its pods."""

from typing import TYPE_CHECKING

from shoal.lazy import lazily

if TYPE_CHECKING:
    from shoal.controllers.ray.cluster.reconciler import ClusterReconciler, is_ours

__all__ = ["ClusterReconciler", "is_ours"]

_RECONCILER = "shoal.controllers.ray.cluster.reconciler"
__getattr__ = lazily(__name__, {"ClusterReconciler": _RECONCILER, "is_ours": _RECONCILER})
