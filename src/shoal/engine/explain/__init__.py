"""Why a gang waits, and what would start it: each claim is tried on a copy of the engine before it is made.

`explain` says what is short and who holds it; `find_help` looks for gangs that would have to end, quota that would have
to grow, nodes that would have to come. Plans never wait for any of it.
"""

from shoal.engine.explain.case import case_of
from shoal.engine.explain.forecast import Forecast, RunLength
from shoal.engine.explain.helps import by_itself, find_help
from shoal.engine.explain.holding import strangers
from shoal.engine.explain.rehearsal import Rehearsal
from shoal.engine.explain.thinning import thinned
from shoal.engine.explain.trial import DraftTrial
from shoal.engine.explain.why import explain, front, plain_reason

__all__ = [
    "DraftTrial",
    "Forecast",
    "Rehearsal",
    "RunLength",
    "by_itself",
    "case_of",
    "explain",
    "find_help",
    "front",
    "plain_reason",
    "strangers",
    "thinned",
]
