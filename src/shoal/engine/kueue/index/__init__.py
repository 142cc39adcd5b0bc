"""Which gang of a queue is next, found without looking at all of them: `Waiting` keeps those who wait in order, what
they wait for, and which is inadmissible until something changes; `reach` bounds what a gang could get."""

from shoal.engine.kueue.index.waiting import Waiting

__all__ = ["Waiting"]
