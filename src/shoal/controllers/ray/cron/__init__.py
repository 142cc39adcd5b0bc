"""RayCronJob: RayJobs by the clock, as Kubernetes' CronJob makes Jobs."""

from shoal.controllers.ray.cron.reconciler import RayCronJobReconciler

__all__ = ["RayCronJobReconciler"]
