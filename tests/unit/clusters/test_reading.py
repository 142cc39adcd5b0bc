"""What runs in a member, read through its hub: logs and events, under the asker's rights at the hub."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli.cluster import read_member
from shoal.controllers.multicluster import reading
from shoal.controllers.multicluster.member_logs import MemberLogs
from shoal.controllers.multicluster.reading import MemberReading
from shoal.controllers.planning.history.log_store import LogQuery
from shoal.controllers.planning.history.store import HistoryStore
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, KubeError, NotFound
from shoal.kube.transport import Request, Response
from shoal.local.apiserver.auth import gate
from shoal.local.apiserver.requests import route as routes
from shoal.sdk import elsewhere, happened, logs
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.appwrapper.build import app_wrapper, dispatched
from tests.unit.appwrapper.test_rights import WRAPPERS, as_user, grant
from tests.unit.clusters.build import is_true, sent_job, town
from tests.unit.clusters.wrappers import SENDING, SendingTown, gang, sending_town
from tests.unit.queues.build import complete, make, name_of, pods_of

POD = {"kind": "Pod", "apiVersion": "v1"}
NOW = "2026-01-01T00:00:00Z"


class Told:
    """A member's node agent: what its pods print."""

    async def log(self, pod: Any, options: Any) -> Any:
        async def chunks() -> Any:
            yield f"hello from {pod['metadata']['name']}\n".encode()

        return chunks()


def job(name: str) -> Json:
    containers = [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]
    template = {"spec": {"restartPolicy": "Never", "containers": containers}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template}}


async def reads(t: SendingTown) -> str:
    """The hub runs, reads its members for its users, and one gang runs in a. The name of its pod."""
    for member in t.members.values():
        member.server.set_log_source(Told().log)
    t.send(SENDING)
    t.hub.server.other_clusters = lambda *asked: read_member(t.places, *asked)
    await t.connected()
    await t.hub.create(kinds.APP_WRAPPER, app_wrapper("train", job("train")))
    await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
    there = t.members["a"]
    (pod,) = await pods_of(there, "train", 1)
    name = str(pod["metadata"]["name"])
    await run(there, pod)
    return name


async def run(there: Cluster, pod: Json) -> None:
    """As its scheduler and its node do."""
    name = str(pod["metadata"]["name"])
    if not pod["spec"].get("nodeName"):
        target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
        body = msgspec.json.encode(
            {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        )
        path = f"/api/v1/namespaces/default/pods/{name}/binding"
        headers = {"content-type": "application/json"}
        await there.client.transport.send(Request(method="POST", path=path, headers=headers, body=body))
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": NOW}}}]}
    await there.client.patch(kinds.POD, name, "default", {"status": status}, subresource="status")


async def log_of(client: Client, name: str = "train") -> bytes:
    found: list[bytes] = []
    obj = await client.get(kinds.APP_WRAPPER, name, "default")
    await logs.read(client, kinds.APP_WRAPPER, obj, lambda source, text: found.append(text))
    return b"".join(found)


async def test_the_log_and_the_events_of_a_gang_in_a_member_are_read_at_the_hub() -> None:
    async with sending_town("a", "b") as t:
        name = await reads(t)
        said = f"hello from {name}\n".encode()
        assert await log_of(t.hub.client) == said
        pod = await t.members["a"].get(kinds.POD, name)
        about = {**POD, "name": name, "namespace": "default", "uid": pod["metadata"]["uid"]}
        told = {"metadata": {"name": "one", "namespace": "default"}, "involvedObject": about, "reason": "Pulled"}
        strange = {**told, "metadata": {"name": "two", "namespace": "default"}, "reason": "Strange"}
        await t.members["a"].create(kinds.EVENT, told)
        await t.members["a"].create(kinds.EVENT, {**strange, "involvedObject": {**about, "uid": "another"}})
        obj = await t.hub.get(kinds.APP_WRAPPER, "train")
        rows = await happened.events_of(t.hub.client, kinds.APP_WRAPPER, obj)
        assert [row["cluster"] for row in rows if row["reason"] == "Pulled"] == ["a"]
        assert "Strange" not in {row["reason"] for row in rows}
        direct = elsewhere.ClusterTransport(t.hub.client.transport, "a")
        assert [one["metadata"]["name"] for one in await Client(direct).list(kinds.POD, "default")] == [name]
        text = b"".join([chunk async for chunk in Client(direct).logs(name, "default", follow=True)])
        assert text == said


async def test_the_log_of_a_pod_that_is_wrapped_itself_is_read_in_both_clusters() -> None:
    async with sending_town("a") as t:
        await reads(t)
        await t.hub.create(kinds.APP_WRAPPER, gang("plain", cpu="1"))
        await t.hub.until(kinds.APP_WRAPPER, "plain", dispatched)
        await run(t.members["a"], await t.members["a"].get(kinds.POD, "plain"))
        for cluster in (t.members["a"], t.hub):
            assert await log_of(cluster.client, "plain") == b"hello from plain\n"


def asks_no_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "authorize", lambda *asked: None)


@proven(without=asks_no_rights)
async def test_f729_the_log_of_a_gang_in_a_member_is_told_to_those_alone_who_may_read_logs_at_the_hub() -> None:
    """F729: a user without the right to pods/log in a namespace of the hub asks for the log of what runs in a member.
    Holds: it is refused; with the right it is told."""
    async with sending_town("a") as t:
        name = await reads(t)
        await grant(t.hub, "bob", "default", WRAPPERS, ("", "pods"))
        bob = Client(elsewhere.ClusterTransport(as_user(t.hub, "bob").transport, "a"))
        with pytest.raises(Forbidden):
            await _whole(bob, name)
        await grant(t.hub, "eve", "default", WRAPPERS, ("", "pods"), ("", "pods/log"))
        eve = Client(elsewhere.ClusterTransport(as_user(t.hub, "eve").transport, "a"))
        assert await _whole(eve, name) == f"hello from {name}\n".encode()


def shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberReading, "_belongs", lambda self, *asked: True)


@proven(without=shows_everything)
async def test_f730_what_the_hub_did_not_send_is_not_read_through_it() -> None:
    """F730: a user of the hub asks for pods, logs and Secrets of a member's namespace that others work in, too. Holds:
    only what belongs to the hub's gangs is told, and nothing is written or watched through the hub."""
    async with sending_town("a") as t:
        name = await reads(t)
        spec = {"containers": [{"name": "main", "image": "busybox"}], "nodeName": "node-1"}
        await t.members["a"].create(kinds.POD, {"metadata": {"name": "theirs", "namespace": "default"}, "spec": spec})
        await t.members["a"].create(kinds.SECRET, {"metadata": {"name": "theirs", "namespace": "default"}})
        there = Client(elsewhere.ClusterTransport(t.hub.client.transport, "a"))
        assert [one["metadata"]["name"] for one in await there.list(kinds.POD, "default")] == [name]
        with pytest.raises(NotFound):
            await there.get(kinds.POD, "theirs", "default")
        with pytest.raises(NotFound):
            await _whole(there, "theirs")
        with pytest.raises(NotFound):
            await there.get(kinds.SECRET, "theirs", "default")
        with pytest.raises(Forbidden):
            await there.list(kinds.SECRET, "default")
        with pytest.raises(Forbidden):
            await there.get(kinds.NODE, "node-1", None)
        with pytest.raises(KubeError):
            await there.delete(kinds.POD, name, "default")


def passes_every_path_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SERVED", re.compile(".*"))
    monkeypatch.setattr(reading, "PLAIN", re.compile(".*", re.DOTALL))


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/logs/kube-apiserver.log",
        "/debug/pprof/heap",
        "//api/v1/namespaces/kube-system/secrets/theirs",
        "/./api/v1/namespaces/kube-system/secrets/theirs",
        "/clusters/other/api/v1/namespaces/kube-system/secrets/theirs",
        "/api/v1/namespaces/default/pods/%2e%2e",
        "/api/v1/namespaces/default/pods/train?watch=true",
    ],
)
@proven(without=passes_every_path_on)
async def test_f743_a_path_that_names_no_object_of_a_gang_is_not_asked_for_with_the_hubs_credential(path: str) -> None:
    """F743: a user of the hub asks for metrics, logs or profiles of a member's API server, or for an object by a path
    that is no route here and may be one there. Holds: the member is not asked; what it serves is told."""
    asked: list[str] = []

    class Sends:
        async def send(self, request: Request, *, timeout: float | None = None) -> Response:
            asked.append(request.path)
            return Response(200, {}, b'{"kind":"APIVersions"}')

    member = SimpleNamespace(client=SimpleNamespace(transport=Sends(), timeout=1.0), name="a")
    members = SimpleNamespace(origin="hub", usable=lambda name: member, trouble=lambda name: "")
    reads = MemberReading(members)  # type: ignore[arg-type]
    route = routes.parse(Request(method="GET", path=path))
    wanted = route and reading.MemberObject(route.group, route.plural, route.namespace, route.name, route.subresource)
    found = await reads.read("a", Request(method="GET", path=path), wanted)
    assert isinstance(found, Response) and (found.status, asked) == (403, [])
    for served in ("/version", "/api", "/apis/ray.io/v1", "/openapi/v3/apis/ray.io/v1"):
        assert (await reads.read("a", Request(method="GET", path=served), None)).status == 200  # type: ignore[union-attr]


async def _whole(client: Client, pod: str) -> bytes:
    return b"".join([chunk async for chunk in client.logs(pod, "default")])


def takes_no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def taken(self: MemberLogs) -> None:
        return None

    monkeypatch.setattr(MemberLogs, "taken", taken)


@proven(without=takes_no_logs)
async def test_f732_the_copy_of_a_job_that_has_ended_stays_until_the_hub_has_its_log(tmp_path: Path) -> None:
    """F732: a job ends in its member, and its log is long. Holds: its copy is not removed while the log is being read;
    afterwards the hub has it, though nothing of the job is in the member any more."""
    may_end = asyncio.Event()

    class Slow(Told):
        async def log(self, pod: Any, options: Any) -> Any:
            await may_end.wait()
            return await super().log(pod, options)

    async with town("a", hub_decides=False) as t:
        t.members["a"].server.set_log_source(Slow().log)
        t.start_choosing_hub(history=HistoryStore(f"sqlite:///{tmp_path}/history"))
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 1))
        (pod,) = await pods_of(t.members["a"], "train", 1)
        await run(t.members["a"], pod)
        await complete(t.members["a"], "train", 1)
        ended = {"name": "main", "state": {"terminated": {"startedAt": NOW, "finishedAt": NOW, "exitCode": 0}}}
        status = {"phase": "Succeeded", "containerStatuses": [ended]}
        name = pod["metadata"]["name"]
        await t.members["a"].client.patch(kinds.POD, name, "default", {"status": status}, subresource="status")
        await t.hub.until(kinds.WORKLOAD, name_of(made), is_true("Finished"))
        await t.members["a"].settled(100)
        assert await t.where(kinds.JOB, "train") == ["a"]
        may_end.set()
        await t.members["a"].until_gone(kinds.JOB, "train")
        assert t.logs is not None
        (kept,) = await t.logs.read(LogQuery(namespace="default", name="train", kind="Job", gang_uid=""))
        assert kept.text == f"hello from {name}\n".encode()
