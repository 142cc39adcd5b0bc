"""Why a gang waits: what is short, which gangs hold it, its place in the queue, and a first guess at what would help.

Called on demand by `Engine.explain`, never during a cycle: it may try many alternatives. The guesses look at this gang
alone; the engine tries them out, with everything that is ahead of it, before it tells them. Puts everything back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import nsmallest

import msgspec

from shoal.engine.explain.holding import holders
from shoal.engine.explain.increase import least_increase, least_node
from shoal.engine.line.judge import quota_refusal
from shoal.engine.line.state import LineState, wants_room
from shoal.engine.line.victims import shortest_list
from shoal.engine.model import Explanation, Gang, QuotaIncrease, Shortfall
from shoal.engine.nodes.fit import Placement, demand_of
from shoal.engine.nodes.supply import explanation_of, few, find_room, obtaining


def explain(state: LineState, key: str, now: int, *, guess: bool = True) -> Explanation | None:
    """What is short and, with `guess`, what would help were nothing ahead of it; `Engine.explain` starts from there."""
    gang = state.gangs.get(key)
    if gang is None or not (wants_room(gang) or gang.uid in state.problems):
        return None
    if gang.uid in state.problems:
        shortfall = Shortfall(kind="bad-fact", place=gang.key, message=state.problems[gang.uid])
        return Explanation(message=shortfall.message, reason="bad-fact", shortfalls=(shortfall,), place=gang.key)
    state.ledger.settle()
    found = _why(state, gang, now)
    own, own_length = own_position(state, gang, now)
    release = _release(state, gang) if found.shortfalls and guess else ()
    return msgspec.structs.replace(
        found,
        position=position(state, gang, now),
        queue_length=len(state.waiting),
        own_position=own,
        own_queue_length=own_length,
        holders=found.holders or holders(state, gang, found.shortfalls),
        least_increase=_least_increase(state, gang, found) if guess else None,
        release=release,
        too_large=guess and found.reason == "resources" and not release and not _fits_alone(state, gang),
    )


def plain_reason(state: LineState, key: str, known: dict[object, Explanation], now: int) -> Explanation | None:
    """What keeps a waiting gang as of now, and nothing else: no position, no holders, nothing tried out. Gangs of one
    class share what is `known`, for as long as nothing changes. None: it does not wait, or only for its turn."""
    gang = state.gangs.get(key)
    gang_class = state.waiting.class_of(gang.uid) if gang is not None else None
    if gang is None or gang_class is None or gang.uid in state.problems:
        return None
    state.ledger.settle()
    if gang.uid in state.pools.asked or any(True for _ in state.still_stopping(gang.uid)):
        return _why(state, gang, now)
    if gang_class not in known:
        known[gang_class] = _why(state, gang, now)
    found = known[gang_class]
    return found if found.shortfalls else None


def _why(state: LineState, gang: Gang, now: int) -> Explanation:
    stopping = sorted(state.keys[uid] for uid in state.still_stopping(gang.uid))
    if stopping:
        message = f"waits for {few(stopping, ', ')} to stop"
        return Explanation(message=message, reason="preempting", place="nodes", holders=tuple(stopping))
    if gang.uid in state.pools.asked:
        return msgspec.structs.replace(obtaining(state.pools.to_come(gang.uid)), reason="obtaining")
    if _has_quota(state, gang):
        quota_index = quota_refusal(state, gang, state.consumer(gang))
        if quota_index:
            return msgspec.structs.replace(explanation_of(quota_index), reason="quota")
    with state.ledger.without([gang.uid]):  # its own claim does not stand in its way
        found = find_room(gang, state.ledger)
    if isinstance(found, Placement):
        return Explanation(message=_whose_turn(state, gang, now), reason="order", place="queue")
    return msgspec.structs.replace(explanation_of(found), reason="resources")


def _whose_turn(state: LineState, gang: Gang, now: int) -> str:
    """There is quota and room for it; what comes first?"""
    ahead = next((key for key in front(state, 1, now) if key != gang.key), "")
    if state.policy.strict and ahead:
        return f"there is room, but {ahead} is ahead of it and nothing may overtake that"
    return "there is room; waits for its turn"


def _has_quota(state: LineState, gang: Gang) -> bool:
    return state.settings.quota and gang.dialect == "mcad" and bool(state.forest.trees)


def _is_by_quota(explanation: Explanation) -> bool:
    return any(shortfall.kind == "quota" for shortfall in explanation.shortfalls)


def _least_increase(state: LineState, gang: Gang, found: Explanation) -> QuotaIncrease | None:
    """Of one quota, where quota is what keeps it out and nodes have room; else of the nodes. One alone must do."""
    if _is_by_quota(found):
        with state.ledger.without([gang.uid]):
            if not isinstance(find_room(gang, state.ledger, say_why=False), Placement):
                return None
        return least_increase(state.forest, state.consumer(gang), lambda asks: not quota_refusal(state, gang, asks))
    if found.shortfalls and gang.supply == "fit" and gang.uid not in state.pools.asked:
        with state.ledger.without([gang.uid]):
            return least_node(gang, state.ledger)
    return None


def position(state: LineState, gang: Gang, now: int) -> int:
    """1 for the gang that is next in order. Within a lane order never changes, so each line is searched, not walked."""

    def rank(entry: tuple[tuple[object, ...], str]) -> tuple[object, ...]:
        return state.policy.rank(state.by_uid(entry[1]), state, now)

    mine = state.policy.rank(gang, state, now)
    ahead = 0
    for gang_class in state.waiting.classes.values():
        for line in gang_class.lanes.values():
            ahead += bisect_left(line, mine, key=rank)
    return ahead + 1


def own_position(state: LineState, gang: Gang, now: int) -> tuple[int, int]:
    """Its place among the waiting gangs of its own namespace (Kueue: LocalQueue), and how many these are."""
    mine, ahead, everyone = state.policy.rank(gang, state, now), 0, 0
    for gang_class in state.waiting.classes.values():
        for line in gang_class.lanes.values():
            for _, uid in line:
                other = state.by_uid(uid)
                if (other.namespace, other.queue, other.dialect) == (gang.namespace, gang.queue, gang.dialect):
                    everyone += 1
                    ahead += state.policy.rank(other, state, now) < mine
    return ahead + 1, everyone


def front(state: LineState, count: int, now: int) -> list[str]:
    """The gangs that are next in order: only the front of each line is looked at, however long it is."""
    first = [
        uid
        for gang_class in state.waiting.classes.values()
        for line in gang_class.lanes.values()
        for _, uid in line[:count]
    ]
    found = [state.by_uid(uid) for uid in first]
    return [gang.key for gang in nsmallest(count, found, key=lambda gang: state.policy.rank(gang, state, now))]


def _fits_alone(state: LineState, gang: Gang) -> bool:
    """Is there room once every gang is gone? Also those that have ended and whose pods are still there: a RayJob's
    cluster stays after its job."""
    ledger = state.ledger
    with ledger.without({*ledger.by_gang, *ledger.holders, gang.uid}):
        return isinstance(find_room(gang, ledger, say_why=False), Placement)


def _release(state: LineState, gang: Gang) -> tuple[str, ...]:
    """The shortest list of running gangs whose end would admit this one, by quota and by room."""
    demand = demand_of(gang.pod_sets)
    consumer = state.consumer(gang) if _has_quota(state, gang) else None

    def helps(other: Gang) -> int:
        return sum(min(value, demand.get(name, 0)) for name, value in demand_of(other.pod_sets).items())

    def suffices(chosen: Sequence[str]) -> bool:
        if consumer is not None and quota_refusal(state, gang, consumer, without=chosen):
            return False
        with state.ledger.without([*chosen, gang.uid]):
            return isinstance(find_room(gang, state.ledger, say_why=False), Placement)

    running = [other for other in state.ledger.holders.values() if helps(other)]
    running.sort(key=lambda other: (-helps(other), other.uid))
    return tuple(state.keys[uid] for uid in shortest_list([other.uid for other in running], suffices))
