"""Backfill in a queue: which queues ask for it, which jobs may, and what a Workload that does says of itself.

The engine decides (`engine/kueue/cycle/backfill.py`). That a gang leaves for the front of its queue is a condition of
its Workload, so that a restarted controller knows it; the condition turns false when the turn of the gang comes.
"""

from __future__ import annotations

from shoal.api.gang import BACKFILL, DRAINABLE
from shoal.api.kueue import ClusterQueue
from shoal.api.kueue_told import BACKFILLED
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.api.objects import annotation
from shoal.controllers.queues import checks
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.draining import drain_seconds
from shoal.controllers.queues.settings import QueueSettings
from shoal.engine.model import Reservation


def is_asked_for(queue: ClusterQueue) -> bool:
    """Not in a queue with admission checks: what they bring for a gang that may have to leave again is wasted."""
    return annotation(queue, BACKFILL) == "true" and not checks.rules_of(queue)


def is_drainable(workload: Workload, job: Json | None, queue: ClusterQueue, settings: QueueSettings) -> bool:
    """Ray is told before its workers go, or the job says that it may be stopped at any moment."""
    said = ((job or {}).get("metadata") or {}).get("annotations") or {}
    return said.get(DRAINABLE) == "true" or drain_seconds(workload, queue, settings) > 0


def note_reservation(draft: Draft, reservation: Reservation) -> None:
    if reservation.backfilled:
        message = (
            f"Runs in quota that the front of ClusterQueue {reservation.queue} waits for, and leaves when it can start"
        )
        draft.put(BACKFILLED, True, "Backfilled", message)
        draft.tell("Normal", "Backfilled", message)
    elif draft.condition(BACKFILLED) is not None:
        draft.drop(BACKFILLED)


def note_turn(draft: Draft) -> None:
    """Those ahead of it have started."""
    if draft.is_true(BACKFILLED):
        draft.put(BACKFILLED, False, "TurnCame", "Its turn in the queue has come: it keeps its quota")


def forget(draft: Draft) -> None:
    """Its quota is given back."""
    if draft.condition(BACKFILLED) is not None:
        draft.drop(BACKFILLED)
