"""The answer to a question about the past, under the asker's rights: what may not be read is neither named nor summed.

Called by the desk. Rights go by kind and namespace, as the API server knows them; a gang that is gone is read by those
who could read it if it were there.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.api.quantity import show
from shoal.api.questions import HistoryWindow, PastAnswer, PastRun, PastTotal
from shoal.api.times import micro_text, parse_time
from shoal.controllers.planning.creators import Creator
from shoal.controllers.planning.history.recorder import GangHistory
from shoal.controllers.planning.history.records import RunRecord
from shoal.controllers.planning.history.store import HistoryQuery, HistoryTotal
from shoal.controllers.planning.questions.readers import Readers
from shoal.controllers.planning.words import printable

MOST_READ = 5000
"""Runs that are read for one answer, before rights choose among them."""
MOST_TOTALS = 200


async def past(
    history: GangHistory, readers: Readers, window: HistoryWindow, asker: Creator | None, namespace: str
) -> PastAnswer:
    """Raises HistoryTrouble where the store does not answer, BadInput for a time that is none."""
    query = HistoryQuery(
        since=parse_time(window.since) if window.since else 0,
        until=parse_time(window.until) if window.until else 0,
        namespace="" if window.all_namespaces else namespace,
        user=window.user, queue=window.queue, name=window.name, limit=MOST_READ,
    )  # fmt: skip
    totals, runs = await history.totals(query), await history.runs(query)
    places = {(one.kind, one.namespace) for one in totals} | {(one.kind, one.namespace) for one in runs}
    allowed = await readers.readable(asker, namespace, [f"{kind}/{where}/" for kind, where in places])
    readable = [one for one in totals if f"{one.kind}/{one.namespace}/" in allowed]
    shown = [one for one in runs if f"{one.kind}/{one.namespace}/" in allowed]
    return PastAnswer(
        runs=tuple(map(_run, shown[: window.limit])) or None,
        totals=tuple(_sums(readable, window.by))[:MOST_TOTALS] or None,
        hidden=sum(one.gangs for one in totals) - sum(one.gangs for one in readable),
        more=len(shown) > window.limit or len(runs) == MOST_READ,
    )


def _sums(totals: Iterable[HistoryTotal], by: str) -> list[PastTotal]:
    groups: dict[str, list[HistoryTotal]] = {}
    for one in totals:
        groups.setdefault(str(getattr(one, by)), []).append(one)
    found = [
        PastTotal(
            of=printable(name, 253),
            gangs=sum(one.gangs for one in group),
            runs=sum(one.runs for one in group),
            failed=sum(one.failed for one in group),
            requeues=sum(one.requeues for one in group),
            waited_seconds=round(sum(one.waited for one in group)),
            longest_wait_seconds=round(max(one.longest_wait for one in group)),
            ran_seconds=round(sum(one.ran for one in group)),
            gpu_seconds=round(sum(one.gpu_seconds for one in group)),
        )
        for name, group in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.gpu_seconds, -one.ran_seconds, one.of))


def _run(record: RunRecord) -> PastRun:
    return PastRun(
        uid=record.uid, round=record.round, kind=printable(record.kind, 63), namespace=printable(record.namespace, 63),
        name=printable(record.name, 253), user=printable(record.user, 253), queue=printable(record.queue, 253),
        cluster_queue=printable(record.cluster_queue, 253), queued_at=_moment(record.queued_at),
        started_at=_moment(record.started_at), ended_at=_moment(record.ended_at), outcome=record.outcome,
        pods=record.pods, cpu=show("cpu", record.cpu), memory=show("memory", record.memory), gpus=record.gpus,
    )  # fmt: skip


def _moment(at: int) -> str | None:
    return micro_text(at) if at else None
