"""The line of gangs that wait: which gang is next, which starts, which has to leave, and why not.

`LineState` is all that is known, `Cycle` decides once. Quota of MCAD's trees is asked for in `mcad`, room in `nodes`;
gangs of Kueue's queues stand here once they have quota (`Queues`). `recovery` says which incomplete gang goes back.
"""

from shoal.engine.line.bids import Bids
from shoal.engine.line.cycle import Cycle
from shoal.engine.line.queues import QueueFact, Queues
from shoal.engine.line.recovery import Deadline, Recovery, recovery
from shoal.engine.line.state import LineState

__all__ = ["Bids", "Cycle", "Deadline", "LineState", "QueueFact", "Queues", "Recovery", "recovery"]
