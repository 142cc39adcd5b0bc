"""What is remembered of a gang, and what one look at it changes.

Pure. The store holds what was seen last, so that a restarted controller, and one that sees the same twice, writes
nothing wrong: `advanced` goes by the stored row alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from shoal.api.gpus import is_gpu
from shoal.engine.model import Amounts, Gang, PodSet

SECOND = 1_000_000
Stage = Literal["waiting", "running", "ended"]
SUCCEEDED, FAILED, REQUEUED, PREEMPTED, DELETED = "Succeeded", "Failed", "Requeued", "Preempted", "Deleted"
replace = msgspec.structs.replace


class GangFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a source tells of a gang beside the gang itself; named as people know it."""

    kind: str
    name: str
    user: str = ""
    """As admission recorded it; empty where nothing did."""
    cluster_queue: str = ""
    limit: int = 0
    """Seconds after which it ends at the latest, where its spec says so."""
    started_at: int = 0
    """When it was let go, where that is not when it got its quota."""
    outcome: str = ""
    """How it ended, where it has."""
    ended_at: int = 0
    notify: str = ""
    """Address for notices that it names, or its queue."""


class Sighting(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One look at a gang."""

    uid: str
    stage: Stage
    at: int
    namespace: str = ""
    queue: str = ""
    priority: int = 0
    queued_at: int = 0
    started_at: int = 0
    preempted: bool = False
    """It was stopped for another gang."""
    pods: int = 0
    amounts: Amounts = {}
    facts: GangFacts | None = None
    """None: it is gone, and what was known last stays."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One round of a gang. Moments are microseconds since the epoch, 0 for what has not come."""

    uid: str
    round: int = 1
    kind: str = ""
    namespace: str = ""
    name: str = ""
    user: str = ""
    queue: str = ""
    cluster_queue: str = ""
    priority: int = 0
    queued_at: int = 0
    started_at: int = 0
    ended_at: int = 0
    outcome: str = ""
    pods: int = 0
    cpu: int = 0
    """In milli."""
    memory: int = 0
    gpus: int = 0
    limit_seconds: int = 0

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


def amounts_of(pod_sets: Iterable[PodSet]) -> tuple[int, Amounts]:
    """How many pods, and what they ask for together."""
    pods, amounts = 0, dict[str, int]()
    for one in pod_sets:
        pods += one.count
        for resource, value in one.requests.items():
            amounts[resource] = amounts.get(resource, 0) + one.count * value
    return pods, amounts


def sighting(gang: Gang, facts: GangFacts, now: int) -> Sighting:
    """A gang as the engine is told of it. One that is being stopped runs until it has stopped."""
    pods, amounts = amounts_of(gang.pod_sets)
    stage: Stage = "waiting"
    if gang.state == "finished" or facts.outcome:
        stage = "ended"
    elif gang.state in ("admitted", "stopping"):
        stage = "running"
    return Sighting(
        uid=gang.uid, stage=stage, at=now, namespace=gang.namespace, queue=gang.queue, priority=gang.priority,
        queued_at=gang.created_at or gang.queued_at, started_at=facts.started_at or gang.admitted_at,
        preempted=bool(gang.stopping_for), pods=pods, amounts=amounts, facts=facts,
    )  # fmt: skip


def advanced(last: RunRecord | None, seen: Sighting) -> tuple[RunRecord, ...]:
    """The rows to write: the last one as it is now, and the next where another round begins."""
    if last is None:
        return () if seen.facts is None else (_first(seen),)
    if last.ended_at:
        if seen.stage == "ended" or seen.facts is None:
            return ()
        return (_next(last, seen),)
    if seen.stage == "ended":
        return (_ended(last, seen),)
    if seen.stage == "waiting" and last.started_at:
        ended = replace(last, ended_at=_after(seen.at, last.started_at), outcome=REQUEUED)
        return (replace(ended, outcome=PREEMPTED) if seen.preempted else ended, _next(last, seen))
    if seen.stage == "running" and not last.started_at:
        return (_described(replace(last, started_at=_start(seen, last.queued_at)), seen),)
    known = _described(last, seen)
    return (known,) if known != last else ()


def _first(seen: Sighting) -> RunRecord:
    began = min(seen.queued_at or seen.at, seen.at)
    made = _described(RunRecord(uid=seen.uid, namespace=seen.namespace, queued_at=began), seen)
    if seen.stage == "running":
        return replace(made, started_at=_start(seen, began))
    if seen.stage == "ended":
        return _ended(replace(made, started_at=_after(seen.started_at, began) if seen.started_at else 0), seen)
    return made


def _next(last: RunRecord, seen: Sighting) -> RunRecord:
    """One more round. A gang that is seen running was not seen waiting: it waited for no time that is known."""
    made = replace(last, round=last.round + 1, queued_at=seen.at, started_at=0, ended_at=0, outcome="")
    made = _described(made, seen)
    return replace(made, started_at=seen.at) if seen.stage == "running" else made


def _described(record: RunRecord, seen: Sighting) -> RunRecord:
    facts = seen.facts
    if facts is None:
        return record
    found = replace(
        record, kind=facts.kind, name=facts.name, user=facts.user or record.user, queue=seen.queue or record.queue,
        cluster_queue=facts.cluster_queue or record.cluster_queue, priority=seen.priority,
        limit_seconds=facts.limit or record.limit_seconds,
    )  # fmt: skip
    if not seen.pods or (record.pods and seen.stage != "waiting"):
        return found  # of a gang that runs, what it started with
    gpus = sum(value for resource, value in seen.amounts.items() if is_gpu(resource))
    cpu, memory = seen.amounts.get("cpu", 0), seen.amounts.get("memory", 0)
    return replace(found, pods=seen.pods, cpu=cpu, memory=memory, gpus=gpus)


def _ended(record: RunRecord, seen: Sighting) -> RunRecord:
    facts, began = seen.facts, record.started_at or record.queued_at
    at = facts.ended_at if facts is not None and facts.ended_at else seen.at
    outcome = facts.outcome if facts is not None and facts.outcome else DELETED
    return replace(_described(record, seen), ended_at=_after(at, began), outcome=outcome)


def _start(seen: Sighting, queued_at: int) -> int:
    """What is stored of its start has whole seconds; no gang starts before it came."""
    return _after(seen.started_at or seen.at, queued_at)


def _after(moment: int, other: int) -> int:
    return max(moment, other)
