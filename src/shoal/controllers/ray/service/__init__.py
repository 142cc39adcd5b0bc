"""RayService: serve applications on a RayCluster, and on the next one when its spec changes."""

from shoal.controllers.ray.service.queue_reason import QueueReasons
from shoal.controllers.ray.service.reconciler import RayServiceReconciler
from shoal.controllers.ray.service.serve_api import HttpServeApi, ServeApi

__all__ = ["HttpServeApi", "QueueReasons", "RayServiceReconciler", "ServeApi"]
