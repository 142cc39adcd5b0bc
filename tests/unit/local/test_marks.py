"""Marks on pods that any user may write: they bind a pod to a gang only where its owners lead there."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api import gang as marks
from shoal.api.kinds import CONFIG_MAP, JOB, NAMESPACE, NODE, POD, PRIORITY_CLASS
from shoal.api.meta import Json
from shoal.local.scheduler import charges, families, groups, scheduler
from shoal.local.scheduler.judging import Judging
from shoal.local.scheduler.lineage import Lineage
from tests.faults import proven
from tests.unit.local.parts import Cluster

STOLEN = {marks.GANG_UID: "g", marks.GANG_SIZE: "2"}


def believed(pod: Json) -> str:
    uid = (pod["metadata"].get("annotations") or {}).get(marks.GANG_UID)
    return f"gang/{uid}" if uid else ""


def every_mark_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (groups, scheduler, families):
        monkeypatch.setattr(module, "group_key", believed)
    monkeypatch.setattr(charges, "is_of_gang", lambda pod: bool(believed(pod)))
    monkeypatch.setattr(Lineage, "vetted", lambda self, pod: pod)
    monkeypatch.setattr(Judging, "is_due", lambda self, key, pod: False)


async def reference(cluster: Cluster, kind: str) -> Json:
    """An owner that exists, and of no gang."""
    if kind == "ConfigMap":
        made = await cluster.client.create(CONFIG_MAP, {"metadata": {"name": "mine"}}, "default")
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": "mine", "uid": made["metadata"]["uid"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}
    body = {"metadata": {"name": "mine"}, "spec": {"suspend": True, "template": template}}
    made = await cluster.client.create(JOB, body, "default")
    return {"apiVersion": "batch/v1", "kind": "Job", "name": "mine", "uid": made["metadata"]["uid"]}


@pytest.mark.parametrize("stranger", ["elsewhere", "without an owner", "ConfigMap", "Job", "no such owner"])
@proven(without=every_mark_counts)
async def test_f205_a_strangers_mark_holds_up_no_gang(cluster: Cluster, stranger: str) -> None:
    """F205: a pod of another user carries the UID of a gang: in another namespace, without an owner, or with one that
    does not lead to that gang. Holds: the gang starts when its own pods fit, and the stranger counts by itself."""
    more: dict[str, Any] = {}
    if stranger == "elsewhere":
        await cluster.client.create(NAMESPACE, {"metadata": {"name": "red"}})
        gang = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "g", "uid": "g"}
        more = {"namespace": "red", "owner": gang}
    elif stranger == "no such owner":
        more = {"owner": {"apiVersion": "batch/v1", "kind": "Job", "name": "gone", "uid": "g"}}
    elif stranger != "without an owner":
        more = {"owner": await reference(cluster, stranger)}
    await cluster.nodes("2")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("stranger", cpu="8", annotations=STOLEN, **more)
    for name in "ab":
        await cluster.pod(name, gang=("g", 2))
    assert {await cluster.bound(name) for name in "ab"} == {"node-0"}
    left = await cluster.client.get(POD, "stranger", more.get("namespace", "default"))
    assert not left["spec"].get("nodeName")


@pytest.mark.parametrize("owned", [False, True])
@proven(without=every_mark_counts)
async def test_f205_a_mark_shields_no_pod_from_preemption(cluster: Cluster, owned: bool) -> None:
    """F205: a pod of low priority calls itself part of a gang. Holds: a pod of higher priority takes its place as it
    would any other's."""
    for name, value in (("low", 1), ("high", 10)):
        await cluster.client.create(PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
    await cluster.nodes("1")
    await cluster.begin(cluster.scheduler, cluster.agent)
    more: dict[str, Any] = {"owner": await reference(cluster, "ConfigMap")} if owned else {}
    await cluster.pod("shielded", annotations={**STOLEN, marks.GANG_SIZE: "1"}, priorityClassName="low", **more)
    await cluster.bound("shielded")
    await cluster.pod("urgent", priorityClassName="high")
    assert await cluster.bound("urgent") == "node-0"


@proven(without=every_mark_counts)
async def test_f205_a_workloads_name_lets_no_stranger_go_first(cluster: Cluster) -> None:
    """F205: a pod names the Workload of another job, of which pods run. Holds: it waits its turn; the job's own missing
    pod goes before it."""
    job = await cluster.workload("train")
    await cluster.nodes("1")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("train-0", **job)
    await cluster.bound("train-0")
    await cluster.pod("stranger", annotations=job["annotations"])
    await cluster.waits("stranger", "Insufficient cpu")
    await cluster.pod("train-1", **job)
    await cluster.waits("train-1", "Insufficient cpu")
    await cluster.client.patch(NODE, "node-0", None, {"status": {"allocatable": {"cpu": "2"}}}, subresource="status")
    assert await cluster.bound("train-1") == "node-0"
    assert not (await cluster.where())["stranger"]


async def test_pods_with_the_same_mark_and_no_owner_still_start_together(cluster: Cluster) -> None:
    """They are a gang of their own, within their namespace."""
    await cluster.nodes("2")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("a", annotations=STOLEN)
    await cluster.waits("a", "waiting for 1 more")
    await cluster.pod("b", annotations=STOLEN)
    assert {await cluster.bound(name) for name in "ab"} == {"node-0"}


async def test_a_pod_whose_owners_lead_to_its_gang_belongs_to_it(cluster: Cluster) -> None:
    """Pod, Job, AppWrapper: as an AppWrapper that wraps a Job has it."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}
    wrapper = {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": "AppWrapper", "name": "w", "uid": "g"}
    body = {
        "metadata": {"name": "inner", "ownerReferences": [{**wrapper, "controller": True}]},
        "spec": {"suspend": True, "template": template},
    }
    job = await cluster.client.create(JOB, body, "default")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "inner", "uid": job["metadata"]["uid"]}
    await cluster.nodes("2")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("a", gang=("g", 2), owner=owner)
    await cluster.waits("a", "waiting for 1 more")
    await cluster.pod("b", gang=("g", 2), owner=owner)
    assert {await cluster.bound(name) for name in "ab"} == {"node-0"}
