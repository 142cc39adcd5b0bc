"""Gangs that have lost pods: which keeps another from being whole, and which goes back first.

Called on demand by controllers, for gangs that have been incomplete for long; never during a cycle. Tries gangs away
and puts everything back; decides nothing about those that are whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.engine.line.judge import quota_refusal
from shoal.engine.line.queues import Queues
from shoal.engine.line.state import LineState
from shoal.engine.model import Gang
from shoal.engine.nodes.fit import Placement
from shoal.engine.nodes.supply import find_room

MOST_TRIED = 32
"""Waiting gangs that are tried, the first in order: one look stays cheap however many wait."""


class Recovery(msgspec.Struct, frozen=True):
    """Take back the gang with this UID; `helped` is the key of one that is whole then. Where `uid` is empty, no
    gang goes now, and at `wake_at` (if set) one may."""

    uid: str = ""
    helped: str = ""
    wake_at: int = 0


class Deadline(msgspec.Struct, frozen=True):
    """Until when an incomplete gang is waited for: `first` where no node can take its pods, `last` where one could, as
    far as we see, and the scheduler does not bind them (it may go by more than we look at)."""

    first: int
    last: int


def recovery(state: LineState, queues: Queues, deadlines: Mapping[str, Deadline], now: int) -> Recovery:
    """`deadlines`: by UID, of incomplete gangs that may be taken back.

    The last in order goes first (lowest priority, then the youngest), and only one that keeps another from being
    whole. While such a one still has time, no gang before it goes in its stead.
    """
    ledger = state.ledger
    ledger.settle()
    leaving = sorted(uid for uid, held in ledger.holders.items() if held.state == "stopping")
    gangs = [state.by_uid(uid) for uid in deadlines if uid in state.keys]
    with ledger.without(leaving):
        before = ledger.without_place()
    for gang in sorted(gangs, key=state.policy.order, reverse=True):
        if gang.state != "admitted":
            continue
        given = deadlines[gang.uid]
        due = given.first if gang.uid in before else given.last
        helped = _kept_from_being_whole(state, queues, gang, leaving, before)
        if helped:
            return Recovery(gang.uid, helped) if due <= now else Recovery(wake_at=due)
    return Recovery()


def _kept_from_being_whole(
    state: LineState, queues: Queues, gang: Gang, leaving: list[str], before: Mapping[str, int]
) -> str:
    """Key of a gang that would be whole if this one were gone, and is not once those `leaving` are; or empty. `before`:
    gangs of which pods find no place then."""
    ledger, uid = state.ledger, gang.uid
    with ledger.without(leaving):
        waiting = [other for other in _waiting(state, queues, gang) if not _fits(state, queues, other, "")]
    with ledger.without([*leaving, uid]):
        after = ledger.without_place()
        whole = [state.by_uid(other) for other in before if other != uid and other not in after]
        whole += [other for other in waiting if _fits(state, queues, other, gang.key)]
    return min(whole, key=state.policy.order).key if whole else ""


def _waiting(state: LineState, queues: Queues, gang: Gang) -> list[Gang]:
    """Gangs that wait for room, and gangs that wait for quota of which this one may hold some."""
    for_room = [state.by_uid(uid) for gang_class in state.waiting.classes.values() for line in gang_class.lanes.values()
                for _, uid in line[:MOST_TRIED]]  # fmt: skip
    for_quota = [state.gangs[key] for key in queues.kueue.waiting_beside(gang.key, MOST_TRIED) if key in state.gangs]
    return sorted([*for_room, *for_quota], key=state.policy.order)[:MOST_TRIED]


def _fits(state: LineState, queues: Queues, gang: Gang, without: str) -> bool:
    """Would it start, by quota and by room? The room is as the ledger has it now; `without` has left the quota."""
    if gang.state == "waiting" and gang.dialect == "kueue":
        if not queues.kueue.fits_without(gang.key, without):
            return False
    elif gang.dialect == "mcad" and state.settings.quota and state.forest.trees:
        gone = [state.gangs[without].uid] if without else []
        if quota_refusal(state, gang, state.consumer(gang), without=gone):
            return False
    return isinstance(find_room(gang, state.ledger, say_why=False), Placement)
