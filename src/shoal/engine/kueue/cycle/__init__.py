"""Deciding: who holds quota and who waits (`QueueState`, `Register`), one cycle over the heads of all queues (`Cycle`),
and cycles until nothing moves (`QueuePlanner`)."""

from shoal.engine.kueue.cycle.planner import QueuePlanner
from shoal.engine.kueue.cycle.register import Register
from shoal.engine.kueue.cycle.state import QueueState

__all__ = ["QueuePlanner", "QueueState", "Register"]
