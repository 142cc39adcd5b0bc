"""Groups of plain pods: they wait together, start together, and each pod is counted once."""

from __future__ import annotations

import msgspec
import pytest

from shoal.api import kinds, kueue_names
from shoal.api.meta import Json
from shoal.cli import cluster as composition
from shoal.controllers.queues import QueueSettings, pod_groups, reconciler
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.jobs import pod_group
from shoal.controllers.queues.jobs.pod import carrying
from shoal.controllers.queues.jobs.pod_group import GROUPS, role_hash
from shoal.controllers.queues.pod_groups import PodGroupKeeper
from shoal.kube.errors import Forbidden
from shoal.sdk.explaining import explain_to, searched_kinds
from shoal.sdk.rows import rows_of
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, condition, flavor, job, local_queue, make, name_of, pod, said, true
from tests.unit.queues.conftest import decide

GROUP = "training"
FINALIZER = "kueue.x-k8s.io/managed"


def member(name: str, total: int = 2, group: str = GROUP, cpu: str = "1", **annotations: str) -> Json:
    made = pod(name, cpu=cpu)
    made["metadata"]["labels"][kueue_names.POD_GROUP] = group
    made["metadata"]["annotations"] = {
        kueue_names.POD_GROUP_TOTAL: str(total),
        **{f"kueue.x-k8s.io/{key.replace('_', '-')}": value for key, value in annotations.items()},
    }
    return made


@pytest.fixture
async def held(quiet: Cluster) -> Cluster:
    """Admission and controller; a queue of four cores on nodes of one tier."""
    quiet.server.admission.preparers.update(composition.preparers(quiet.client))
    quiet.server.admission.judges.update(composition.judges(quiet.client))
    decide(quiet)
    await quiet.client.patch(kinds.NODE, "node-1", None, {"metadata": {"labels": {"tier": "fast"}}})
    await make(quiet, flavor(nodeLabels={"tier": "fast"}), cluster_queue(), local_queue())
    return quiet


def gates(one: Json) -> list[str]:
    return [gate["name"] for gate in one["spec"].get("schedulingGates") or ()]


async def ungated(cluster: Cluster, *names: str) -> list[Json]:
    return [await cluster.until(kinds.POD, name, lambda one: not gates(one)) for name in names]


async def ends(cluster: Cluster, name: str, phase: str = "Succeeded") -> None:
    await cluster.client.patch(kinds.POD, name, "default", {"status": {"phase": phase}}, subresource="status")


async def test_a_group_waits_for_its_last_pod_and_starts_whole(held: Cluster) -> None:
    (first,) = await make(held, member("a"))
    assert gates(first) == ["kueue.x-k8s.io/admission"] and first["metadata"]["finalizers"] == [FINALIZER]
    await held.settled()
    assert await held.client.list(kinds.WORKLOAD, "default") == []
    await make(held, member("b"))
    workload = await held.until(kinds.WORKLOAD, GROUP, true("Admitted"))
    assert workload["metadata"]["annotations"] == {kueue_names.IS_GROUP: "true"}
    assert [one["count"] for one in workload["spec"]["podSets"]] == [2]
    assert [one["name"] for one in workload["metadata"]["ownerReferences"]] == ["a", "b"]
    for started in await ungated(held, "a", "b"):
        assert started["spec"]["nodeSelector"] == {"tier": "fast"}
        assert started["metadata"]["labels"][kueue_names.CLUSTER_QUEUE] == "cluster-queue"


async def test_a_group_has_the_labels_to_copy_of_all_its_pods(quiet: Cluster) -> None:
    """As Kueue: whichever pod carries one. Where two contradict each other, the group waits and is told."""
    quiet.server.admission.preparers.update(composition.preparers(quiet.client))
    decide(quiet, QueueSettings(copied_labels=("team", "cost")))
    await make(quiet, flavor(), cluster_queue(), local_queue())
    first, second = member("a"), member("b")
    second["metadata"]["labels"]["team"] = "blue"
    await make(quiet, first, second)
    workload = await quiet.until(kinds.WORKLOAD, GROUP, lambda one: True)
    assert workload["metadata"]["labels"] == {"team": "blue"}
    first, second = member("c", group="other"), member("d", group="other")
    first["metadata"]["labels"]["team"], second["metadata"]["labels"]["team"] = "red", "blue"
    await make(quiet, first, second)
    await quiet.settled()
    assert [one["metadata"]["name"] for one in await quiet.client.list(kinds.WORKLOAD, "default")] == [GROUP]
    told = [one["message"] for one in await quiet.client.list(kinds.EVENT, "default") if "labels" in one["message"]]
    assert told == ["pods 'c' and 'd' have different 'team' labels: red!=blue"]


async def test_a_group_that_does_not_fit_has_no_pod_started(held: Cluster) -> None:
    await make(held, member("a", cpu="3"), member("b", cpu="3"))
    await held.until(kinds.WORKLOAD, GROUP, lambda one: said(one, "QuotaReserved")[0] == "False")
    await held.settled()
    pods = await held.client.list(kinds.POD, "default")
    assert all(gates(one) for one in pods)


async def test_roles_are_pod_sets_and_each_is_given_back_as_its_pods_succeed(held: Cluster) -> None:
    made = await make(held, member("driver", 3, cpu="2"), member("w1", 3), member("w2", 3))
    workload = await held.until(kinds.WORKLOAD, GROUP, true("Admitted"))
    counts = {one["name"]: one["count"] for one in workload["spec"]["podSets"]}
    large, small, also = (one["metadata"]["annotations"][kueue_names.ROLE_HASH] for one in made)
    assert counts == {small: 2, large: 1} and small == also
    await ungated(held, "driver", "w1", "w2")
    await ends(held, "w1")
    given = [{"name": small, "count": 1}]
    await held.until(kinds.WORKLOAD, GROUP, lambda one: (one.get("status") or {}).get("reclaimablePods") == given)
    await held.client.delete(kinds.POD, "w1", "default")
    kept = await held.client.get(kinds.POD, "w1", "default")
    assert kept["metadata"]["deletionTimestamp"], "an ended pod stays for as long as the group counts it"
    for name in ("w2", "driver"):
        await ends(held, name)
    workload = await held.until(kinds.WORKLOAD, GROUP, true("Finished"))
    assert said(workload, "Finished")[1:] == ("Succeeded", "Pods succeeded: 3/3.")
    await held.until_gone(kinds.POD, "w1")
    await held.until(kinds.POD, "w2", lambda one: not one["metadata"].get("finalizers"))


async def test_a_failed_pod_is_replaced(held: Cluster) -> None:
    await make(held, member("a"), member("b"))
    await ungated(held, "a", "b")
    await ends(held, "a", "Failed")
    workload = await held.until(kinds.WORKLOAD, GROUP, true("WaitingForReplacementPods"))
    assert said(workload, "WaitingForReplacementPods")[1:] == ("PodsFailed", "Some Failed pods need replacement")
    assert (await held.client.get(kinds.POD, "a", "default"))["metadata"]["finalizers"] == [FINALIZER]
    await make(held, member("c"))
    await ungated(held, "c")
    workload = await held.until(kinds.WORKLOAD, GROUP, lambda one: not true("WaitingForReplacementPods")(one))
    assert {one["name"] for one in workload["metadata"]["ownerReferences"]} == {"a", "b", "c"}
    await held.until(kinds.POD, "a", lambda one: not one["metadata"].get("finalizers"))
    for name in ("b", "c"):
        await ends(held, name)
    await held.until(kinds.WORKLOAD, GROUP, true("Finished"))


async def test_a_group_that_may_not_be_retried_ends_with_its_pods(held: Cluster) -> None:
    await make(held, member("a", retriable_in_group="false"), member("b"))
    await ungated(held, "a", "b")
    await ends(held, "a", "Failed")
    await ends(held, "b")
    workload = await held.until(kinds.WORKLOAD, GROUP, true("Finished"))
    assert said(workload, "Finished")[2] == "Pods succeeded: 1/2."


async def test_an_evicted_group_waits_for_its_pods_to_be_made_again(held: Cluster) -> None:
    await make(held, member("a"), member("b"))
    await ungated(held, "a", "b")
    await held.client.patch(kinds.WORKLOAD, GROUP, "default", {"spec": {"active": False}})
    workload = await held.until(
        kinds.WORKLOAD, GROUP, lambda one: condition(one, "QuotaReserved").get("status") == "False"
    )
    assert said(workload, "WaitingForReplacementPods")[:2] == ("True", "Deactivated")
    await held.client.patch(kinds.WORKLOAD, GROUP, "default", {"spec": {"active": True}})
    await held.settled()
    workload = await held.client.get(kinds.WORKLOAD, GROUP, "default")
    assert not true("QuotaReserved")(workload), "no quota for pods that do not exist"
    await make(held, member("c"), member("d"))
    await ungated(held, "c", "d")
    for name in ("a", "b"):
        await held.until_gone(kinds.POD, name)


async def test_a_group_whose_pods_are_all_deleted_is_gone(held: Cluster) -> None:
    await make(held, member("a", cpu="3"), member("b", cpu="3"))
    await held.until(kinds.WORKLOAD, GROUP, lambda one: bool(condition(one, "QuotaReserved")))
    for name in ("a", "b"):
        await held.client.delete(kinds.POD, name, "default")
    for name in ("a", "b"):
        await held.until_gone(kinds.POD, name)
    await held.until_gone(kinds.WORKLOAD, GROUP)


async def test_pods_of_a_group_that_is_not_whole_can_be_deleted(held: Cluster) -> None:
    await make(held, member("a"))
    await held.settled()
    await held.client.delete(kinds.POD, "a", "default")
    await held.until_gone(kinds.POD, "a")


async def test_fast_admission_goes_by_the_first_pod(held: Cluster) -> None:
    await make(held, member("a", 3, pod_group_fast_admission="true"))
    workload = await held.until(kinds.WORKLOAD, GROUP, true("Admitted"))
    assert [one["count"] for one in workload["spec"]["podSets"]] == [3]
    await make(held, member("b", 3, pod_group_fast_admission="true"))
    await ungated(held, "a", "b")


async def test_a_serving_group_never_finishes(held: Cluster) -> None:
    await make(held, member("a", pod_group_serving="true"), member("b", pod_group_serving="true"))
    await ungated(held, "a", "b")
    for name in ("a", "b"):
        await ends(held, name)
    await held.settled()
    workload = await held.client.get(kinds.WORKLOAD, GROUP, "default")
    assert not true("Finished")(workload) and not (workload["status"].get("reclaimablePods"))


@pytest.mark.parametrize(
    ("label", "annotations", "wrong"),
    [
        (GROUP, {}, "pod-group-total-count.*required"),
        (GROUP, {kueue_names.POD_GROUP_TOTAL: "0"}, "greater than zero"),
        (GROUP, {kueue_names.POD_GROUP_TOTAL: "two"}, "greater than zero"),
        ("", {kueue_names.POD_GROUP_TOTAL: "2"}, "pod-group-name.*required"),
        ("Not_A_Name", {kueue_names.POD_GROUP_TOTAL: "2"}, "subdomain"),
        (GROUP, {kueue_names.POD_GROUP_TOTAL: "2", kueue_names.PREBUILT: "other"}, "name of the pod group"),
    ],
)
async def test_wrong_marks_of_a_group_are_refused(
    held: Cluster, label: str, annotations: dict[str, str], wrong: str
) -> None:
    made = pod("one")
    if label:
        made["metadata"]["labels"][kueue_names.POD_GROUP] = label
    made["metadata"]["annotations"] = annotations
    with pytest.raises(Forbidden, match=wrong):
        await make(held, made)


def test_the_role_of_a_pod_is_the_one_that_kueue_gives_it() -> None:
    assert role_hash({"containers": [{"name": "c", "image": "pause", "resources": {"requests": {}}}]}) == "a9f06f3a"


# --- faults


def _keeps_every_pod(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pod_group, "oldest", lambda pods, count: list(pods))


@proven(without=_keeps_every_pod)
async def test_f520_pods_beyond_the_number_of_a_group_go(held: Cluster) -> None:
    """F520: more pods than its number name a group. Holds: the newest is deleted, the others run, each counted once."""
    await make(held, member("a"), member("b"))
    await ungated(held, "a", "b")
    await make(held, member("late"))
    await held.until_gone(kinds.POD, "late")
    workload = await held.client.get(kinds.WORKLOAD, GROUP, "default")
    assert sum(one["count"] for one in workload["spec"]["podSets"]) == 2
    assert all(not gates(one) for one in await held.client.list(kinds.POD, "default"))


def _counts_pods_that_leave(patch: pytest.MonkeyPatch) -> None:
    def too_many(pods: list[Json], count: int) -> list[Json]:
        kept = {one["metadata"]["uid"] for one in pod_group.oldest(pods, count)}
        return [one for one in pods if one["metadata"]["uid"] not in kept]

    patch.setattr(pod_group, "too_many", too_many)


@proven(without=_counts_pods_that_leave)
async def test_f524_what_comes_in_the_place_of_a_pod_that_leaves_stays(held: Cluster) -> None:
    """F524: pods of an evicted group still end on their nodes when the pods in their place are made. Holds: the new
    pods stay and start, once quota is there."""
    await make(held, member("a"), member("b"))
    for one in await ungated(held, "a", "b"):
        name = one["metadata"]["name"]
        bound = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
        bound["target"] = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
        await held.client.request("POST", kinds.POD.path("default", name, "binding"), body=msgspec.json.encode(bound))
    await held.client.patch(kinds.WORKLOAD, GROUP, "default", {"spec": {"active": False}})
    for name in ("a", "b"):
        await held.until(kinds.POD, name, lambda one: bool(one["metadata"].get("deletionTimestamp")))
    made = await make(held, member("c"), member("d"))
    await held.settled()
    for name in ("a", "b"):
        await ends(held, name, "Failed")
    await held.client.patch(kinds.WORKLOAD, GROUP, "default", {"spec": {"active": True}})
    started = await ungated(held, "c", "d")
    assert [one["metadata"]["uid"] for one in started] == [one["metadata"]["uid"] for one in made]


def _takes_any_workload(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PodGroupKeeper, "is_taken", lambda self, workload, job: False)
    patch.setattr(QueueCaches, "job_of", lambda self, key: (GROUPS, group) if (group := self.group(key)) else None)


@proven(without=_takes_any_workload)
async def test_f521_a_group_cannot_take_the_workload_of_a_job(held: Cluster) -> None:
    """F521: pods name a group after the Workload of another user's Job. Holds: the Job keeps its Workload and its
    quota; the pods wait, and are told why."""
    (made,) = await make(held, job("theirs"))
    name = name_of(made)
    before = await held.until(kinds.WORKLOAD, name, true("Admitted"))
    await make(held, member("a", 1, group=name))
    await held.settled()
    after = await held.client.get(kinds.WORKLOAD, name, "default")
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and true("Admitted")(after)
    assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]
    assert gates(await held.client.get(kinds.POD, "a", "default"))
    told = await held.client.list(kinds.EVENT, "default")
    assert [one for one in told if one["reason"] == "WorkloadNameConflict" and name in one["message"]]


def _adopts_groups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconciler, "is_group", lambda workload: False)


@proven(without=_adopts_groups)
async def test_f522_a_job_cannot_name_the_workload_of_a_group_as_its_own(held: Cluster) -> None:
    """F522: a Job names the Workload of a group of pods as the one that was made for it. Holds: the group keeps it, and
    the Job stays stopped."""
    await make(held, member("a"), member("b"))
    before = await held.until(kinds.WORKLOAD, GROUP, true("Admitted"))
    await make(held, job("thief", labels={kueue_names.PREBUILT: GROUP}))
    await held.settled()
    after = await held.client.get(kinds.WORKLOAD, GROUP, "default")
    assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]
    assert (await held.client.get(kinds.JOB, "thief", "default"))["spec"]["suspend"] is True
    await ungated(held, "a", "b")


def _gives_quota_to_half_groups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pod_groups, "note_absent", lambda draft, absent: None)


@proven(without=_gives_quota_to_half_groups)
async def test_f523_a_group_that_lacks_a_pod_holds_no_quota(held: Cluster) -> None:
    """F523: a pod of a waiting group is deleted, and quota comes free. Holds: the group waits for another pod, and
    others have the quota meanwhile."""
    (blocker,) = await make(held, pod("blocker", cpu="4"))
    await ungated(held, "blocker")
    await make(held, member("a", cpu="2"), member("b", cpu="2"))
    await held.until(kinds.WORKLOAD, GROUP, lambda one: said(one, "QuotaReserved")[1] == "WaitingForQuota")
    await held.client.delete(kinds.POD, "b", "default")
    await held.settled()
    await ends(held, "blocker")
    await held.until(kinds.WORKLOAD, name_of(blocker, "Pod", ""), true("Finished"))
    await make(held, pod("other"))
    await ungated(held, "other")
    assert not true("QuotaReserved")(await held.client.get(kinds.WORKLOAD, GROUP, "default"))
    await ends(held, "other")
    await make(held, member("c", cpu="2"))
    await ungated(held, "a", "c")


async def test_users_see_the_pods_of_a_group_and_why_they_wait(held: Cluster) -> None:
    await make(held, member("a", 3, cpu="3"))
    await held.settled()
    searched = await searched_kinds(held.client, "pod", "default")
    told = await explain_to(held.client, searched, "a", "default")
    assert told["kind"] == "Pod" and told["name"] == "a"
    await make(held, member("b", 3, cpu="3"), member("c", 3, cpu="3"))
    await held.until(kinds.WORKLOAD, GROUP, lambda one: said(one, "QuotaReserved")[0] == "False")
    rows = await rows_of(held.client, "default")
    assert [(one["kind"], one["name"], one["state"]) for one in rows] == [("Pod", n, "Queued") for n in "abc"]


def of_a_set(index: int, worker: int, size: int = 3, cpu: str = "1") -> Json:
    """A pod as the controller of LeaderWorkerSets makes it from a template that admission has completed."""
    made = pod(f"serve-{index}" + (f"-{worker}" if worker else ""), cpu=cpu)
    marks = {"name": "serve", "group-index": str(index), "worker-index": str(worker)}
    made["metadata"]["labels"] |= {f"leaderworkerset.sigs.k8s.io/{name}": value for name, value in marks.items()}
    made["metadata"]["annotations"] = {
        kueue_names.SUSPENDED_BY: "leaderworkerset",
        "leaderworkerset.sigs.k8s.io/size": str(size),
    }
    return made


def leader_worker_set(**spec: object) -> Json:
    bare = {"spec": pod("one")["spec"]}
    templates = {"size": 3, "leaderTemplate": bare, "workerTemplate": bare}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve", "labels": {kueue_names.QUEUE: "user-queue"}},
        "spec": {"replicas": 2, "leaderWorkerTemplate": templates, **spec},
    }


def test_both_templates_of_a_leader_worker_set_carry_its_queue() -> None:
    made = carrying(leader_worker_set())
    for name in ("leaderTemplate", "workerTemplate"):
        metadata = made["spec"]["leaderWorkerTemplate"][name]["metadata"]
        assert metadata["labels"] == {kueue_names.QUEUE: "user-queue"}
        assert metadata["annotations"] == {kueue_names.SUSPENDED_BY: "leaderworkerset"}
    assert carrying(made) is made, "changed once"
    late = carrying(leader_worker_set(startupPolicy="LeaderReady"))["spec"]["leaderWorkerTemplate"]
    assert "annotations" not in late["leaderTemplate"]["metadata"], "its workers come when the leader runs"


async def test_each_group_of_a_leader_worker_set_is_one_gang(held: Cluster) -> None:
    """Quota for one group of three pods, and one pod more."""
    await make(held, of_a_set(0, 0), of_a_set(0, 1), of_a_set(0, 2), of_a_set(1, 0), of_a_set(1, 1))
    await ungated(held, "serve-0", "serve-0-1", "serve-0-2")
    (last,) = await make(held, of_a_set(1, 2))
    assert not last["metadata"].get("finalizers"), "its own controller counts its pods"
    name = last["metadata"]["labels"][kueue_names.POD_GROUP]
    waiting = await held.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    assert {one["name"]: one["count"] for one in waiting["spec"]["podSets"]} == {"leader": 1, "worker": 2}
    for one in ("serve-1", "serve-1-1", "serve-1-2"):
        assert gates(await held.get(kinds.POD, one))
    for one in ("serve-0", "serve-0-1", "serve-0-2"):
        await held.client.delete(kinds.POD, one, "default", grace_seconds=0)
    await ungated(held, "serve-1", "serve-1-1", "serve-1-2")
