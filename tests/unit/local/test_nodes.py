"""Nodes that are declared again otherwise, and pods that do not fit on theirs."""

from __future__ import annotations

from typing import Any

from shoal.api.kinds import NODE, POD
from shoal.api.meta import Json
from shoal.local.nodes.agent import Agent, NodeKeeper, NodeShape
from tests.unit.local.parts import Cluster, phase

TAINT = {"key": "kind", "value": "gpu", "effect": "NoSchedule"}


async def declare(cluster: Cluster, **shape: Any) -> Json:
    """The node as a later start leaves it."""
    keeper = NodeKeeper(cluster.client, "test", "127.0.0.1", cluster.clock)
    size = {"cpu": "4", "memory": "8Gi"}
    await keeper.register([NodeShape(name="one", **{"capacity": size, "runtime": "simulated", **shape})])
    return await cluster.client.get(NODE, "one")


async def test_a_node_becomes_what_the_next_start_declares(cluster: Cluster) -> None:
    await declare(
        cluster,
        capacity={"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"},
        labels={"a": "1", "b": "2"},
        taints=(TAINT, {"key": "old", "effect": "NoExecute"}),
    )
    node = await declare(
        cluster,
        capacity={"cpu": "6", "memory": "8Gi"},
        labels={"b": "3", "c": "4"},
        taints=({**TAINT, "value": "cpu"},),
    )
    labels = node["metadata"]["labels"]
    assert ("a" in labels, labels["b"], labels["c"]) == (False, "3", "4")
    assert node["spec"]["taints"] == [{**TAINT, "value": "cpu"}]
    for part in ("capacity", "allocatable"):
        assert (node["status"][part]["cpu"], "nvidia.com/gpu" in node["status"][part]) == ("6", False)


async def test_what_a_user_changed_by_hand_stays_until_something_else_is_declared(cluster: Cluster) -> None:
    await declare(cluster, labels={"zone": "a"}, taints=(TAINT,))
    by_hand = {"key": "mine", "effect": "NoSchedule"}
    change = {"metadata": {"labels": {"zone": "b", "extra": "x"}}, "spec": {"taints": [by_hand], "unschedulable": True}}
    await cluster.client.patch(NODE, "one", None, change)
    added = {"status": {"capacity": {"example.com/dongle": "4"}, "allocatable": {"example.com/dongle": "4"}}}
    await cluster.client.patch(NODE, "one", None, added, subresource="status")

    node = await declare(cluster, labels={"zone": "a"}, taints=(TAINT,))
    assert (node["metadata"]["labels"]["zone"], node["metadata"]["labels"]["extra"]) == ("b", "x")
    assert node["spec"]["taints"] == [by_hand] and node["spec"]["unschedulable"]
    assert node["status"]["capacity"]["example.com/dongle"] == "4"

    node = await declare(cluster, labels={"zone": "c"}, taints=(TAINT, {"key": "new", "effect": "NoSchedule"}))
    assert (node["metadata"]["labels"]["zone"], node["metadata"]["labels"]["extra"]) == ("c", "x")
    assert node["spec"]["taints"] == [by_hand, {"key": "new", "effect": "NoSchedule"}]


async def test_a_node_that_comes_back_smaller_keeps_its_oldest_pods(cluster: Cluster) -> None:
    await cluster.node("one")
    await cluster.begin(cluster.agent, cluster.scheduler)
    for name in ("first", "second", "third"):
        await cluster.pod(name)
        await cluster.see(POD, name, "default", phase("Running"))
    await cluster.end()
    await declare(cluster, capacity={"cpu": "2", "memory": "8Gi"})
    keeper = NodeKeeper(cluster.client, "test", "127.0.0.1", cluster.clock)
    await keeper.register([NodeShape(name="one", capacity={"cpu": "2", "memory": "8Gi"}, runtime="simulated")])
    await cluster.begin(Agent(cluster.client, "test", {"simulated": cluster.runtime}, keeper))
    found = await cluster.see(POD, "third", "default", phase("Failed"))
    assert found["status"]["reason"] == "OutOfcpu"
    assert found["status"]["message"] == (
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 2000, capacity: 2000"
    )
    for name in ("first", "second"):
        assert (await cluster.client.get(POD, name, "default"))["status"]["phase"] == "Running"


async def test_a_pod_bound_past_the_scheduler_fails_where_there_is_no_room(cluster: Cluster) -> None:
    """And the room of one that ended, or is gone, is there for the next at once."""
    await cluster.node("one")
    await cluster.begin(cluster.agent)
    ends = {"simulation.shoal.dev/run-seconds": "0.1"}
    await cluster.pod("large", cpu="3", nodeName="one", annotations=ends)
    await cluster.pod("too-much", cpu="3", nodeName="one")
    refused = await cluster.see(POD, "too-much", "default", phase("Failed"))
    assert refused["status"]["reason"] == "OutOfcpu"
    await cluster.see(POD, "large", "default", phase("Succeeded"))
    await cluster.pod("fits", cpu="4", nodeName="one")
    await cluster.see(POD, "fits", "default", phase("Running"))
    await cluster.client.delete(POD, "fits", "default", grace_seconds=0)
    await cluster.pod("fits-again", cpu="4", nodeName="one")
    await cluster.see(POD, "fits-again", "default", phase("Running"))


def conditions(node: Json) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["lastTransitionTime"]) for one in node["status"]["conditions"]}


async def test_a_node_that_the_cluster_has_given_up_is_back_when_its_agent_is(cluster: Cluster) -> None:
    """The machine slept longer than its lease; the node controller says Unknown, and only the agent can say more."""
    await cluster.nodes("4")
    await cluster.begin(cluster.agent)
    given_up = [
        {"type": kind, "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("Ready", "MemoryPressure")
    ]
    body = {"status": {"conditions": given_up}}
    before = await cluster.client.get(NODE, "node-0")
    await cluster.client.patch(NODE, "node-0", None, body, subresource="status", patch_type="strategic")
    await cluster.client.patch(NODE, "node-0", None, {"metadata": {"labels": {"a": "b"}}})  # told twice
    node = await cluster.see(NODE, "node-0", None, lambda node: conditions(node)["Ready"][0] == "True")
    await cluster.keeper.restate("node-0")  # and asked once more: there is nothing left to say
    assert await cluster.client.get(NODE, "node-0") == node
    assert conditions(node)["MemoryPressure"][0] == "False"
    assert conditions(node)["DiskPressure"] == conditions(before)["DiskPressure"]  # never was anything else


async def test_an_agent_that_goes_says_that_its_nodes_take_no_pods(cluster: Cluster) -> None:
    await cluster.nodes("4")
    before = conditions(await cluster.client.get(NODE, "node-0"))
    await cluster.keeper.restate("node-0", "the node agent has stopped")
    after = conditions(await cluster.client.get(NODE, "node-0"))
    assert after.pop("Ready")[0] == "False" and before.pop("Ready")[0] == "True" and after == before
    await cluster.keeper.restate("nobody", "the node agent has stopped")  # removed meanwhile: nothing to say
    await cluster.nodes("4")
    assert conditions(await cluster.client.get(NODE, "node-0"))["Ready"][0] == "True"
