"""Pods that elastic gangs of queues bid for: which may come, and what the others lack.

Called at the end of a plan, when every gang that waits whole has been served: what is granted here is what none of them
can use now. A pod that takes the place of one the gang was admitted with comes at once; any other needs quota and room.
"""

from __future__ import annotations

import msgspec

from shoal.engine.line.queues import Queues
from shoal.engine.line.refusals import RefusedGrowth
from shoal.engine.line.state import LineState
from shoal.engine.line.surplus import Split, surplus_uid
from shoal.engine.model import Gang, Grow, PodFact, Shortfall
from shoal.engine.nodes.fit import Placement
from shoal.engine.nodes.shape import Shape, shape_of
from shoal.engine.nodes.supply import find_room

NODES = "nodes"
"""Where room is missing."""


class Bids(msgspec.Struct, frozen=True, kw_only=True):
    """What an elastic gang has and wants beyond its admission."""

    granted: int
    waiting: int
    shortfalls: tuple[Shortfall, ...] = ()
    """What the first of those that wait lacks."""


def bids_of(state: LineState, uid: str) -> Bids | None:
    """None where it neither has more than it was admitted with nor wants it."""
    sets = state.surplus.splits.get(uid, {})
    waiting = [pod for one in sets.values() for pod in one.bids]
    granted = sum(len(one.surplus) for one in sets.values())
    if not waiting and not granted:
        return None
    first = next((state.held_growth[pod] for pod in waiting if pod in state.held_growth), ())
    return Bids(granted=granted, waiting=len(waiting), shortfalls=first)


def grant(state: LineState, queues: Queues, now: int) -> tuple[Grow, ...]:
    """What is to be said of bids, by priority and age; of those that were held before only what is new."""
    bids = []
    due = state.refusals.take_due(state, queues)
    turns = _Turns(state, queues)
    for uid in due:
        gang = state.by_uid(uid)
        for name, split in state.surplus.splits[uid].items() if gang.state == "admitted" else ():
            if split.bids and not turns.are_refused(gang, name, split):
                for pod in split.bids:
                    fact = state.ledger.pods[pod]
                    bids.append((-gang.priority, fact.grows_since, fact.name, pod, name, gang))
    found: list[Grow] = []
    refused: dict[tuple[str, str], tuple[Shortfall, ...]] = {}
    for _, _, _, pod, name, gang in sorted(bids, key=lambda one: one[:4]):
        missing = refused.get((gang.uid, name))
        if missing is None:
            missing = _judged(state.ledger.pods[pod], name, gang, state, queues, now)
        if missing:
            refused[gang.uid, name] = missing
        if missing != state.held_growth.get(pod):
            found.append(Grow(pod=pod, gang=gang.key, uid=gang.uid, shortfalls=missing))
        if missing:
            state.held_growth[pod] = missing
    turns.remember(refused)
    turns.lay_aside(due)
    return tuple(found)


class _Turns:
    """Which bids need not be judged again: what they lacked is as it was."""

    def __init__(self, state: LineState, queues: Queues) -> None:
        self._state = state
        self._queues = queues
        self._known: dict[tuple[str, str], object] = {}

    def are_refused(self, gang: Gang, name: str, split: Split) -> bool:
        known = self._state.refusals.book.get((gang.uid, name))
        return (
            known is not None
            and known.split is split
            and known.gang is gang
            and known.turn == self._turn(gang, known.missing)
        )

    def remember(self, refused: dict[tuple[str, str], tuple[Shortfall, ...]]) -> None:
        """What was granted meanwhile has changed the turn of others: they are judged once more."""
        self._known.clear()
        there, book = self._state.surplus.splits, self._state.refusals.book
        self._state.refusals.prune(there)
        for (uid, name), missing in refused.items():
            gang = self._state.by_uid(uid)
            book[uid, name] = RefusedGrowth(gang, there[uid][name], self._turn(gang, missing), missing)

    def lay_aside(self, looked_at: set[str]) -> None:
        """Those that are refused now, by what has to change before they are looked at again."""
        state = self._state
        for uid in looked_at:
            gang = state.by_uid(uid)
            root = self._queues.kueue.quota_root(gang.key)
            for name, split in state.surplus.splits[uid].items():
                known = state.refusals.book.get((uid, name))
                if known is None or not split.bids:
                    continue
                short = known.missing[0].place == NODES
                state.refusals.remember(uid, root, short, _shape(gang, name) if short else None)

    def _turn(self, gang: Gang, missing: tuple[Shortfall, ...]) -> object:
        """Another one whenever quota that this gang could have, or room where that is missing, may be free."""
        at = (gang.namespace, gang.queue)
        if at not in self._known:
            self._known[at] = self._queues.kueue.quota_turn(gang.key)
        return self._known[at], self._state.ledger.given_back if missing[0].place == NODES else 0


def _shape(gang: Gang, name: str) -> Shape | None:
    """Of one pod, where nodes alone decide whether it has room."""
    pod_set = next((one for one in gang.pod_sets if one.name == name), None)
    return shape_of(pod_set, gang.node_selector) if pod_set is not None and gang.supply == "fit" else None


def _judged(pod: PodFact, name: str, gang: Gang, state: LineState, queues: Queues, now: int) -> tuple[Shortfall, ...]:
    """What one bid lacks; where that is nothing, it counts from now on."""
    if state.surplus.splits[gang.uid][name].vacant > 0:
        _open(pod, state, queues)
        return ()
    _, missing = queues.kueue.growth(gang.key, name)
    if missing:
        return missing
    pod_set = next(one for one in gang.pod_sets if one.name == name)
    alone = msgspec.structs.replace(
        gang, uid=surplus_uid(pod.uid), pod_sets=(msgspec.structs.replace(pod_set, count=1, min_count=None),),
        assignment=(), elastic=False,
    )  # fmt: skip
    placement = find_room(alone, state.ledger)
    if not isinstance(placement, Placement):
        return placement
    state.surplus.granted_at[pod.uid] = now
    for node in placement.pod_sets[0]:
        state.surplus.nodes[pod.uid] = node
    _open(pod, state, queues)
    return ()


def _open(pod: PodFact, state: LineState, queues: Queues) -> None:
    state.update(msgspec.structs.replace(pod, gated=False, grows_since=0, bids=False))
    state.surplus.settle(state)
    state.ledger.settle()
    queues.charge_surplus(state)
