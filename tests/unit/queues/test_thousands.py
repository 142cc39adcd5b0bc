"""Thousands of Workloads: what is over costs next to nothing, and little is written about those that only wait."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.queues import QueueController, QueueSettings
from shoal.controllers.queues.counts import Address
from shoal.controllers.queues.facts import QueueFacts
from shoal.controllers.queues.pacing import LONGEST, TOGETHER, StatusPace
from shoal.controllers.queues.telling import CALM, CALM_PER_GANG, Telling
from shoal.engine.model import Gang
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, flavor, local_queue, make, said, true
from tests.unit.queues.conftest import decide

MANY = 20_000
SECOND = 1_000_000


def own_workload(name: str) -> Json:
    """One that its maker starts and ends by itself, as a program that measures does."""
    container = {"name": "c", "image": "example.test/c", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": kinds.WORKLOAD.api_version,
        "kind": kinds.WORKLOAD.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"queueName": "q", "active": True, "podSets": [{"name": "main", "count": 1, "template": template}]},
    }


async def ended(cluster: Cluster, name: str) -> None:
    held = await cluster.until(kinds.WORKLOAD, name, true("Admitted"))
    moment = held["metadata"]["creationTimestamp"]
    end = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": moment}
    change = {"status": {"conditions": [*held["status"]["conditions"], end]}}
    await cluster.client.patch(kinds.WORKLOAD, name, "default", change, subresource="status")


@proven(without=lambda patch: patch.setattr(QueueController, "_settle", lambda self, workload: None))
async def test_f871_a_workload_that_is_over_takes_no_room_in_the_engine(quiet: Cluster) -> None:
    """F871: tens of thousands of Workloads stay stored after their end, and each was kept in every table, with all that
    it had asked for. Holds: the engine knows those that wait or run; one that is over can be changed, asked about and
    deleted, and its name used again."""
    queues = decide(quiet, QueueSettings(supply="off"))
    engine = queues.planning.engine
    await make(quiet, flavor(), cluster_queue("a", quota={"cpu": "1"}), local_queue("q", "a"))
    await make(quiet, own_workload("first"))
    await quiet.until(kinds.WORKLOAD, "first", true("Admitted"))
    await make(quiet, own_workload("second"))  # which has to wait for the first
    await ended(quiet, "first")
    await ended(quiet, "second")
    await quiet.settled()
    assert engine.uids() == []
    await quiet.client.patch(kinds.WORKLOAD, "first", "default", {"metadata": {"labels": {"team": "red"}}})
    await quiet.settled()
    assert engine.uids() == []
    subject = queues.subject("", kinds.WORKLOAD.kind, Key("default", "first"))
    assert subject is not None and subject.state == "Finished"
    await quiet.client.delete(kinds.WORKLOAD, "first", "default")
    await quiet.settled()
    (again,) = await make(quiet, own_workload("first"))
    await quiet.until(kinds.WORKLOAD, "first", true("Admitted"))
    assert engine.uids() == [again["metadata"]["uid"]]


async def test_a_queue_that_becomes_active_tells_no_workload_again(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(quiet)
    await make(quiet, flavor(), cluster_queue("a", quota={"cpu": "0"}), local_queue("q", "a"))
    await make(quiet, own_workload("waits"))
    await quiet.until(kinds.WORKLOAD, "waits", lambda one: said(one, "QuotaReserved")[0] == "False")
    await quiet.settled()
    told = list[str]()
    whole = QueueFacts.gang
    monkeypatch.setattr(QueueFacts, "gang", lambda self, one: told.append(one.metadata.name) or whole(self, one))
    for kind, name, namespace in ((kinds.CLUSTER_QUEUE, "a", None), (kinds.LOCAL_QUEUE, "q", "default")):
        held = await quiet.client.get(kind, name, namespace)
        conditions = [{**one, "status": "False"} for one in held["status"]["conditions"]]
        await quiet.client.patch(kind, name, namespace, {"status": {"conditions": conditions}}, subresource="status")
        await quiet.until(kind, name, true("Active"), namespace)
    await quiet.settled()
    assert told == []


class Watch:
    """A clock that shows what the test says."""

    def __init__(self) -> None:
        self.shows = 100.0

    def monotonic(self) -> float:
        return self.shows

    def now(self) -> int:
        return int(self.shows * SECOND)


@proven(without=lambda patch: patch.setattr("shoal.controllers.queues.telling.CALM_PER_GANG", 0))
def test_f872_where_thousands_wait_a_short_pause_tells_none_of_them_why() -> None:
    """F872: tens of thousands wait, and the API server is so busy that nothing happens in a cohort for some seconds.
    Holds: not all that wait there are told why, just to start a moment later; they are once it is calm for longer."""
    watch = Watch()
    telling = Telling(watch)  # type: ignore[arg-type]
    gangs = [Gang(key=f"g{number}", uid=f"u{number}", namespace="a", name=f"g{number}") for number in range(MANY)]
    for gang in gangs:
        telling.update(gang, "cohort", told=False)
    watch.shows += 1 + CALM / SECOND
    assert not telling.is_due(gangs[-1], watch.now())
    watch.shows += MANY * CALM_PER_GANG / SECOND
    assert telling.is_due(gangs[-1], watch.now())
    for gang in gangs[1_000:]:
        telling.forget(gang.key)
    watch.shows += 1 + CALM / SECOND
    assert telling.is_due(gangs[0], watch.now()), "where fewer wait, sooner"


def test_queues_that_change_all_the_time_share_one_rate() -> None:
    """However many there are: what published long ago because it had to wait still counts."""
    watch = Watch()
    pace = StatusPace(watch)  # type: ignore[arg-type]
    queues: list[Address] = [(kinds.CLUSTER_QUEUE, Key("", f"queue-{number}")) for number in range(600)]
    due = dict.fromkeys(queues, watch.shows)
    published = 0
    began = watch.shows + 2 * LONGEST  # until all have found their turn
    while watch.shows < began + 2 * LONGEST:
        watch.shows += 0.5
        for queue in [queue for queue, at in due.items() if at <= watch.shows]:
            pace.published(queue)
            published += watch.shows >= began
            due[queue] = watch.shows + pace.pause(queue, empty=False)
    assert published <= 1.2 * TOGETHER * 2 * LONGEST
