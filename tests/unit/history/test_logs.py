"""Logs that outlive their pods: read in time, bounded, and told to users who may read logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import logs as command
from shoal.cli.logs import _of_gone
from shoal.cli.telling import LogWriter
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.planning.history import log_keeper
from shoal.controllers.planning.history.log_store import LONGEST, KeptLog, LogQuery, LogStore
from shoal.controllers.planning.history.store import HistoryStore
from shoal.controllers.planning.questions.readers import Readers
from shoal.sdk import asking
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE, patiently
from tests.unit.appwrapper.test_rights import as_user, grant
from tests.unit.history.test_recorded import remembering
from tests.unit.questions.test_door import QUESTIONS

__all__ = ["remembering"]
BEGAN = {"startedAt": "2026-01-01T00:00:00Z"}
ENDED = {"state": {"terminated": {**BEGAN, "exitCode": 0, "finishedAt": "2026-01-01T00:01:00Z"}}}
RUNS = {"state": {"running": BEGAN}}


class Pods:
    """What pods say, in place of their kubelets."""

    def __init__(self, cluster: Cluster, **said: bytes) -> None:
        """By pod, with _ for the dash."""
        self._said = {name.replace("_", "-"): text for name, text in said.items()}
        self.go_on = asyncio.Event()
        self.go_on.set()
        cluster.server.set_log_source(self.source)

    async def source(self, pod: Json, options: Any) -> AsyncIterator[bytes]:
        async def lines() -> AsyncIterator[bytes]:
            yield self._said[pod["metadata"]["name"]]
            if options.follow:
                await self.go_on.wait()
                yield b"and its last words\n"

        return lines()


async def a_ray_job(cluster: Cluster, name: str = "train") -> None:
    """A Ray job, its cluster, head and submitter, as their controllers make them."""
    job = await cluster.create(kinds.RAY_JOB, _manifest(kinds.RAY_JOB.kind, name))
    inside = {**_manifest("RayCluster", f"{name}-x"), **_owned("RayJob", job, f"{name}-x")}
    made = await cluster.create(kinds.RAY_CLUSTER, inside)
    submits = {**_owned("RayJob", job, name), "spec": {"template": _TEMPLATE}}
    submitter = await cluster.create(kinds.JOB, {"apiVersion": "batch/v1", "kind": "Job", **submits})
    head = _owned("RayCluster", made, f"{name}-head", **{"ray.io/node-type": "head"})
    labels = submitter["spec"]["selector"]["matchLabels"]
    for pod in (head, _owned("Job", submitter, f"{name}-submit", **labels)):
        await cluster.create(kinds.POD, {**pod, "spec": {**_TEMPLATE["spec"], "nodeName": "node-1"}})


_TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}


def _manifest(kind: str, name: str) -> Json:
    template = {"spec": {"containers": [{"name": "c", "image": "rayproject/ray:2.60.0"}]}}
    spec: Json = {"headGroupSpec": {"rayStartParams": {}, "template": template}}
    whole = {"entrypoint": "true", "rayClusterSpec": spec} if kind == "RayJob" else spec
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": name}, "spec": whole}


def _owned(kind: str, owner: Json, name: str, **labels: str) -> Json:
    named = {one: owner["metadata"][one] for one in ("name", "uid")}
    version = "batch/v1" if kind == "Job" else "ray.io/v1"
    reference = {"apiVersion": version, "kind": kind, **named, "controller": True}
    return {"metadata": {"name": name, "labels": labels, "ownerReferences": [reference]}}


async def tell(cluster: Cluster, pod: str, state: Json) -> None:
    told = {"phase": "Running", "containerStatuses": [{"name": "c", **state}]}
    await cluster.client.patch(kinds.POD, pod, "default", {"status": told}, subresource="status")


async def kept(cluster: Cluster, loop: PlanningLoop, **choice: object) -> list[Json]:
    """Once there is something; the watch tells of pods in its own time."""
    assert loop.logs is not None
    async with patiently(PATIENCE):
        while True:
            await cluster.settled()
            await loop.logs.kept()
            if found := await asking.kept_logs(cluster.client, "default", {"name": "train", **choice}):
                return found


async def test_a_log_is_there_when_its_pods_and_its_job_are_gone(
    remembering: tuple[Cluster, PlanningLoop], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    cluster, loop = remembering
    Pods(cluster, train_submit=b"epoch 1\n", train_head=b"ray begins\n")
    await a_ray_job(cluster)
    await tell(cluster, "train-submit", ENDED)
    await tell(cluster, "train-head", ENDED)
    (head,) = await kept(cluster, loop, role="head")
    (driver,) = await kept(cluster, loop)
    assert (driver["kind"], driver["role"], driver["text"]) == ("RayJob", "submitter", "epoch 1\n")
    assert (head["pod"], head["text"]) == ("train-head", "ray begins\n")
    await cluster.client.delete(kinds.RAY_JOB, "train", "default", propagation="Background")
    await cluster.until_gone(kinds.RAY_JOB, "train")
    assert await _of_gone(cluster.client, "rayjob/train", "default", "", False, LogWriter(terminal=False))
    assert capsysbinary.readouterr().out == b"epoch 1\n"
    assert not await _of_gone(cluster.client, "rayjob/other", "default", "", False, LogWriter(terminal=False))


@proven(without=lambda patch: patch.setattr(log_keeper, "_HAS_RUN", b"never"))
async def test_f420_the_log_of_a_job_that_is_deleted_while_it_runs_is_kept(
    remembering: tuple[Cluster, PlanningLoop],
) -> None:
    """F420: a job is deleted while it runs, its owners are gone before its pods are, and a pod takes its log along.
    Holds: the log is followed from the moment its pod is told to go until its last words, under the job's name."""
    cluster, loop = remembering
    pods = Pods(cluster, train_submit=b"epoch 1\n", train_head=b"ray begins\n")
    pods.go_on.clear()
    await a_ray_job(cluster)
    for pod in ("train-submit", "train-head"):
        patch = {"metadata": {"finalizers": ["tests/kubelet"]}}
        await cluster.client.patch(kinds.POD, pod, "default", patch)
        await tell(cluster, pod, RUNS)
    await cluster.settled()
    await cluster.client.delete(kinds.RAY_JOB, "train", "default", propagation="Background")
    await cluster.until(kinds.POD, "train-submit", lambda pod: bool(pod["metadata"].get("deletionTimestamp")))
    await cluster.until_gone(kinds.RAY_JOB, "train")
    pods.go_on.set()
    (driver,) = await kept(cluster, loop)
    assert driver["text"] == "epoch 1\nand its last words\n"


def _anyone(patch: pytest.MonkeyPatch) -> None:
    async def yes(self: Readers, *given: object) -> bool:
        return True

    patch.setattr(Readers, "may_read", yes)


@proven(without=_anyone)
async def test_f421_kept_logs_are_for_users_who_may_read_logs(remembering: tuple[Cluster, PlanningLoop]) -> None:
    """F421: a user who may ask questions and read gangs, but no pods' logs, asks for the log of a gang that is gone; so
    does one of another namespace. Holds: neither is told a line; a user who may read logs is."""
    cluster, loop = remembering
    Pods(cluster, train_submit=b"a password\n", train_head=b"\n")
    await a_ray_job(cluster)
    await tell(cluster, "train-submit", ENDED)
    assert await kept(cluster, loop)
    await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "red"}})
    await grant(cluster, "ann", "default", QUESTIONS, ("ray.io", "rayjobs"))
    await grant(cluster, "bob", "red", QUESTIONS, ("", "pods/log"))
    await grant(cluster, "cat", "default", QUESTIONS, ("", "pods/log"))
    with pytest.raises(asking.NoAnswer, match="ann may not get pods/log in namespace default"):
        await asking.kept_logs(as_user(cluster, "ann"), "default", {"name": "train"})
    assert await asking.kept_logs(as_user(cluster, "bob"), "red", {"name": "train"}) == []
    (told,) = await asking.kept_logs(as_user(cluster, "cat"), "default", {"name": "train"})
    assert told["text"] == "a password\n"


def _endless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_keeper, "LONGEST", 1 << 40)
    patch.setattr(LogStore, "prune", lambda store, now: 0)


@proven(without=_endless)
async def test_f422_kept_logs_stay_bounded(remembering: tuple[Cluster, PlanningLoop]) -> None:
    """F422: a job prints megabytes, and thousands of jobs end. Holds: of each log the end is kept and how much came
    before is said, and of all of them the newest that fit."""
    cluster, loop = remembering
    Pods(cluster, train_submit=b"x" * (3 * LONGEST) + b"the end\n", train_head=b"\n")
    await a_ray_job(cluster)
    await tell(cluster, "train-submit", ENDED)
    (told,) = await kept(cluster, loop)
    assert told["text"].endswith("the end\n") and len(told["text"]) == LONGEST
    assert told["cut"] == 2 * LONGEST + len("the end\n")
    store = LogStore(HistoryStore(), most_bytes=200, most_logs=5)
    for number in range(20):
        store.write(one_log(number))
    store.prune(10**15)
    left = [number for number in range(20) if store.read(LogQuery(namespace="a", name=f"gang-{number}"))]
    assert left == list(range(15, 20))


def one_log(number: int, text: bytes = b"short") -> KeptLog:
    return KeptLog(
        kind="Job", namespace="a", name=f"gang-{number}", gang_uid=f"uid-{number}", role="", pod=f"pod-{number}",
        pod_uid=f"pod-{number}", container="c", ended_at=10**15 + number, text=text,
    )  # fmt: skip


def test_the_command_says_how_long_logs_are_kept() -> None:
    assert "256 KiB" in str(command.command.help) and LONGEST == 256 << 10
    assert "30 days" in str(command.command.help)
