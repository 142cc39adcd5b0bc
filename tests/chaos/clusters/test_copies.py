"""Copies in other clusters: which may run, which must go, and which the hub never touches."""

from __future__ import annotations

import copy as copying

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.multicluster import member as member_module
from shoal.controllers.multicluster.copies import job_copy, judge, workload_copy
from shoal.controllers.multicluster.dispatcher import Dispatcher
from shoal.controllers.multicluster.member import Member
from shoal.controllers.multicluster.record import Record, record_of, stored
from shoal.controllers.queues import caches as queues_caches
from shoal.controllers.queues import reconciler as queues_reconciler
from shoal.controllers.queues.jobs import BY_KIND
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import LeaseLost
from shoal.kube.lease import FencedTransport, Term
from tests.chaos.clusters.test_reach import placed
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.clusters.build import Town, check, condition, is_on, is_placed, our_check, sent_job, town
from tests.unit.queues.build import job, make, name_of, pods_of, said, true

HUB_NAMESPACE = "shoal.dev/hub-namespace"
RECORD = "shoal.dev/dispatch"


def ever_ran(cluster: Cluster) -> list[str]:
    """Names of Jobs that are seen unsuspended from now on, as they happen."""
    resource = cluster.server.registry.find("batch", "jobs")
    assert resource is not None
    seen: list[str] = []

    def look(event: object) -> None:
        found: Json = msgspec.json.decode(event.record.raw)  # type: ignore[attr-defined]
        if found["spec"].get("suspend") is False:
            seen.append(found["metadata"]["name"])

    resource.collection.listeners.append(look)
    return seen


async def earlier_round(t: Town, workload: Json) -> Record:
    """As if this gang had been offered once before."""
    record = record_of(workload)
    more = msgspec.structs.replace(record, past=(record.epoch - 1,))
    metadata = {"annotations": {RECORD: stored(more)}}
    await t.hub.client.patch(kinds.WORKLOAD, workload["metadata"]["name"], "default", {"metadata": metadata})
    return Record(epoch=record.epoch - 1)


async def origin_of(t: Town) -> str:
    return f"shoal-{(await t.hub.get(kinds.NAMESPACE, 'kube-system'))['metadata']['uid']}"


def does_not_wait_for_other_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dispatcher, "_others_are_ready", lambda self, workload, ours: True)


@proven(without=does_not_wait_for_other_checks)
async def test_f094_nothing_is_anywhere_before_all_checks_are_ready_and_then_in_one_place() -> None:
    """F94: another check of the gang is not ready yet. Holds: no copy anywhere until it is; then it runs in exactly one
    cluster (I38, I40)."""
    async with town("a", "b") as t:
        other = {**check("budget"), "spec": {"controllerName": "example.com/budget"}}
        await t.hub.create(kinds.ADMISSION_CHECK, other)
        active = [{"type": "Active", "status": "True", "reason": "Yes", "message": "", "lastTransitionTime": LONG_AGO}]
        await t.hub.client.patch(
            kinds.ADMISSION_CHECK, "budget", None, {"status": {"conditions": active}}, subresource="status"
        )
        strategy = {"admissionChecks": [{"name": "budget"}, {"name": "elsewhere"}]}
        await t.hub.client.patch(
            kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": {"admissionChecksStrategy": strategy}}
        )
        t.start_hub()
        await t.connected()
        ran = {name: ever_ran(member) for name, member in t.members.items()}
        (made,) = await make(t.hub, sent_job("train", 2))
        await t.hub.until(kinds.WORKLOAD, name_of(made), true("QuotaReserved"))
        await t.settled()
        assert await t.where(kinds.WORKLOAD, name_of(made)) == []
        await say_ready(t.hub, name_of(made), "budget")
        found = await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed)
        await pods_of(t.members[found["status"]["clusterName"]], "train", 2)
        await t.settled()
        assert [name for name, seen in ran.items() if seen] == [found["status"]["clusterName"]]


LONG_AGO = "2026-01-01T00:00:00Z"


async def say_ready(hub: Cluster, name: str, check: str) -> None:
    found = await hub.get(kinds.WORKLOAD, name)
    entries = copying.deepcopy(found["status"]["admissionChecks"])
    for one in entries:
        if one["name"] == check:
            one["state"] = "Ready"
    await hub.client.patch(
        kinds.WORKLOAD, name, "default", {"status": {"admissionChecks": entries}}, subresource="status"
    )


def mirrors_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def mirror(self: Dispatcher, workload: Json, there: Json) -> bool:
        return False

    monkeypatch.setattr(Dispatcher, "_mirror", mirror)


@proven(without=mirrors_nothing)
async def test_f095_the_end_is_read_once_with_all_it_says_even_when_the_hub_was_away() -> None:
    """F95: a gang fails in its cluster while the hub is cut off and restarted. Holds: its end is copied once, job
    and Workload, and the name of the cluster stays."""
    async with town("a") as t:
        t.start_hub()
        await t.connected()
        name, _ = await placed(t)
        t.wires["a"].cut()
        await t.stop_hub()
        gone = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "out of memory"}
        failing = {**gone, "type": "FailureTarget"}
        times = {"lastTransitionTime": LONG_AGO, "lastProbeTime": LONG_AGO}
        await t.members["a"].client.patch(
            kinds.JOB,
            "train",
            "default",
            {"status": {"active": 0, "failed": 1, "conditions": [{**failing, **times}, {**gone, **times}]}},
            subresource="status",
        )
        t.wires["a"].mend()
        t.start_hub()
        ended = await t.hub.until(kinds.WORKLOAD, name, true("Finished"))
        assert said(ended, "Finished") == ("True", "Failed", "out of memory")
        assert is_on("a")(ended)
        shown = await t.hub.get(kinds.JOB, "train")
        assert condition(shown, "Failed")["message"] == "out of memory"
        await t.members["a"].until_gone(kinds.WORKLOAD, name)
        await t.settled()
        assert await t.where(kinds.JOB, "train") == []
        assert (await t.hub.get(kinds.WORKLOAD, name))["status"] == ended["status"]


def removes_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(obj: Json, workload: Json | None, removed_up_to: int | None) -> str:
        verdict = judge(obj, workload, removed_up_to)
        return "stale" if verdict == "unknown" else verdict

    monkeypatch.setattr(member_module, "judge", judged)


@proven(without=removes_what_it_does_not_know)
async def test_f136_a_hub_restored_from_an_older_backup_deletes_nothing_it_does_not_remember() -> None:
    """F136: the hub's record is older than what runs in a cluster. Holds: what is younger is listed, never deleted
    unasked, and its gang is not started a second time."""
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        name, home = await placed(t)
        before = await t.members[home].get(kinds.JOB, "train")
        await t.stop_hub()
        metadata = {"annotations": {RECORD: '{"epoch":1}'}}
        await t.hub.client.patch(kinds.WORKLOAD, name, "default", {"metadata": metadata})
        found = await t.hub.get(kinds.WORKLOAD, name)
        entries = [{**one, "state": "Pending"} for one in found["status"]["admissionChecks"]]
        await t.hub.client.patch(
            kinds.WORKLOAD,
            name,
            "default",
            {"status": {"clusterName": None, "admissionChecks": entries}},
            subresource="status",
        )
        t.start_hub()
        listed = await t.hub.until(kinds.MULTIKUEUE_CLUSTER, home, true("UnknownCopies"))
        assert "Job default/train" in condition(listed, "UnknownCopies")["message"]
        await t.hub.until(kinds.WORKLOAD, name, lambda one: "does not remember" in our_check(one)["message"])
        await t.settled()
        assert (await t.members[home].get(kinds.JOB, "train"))["metadata"]["uid"] == before["metadata"]["uid"]
        assert await t.where(kinds.JOB, "train") == [home]


def runs_again_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Dispatcher._send_back

    async def send_back(self: Dispatcher, workload: Json, check: Json, why: str, state: str, **rest: bool) -> None:
        await kept(self, workload, check, why, "Retry", **rest)

    monkeypatch.setattr(Dispatcher, "_send_back", send_back)


@proven(without=runs_again_what_was_lost)
async def test_f137_a_job_that_is_gone_before_its_end_was_read_is_not_run_again() -> None:
    """F137: somebody deletes the job in its cluster. Holds: shown as lost, never run again by itself; a
    user who switches it on again gets it run."""
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        name, home = await placed(t)
        await t.members[home].client.delete(kinds.JOB, "train", "default", propagation="Background")
        lost = await t.hub.until(kinds.WORKLOAD, name, lambda one: one["spec"]["active"] is False)
        await t.settled()
        lost = await t.hub.get(kinds.WORKLOAD, name)
        assert "its end was never read" in said(lost, "Evicted")[2]
        assert await t.where(kinds.JOB, "train") == []
        await t.hub.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": True}})
        again = await t.hub.until(kinds.WORKLOAD, name, is_placed)
        await pods_of(t.members[again["status"]["clusterName"]], "train", 2)


def compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "altered", lambda sent, found: "")


@proven(without=compares_nothing)
async def test_f139_a_gang_that_a_cluster_would_change_does_not_start_there() -> None:
    """F139: a member's webhook, or its older CRD, drops a field of the job. Holds: seen before anything starts; the
    gang goes back with the field named."""
    async with town("a") as t:

        def drops(request: AdmissionRequest) -> AdmissionVerdict:
            changed = copying.deepcopy(request.object or {})
            changed["spec"].pop("activeDeadlineSeconds", None)
            return AdmissionVerdict(changed=changed)

        t.members["a"].server.admission.preparers[("batch", "jobs")] = drops
        t.start_hub()
        await t.connected()
        wanted = sent_job("train", 1)
        wanted["spec"]["activeDeadlineSeconds"] = 500
        (made,) = await make(t.hub, wanted)
        back = await t.hub.until(kinds.WORKLOAD, name_of(made), true("Evicted"))
        assert "spec.activeDeadlineSeconds" in said(back, "Evicted")[2]
        assert await t.where(kinds.JOB, "train") == []


def any_namespace_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check_way(self: Member, name: str, accepting: str) -> None:
        return None

    monkeypatch.setattr(Member, "check_way", check_way)


@proven(without=any_namespace_will_do)
async def test_f140_a_members_namespace_takes_gangs_of_the_hub_namespace_that_it_names() -> None:
    """F140: a namespace of the hub has the name of a member's that belongs to somebody else. Holds: the member's
    namespace names the hub's by UID; no other reaches into it."""
    async with town("a") as t:
        await t.members["a"].client.patch(
            kinds.NAMESPACE, "default", None, {"metadata": {"annotations": {HUB_NAMESPACE: "somebody-elses"}}}
        )
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 1))
        back = await t.hub.until(kinds.WORKLOAD, name_of(made), true("Evicted"))
        assert "namespace default does not take gangs from this hub's" in said(back, "Evicted")[2]
        assert await t.where(kinds.WORKLOAD, name_of(made)) == []
        ours = (await t.hub.get(kinds.NAMESPACE, "default"))["metadata"]["uid"]
        await t.members["a"].client.patch(
            kinds.NAMESPACE, "default", None, {"metadata": {"annotations": {HUB_NAMESPACE: ours}}}
        )
        await t.hub.until(kinds.WORKLOAD, name_of(made), is_on("a"))


def jobs_make_workloads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (queues_caches, queues_reconciler):
        monkeypatch.setattr(module, "prebuilt_name", lambda job: "")


@proven(without=jobs_make_workloads_of_their_own)
async def test_f141_a_release_that_arrives_late_starts_nothing() -> None:
    """F141: a hub that was frozen sends its release after the gang went back. Holds: the job names the Workload of its
    round, which is gone: it never starts, and is removed. A term that is over sends nothing at all."""
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 1))
        found = await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed)
        home = found["status"]["clusterName"]
        (other,) = {"a", "b"} - {home}
        await t.members[other].until_gone(kinds.WORKLOAD, name_of(made))
        await t.stop_hub()
        ran = ever_ran(t.members[other])
        old = await earlier_round(t, found)
        late = job_copy(BY_KIND[kinds.JOB], made, found, old, await origin_of(t))
        await t.members[other].create(kinds.JOB, late)
        await t.settled()
        assert ran == []
        t.start_hub()
        await t.members[other].until_gone(kinds.JOB, "train")
        assert ran == []
    term = Term(1, 0.0, SystemClock())
    fenced = Client(FencedTransport(t.wires["a"], term))
    term.end()
    with pytest.raises(LeaseLost):
        await fenced.create(kinds.JOB, late, "default")


def keeps_what_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(obj: Json, workload: Json | None, removed_up_to: int | None) -> str:
        verdict = judge(obj, workload, removed_up_to)
        return "unknown" if verdict == "stale" else verdict

    monkeypatch.setattr(member_module, "judge", judged)


@proven(without=keeps_what_is_old)
async def test_f143_copies_of_an_earlier_round_go_when_their_cluster_is_back() -> None:
    """F143: a member is restored from a backup and has copies of an earlier round. Holds: removed by UID; what runs now
    stays."""
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        name, home = await placed(t)
        (other,) = {"a", "b"} - {home}
        await t.members[other].until_gone(kinds.WORKLOAD, name)
        now = await t.members[home].get(kinds.JOB, "train")
        await t.stop_hub()
        found, origin = await t.hub.get(kinds.WORKLOAD, name), await origin_of(t)
        old = await earlier_round(t, found)
        await t.members[other].create(kinds.WORKLOAD, workload_copy(found, old, origin))
        hub_job = await t.hub.get(kinds.JOB, "train")
        await t.members[other].create(kinds.JOB, job_copy(BY_KIND[kinds.JOB], hub_job, found, old, origin))
        await pods_of(t.members[other], "train", 2)
        t.start_hub()
        await t.members[other].until_gone(kinds.JOB, "train")
        await t.members[other].until_gone(kinds.WORKLOAD, name)
        await pods_of(t.members[other], "train", 0)
        assert (await t.members[home].get(kinds.JOB, "train"))["metadata"]["uid"] == now["metadata"]["uid"]


async def test_a_strangers_job_of_the_same_name_is_left_alone() -> None:
    async with town("a", "b") as t:
        (theirs,) = await make(t.members["a"], job("train", 1))
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 2))
        await t.hub.until(kinds.WORKLOAD, name_of(made), is_on("b"))
        await pods_of(t.members["b"], "train", 2)
        assert (await t.members["a"].get(kinds.JOB, "train"))["metadata"]["uid"] == theirs["metadata"]["uid"]
