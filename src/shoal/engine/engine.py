"""The judge: facts in, plans out.

Controllers, the simulator and `shoal why` each hold one Engine, tell it what they see and carry out what it answers. It
does no I/O, reads no clock and never raises on a bad fact: what cannot be used is named in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.engine.cycle import Cycle
from shoal.engine.explain import brief, explain
from shoal.engine.model import Amounts, Explanation, Fact, Gang, Plan
from shoal.engine.quota_view import NodeUse, quota_use
from shoal.engine.settings import Settings
from shoal.engine.state import State


class Engine:
    """Facts win: whatever `update` says replaces what an earlier plan assumed. Feed it from a cache that has seen your
    own writes, or a gang may be planned twice (harmless, but noisy)."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._state = State(settings or Settings())

    def update(self, fact: Fact) -> None:
        """A fact is new or has changed. Telling the same again costs next to nothing."""
        self._state.update(fact)

    def remove(self, key: str) -> None:
        """A fact is gone; `key` as `model.key_of` gives it. Unknown keys are ignored."""
        self._state.remove(key)

    def plan(self, now: int) -> Plan:
        """Decide at this moment. The decisions are assumed carried out until facts say otherwise."""
        return Cycle(self._state, now).run()

    def explain(self, key: str, now: int = 0) -> Explanation | None:
        """Why this gang waits, in full, as of the last plan. None: it is not waiting or not known. Changes nothing."""
        return explain(self._state, key, now)

    def brief(self, key: str, explanation: Explanation, now: int) -> Explanation:
        """What a plan said of a waiting gang, with its position and the holders: cheap enough for every status."""
        return brief(self._state, key, explanation, now)

    @property
    def trees(self) -> tuple[str, ...]:
        """Names of the quota trees in force."""
        return self._state.forest.trees if self._state.settings.quota else ()

    def quota_use(self) -> dict[tuple[str, str], NodeUse]:
        """By tree and node: what is allocated, what is borrowed, and by whom."""
        return quota_use(self._state)

    @property
    def waiting(self) -> int:
        """How many gangs wait."""
        return len(self._state.waiting)

    @property
    def reserved(self) -> Amounts:
        """What admitted gangs will still need, beyond the pods that exist."""
        return dict(self._state.ledger.total_reserved)

    def gang(self, key: str) -> Gang | None:
        """What is known of a gang, assumptions included."""
        return self._state.gangs.get(key)

    def facts(self) -> Iterator[Fact]:
        """Everything known, assumptions included: an engine fed with these decides the same."""
        return self._state.facts()
