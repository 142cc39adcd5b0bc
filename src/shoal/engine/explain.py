"""Why a gang waits, in full: what is short, who holds it, its place in the queue, what would help.

Called on demand (`shoal why`, events), never during a cycle: it may try many alternatives. It puts everything it tried
back and decides nothing.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from shoal.engine.fit import Placement, demand_of
from shoal.engine.model import Amounts, Explanation, Gang, Shortfall
from shoal.engine.state import State, wants_room
from shoal.engine.supply import explanation_of, find_room
from shoal.engine.victims import smallest_release


def explain(state: State, key: str, now: int) -> Explanation | None:
    gang = state.gangs.get(key)
    if gang is None or not (wants_room(gang) or gang.uid in state.problems):
        return None
    if gang.uid in state.problems:
        shortfall = Shortfall(kind="bad-fact", place=gang.key, message=state.problems[gang.uid])
        return Explanation(message=shortfall.message, shortfalls=(shortfall,), place=gang.key)
    state.ledger.settle()
    found = _why(state, gang)
    return msgspec.structs.replace(
        found,
        position=position(state, gang, now),
        queue_length=len(state.waiting),
        holders=_holders(state, found.shortfalls),
        release=_release(state, gang),
    )


def brief(state: State, key: str, explanation: Explanation, now: int) -> Explanation:
    """The given explanation with position and holders; nothing is tried out."""
    gang = state.gangs.get(key)
    if gang is None or gang.uid not in state.waiting:
        return explanation
    return msgspec.structs.replace(
        explanation,
        position=position(state, gang, now),
        queue_length=len(state.waiting),
        holders=explanation.holders or _holders(state, explanation.shortfalls),
    )


def _why(state: State, gang: Gang) -> Explanation:
    found = find_room(gang, state.ledger)
    if isinstance(found, Placement):
        return Explanation(message="there is room; waits for its turn", place="queue")
    return explanation_of(found)


def position(state: State, gang: Gang, now: int) -> int:
    """1 for the gang that is next in order. Within a lane order never changes, so each line is searched, not walked."""

    def rank(entry: tuple[tuple[object, ...], str]) -> tuple[object, ...]:
        return state.policy.rank(state.by_uid(entry[1]), state, now)

    mine = state.policy.rank(gang, state, now)
    ahead = 0
    for kind in state.waiting.kinds.values():
        for line in kind.lanes.values():
            ahead += bisect_left(line, mine, key=rank)
    return ahead + 1


def _holders(state: State, shortfalls: tuple[Shortfall, ...]) -> tuple[str, ...]:
    """Gangs that hold what is short, the largest first."""
    short = {shortfall.resource for shortfall in shortfalls if shortfall.resource}
    held: list[tuple[int, str]] = []
    for other in state.ledger.holders.values():
        demand = demand_of(other.pod_sets)
        amount = sum(demand.get(resource, 0) for resource in short)
        if amount:
            held.append((-amount, other.key))
    return tuple(key for _, key in sorted(held))


def _release(state: State, gang: Gang) -> tuple[str, ...]:
    demand = demand_of(gang.pod_sets)

    def helps(other: Gang) -> Amounts:
        return {name: min(value, demand.get(name, 0)) for name, value in demand_of(other.pod_sets).items()}

    largest_first = sorted(
        (other for other in state.ledger.holders.values() if any(helps(other).values())),
        key=lambda other: (-sum(helps(other).values()), other.uid),
    )
    found = smallest_release(gang, largest_first, state.ledger)
    return () if found is None else tuple(state.keys[uid] for uid in found.gangs)
