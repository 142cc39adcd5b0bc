"""Gangs leave their waits and runs in the history, which outlives them and is read under the asker's rights."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from shoal.api import kinds
from shoal.api.gang import NOTIFY, SUBMITTED_BY
from shoal.api.meta import Json
from shoal.cli import history as command
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.planning.history import asked
from shoal.controllers.planning.history.notices import NoticeSettings
from shoal.controllers.planning.history.store import HistoryStore
from shoal.controllers.planning.questions.readers import Readers
from shoal.controllers.queues import QueueController, QueueSettings
from shoal.controllers.queues.admission import QueueAdmission
from shoal.kube.admission_review import AdmissionRequest, GroupVersionKind, User
from shoal.sdk import asking
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.unit.appwrapper.build import dispatched
from tests.unit.appwrapper.test_rights import as_user, grant
from tests.unit.questions.test_door import QUESTIONS, WRAPPERS, asks
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue, make, name_of, true


@pytest.fixture
async def remembering() -> AsyncIterator[tuple[Cluster, PlanningLoop]]:
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="16", memory="64Gi")
        settings, queues = AppWrapperSettings(trust_unstamped=True), QueueSettings()
        planned = settings.planning.__class__(decisions=settings.planning.decisions, queues=queues.decisions)
        allowed = NoticeSettings(allowed=("https://hooks.example.com/",), key=b"a key of sixteen bytes")
        loop = PlanningLoop(cluster.client, planned, history=HistoryStore(), notices=allowed)
        AppWrapperController(loop, settings)
        QueueController(loop, queues)
        cluster.start(loop.run())
        await make(cluster, flavor(), cluster_queue(), local_queue())
        yield cluster, loop


async def past(cluster: Cluster, loop: PlanningLoop, namespace: str = "default", **window: object) -> Json:
    assert loop.history is not None
    await loop.history.written()
    return await asking.history(cluster.client, namespace, {"by": "queue", **window})


async def test_a_queued_job_is_remembered_after_it_was_deleted(
    remembering: tuple[Cluster, PlanningLoop], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, loop = remembering
    (first,) = await make(cluster, job("first", cpu="3"))
    await cluster.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    (second,) = await make(cluster, job("second", cpu="3"))
    done = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1}
    await cluster.client.patch(kinds.JOB, "first", "default", {"status": done}, subresource="status")
    await cluster.until(kinds.WORKLOAD, name_of(second), true("Admitted"))
    for name in ("first", "second"):
        await cluster.client.delete(kinds.JOB, name, "default", propagation="Background")
        await cluster.until_gone(kinds.JOB, name)
    await cluster.settled()
    found = await past(cluster, loop)
    outcomes = {one["name"]: one["outcome"] for one in found["runs"]}
    assert outcomes == {"first": "Succeeded", "second": "Deleted"}
    assert all(one["kind"] == "Job" and one["cpu"] == "3" and one["startedAt"] for one in found["runs"])
    (total,) = found["totals"]
    assert (total["of"], total["gangs"], total["runs"]) == ("user-queue", 2, 2)
    command._print_totals(found["totals"], "queue")
    command._print_runs(found["runs"], 0)
    said = capsys.readouterr().out
    assert "user-queue" in said and "Succeeded" in said and "GPU-HOURS" in said
    assert "runs" not in await past(cluster, loop, name="third")


def names_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def everything(self: Readers, asker: object, namespace: str, keys: list[str]) -> frozenset[str]:
        return frozenset(keys)

    monkeypatch.setattr(asked.Readers, "readable", everything)


@proven(without=names_everyone)
async def test_f301_history_shows_an_asker_what_they_may_read(remembering: tuple[Cluster, PlanningLoop]) -> None:
    """F301: a user of one namespace asks for the history of all. Holds: gangs of other namespaces are counted, and
    neither named nor summed."""
    cluster, loop = remembering
    for name in ("red", "blue"):
        await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await grant(cluster, "ann", "red", WRAPPERS, QUESTIONS)
    for name, namespace in (("mine", "red"), ("secret", "blue")):
        await cluster.create(kinds.APP_WRAPPER, asks(name, "1", namespace))
        await cluster.until(kinds.APP_WRAPPER, name, dispatched, namespace)
    assert loop.history is not None
    await loop.history.written()
    found = await asking.history(as_user(cluster, "ann"), "red", {"allNamespaces": True, "by": "namespace"})
    assert [one["name"] for one in found["runs"]] == ["mine"] and found["hidden"] == 1
    assert [one["of"] for one in found["totals"]] == ["red"]
    assert "secret" not in str(found)
    everything = await past(cluster, loop, allNamespaces=True)
    assert {one["name"] for one in everything["runs"]} == {"mine", "secret"}


async def test_a_queue_asks_for_notices_about_its_gangs(remembering: tuple[Cluster, PlanningLoop]) -> None:
    cluster, loop = remembering
    assert loop.history is not None and loop.history.notices is not None
    came: list[tuple[str, str, str]] = []

    async def send(address: str, body: bytes, headers: dict[str, str]) -> int:
        told = json.loads(body)
        came.append((address, told["event"], told["name"]))
        return 200

    loop.history.notices._send = send
    to = {"metadata": {"annotations": {NOTIFY: "https://hooks.example.com/team"}}}
    await cluster.client.patch(kinds.LOCAL_QUEUE, "user-queue", "default", to)
    await cluster.settled()
    (first,) = await make(cluster, job("first", cpu="3"))
    await cluster.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    await cluster.client.delete(kinds.JOB, "first", "default", propagation="Background")
    await cluster.until_gone(kinds.JOB, "first")
    await cluster.settled()
    await loop.history.written()
    await loop.history.notices.sent()
    assert sorted(came) == [
        ("https://hooks.example.com/team", "Ended", "first"),
        ("https://hooks.example.com/team", "Started", "first"),
    ]


async def test_without_a_store_the_answer_says_so(cluster: Cluster) -> None:
    with pytest.raises(asking.NoAnswer, match="keeps no history"):
        await asking.history(cluster.client, "default", {})


async def test_the_creator_of_a_queued_job_is_recorded_whatever_it_claims(cluster: Cluster) -> None:
    request = AdmissionRequest(
        uid="1", kind=GroupVersionKind("batch", "v1", "Job"), operation="CREATE", namespace="default",
        object={**job("mine"), "metadata": {**job("mine")["metadata"], "annotations": {SUBMITTED_BY: "someone"}}},
        user_info=User(username="ann"),
    )  # fmt: skip
    verdict = await QueueAdmission(cluster.client).prepare(request)
    assert verdict.changed is not None
    assert verdict.changed["metadata"]["annotations"][SUBMITTED_BY] == "ann" and verdict.changed["spec"]["suspend"]
