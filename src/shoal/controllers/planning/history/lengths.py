"""How long a gang is expected to run: as the last runs of its user in its queue, or as its spec limits it.

Pure. Of a gang that runs already only those earlier runs count that were longer than it has run so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec

from shoal.api.questions import StartEstimate
from shoal.api.times import seconds_text
from shoal.engine.explain import Forecast, RunLength
from shoal.engine.model import Gang

FEWEST = 3
"""Earlier runs from which on they count."""
SECOND = 1_000_000
MOST_NAMED = 3
_BASES = {
    ("declared",): ("DeclaredLimits", "by the time limits that the gangs before it declare"),
    ("history",): ("History", "by earlier runs of the same users in the same queues"),
    ("declared", "history"): ("Mixed", "by earlier runs of the same users in the same queues, and by declared limits"),
}
NO_ENDS = ("Known", "nothing has to end for it")


class RunFacts(msgspec.Struct, frozen=True):
    """What the length of a gang's run is looked up by."""

    namespace: str
    user: str
    queue: str
    limit: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.namespace, self.user, self.queue


def run_length(earlier: Sequence[float], limit: int, elapsed: float) -> RunLength | None:
    """None: nothing is known."""
    if len(earlier) >= FEWEST:
        longer = [one for one in earlier if one > elapsed]
        expected = median(longer) if longer else elapsed
        return RunLength(min(expected, limit) if limit else expected, "history")
    return RunLength(float(limit), "declared") if limit else None


def lengths(
    facts: Mapping[str, RunFacts], earlier: Mapping[tuple[str, str, str], Sequence[float]], now: int
) -> Callable[[Gang], RunLength | None]:
    """By gang, from what is known of it by its UID."""

    def one(gang: Gang) -> RunLength | None:
        known = facts.get(gang.uid)
        if known is None:
            return None
        elapsed = max(0.0, (now - gang.admitted_at) / SECOND) if gang.admitted_at else 0.0
        return run_length(earlier.get(known.key, ()), known.limit, elapsed)

    return one


def estimate(found: Forecast | None, words: Callable[[str], str]) -> StartEstimate:
    """The forecast for people; `words` leaves out names that the asker may not read."""
    if found is not None and found.at:
        basis, message = _BASES[found.bases] if found.ends else NO_ENDS
        return StartEstimate(at=seconds_text(found.at), basis=basis, message=message, ends=found.ends)
    return StartEstimate(basis="Unknown", message=f"unknown because {_why_not(found, words)}")


def _why_not(found: Forecast | None, words: Callable[[str], str]) -> str:
    if found is None:
        return "this cluster is too large to try it out"
    if found.too_far:
        return f"more than {found.ends - 1} gangs end before it"
    if not found.endless:
        return "the end of other gangs alone would not start it"
    first = found.endless[: 2 * MOST_NAMED]
    called = list(dict.fromkeys(words(one) for one in first))  # an AppWrapper and its Workload have one name
    shown = called[:MOST_NAMED]
    left = len(found.endless) - len(first) + len(called) - len(shown)
    named = ", ".join(shown)
    more = f" and {left} more" if left else ""
    many = len(shown) + left > 1
    return (
        f"{named}{more} {'have' if many else 'has'} no time limit, and fewer than {FEWEST} earlier runs of the same "
        "user in the same queue are known"
    )
