"""Queued jobs of a hub whose engine chooses the one member that is asked: by room, by quota, by policy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.multicluster import supply
from shoal.controllers.multicluster.dispatcher import Dispatcher
from shoal.controllers.multicluster.offering import Offering
from shoal.controllers.multicluster.placing import ClusterPlacing
from shoal.controllers.multicluster.settings import INCREMENTAL
from tests.faults import proven
from tests.unit.clusters.build import (
    CHOOSING,
    QUICK,
    Town,
    condition,
    decide,
    is_on,
    is_placed,
    our_check,
    sent_job,
    town,
)
from tests.unit.queues.build import cluster_queue, complete, make, name_of, pods_of, true

MOMENT = "2026-01-01T00:00:00Z"


async def submit(t: Town, name: str, cpu: str, pods: int = 1, **annotations: str) -> str:
    """Name of its Workload."""
    job = sent_job(name, pods, cpu=cpu)
    job["metadata"]["annotations"] = {f"shoal.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    (made,) = await make(t.hub, job)
    return name_of(made)


def waits_for_clusters(workload: Json) -> bool:
    found = condition(workload, "QuotaReserved")
    return found.get("reason") == "WaitingForClusters" and found.get("status") == "False"


def says(*texts: str) -> Any:
    """Does it wait for clusters, with all of these texts?"""

    def test(workload: Json) -> bool:
        told = condition(workload, "QuotaReserved").get("message", "")
        return waits_for_clusters(workload) and all(text in told for text in texts)

    return test


def check_says(text: str) -> Any:
    return lambda workload: text in our_check(workload).get("message", "")


async def never_admits(t: Town, member: str) -> None:
    """Its queue takes copies and waits for a check that nobody answers."""
    check = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": "never"},
        "spec": {"controllerName": "lab.example/never"},
    }
    await t.members[member].create(kinds.ADMISSION_CHECK, check)
    active = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": MOMENT}
    change = {"status": {"conditions": [active]}}
    await t.members[member].client.patch(kinds.ADMISSION_CHECK, "never", None, change, subresource="status")
    spec = cluster_queue(quota={"cpu": "8", "memory": "64Gi"}, checks=["never"])["spec"]
    await t.members[member].client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": spec})


def writes_about(t: Town, member: str, workload: str) -> list[str]:
    return [one for one in t.wires[member].sent if workload in one or "/workloads" in one]


async def test_one_member_is_asked_and_the_others_hear_nothing_of_it() -> None:
    async with town("a", "b", hub_decides=False) as t:
        t.start_choosing_hub()
        await t.connected()
        name = await submit(t, "train", "2", pods=3)
        await t.hub.until(kinds.WORKLOAD, name, is_on("a"))
        await pods_of(t.members["a"], "train", 3)
        await complete(t.members["a"], "train", 3)
        await t.hub.until(kinds.WORKLOAD, name, true("Finished"))
        await t.members["a"].until_gone(kinds.WORKLOAD, name)
        assert writes_about(t, "b", name) == []


def sees_no_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = supply.Judgement(supply.Tier.FITS)
    monkeypatch.setattr(supply.MemberSupply, "judge", lambda self, gang, question: judged)


@proven(without=sees_no_shortage)
async def test_f460_a_gang_that_no_member_has_room_for_holds_no_quota_and_a_smaller_one_starts() -> None:
    """F460: gangs of 7, 7, 6 and 3 cores, two members of 10. Holds: the 3 starts at once; the 6 waits without quota and
    says of every member why, and starts in the member that has room again."""
    async with town("a", "b", hub_decides=False, quota="100", cpu="10") as t:
        t.start_choosing_hub()
        await t.connected()
        first, second = await submit(t, "one", "7"), await submit(t, "two", "7")
        await t.hub.until(kinds.WORKLOAD, first, is_placed)
        await t.hub.until(kinds.WORKLOAD, second, is_placed)
        six = await submit(t, "six", "6")
        full = says("no cluster takes it now: a: its ClusterQueue", "; b: its ClusterQueue")
        await t.hub.until(kinds.WORKLOAD, six, full)
        three = await submit(t, "three", "3")
        await t.hub.until(kinds.WORKLOAD, three, is_placed)
        assert not true("QuotaReserved")(await t.hub.get(kinds.WORKLOAD, six))
        assert await t.where(kinds.WORKLOAD, six) == []
        home = (await t.hub.get(kinds.WORKLOAD, second))["status"]["clusterName"]
        await t.hub.client.delete(kinds.JOB, "two", "default", propagation="Background")
        if home == (await t.hub.get(kinds.WORKLOAD, three))["status"]["clusterName"]:
            await t.hub.client.delete(kinds.JOB, "three", "default", propagation="Background")
        await t.hub.until(kinds.WORKLOAD, six, is_on(home))


async def test_the_quota_of_a_member_is_a_fact_like_its_nodes() -> None:
    async with town("a", "b", hub_decides=False) as t:
        small = cluster_queue(quota={"cpu": "2", "memory": "64Gi"})
        await t.members["a"].client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": small["spec"]})
        t.start_choosing_hub()
        await t.connected()
        name = await submit(t, "train", "6")
        await t.hub.until(kinds.WORKLOAD, name, is_on("b"))
        assert writes_about(t, "a", name) == []
        wide = await submit(t, "wide", "3")
        await t.hub.until(kinds.WORKLOAD, wide, says("a: its ClusterQueue cluster-queue has 2 cpu left, needed 3"))


def looks_by_the_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dispatcher, "nowhere", ())


@proven(without=looks_by_the_clock_alone)
async def test_f876_a_gang_with_quota_that_no_member_had_room_for_is_offered_once_one_has() -> None:
    """F876: another program gives quota at the hub, and no member has room for a gang yet. Holds: it is offered as soon
    as one has; before, only when it was looked at by the clock, a minute later."""
    async with town("a", hub_decides=False, cpu="2") as t:
        decide(t.hub)  # as Kueue does, it asks no member before it gives quota
        t.start_hub(msgspec.structs.replace(CHOOSING, refused_seconds=3600.0))
        await t.connected()
        name = await submit(t, "train", "4")
        await t.hub.until(kinds.WORKLOAD, name, check_says("a: its ClusterQueue"))
        spec = cluster_queue(quota={"cpu": "8", "memory": "64Gi"})["spec"]
        await t.members["a"].client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": spec})
        await t.hub.until(kinds.WORKLOAD, name, check_says("a: 4 cpu needed, 2 free"))
        await t.members["a"].add_node("node-2", cpu="8", memory="64Gi")
        await t.hub.until(kinds.WORKLOAD, name, is_on("a"))
        await pods_of(t.members["a"], "train", 1)


async def test_a_member_without_the_queue_says_so() -> None:
    async with town("a", hub_decides=False) as t:
        await t.members["a"].client.delete(kinds.LOCAL_QUEUE, "user-queue", "default")
        t.start_choosing_hub()
        await t.connected()
        name = await submit(t, "train", "1")
        await t.hub.until(kinds.WORKLOAD, name, says("a: it has no LocalQueue user-queue in namespace default"))


def waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Offering, "_gives_up", lambda self, workload, record, name, member: "")


@proven(without=waits_for_ever)
async def test_f461_a_member_that_does_not_admit_in_time_loses_the_gang_to_the_next() -> None:
    """F461: the member that was asked never admits its copy. Holds: after `admit_seconds` its copy goes and the next
    member is asked; the gang keeps its quota and its place."""
    async with town("a", "b", hub_decides=False) as t:
        await never_admits(t, "a")
        t.start_choosing_hub(msgspec.structs.replace(CHOOSING, admit_seconds=1.0, refused_seconds=60.0))
        await t.connected()
        name = await submit(t, "train", "2")
        await t.members["a"].until(kinds.WORKLOAD, name, lambda one: True)
        ended = await t.hub.until(kinds.WORKLOAD, name, is_on("b"))
        await t.members["a"].until_gone(kinds.WORKLOAD, name)
        assert condition(ended, "Evicted") == {}
        assert await t.where(kinds.WORKLOAD, name) == ["b"]


async def test_a_member_that_falls_silent_before_it_admits_loses_the_gang_at_once() -> None:
    async with town("a", "b", hub_decides=False) as t:
        await never_admits(t, "a")
        t.start_choosing_hub()
        await t.connected()
        name = await submit(t, "train", "2")
        await t.members["a"].until(kinds.WORKLOAD, name, lambda one: True)
        t.wires["a"].cut()
        await t.hub.until(kinds.WORKLOAD, name, is_on("b"))
        await pods_of(t.members["b"], "train", 1)
        t.wires["a"].mend()
        await t.members["a"].until_gone(kinds.WORKLOAD, name)


async def test_labels_restrict_and_prefer() -> None:
    async with town("a", "b", "c", hub_decides=False, quota="100") as t:
        for name, labels in (("b", {"region": "eu"}), ("c", {"region": "us", "disk": "ssd"})):
            await t.hub.client.patch(kinds.MULTIKUEUE_CLUSTER, name, None, {"metadata": {"labels": labels}})
        t.start_choosing_hub()
        await t.connected()
        await t.hub.until(kinds.WORKLOAD, await submit(t, "eu", "6", cluster_selector="region=eu"), is_on("b"))
        await t.hub.until(kinds.WORKLOAD, await submit(t, "ssd", "6", preferred_clusters="disk=ssd"), is_on("c"))
        more = await submit(t, "more", "6", cluster_selector="region in (eu, us)")
        await t.hub.until(
            kinds.WORKLOAD, more, says("a: its labels do not match shoal.dev/cluster-selector: region in (eu, us)")
        )
        wrong = await submit(t, "wrong", "1", cluster_policy="best")
        fault = "annotation shoal.dev/cluster-policy: 'best' is none of first"
        await t.hub.until(kinds.WORKLOAD, wrong, says(fault))


async def test_in_a_race_so_many_are_asked_and_the_first_to_admit_wins() -> None:
    async with town("a", "b", "c", hub_decides=False) as t:
        await never_admits(t, "a")
        t.start_choosing_hub()
        await t.connected()
        name = await submit(t, "train", "2", cluster_policy="race=2")
        await t.hub.until(kinds.WORKLOAD, name, is_on("b"))
        await t.members["a"].until_gone(kinds.WORKLOAD, name)
        assert writes_about(t, "c", name) == []


def forgets_what_was_just_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterPlacing, "keep", lambda self, gang, clusters: None)


@proven(without=forgets_what_was_just_given)
async def test_f462_gangs_that_one_plan_admits_are_not_all_sent_to_the_same_room() -> None:
    """F462: six gangs of 4 cores come at once to members of 8. Holds: each member is asked for two, never for more than
    it can start, and the others wait without quota."""
    async with town("a", "b", hub_decides=False, quota="100") as t:
        names = [await submit(t, f"job-{at}", "4") for at in range(6)]
        t.start_choosing_hub()
        await t.connected()
        placed, full = [], says("a: its ClusterQueue", "b: its ClusterQueue")
        for name in names:
            found = await t.hub.until(kinds.WORKLOAD, name, lambda one: is_placed(one) or full(one))
            placed += [found["status"]["clusterName"]] if is_placed(found) else []
        assert sorted(placed) == ["a", "a", "b", "b"]
        asked = [len([one for one in wire.sent if one.endswith("/workloads")]) for wire in t.wires.values()]
        assert asked == [2, 2]


async def test_an_urgent_gang_evicts_in_one_member_only() -> None:
    async with town("a", "b", "c", hub_decides=False, quota="100") as t:
        for member in t.members.values():
            change = {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}}
            await member.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, change)
        await t.hub.create(
            kinds.WORKLOAD_PRIORITY_CLASS,
            {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "urgent"}}
            | {"value": 1000},
        )
        t.start_choosing_hub()
        await t.connected()
        low = [await submit(t, f"low-{at}", "8") for at in range(3)]
        homes = {}
        for at, name in enumerate(low):
            found = await t.hub.until(kinds.WORKLOAD, name, is_placed)
            homes[found["status"]["clusterName"]] = name
            await pods_of(t.members[found["status"]["clusterName"]], f"low-{at}", 1)
        job = sent_job("urgent", 1, cpu="8")
        job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "urgent"
        (made,) = await make(t.hub, job)
        found = await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed)
        home = found["status"]["clusterName"]
        await pods_of(t.members[home], "urgent", 1)
        await t.hub.until(kinds.WORKLOAD, homes.pop(home), waits_for_clusters)
        for other, name in homes.items():
            assert is_on(other)(await t.hub.get(kinds.WORKLOAD, name))


async def test_the_incremental_dispatcher_asks_some_more_after_a_while() -> None:
    names = ("a", "b", "c")
    async with town(*names, deciding=False) as t:
        decide(t.hub)
        decide(t.members["c"])
        t.start_hub(msgspec.structs.replace(QUICK, dispatcher=INCREMENTAL, step_size=2, step_seconds=1.0))
        await t.connected()
        name = await submit(t, "train", "2")
        first = await t.hub.until(
            kinds.WORKLOAD, name, lambda one: bool((one.get("status") or {}).get("nominatedClusterNames"))
        )
        assert first["status"]["nominatedClusterNames"] == ["a", "b"]
        await t.hub.until(kinds.WORKLOAD, name, is_on("c"))


async def test_another_dispatcher_says_itself_which_are_asked() -> None:
    async with town("a", "b", deciding=False) as t:
        decide(t.hub)
        decide(t.members["b"])
        t.start_hub(msgspec.structs.replace(QUICK, dispatcher="lab.example/dispatcher"))
        await t.connected()
        name = await submit(t, "train", "2")
        await t.hub.until(kinds.WORKLOAD, name, true("QuotaReserved"))
        change = {"status": {"nominatedClusterNames": ["b"]}}
        await t.hub.client.patch(kinds.WORKLOAD, name, "default", change, subresource="status")
        await t.hub.until(kinds.WORKLOAD, name, is_on("b"))
        assert writes_about(t, "a", name) == []
