"""Which node a pod gets, why it gets none, and gangs that are bound whole or not at all."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from shoal.api.kind import Key
from shoal.api.kinds import EVENT, NODE, POD, POD_GROUP, PRIORITY_CLASS
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import KubeError, Unsent
from shoal.kube.transport import Request, Response, Stream
from shoal.local.scheduler import Scheduler
from shoal.local.scheduler.families import Families
from shoal.local.scheduler.groups import Group, order
from shoal.local.seen import TrackedPod
from tests.faults import proven
from tests.unit.local.parts import Cluster, phase, waiting_message

GPU = {"cpu": "8", "memory": "8Gi", "nvidia.com/gpu": "2"}
SPREAD = "kubernetes.io/hostname"


def near(key: str, value: str, field: str) -> Json:
    term = {"labelSelector": {"matchLabels": {key: value}}, "topologyKey": SPREAD}
    return {field: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def on_node(*expressions: Json, fields: list[Json] | None = None) -> Json:
    term: Json = {"matchExpressions": list(expressions)} if expressions else {}
    if fields:
        term["matchFields"] = fields
    terms = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"cpu": "3"}, "large"),
        ({"nodeSelector": {"disk": "fast"}}, "fast"),
        ({"affinity": on_node({"key": "disk", "operator": "In", "values": ["fast", "faster"]})}, "fast"),
        ({"affinity": on_node({"key": "cores", "operator": "Gt", "values": ["3"]})}, "large"),
        ({"affinity": on_node(fields=[{"key": "metadata.name", "operator": "In", "values": ["fast"]}])}, "fast"),
        ({"affinity": near("app", "base", "podAffinity")}, "fast"),
        ({"affinity": near("app", "base", "podAntiAffinity"), "nodeSelector": {"kubernetes.io/os": "linux"}}, "large"),
        (
            {
                "tolerations": [{"key": "only", "operator": "Equal", "value": "me", "effect": "NoSchedule"}],
                "nodeSelector": {"kubernetes.io/hostname": "tainted"},
            },
            "tainted",
        ),
        ({"container": {"ports": [{"containerPort": 80, "hostPort": 8080}]}}, "large"),
    ],
)
async def test_each_predicate_leads_to_the_node_it_should(cluster: Cluster, wanted: Json, expected: str) -> None:
    """`fast` holds a pod with host port 8080, `tainted` only those who tolerate it, `large` most cores."""
    await cluster.node("fast", capacity={"cpu": "2", "memory": "8Gi"}, labels={"disk": "fast", "cores": "2"})
    await cluster.node("large", labels={"cores": "4"})
    taint = {"key": "only", "value": "me", "effect": "NoSchedule"}
    await cluster.node("tainted", taints=(taint,))
    await cluster.begin(cluster.scheduler)
    port = {"ports": [{"containerPort": 80, "hostPort": 8080}]}
    await cluster.pod("base", labels={"app": "base"}, container=port, nodeSelector={"disk": "fast"})
    await cluster.bound("base")
    await cluster.pod("choosy", **wanted)
    assert await cluster.bound("choosy") == expected


async def cordon(cluster: Cluster) -> None:
    await cluster.client.patch(NODE, "one", None, {"spec": {"unschedulable": True}})


async def fill_with_pods(cluster: Cluster) -> None:
    await cluster.client.patch(NODE, "one", None, {"status": {"allocatable": {"pods": "1"}}}, subresource="status")


@pytest.mark.parametrize(
    ("wanted", "before", "said"),
    [
        ({"cpu": "64"}, None, "0/1 nodes are available: 1 Insufficient cpu."),
        ({"gpus": 1}, None, "1 Insufficient nvidia.com/gpu."),
        ({}, fill_with_pods, "1 Too many pods."),
        ({"nodeSelector": {"disk": "fast"}}, None, "1 node(s) didn't match Pod's node affinity/selector."),
        ({"affinity": near("app", "nobody", "podAffinity")}, None, "1 node(s) didn't match pod affinity rules."),
        ({"affinity": near("app", "base", "podAntiAffinity")}, None, "didn't match pod anti-affinity rules."),
        ({}, cordon, "1 node(s) were unschedulable."),
        ({"container": {"ports": [{"containerPort": 80, "hostPort": 8080}]}}, None, "free ports"),
    ],
)
async def test_a_pod_that_no_node_takes_says_why_in_kube_schedulers_words(
    cluster: Cluster, wanted: Json, before: Any, said: str
) -> None:
    await cluster.node("one")
    port = {"ports": [{"containerPort": 80, "hostPort": 8080}]}
    await cluster.pod("base", labels={"app": "base"}, container=port, nodeName="one")
    if before:
        await before(cluster)
    await cluster.begin(cluster.scheduler)
    await cluster.pod("waits", **wanted)
    found = await cluster.waits("waits", "0/1 nodes are available: ")
    assert said in waiting_message(found)
    await cluster.until(lambda: _failed_scheduling(cluster))


async def _failed_scheduling(cluster: Cluster) -> bool:
    return any(event["reason"] == "FailedScheduling" for event in await cluster.client.list(EVENT, "default"))


async def test_a_node_that_is_not_ready_gets_no_pod_until_it_is(cluster: Cluster) -> None:
    await cluster.node("one")
    unwell = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}}
    await cluster.client.patch(NODE, "one", None, unwell, subresource="status", patch_type="strategic")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("waits")
    await cluster.waits("waits", "0/1 nodes are available")
    well = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}}
    await cluster.client.patch(NODE, "one", None, well, subresource="status", patch_type="strategic")
    assert await cluster.bound("waits") == "one"


async def test_devices_are_packed_and_others_kept_off_their_nodes(cluster: Cluster) -> None:
    """One GPU pod opens a node, the next joins it; a pod without GPUs goes where there are none."""
    for name in ("gpu-a", "gpu-b"):
        await cluster.node(name, capacity=GPU)
    await cluster.node("plain", capacity={"cpu": "8", "memory": "8Gi"})
    await cluster.begin(cluster.scheduler)
    await cluster.pod("first", gpus=1)
    opened = await cluster.bound("first")
    await cluster.pod("second", gpus=1)
    await cluster.pod("other")
    assert await cluster.bound("second") == opened
    assert await cluster.bound("other") == "plain"


async def test_a_gated_pod_waits_for_its_gates(cluster: Cluster) -> None:
    await cluster.nodes("4")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("gated", schedulingGates=[{"name": "example.com/later"}])
    await cluster.pod("free")
    await cluster.bound("free")
    assert (await cluster.where())["gated"] is None
    await cluster.client.patch(POD, "gated", "default", {"spec": {"schedulingGates": None}})
    assert await cluster.bound("gated") == "node-0"


async def test_another_schedulers_pod_is_left_alone(cluster: Cluster) -> None:
    await cluster.nodes("4")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("theirs", schedulerName="someone-else")
    await cluster.pod("ours")
    await cluster.bound("ours")
    assert (await cluster.where())["theirs"] is None


async def test_higher_priority_is_bound_first(cluster: Cluster) -> None:
    await cluster.nodes("1")
    await cluster.pod("low")
    await _urgent(cluster, "high")
    await cluster.begin(cluster.scheduler)
    assert await cluster.bound("high") == "node-0"
    await cluster.waits("low", "Insufficient cpu")


# --- gangs


async def test_a_gang_is_bound_whole_or_not_at_all(cluster: Cluster) -> None:
    await cluster.nodes("2")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("a", gang=("g", 3))
    await cluster.waits("a", "waiting for 2 more of the 3 pods")
    await cluster.pod("b", gang=("g", 3))
    await cluster.pod("c", gang=("g", 3))
    found = await cluster.waits("a", "start together or not at all")
    assert waiting_message(found).startswith("0/1 nodes are available: 3 cpu needed, 2 free")
    assert set((await cluster.where()).values()) == {None}
    await cluster.node("more", capacity={"cpu": "1", "memory": "1Gi"})
    assert sorted([await cluster.bound(name) for name in "abc"]) == ["more", "node-0", "node-0"]


async def test_the_first_pods_of_a_gang_wait_for_the_others_without_a_warning(cluster: Cluster) -> None:
    await cluster.nodes("2")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("a", gang=("g", 2))
    waiting = await cluster.waits("a", "waiting for 1 more of the 2 pods")
    assert [one["reason"] for one in waiting["status"]["conditions"] if one["type"] == "PodScheduled"] == [
        "WaitingForGang"
    ]
    await cluster.pod("b", gang=("g", 2))
    await cluster.bound("a")

    async def told() -> bool:
        return len([one for one in await cluster.client.list(EVENT) if one["reason"] == "Scheduled"]) == 2

    await cluster.until(told)
    assert {one["type"] for one in await cluster.client.list(EVENT)} == {"Normal"}


def binds_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "together", property(lambda self: False))
    monkeypatch.setattr(Families, "line", lambda self, pending, begun: sorted(pending, key=order))


@proven(without=binds_one_by_one)
async def test_f004_two_gangs_that_fit_one_after_the_other_never_hold_half_each(cluster: Cluster) -> None:
    """F04: pods of two gangs in turn; each gang alone would fill the nodes. Holds: one is bound whole, one waits."""
    await cluster.nodes("2", "2")
    for index in range(4):
        for gang in "ab":
            await cluster.pod(f"{index}-{gang}", gang=(gang, 4))
    await cluster.begin(cluster.scheduler)
    await cluster.until(lambda: _count_bound(cluster, 4))
    assert len({name[-1] for name, node in (await cluster.where()).items() if node}) == 1


async def test_a_running_gang_takes_a_newcomer_alone_even_if_it_shrank_and_we_were_restarted(cluster: Cluster) -> None:
    await cluster.nodes("4")
    await cluster.begin(cluster.agent, cluster.scheduler)
    for name in "abc":
        await cluster.pod(name, gang=("g", 3))
    for name in "abc":
        await cluster.bound(name)
    for name in "bc":
        await cluster.client.delete(POD, name, "default", grace_seconds=0)
    await cluster.end(cluster.tasks.pop())
    await cluster.begin(Scheduler(cluster.client))
    await cluster.pod("d", gang=("g", 3))
    assert await cluster.bound("d") == "node-0"


async def test_a_pod_group_is_co_scheduled(cluster: Cluster) -> None:
    await cluster.nodes("4")
    await cluster.begin(cluster.scheduler)
    await cluster.pod("a", labels={"scheduling.x-k8s.io/pod-group": "team"})
    await cluster.waits("a", "waiting for PodGroup default/team, which does not exist")
    await _pod_group(cluster, "team", 2)
    await cluster.waits("a", "waiting for 1 more of the 2 pods")
    await cluster.pod("b", labels={"scheduling.x-k8s.io/pod-group": "team"})
    assert await cluster.bound("a") == await cluster.bound("b") == "node-0"


async def test_a_pod_group_is_honoured_from_the_first_moment(cluster: Cluster) -> None:
    """The group and one of its pods were there before the scheduler: it is not bound as if it stood alone."""
    await cluster.nodes("4")
    await _pod_group(cluster, "team", 2)
    await cluster.pod("a", labels={"scheduling.x-k8s.io/pod-group": "team"})
    await cluster.begin(cluster.scheduler)
    await cluster.waits("a", "waiting for 1 more of the 2 pods")


class Mortal:
    """A transport that dies after so many bindings, or fails some of them."""

    def __init__(self, inner: Any, alive: int, failing: int = 0) -> None:
        self._inner, self.left, self.failing = inner, alive, failing

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.path.endswith("/binding"):
            if self.failing:
                self.failing -= 1
                raise Unsent("the server is away")
            if self.left <= 0:
                await asyncio.Event().wait()  # the process is gone: no client hears of it
            self.left -= 1
        response: Response = await self._inner.send(request, timeout=timeout)
        return response

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        stream: AbstractAsyncContextManager[Stream] = self._inner.stream(request, idle_timeout=idle_timeout)
        return stream

    async def close(self) -> None:
        await self._inner.close()


async def _crash_between_bindings(cluster: Cluster) -> None:
    await cluster.nodes("2", "1")
    dying = Scheduler(Client(Mortal(cluster.server.transport(), 1)))
    await cluster.begin(dying)
    for name in "abc":
        await cluster.pod(name, gang=("g", 3))
    await cluster.until(lambda: _count_bound(cluster, 1))
    await cluster.end(cluster.tasks.pop())


async def test_a_gang_half_bound_by_a_scheduler_that_died_is_finished_before_all_others(cluster: Cluster) -> None:
    """Others of higher priority came meanwhile and would fit in the room that the gang still needs."""
    await _crash_between_bindings(cluster)
    await _urgent(cluster, "greedy")
    await cluster.begin(Scheduler(cluster.client))
    assert sorted([await cluster.bound(name) for name in "abc"]) == ["node-0", "node-0", "node-1"]
    await cluster.waits("greedy", "Insufficient cpu")


class Slow(Mortal):
    """An API server that takes its time with bindings to one node."""

    def __init__(self, inner: Any, node: str) -> None:
        super().__init__(inner, 1000)
        self._node = node
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.path.endswith("/binding") and f'"{self._node}"'.encode() in (request.body or b""):
            self.asked.set()
            await self.go_on.wait()
            raise Unsent("the connection broke")
        return await super().send(request, timeout=timeout)


async def test_a_gang_whose_node_vanishes_while_it_is_bound_is_still_bound_whole(cluster: Cluster) -> None:
    """The others are bound already; the one that was meant for that node gets the next, before anyone else."""
    await cluster.nodes("2", "1")
    transport = Slow(cluster.server.transport(), "node-1")
    await cluster.begin(Scheduler(Client(transport)))
    for name in "abc":
        await cluster.pod(name, gang=("g", 3))
    await transport.asked.wait()
    await _urgent(cluster, "greedy")
    await cluster.client.delete(NODE, "node-1")
    await cluster.waits("greedy", "0/1 nodes are available")  # the scheduler has seen that it is gone
    transport.go_on.set()
    await cluster.node("node-2", capacity={"cpu": "1", "memory": "8Gi"})
    assert sorted([await cluster.bound(name) for name in "abc"]) == ["node-0", "node-0", "node-2"]
    await cluster.waits("greedy", "Insufficient cpu")


async def test_a_binding_that_fails_keeps_its_place_until_it_succeeds(cluster: Cluster) -> None:
    """The place of a gang's pod is not given away because the server did not answer once."""
    await cluster.nodes("3")
    transport = Mortal(cluster.server.transport(), 100, failing=2)
    await cluster.begin(Scheduler(Client(transport)))
    for name in "abc":
        await cluster.pod(name, gang=("g", 3))
    await cluster.until(lambda: asyncio.sleep(0, not transport.failing))
    await _urgent(cluster, "greedy")
    assert {await cluster.bound(name) for name in "abc"} == {"node-0"}
    await cluster.waits("greedy", "Insufficient cpu")


async def test_more_pods_than_fit_are_bound_up_to_the_last_place_and_a_freed_one_is_used(cluster: Cluster) -> None:
    await cluster.nodes("3", "2")
    await cluster.begin(cluster.agent, cluster.scheduler)
    await asyncio.gather(*(cluster.pod(f"p{n}") for n in range(8)))
    await cluster.until(lambda: _count_bound(cluster, 5))
    nodes = [*(await cluster.where()).values()]
    assert (nodes.count("node-0"), nodes.count("node-1"), nodes.count(None)) == (3, 2, 3)
    gone = next(name for name, node in (await cluster.where()).items() if node)
    await cluster.client.delete(POD, gone, "default", grace_seconds=0)
    await cluster.until(lambda: _count_bound(cluster, 5))


async def test_a_pod_with_unreadable_amounts_disturbs_no_other(cluster: Cluster) -> None:
    await cluster.nodes("4")
    await cluster.begin(cluster.agent, cluster.scheduler)
    strange = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    try:
        await cluster.pod("strange", affinity=strange)
    except KubeError:
        pass  # the server itself refuses it: even better
    await cluster.pod("plain")
    await cluster.see(POD, "plain", "default", phase("Running"))


async def _urgent(cluster: Cluster, name: str) -> None:
    """A pod of high priority."""
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
    await cluster.client.create(PRIORITY_CLASS, {**urgent, "value": 1000})
    await cluster.pod(name, priorityClassName="urgent")


async def _count_bound(cluster: Cluster, wanted: int) -> bool:
    return sum(node is not None for node in (await cluster.where()).values()) == wanted


async def _pod_group(cluster: Cluster, name: str, least: int) -> None:
    body = {"apiVersion": POD_GROUP.api_version, "kind": "PodGroup", "metadata": {"name": name}}
    await cluster.client.create(POD_GROUP, {**body, "spec": {"minMember": least}}, "default")


# --- gangs that lost pods


def in_order_of_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Families, "incomplete", lambda self, pending, size: [])
    monkeypatch.setattr(Families, "line", lambda self, pending, begun: sorted(pending, key=order))
    monkeypatch.setattr(Scheduler, "_place_kin", lambda self, line, index, done: False)


@proven(without=in_order_of_age)
async def test_f158_queued_jobs_that_lost_their_nodes_do_not_share_the_one_that_comes_back(cluster: Cluster) -> None:
    """F158: two queued jobs of four pods lost all of them; they were made again in turn, and room for one job comes
    back. Holds: one job has all its pods, the other none."""
    await cluster.begin(cluster.scheduler)
    jobs = {name: await cluster.workload(name) for name in "ab"}
    for index in range(4):
        for name, job in jobs.items():
            await cluster.pod(f"{index}-{name}", **job)
    await cluster.waits("3-b", "no nodes available")
    await cluster.nodes("4")
    await cluster.until(lambda: _count_bound(cluster, 4))
    assert {name[-1] for name, node in (await cluster.where()).items() if node} == {"a"}


@proven(without=in_order_of_age)
@pytest.mark.parametrize("marked", [True, False])
async def test_f158_missing_pods_of_a_gang_go_before_anything_new(cluster: Cluster, marked: bool) -> None:
    """F158: two gangs lost some of their pods and a pod of higher priority is new; one node comes. Holds: the gang of
    which least is missing is whole again, the other gets what is left, the newcomer nothing."""
    marks: dict[str, Any] = {
        one: {"gang": (one, 3)} if marked else await cluster.workload(one) for one in ("much", "little")
    }
    await cluster.nodes("3")
    await cluster.begin(cluster.scheduler)
    for index in range(3):
        await cluster.pod(f"much-{index}", **marks["much"])
    await cluster.until(lambda: _count_bound(cluster, 3))
    await cluster.node("second", capacity={"cpu": "3", "memory": "8Gi"})
    for index in range(3):
        await cluster.pod(f"little-{index}", **marks["little"])
    await cluster.until(lambda: _count_bound(cluster, 6))
    await cluster.pod("fills", cpu="3")
    for name in ("much-1", "much-2", "little-2"):
        await cluster.client.delete(POD, name, "default", grace_seconds=0)
    for node in ("node-0", "second"):
        await cluster.client.patch(NODE, node, None, {"spec": {"unschedulable": True}})
    await cluster.waits("fills", "2 node(s) were unschedulable")  # the scheduler has seen it
    await _urgent(cluster, "newcomer")
    await cluster.pod("much-3", **marks["much"])
    await cluster.pod("much-4", **marks["much"])
    await cluster.pod("little-3", **marks["little"])
    await cluster.waits("little-3", "0/2 nodes are available")
    await cluster.node("third", capacity={"cpu": "2", "memory": "8Gi"})
    assert await cluster.bound("little-3") == "third"
    assert await cluster.bound("much-3") == "third"
    await cluster.waits("newcomer", "0/3 nodes are available")
    assert (await cluster.where())["much-4"] is None


def was_whole_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    forget = Scheduler._forget

    def remembers(self: Scheduler, key: Key, pod: TrackedPod) -> None:
        whole = set(self._whole)
        forget(self, key, pod)
        self._whole |= {one for one in whole if self._members.get(one)}

    monkeypatch.setattr(Scheduler, "_forget", remembers)


@proven(without=was_whole_for_ever)
async def test_f158_a_gang_that_lost_all_its_pods_is_bound_whole_again(cluster: Cluster) -> None:
    """F158: a gang that was whole lost all its pods, and there is room for a part of it. Holds: none is bound before
    all can be."""
    await cluster.nodes("3")
    await cluster.begin(cluster.scheduler)
    for index in range(3):
        await cluster.pod(f"old-{index}", gang=("g", 3))
    await cluster.until(lambda: _count_bound(cluster, 3))
    await cluster.pod("new-0", gang=("g", 3))
    await cluster.waits("new-0", "Insufficient cpu")
    await cluster.client.delete(NODE, "node-0")
    for index in range(3):
        await cluster.client.delete(POD, f"old-{index}", "default", grace_seconds=0)
    await cluster.node("less", capacity={"cpu": "2", "memory": "8Gi"})
    await cluster.waits("new-0", "waiting for 2 more of the 3 pods")
    await cluster.pod("new-1", gang=("g", 3))
    await cluster.pod("new-2", gang=("g", 3))
    await cluster.waits("new-0", "start together or not at all")
    await cluster.node("more", capacity={"cpu": "1", "memory": "8Gi"})
    assert sorted([await cluster.bound(f"new-{index}") for index in range(3)]) == ["less", "less", "more"]
