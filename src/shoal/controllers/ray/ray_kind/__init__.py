"""The kind `Ray` (ray.k8s.io): its reconciler, and the translation of both of its styles into a RayCluster."""

from typing import TYPE_CHECKING

from shoal.controllers.ray.ray_kind.translation import Translation, translate
from shoal.lazy import lazily

if TYPE_CHECKING:
    from shoal.controllers.ray.ray_kind.reconciler import RayReconciler

__all__ = ["RayReconciler", "Translation", "translate"]

__getattr__ = lazily(__name__, {"RayReconciler": "shoal.controllers.ray.ray_kind.reconciler"})
