"""The kinds of jobs that a queue can hold back and start, by kind."""

from shoal.api.kind import Kind
from shoal.controllers.queues.jobs.app_wrapper import AppWrappers
from shoal.controllers.queues.jobs.base import End, GangJob
from shoal.controllers.queues.jobs.batch import Jobs
from shoal.controllers.queues.jobs.ray import RayClusters, RayJobs

ALL: tuple[GangJob, ...] = (RayJobs(), RayClusters(), Jobs(), AppWrappers())
BY_KIND: dict[Kind, GangJob] = {one.kind: one for one in ALL}
BY_NAME: dict[tuple[str, str], GangJob] = {(one.kind.group, one.kind.kind): one for one in ALL}

__all__ = ["ALL", "BY_KIND", "BY_NAME", "End", "GangJob"]
