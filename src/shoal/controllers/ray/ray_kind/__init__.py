"""The kind `Ray` (ray.k8s.io): its reconciler, and the translation of both of its styles into a RayCluster."""

from shoal.controllers.ray.ray_kind.reconciler import RayReconciler
from shoal.controllers.ray.ray_kind.translation import Translation, translate

__all__ = ["RayReconciler", "Translation", "translate"]
