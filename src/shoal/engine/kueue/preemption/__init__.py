"""Which gangs have to leave so that another fits: candidates, their order, and the smallest set that is enough."""

from shoal.engine.kueue.preemption.candidates import Victim
from shoal.engine.kueue.preemption.preempt import Preemptor

__all__ = ["Preemptor", "Victim"]
