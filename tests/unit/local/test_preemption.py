"""Pods of higher priority take the place of those of lower, as with kube-scheduler; gangs neither take nor give."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api.kinds import EVENT, POD, PRIORITY_CLASS
from shoal.kube.errors import NotFound, Unknown
from shoal.local.scheduler import scheduler as scheduling
from tests.unit.local.parts import Cluster


async def classes(cluster: Cluster, **values: int) -> None:
    """Pods of the class called polite take no other pod's place."""
    for name, value in values.items():
        body = {"apiVersion": PRIORITY_CLASS.api_version, "kind": "PriorityClass", "metadata": {"name": name}}
        policy = {"preemptionPolicy": "Never"} if name == "polite" else {}
        await cluster.client.create(PRIORITY_CLASS, {**body, "value": value, **policy})


async def is_gone(cluster: Cluster, name: str) -> bool:
    try:
        await cluster.client.get(POD, name, "default")
    except NotFound:
        return True
    return False


async def test_the_least_important_pod_goes_and_says_why(cluster: Cluster) -> None:
    await classes(cluster, low=1, middle=5, high=10)
    await cluster.nodes("2", "2")
    await cluster.begin(cluster.scheduler, cluster.agent)
    for name, rank in (("a", "low"), ("b", "middle"), ("c", "middle"), ("d", "middle")):
        await cluster.pod(name, priorityClassName=rank)
        await cluster.bound(name)
    place = (await cluster.where())["a"]
    await cluster.client.patch(POD, "a", "default", {"metadata": {"finalizers": ["example.com/held"]}})
    await cluster.pod("urgent", priorityClassName="high")
    leaving = await cluster.see(POD, "a", "default", lambda pod: "deletionTimestamp" in pod["metadata"])
    (why,) = [one for one in leaving["status"]["conditions"] if one["type"] == "DisruptionTarget"]
    assert (why["status"], why["reason"]) == ("True", "PreemptionByScheduler")
    waiting = await cluster.client.get(POD, "urgent", "default")
    assert waiting["status"]["nominatedNodeName"] == place
    await cluster.client.patch(POD, "a", "default", {"metadata": {"finalizers": None}})
    assert await cluster.bound("urgent") == place
    await cluster.until(lambda: is_gone(cluster, "a"))
    assert {name for name, node in (await cluster.where()).items() if node} == {"b", "c", "d", "urgent"}
    events = await cluster.client.list(EVENT, "default")
    (said,) = [event for event in events if event["reason"] == "Preempted"]
    assert said["involvedObject"]["name"] == "a" and said["message"].endswith(f"on node {place}")


async def test_only_as_many_go_as_must_and_their_place_is_kept(cluster: Cluster) -> None:
    """Small pods of low priority wait too: what becomes free is not theirs."""
    await classes(cluster, low=1, high=10)
    await cluster.nodes("4")
    await cluster.begin(cluster.scheduler, cluster.agent)
    for name in "abcd":
        await cluster.pod(name, priorityClassName="low")
        await cluster.bound(name)
    for name in "xyz":
        await cluster.pod(name, priorityClassName="low")
        await cluster.waits(name, "Insufficient cpu")
    await cluster.pod("urgent", cpu="2", priorityClassName="high")
    assert await cluster.bound("urgent") == "node-0"
    bound = {name for name, node in (await cluster.where()).items() if node}
    assert len(bound & set("abcd")) == 2 and not bound & set("xyz")


async def test_no_pod_goes_for_one_that_would_not_fit_or_does_not_want_it(cluster: Cluster) -> None:
    await classes(cluster, low=1, high=10, polite=20)
    await cluster.nodes("2")
    await cluster.begin(cluster.scheduler, cluster.agent)
    await cluster.pod("a", cpu="2", priorityClassName="low")
    await cluster.bound("a")
    await cluster.pod("huge", cpu="3", priorityClassName="high")
    await cluster.waits("huge", "Insufficient cpu")
    await cluster.pod("polite", cpu="2", priorityClassName="polite")
    await cluster.waits("polite", "Insufficient cpu")
    await cluster.pod("equal", cpu="2", priorityClassName="low")
    await cluster.waits("equal", "Insufficient cpu")
    assert (await cluster.where())["a"] == "node-0"


async def test_gangs_neither_take_nor_give(cluster: Cluster) -> None:
    await classes(cluster, low=1, high=10)
    await cluster.nodes("2", "1")
    await cluster.begin(cluster.scheduler, cluster.agent)
    for name in "ab":
        await cluster.pod(
            name, gang=("g", 2), priorityClassName="low", nodeSelector={"kubernetes.io/hostname": "node-0"}
        )
    for name in "ab":
        await cluster.bound(name)
    await cluster.pod("single", priorityClassName="low")
    await cluster.bound("single")
    for name in "cd":
        await cluster.pod(name, gang=("h", 2), priorityClassName="high")
    await cluster.waits("c", "start together or not at all")
    await cluster.pod("urgent", cpu="2", priorityClassName="high")
    await cluster.waits("urgent", "Insufficient cpu")
    where = await cluster.where()
    assert [where[name] for name in ("a", "b", "single")] == ["node-0", "node-0", "node-1"]


async def test_room_is_made_again_when_the_server_refused_at_first(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else happens that would make the scheduler look at the pod again."""
    await classes(cluster, low=1, high=10)
    await cluster.nodes("1")
    await cluster.begin(cluster.scheduler, cluster.agent)
    await cluster.pod("a", priorityClassName="low")
    await cluster.bound("a")
    delete, refused = cluster.client.delete, []

    async def delete_at_last(*arguments: Any, **more: Any) -> Any:
        if not refused:
            refused.append(arguments)
            raise Unknown("the server is tired")
        return await delete(*arguments, **more)

    monkeypatch.setattr(scheduling, "AGAIN", 0.05)
    monkeypatch.setattr(cluster.client, "delete", delete_at_last)
    await cluster.pod("urgent", priorityClassName="high")
    assert await cluster.bound("urgent") == "node-0" and len(refused) == 1
