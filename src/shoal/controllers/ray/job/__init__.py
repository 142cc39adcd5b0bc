"""RayJob: its reconciler, the ways an entrypoint reaches Ray, and the dashboards that tell how a job does."""

from shoal.controllers.ray.job.dashboard import Dashboard, DashboardError, DashboardTarget, HttpDashboard, JobInfo
from shoal.controllers.ray.job.poller import Poller
from shoal.controllers.ray.job.proxied_dashboard import ProxiedDashboard
from shoal.controllers.ray.job.reconciler import JobReconciler

__all__ = [
    "Dashboard",
    "DashboardError",
    "DashboardTarget",
    "HttpDashboard",
    "JobInfo",
    "JobReconciler",
    "Poller",
    "ProxiedDashboard",
]
