"""Jobs that ask for a topology: placed with their quota, gated until they are sent to their nodes."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.labels import KUEUE_IN_USE
from shoal.api.meta import Json
from shoal.cli.cluster import judges
from shoal.controllers.queues import facts, topology_gates, workloads
from shoal.kube.errors import Forbidden, Invalid
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import (
    KIND_OF,
    cluster_queue,
    flavor,
    job,
    local_queue,
    make,
    name_of,
    pods_of,
    provisioning_check,
    provisioning_config,
    ray_job,
    said,
    true,
)
from tests.unit.queues.conftest import decide

RACK, HOST = "example.com/rack", "kubernetes.io/hostname"
GATE = "kueue.x-k8s.io/topology"
REQUIRED = "kueue.x-k8s.io/podset-required-topology"
KIND_OF.setdefault("Topology", kinds.TOPOLOGY)


def topology(name: str = "racks", *levels: str) -> Json:
    listed = [{"nodeLabel": level} for level in levels or (RACK, HOST)]
    version = "kueue.x-k8s.io/v1beta2"
    return {"apiVersion": version, "kind": "Topology", "metadata": {"name": name}, "spec": {"levels": listed}}


def asking(made: Json, **annotations: str) -> Json:
    """The Job with topology annotations: `required=RACK`."""
    named = {f"kueue.x-k8s.io/podset-{name.replace('_', '-')}-topology": value for name, value in annotations.items()}
    made["spec"]["template"]["metadata"] = {"annotations": named}
    return made


def places(workload: Json, pod_set: int = 0) -> dict[str, int]:
    """Node to pods, as the Workload's status has them."""
    given = workload["status"]["admission"]["podSetAssignments"][pod_set]["topologyAssignment"]
    found: dict[str, int] = {}
    for part in given["slices"]:
        level, counts = part["valuesPerLevel"][-1], part["podCounts"]
        individual = level.get("individual") or {}
        for index in range(part["domainCount"]):
            name = level.get("universal") or "".join(
                (individual.get("prefix", ""), individual["roots"][index], individual.get("suffix", ""))
            )
            found[name] = counts.get("universal") or counts["individual"][index]
    return found


@pytest.fixture
async def racks(quiet: Cluster) -> Cluster:
    """Two racks of two nodes with two cores each, beside a node without a rack."""
    for rack, names in (("a", ("a1", "a2")), ("b", ("b1", "b2"))):
        for name in names:
            await quiet.add_node(name, labels={RACK: rack, HOST: name, "pool": "gpu"}, cpu="2", memory="8Gi")
    decide(quiet)
    queue = cluster_queue(quota={"cpu": "16"})
    await make(quiet, topology(), flavor(nodeLabels={"pool": "gpu"}, topologyName="racks"), queue, local_queue())
    return quiet


def without_a_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(workloads, "KUEUE_TOPOLOGY_GATE", "example.com/other")


@proven(without=without_a_gate)
async def test_f262_pods_wait_for_their_place_in_the_rack_and_go_there(racks: Cluster) -> None:
    """F262: pods of a gang with places in a topology come up and a scheduler takes any node. Holds: they are gated
    until each is sent to a node of the placement, as many to each as it says."""
    (made,) = await make(racks, asking(job("train", 3, cpu="1"), required=RACK))
    workload = await racks.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    assert workload["spec"]["podSets"][0]["topologyRequest"]["required"] == RACK
    assert places(workload) == {"a1": 2, "a2": 1}
    started = await racks.until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
    assert {"name": GATE} in started["spec"]["template"]["spec"]["schedulingGates"]
    for pod in await pods_of(racks, "train", 3):
        sent = await racks.until(kinds.POD, pod["metadata"]["name"], lambda one: not one["spec"].get("schedulingGates"))
        assert sent["spec"]["nodeSelector"][HOST] in ("a1", "a2")
    where = sorted(one["spec"]["nodeSelector"][HOST] for one in await pods_of(racks, "train", 3))
    assert where == ["a1", "a1", "a2"]


async def test_the_next_job_gets_the_other_rack_and_a_third_waits_for_one(racks: Cluster) -> None:
    taken = []
    for name in ("one", "two"):
        (made,) = await make(racks, asking(job(name, 4, cpu="1"), required=RACK))
        taken.append(places(await racks.until(kinds.WORKLOAD, name_of(made), true("Admitted"))))
    (third,) = await make(racks, asking(job("three", 4, cpu="1"), required=RACK))
    assert sorted(map(sorted, taken)) == [["a1", "a2"], ["b1", "b2"]]
    waiting = await racks.until(kinds.WORKLOAD, name_of(third), lambda one: said(one, "QuotaReserved")[0] == "False")
    assert 'topology "racks" doesn\'t allow to fit any of 4 pod(s)' in said(waiting, "QuotaReserved")[2]
    await racks.client.delete(kinds.JOB, "one", "default")
    workload = await racks.until(kinds.WORKLOAD, name_of(third), true("Admitted"))
    assert places(workload) == taken[0]


async def test_a_small_job_behind_one_without_a_place_starts(racks: Cluster) -> None:
    (large,) = await make(racks, asking(job("large", 5, cpu="1"), required=RACK))
    await racks.until(kinds.WORKLOAD, name_of(large), lambda one: said(one, "QuotaReserved")[1] != "")
    (small,) = await make(racks, asking(job("small", 2, cpu="1"), required=RACK))
    assert places(await racks.until(kinds.WORKLOAD, name_of(small), true("Admitted"))) == {"a1": 2}


async def test_a_job_that_says_nothing_is_placed_where_all_flavors_have_a_topology(racks: Cluster) -> None:
    (made,) = await make(racks, job("plain", 2, cpu="1"))
    assert places(await racks.until(kinds.WORKLOAD, name_of(made), true("Admitted"))) == {"a1": 2}
    started = await racks.until(kinds.JOB, "plain", lambda one: one["spec"]["suspend"] is False)
    annotations = started["spec"]["template"]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"


async def test_a_new_node_lets_a_waiting_job_start(racks: Cluster) -> None:
    (made,) = await make(racks, asking(job("large", 5, cpu="1"), required=RACK))
    await racks.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "QuotaReserved")[0] == "False")
    await racks.add_node("a3", labels={RACK: "a", HOST: "a3", "pool": "gpu"}, cpu="2", memory="8Gi")
    workload = await racks.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    assert sorted(places(workload)) == ["a1", "a2", "a3"]


async def test_a_ray_cluster_keeps_head_and_workers_in_one_rack(racks: Cluster) -> None:
    made = ray_job("ray", 2, cpu="1")
    made["spec"]["submissionMode"] = "HTTPMode"
    together = {REQUIRED: RACK, "kueue.x-k8s.io/podset-group-name": "ray"}
    groups = made["spec"]["rayClusterSpec"]
    for holder in (groups["headGroupSpec"], *groups["workerGroupSpecs"]):
        holder["template"]["metadata"] = {"annotations": together}
    (made,) = await make(racks, made)
    workload = await racks.until(kinds.WORKLOAD, name_of(made, "RayJob", "ray.io"), true("Admitted"))
    assert {name[0] for index in (0, 1) for name in places(workload, index)} == {"a"}


async def test_a_flavor_without_its_topology_makes_the_queue_inactive_until_it_comes(quiet: Cluster) -> None:
    await quiet.add_node("a1", labels={RACK: "a", HOST: "a1", "pool": "gpu"}, cpu="2", memory="8Gi")
    decide(quiet)
    own = flavor(nodeLabels={"pool": "gpu"}, topologyName="racks")
    await make(quiet, own, cluster_queue(quota={"cpu": "16"}), local_queue())
    queue = await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: said(one, "Active")[0] == "False")
    assert said(queue, "Active")[1] == "TopologyNotFound"
    assert 'there is no Topology "racks" for TAS flavor "default-flavor"' in said(queue, "Active")[2]
    await make(quiet, topology())
    await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", true("Active"))
    (made,) = await make(quiet, job("train", 1, cpu="1"))
    assert places(await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))) == {"a1": 1}


async def test_annotations_that_contradict_each_other_are_refused_with_their_field(quiet: Cluster) -> None:
    quiet.server.admission.judges.update(judges(quiet.client))
    with pytest.raises(Forbidden, match=r"spec\.template\.metadata\.annotations: must not contain more than one"):
        await make(quiet, asking(job("odd", 2), required=RACK, preferred=RACK))


async def test_the_pods_of_a_node_that_is_gone_get_another_in_their_rack(racks: Cluster) -> None:
    await racks.add_node("a3", labels={RACK: "a", HOST: "a3", "pool": "gpu"}, cpu="2", memory="8Gi")
    (made,) = await make(racks, asking(job("train", 4, cpu="1"), required=RACK))
    workload = await racks.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    assert set(places(workload)) <= {"b1", "b2"}
    await racks.client.delete(kinds.NODE, "b1")
    gone = await racks.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "Evicted")[0] == "True")
    assert said(gone, "Evicted")[1:] == (
        "NodeFailures",
        "Workload was evicted as there was no replacement for unhealthy node(s): b1",
    )
    again = await racks.until(kinds.WORKLOAD, name_of(made), lambda one: said(one, "Evicted")[0] == "False")
    assert set(places(again)) <= {"a1", "a2", "a3"}
    victim = sorted(places(again))[0]
    await racks.client.delete(kinds.NODE, victim)
    moved = await racks.until(
        kinds.WORKLOAD, name_of(made), lambda one: true("Admitted")(one) and victim not in places(one)
    )
    assert set(places(moved)) == {"a1", "a2", "a3"} - {victim}
    assert not moved["status"].get("unhealthyNodes")


async def taint(cluster: Cluster, node: str, effect: str) -> None:
    await cluster.client.patch(kinds.NODE, node, None, {"spec": {"taints": [{"key": "reserved", "effect": effect}]}})


@pytest.mark.parametrize("fails", ["NotReady", "NoSchedule", "NoExecute"])
async def test_a_node_that_fails_before_pods_are_there_is_replaced(racks: Cluster, fails: str) -> None:
    (made,) = await make(racks, asking(job("train", 1, cpu="1"), required=HOST))
    (host,) = places(await racks.until(kinds.WORKLOAD, name_of(made), true("Admitted")))
    if fails == "NotReady":
        conditions = [{"type": "Ready", "status": "False"}]
        await racks.client.patch(kinds.NODE, host, None, {"status": {"conditions": conditions}}, subresource="status")
    else:
        await taint(racks, host, fails)
    moved = await racks.until(
        kinds.WORKLOAD, name_of(made), lambda one: true("Admitted")(one) and host not in places(one)
    )
    assert not moved["status"].get("unhealthyNodes")


def kept_where_they_were_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topology_gates, "strays", lambda placement, pods: [])


@proven(without=kept_where_they_were_sent)
async def test_f773_pods_of_a_drained_node_come_up_on_another(racks: Cluster) -> None:
    """F773: a node is cordoned, and pods of a gang with places in a topology were sent there and have no node yet.
    Holds: the node is replaced, as one with a taint is, and the pods are made again and sent to the other."""
    (made,) = await make(racks, asking(job("train", 1, cpu="1"), required=HOST))
    (host,) = places(await racks.until(kinds.WORKLOAD, name_of(made), true("Admitted")))
    (pod,) = await pods_of(racks, "train", 1)
    first = pod["metadata"]["name"]
    await racks.until(kinds.POD, first, lambda one: not one["spec"].get("schedulingGates"))
    await racks.client.patch(kinds.NODE, host, None, {"spec": {"unschedulable": True}})
    moved = await racks.until(
        kinds.WORKLOAD, name_of(made), lambda one: true("Admitted")(one) and host not in places(one)
    )
    await racks.until_gone(kinds.POD, first)
    await racks.settled()
    (again,) = await pods_of(racks, "train", 1)
    sent = await racks.until(kinds.POD, again["metadata"]["name"], lambda one: not one["spec"].get("schedulingGates"))
    assert {sent["spec"]["nodeSelector"][HOST]: 1} == places(moved)


def without_what_checks_add(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(facts, "with_updates", lambda gang, workload: gang)


@proven(without=without_what_checks_add)
async def test_f776_places_are_among_the_nodes_that_a_check_brought(quiet: Cluster) -> None:
    """F776: a provisioning check answers with the label of the nodes that it brought, and other nodes of the flavor
    are free, too. Holds: the places in the topology are on those nodes, where the pods may run."""
    decide(quiet)
    update = {"nodeSelector": [{"key": "brought", "valueFromProvisioningClassDetail": "group"}]}
    config = provisioning_config(podSetUpdates=update)
    own = flavor(nodeLabels={"pool": "gpu"}, topologyName="racks")
    queue = cluster_queue(quota={"cpu": "16"}, checks=["nodes"])
    await make(quiet, topology(), own, provisioning_check(), config, queue, local_queue())
    (made,) = await make(quiet, asking(job("train", 1, cpu="1"), required=HOST))
    request = f"{name_of(made)}-nodes-1"
    await quiet.until(kinds.PROVISIONING_REQUEST, request, lambda one: True)
    for name, group, cpu in (("a1", "theirs", "1"), ("b1", "ours", "2")):
        labels = {RACK: name, HOST: name, "pool": "gpu", "brought": group}
        await quiet.add_node(name, labels=labels, cpu=cpu, memory="8Gi")
    there = {"type": "Provisioned", "status": "True", "reason": "Provisioned", "message": ""}
    status = {
        "conditions": [{**there, "lastTransitionTime": "2030-01-01T00:00:00Z"}],
        "provisioningClassDetails": {"group": "ours"},
    }
    await quiet.client.patch(kinds.PROVISIONING_REQUEST, request, "default", {"status": status}, subresource="status")
    workload = await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    assert places(workload) == {"b1": 1}


async def test_a_taint_that_the_flavor_tolerates_is_none(quiet: Cluster) -> None:
    await quiet.add_node("a1", labels={RACK: "a", HOST: "a1", "pool": "gpu"}, cpu="2", memory="8Gi")
    await taint(quiet, "a1", "NoSchedule")
    decide(quiet)
    tolerated = [{"key": "reserved", "operator": "Exists"}]
    own = flavor(nodeLabels={"pool": "gpu"}, topologyName="racks", tolerations=tolerated)
    await make(quiet, topology(), own, cluster_queue(quota={"cpu": "16"}), local_queue())
    (made,) = await make(quiet, job("train", 1, cpu="1"))
    workload = await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await quiet.settled()
    after = await quiet.get(kinds.WORKLOAD, name_of(made))
    assert places(after) == places(workload) == {"a1": 1}
    assert not after["status"].get("unhealthyNodes")


async def test_a_topology_stays_for_as_long_as_a_flavor_names_it(racks: Cluster) -> None:
    await racks.until(kinds.TOPOLOGY, "racks", lambda one: one["metadata"].get("finalizers") == [KUEUE_IN_USE], "")
    await racks.client.delete(kinds.TOPOLOGY, "racks")
    await racks.settled()
    assert (await racks.get(kinds.TOPOLOGY, "racks", ""))["metadata"]["deletionTimestamp"]
    await racks.client.delete(kinds.CLUSTER_QUEUE, "cluster-queue")
    await racks.client.delete(kinds.RESOURCE_FLAVOR, "default-flavor")
    await racks.until_gone(kinds.TOPOLOGY, "racks", "")


@pytest.mark.parametrize("level", ["@odd", "example.com/", "Example.com/rack", "rack/", "-rack"])
async def test_a_level_that_is_no_label_is_refused(quiet: Cluster, level: str) -> None:
    with pytest.raises(Invalid, match="nodeLabel"):
        await make(quiet, topology("racks", level))


async def test_levels_never_change(quiet: Cluster) -> None:
    await make(quiet, topology())
    with pytest.raises(Invalid, match="field is immutable"):
        await quiet.client.patch(kinds.TOPOLOGY, "racks", None, {"spec": topology("racks", HOST)["spec"]})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nodeLabels": {"pool": "other"}}, "nodeLabels are"),
        ({"nodeLabels": {"pool": "gpu", "zone": "a"}}, "nodeLabels are"),
        ({"tolerations": [{"key": "reserved", "operator": "Exists"}]}, "tolerations are"),
        ({"topologyName": None}, "topologyName is"),
    ],
)
async def test_a_flavor_with_a_topology_keeps_what_places_depend_on(racks: Cluster, change: Json, field: str) -> None:
    with pytest.raises(Invalid, match=f"{field} immutable when topologyName is set"):
        await racks.client.patch(kinds.RESOURCE_FLAVOR, "default-flavor", None, {"spec": change})
    taints = [{"key": "reserved", "effect": "NoSchedule"}]
    await racks.client.patch(kinds.RESOURCE_FLAVOR, "default-flavor", None, {"spec": {"nodeTaints": taints}})
