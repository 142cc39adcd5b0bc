"""Deciding: who holds quota and who waits (`State`, `Register`), one cycle over the heads of all queues (`Cycle`), and
cycles until nothing moves (`Planner`)."""

from shoal.engine.kueue.cycle.planner import Planner
from shoal.engine.kueue.cycle.register import Register
from shoal.engine.kueue.cycle.state import State

__all__ = ["Planner", "Register", "State"]
