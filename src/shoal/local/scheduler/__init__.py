"""The pod scheduler of the one-machine cluster: binds pods to nodes by the same fit code that admitted their gang."""

from shoal.local.scheduler.scheduler import Scheduler, run

__all__ = ["Scheduler", "run"]
