"""Lost events, untrue reasons and wrong books in small stored worlds, each beside an equal legal one."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.checker import at_rest
from tests.checker.at_rest import judge_rest
from tests.checker.rest_build import EARLIER, RULES, World, condition, short, template, wrapper

# --- 7: lost events


def _deleted(plural: str, kind: str, used: bool) -> World:
    world = World()
    world.node()
    world.put(
        "admissionchecks",
        "check",
        namespaced=False,
        kind="AdmissionCheck",
        spec={},
        status={"conditions": [condition("Active", True)]},
    )
    queue = world.queue("q", "4")
    gang = world.gang("mine", "q", "1", state="admitted")
    if not used:
        gang["status"]["conditions"].append(condition("Finished", True))
        world.job("mine")["status"]["conditions"] = [condition("Complete", True)]
        if plural != "clusterqueues":
            world.objects["clusterqueues"].remove(queue)
    elif plural == "admissionchecks":
        queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "check"}]}
        gang["status"]["admissionChecks"] = [{"name": "check", "state": "Ready"}]
    obj = world.objects[plural][0]
    obj["kind"] = kind
    obj["metadata"] |= {"deletionTimestamp": EARLIER, "finalizers": ["kueue.x-k8s.io/resource-in-use"]}
    return world


IN_USE = [
    ("clusterqueues", "ClusterQueue"),
    ("resourceflavors", "ResourceFlavor"),
    ("admissionchecks", "AdmissionCheck"),
]


@pytest.mark.parametrize(("plural", "kind"), IN_USE)
def test_what_is_not_used_any_more_can_be_deleted(plural: str, kind: str) -> None:
    found = _deleted(plural, kind, used=False).found()
    assert [one for one in found if one.startswith(f"I37: {kind}")] == found
    assert len(found) == 1


@pytest.mark.parametrize(("plural", "kind"), IN_USE)
def test_what_is_in_use_is_kept(plural: str, kind: str) -> None:
    assert _deleted(plural, kind, used=True).found() == []


def _overhead(overhead: str) -> World:
    world = World()
    world.node()
    world.put(
        "runtimeclasses", "heavy", namespaced=False, kind="RuntimeClass", overhead={"podFixed": {"cpu": overhead}}
    )
    world.queue("q", "3")
    world.gang("first", "q", state="admitted")
    world.gang("mine", "q", "1", says=short())
    for obj in (world.objects["workloads"][1]["spec"]["podSets"][0], world.job("mine")["spec"]):
        obj["template"] = template("1", runtimeClassName="heavy")
    return world


def test_an_overhead_that_became_less_lets_a_gang_start() -> None:
    found = _overhead("1").found()
    assert found[0].split(" (")[0] == "I18: Job mine waits in q although its quota is free"
    assert found[1].endswith("and nothing more of cpu is needed")


def test_an_overhead_counts() -> None:
    assert _overhead("2").found() == []


def _orphan(job: bool) -> World:
    world = World()
    owner = world.put("jobs", "mine", spec={}, status={})
    world.pod("mine-0", owner, "node", finalizers=["batch.kubernetes.io/job-tracking"])
    if not job:
        world.objects["jobs"].clear()
    return world


def test_a_pod_whose_job_is_gone_is_not_tracked() -> None:
    assert _orphan(job=False).found() == [
        "I37: pod default/mine-0 keeps batch.kubernetes.io/job-tracking and its Job is gone"
    ]


def test_a_pod_is_tracked_for_its_job() -> None:
    assert _orphan(job=True).found() == []


def _without_workload(told: bool) -> World:
    world = World()
    world.queue("q", "4")
    world.gang("mine", "q")
    world.objects["workloads"].clear()
    if told:
        world.put("events", "why", involvedObject={"uid": "jobs-mine"}, message="env is there twice")
    return world


def test_a_job_that_is_held_is_told_why() -> None:
    found = _without_workload(told=False).found()
    assert found == ["I52: Job default/mine is held by its queue, has no Workload, and no event says why"]


def test_a_job_that_was_told_why_stays_held() -> None:
    assert _without_workload(told=True).found() == []


def _reclaimable(kept: bool) -> World:
    world = World()
    world.node()
    world.queue("q", "3")
    world.gang("first", "q", "3", state="admitted")
    gang = world.gang("mine", "q", pods=3, says=short(2 if kept else 3))
    world.job("mine")["status"] = {"succeeded": 1}
    if kept:
        gang["status"]["reclaimablePods"] = [{"name": "main", "count": 1}]
    return world


def test_pods_that_are_done_stay_done() -> None:
    assert _reclaimable(kept=False).found() == [
        "I10: 1 pods of Job mine are done and will not run again, and 0 are told so"
    ]


def test_pods_that_are_done_need_no_quota() -> None:
    assert _reclaimable(kept=True).found() == []


def _stranger(pods: bool) -> World:
    """A Workload of a kind that we do not know; its own controller stops it."""
    world = World()
    world.node()
    world.queue("q", "1")
    world.gang("first", "q", state="admitted")
    gang = world.gang("mine", "q", says=short())
    world.objects["jobs"].remove(world.job("mine"))
    owner = {"kind": "TrainJob", "metadata": {"uid": "strange"}}
    gang["metadata"]["ownerReferences"] = [{"kind": "TrainJob", "name": "mine", "uid": "strange", "controller": True}]
    if pods:
        world.pod("mine-0", owner, "node")
    return world


def test_quota_comes_back_when_the_last_pod_of_a_stranger_is_gone() -> None:
    assert _stranger(pods=True).found() == ["I5: TrainJob mine has no quota and 1 pods that may run"]


def test_a_stranger_without_pods_waits() -> None:
    assert _stranger(pods=False).found() == []


def _ray_job(deleted: str) -> World:
    world = World()
    metadata = {"finalizers": ["ray.io/rayjob-finalizer"], **({"deletionTimestamp": deleted} if deleted else {})}
    world.put("rayjobs", "mine", kind="RayJob", metadata=metadata, spec={})
    return world


def test_a_deleted_ray_job_goes() -> None:
    assert _ray_job(EARLIER).found() == ["I37: RayJob default/mine is deleted and keeps ray.io/rayjob-finalizer"]


@pytest.mark.parametrize("deleted", ["", "2026-01-01T11:59:50Z"])
def test_a_ray_job_is_kept_while_it_is_there_or_just_going(deleted: str) -> None:
    assert _ray_job(deleted).found() == []


# --- 9: what is told


def _told(says: str, **spec: Any) -> World:
    world = World()
    world.node()
    world.queue("q", "1", **spec)
    world.gang("first", "q", state="admitted")
    world.gang("mine", "q", says=says)
    return world


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("ClusterQueue q is stopped", "it is not stopped"),
        ("ClusterQueue q is inactive: it is stopped", "nothing keeps it from admitting"),
        ("ClusterQueue q doesn't exist", "it exists"),
        ("workload namespace doesn't match ClusterQueue selector", "it does"),
        (short(3), "1000 (in base units) more of cpu is needed"),
        ("Bypassed scheduling evaluation due to a recent change", "that does not say what is missing"),
    ],
)
def test_a_reason_that_is_not_true(says: str, why: str) -> None:
    assert _told(says).found() == [f"I52: Job mine is told {says!r}, and {why}"]


def test_reasons_that_are_true() -> None:
    assert _told(short(1)).found() == []
    assert _told("ClusterQueue q is inactive: it is stopped", stopPolicy="Hold").found() == []
    assert _told("workload namespace doesn't match ClusterQueue selector", namespaceSelector=None).found() == []


def test_a_queue_says_whether_it_admits() -> None:
    world = _told(short(1))
    world.objects["clusterqueues"][0]["status"] = {"conditions": [condition("Active", False, "is stopped")]}
    found = [one for one in world.found() if one.startswith("I52")]
    assert found == ["I52: ClusterQueue q says 'is stopped', and nothing is wrong with it"]


def _holder(holder: str, holds: bool) -> World:
    world = World()
    world.node(cpu="1")
    wrapper(world, "holder", "1", {"state": "Running", "canrun": True} if holds else {"state": "Completed"})
    world.pod("other", None, "node", "1")
    told = f"1 cpu needed, 0 free; position 1; held by AppWrapper/default/{holder}"
    wrapper(world, "waits", "1", {"state": "Pending", "queuejobstate": "Backoff", "message": told})
    return world


def test_who_is_said_to_hold_holds() -> None:
    assert _holder("holder", holds=True).found() == []
    (found,) = _holder("holder", holds=False).found()
    assert found.endswith("and AppWrapper default/holder holds nothing")
    (found,) = _holder("nobody", holds=True).found()
    assert found.endswith("and there is no AppWrapper default/nobody")


# --- room


def _free(told: str, **node: Any) -> World:
    """2 of 4 cpus are free; an AppWrapper that wants 3 is told how much is."""
    world = World()
    world.node(cpu="4")["spec"] = node
    world.pod("stranger", None, "node", "2")
    said = f"3 cpu needed, {told} free"
    wrapper(world, "waits", "3", {"state": "Pending", "queuejobstate": "Backoff", "message": said})
    return world


def test_as_much_is_free_as_is_told() -> None:
    assert _free("2").found() == []
    for told in ("1", "3"):
        (found,) = _free(told).found()
        assert found.endswith("and 2000 (in base units) of cpu is free")


def test_less_may_be_free_on_the_nodes_that_a_gang_may_use() -> None:
    taints = [{"key": "gpu", "effect": "NoSchedule"}]
    why = "how much is free on the nodes that it may use, beside pods to come"
    assert _free("0", taints=taints).undecided() == [f"AppWrapper default/waits: {why}"]
    (found,) = _free("3", taints=taints).found()
    assert found.endswith("and 2000 (in base units) of cpu is free")


# --- positions


def _line(says: str, answer: tuple[int, int] | None = None, answered: str = "2026-01-01T11:00:00Z") -> World:
    """`first` comes before `mine` by priority, `last` behind it by age."""
    world = World()
    world.node()
    world.queue("q", "1")
    world.gang("holder", "q", state="admitted")
    world.gang("first", "q", says=short(), priority=5)
    world.gang("mine", "q", says=says)
    world.gang("last", "q", says=short())["metadata"]["creationTimestamp"] = "2026-01-01T10:30:00Z"
    if answer is not None:
        status = {"uid": "jobs-mine", "position": answer[0], "queueLength": answer[1], "answeredAt": answered}
        world.put("questions", "why", kind="Question", spec={"target": {"kind": "Job", "name": "mine"}}, status=status)
    return world


def test_a_position_that_is_stored_is_the_one_in_line() -> None:
    assert _line(f"{short()}; position 2 of 3").found() == []
    for told in ("position 1 of 3", "position 2 of 4"):
        (found,) = _line(f"{short()}; {told}").found()
        assert found.endswith("and it is at position 2 of 3")


def test_a_position_that_was_answered_is_the_one_in_line() -> None:
    assert _line(short(), (2, 3)).found() == []
    assert _line(short(), (1, 3)).found() == ["I52: Job mine was told position 1 of 3, and it is at position 2 of 3"]


def test_an_answer_about_a_line_that_has_changed_since_is_not_judged() -> None:
    assert _line(short(), (1, 2)).found() == []
    assert _line(short(), (1, 3), answered="2026-01-01T10:20:00Z").found() == []


def test_a_position_among_app_wrappers_goes_by_priority() -> None:
    world = World()
    world.node(cpu="1")
    world.pod("stranger", None, "node")
    pending = {"state": "Pending", "queuejobstate": "Backoff", "message": "1 cpu needed, 0 free; position 1"}
    wrapper(world, "first", "1", {**pending})["spec"]["priority"] = 5
    wrapper(world, "second", "1", {**pending})
    (found,) = world.found()
    assert found.startswith("I52: AppWrapper default/second") and found.endswith("position 2 of 2")


# --- books


def _published(**counts: int) -> World:
    world = World()
    world.node()
    queue = world.queue("q", "2")
    world.gang("first", "q", state="admitted")
    world.gang("mine", "q", "2", says=short())
    used = [{"name": "default", "resources": [{"name": "cpu", "total": str(counts.pop("cpu", 1))}]}]
    told = {"pendingWorkloads": 1, "reservingWorkloads": 1, "admittedWorkloads": 1, **counts}
    queue["status"] = {"conditions": [condition("Active", True)], **told}
    queue["status"] |= {"flavorsReservation": used, "flavorsUsage": used}
    return world


def test_what_queues_publish_is_what_is_stored() -> None:
    assert _published().found() == []
    assert _published(admittedWorkloads=2).found() == ["I10: ClusterQueue q says 2 admitted and there are 1"]
    found = _published(cpu=2).found()
    assert (
        found[0] == "I10: ClusterQueue q says flavorsReservation 2000 cpu of default and 1000 cpu of default is charged"
    )


def test_admitted_means_charged() -> None:
    world = _published()
    del world.objects["workloads"][0]["status"]["admission"]
    assert "I10: Job first is admitted and charged nowhere" in world.found()


# --- where the plain rules do not decide


def _limited(**limit: dict[str, str]) -> World:
    world = World()
    world.node()
    world.queue("q", "1")
    world.gang("mine", "q")
    world.put("limitranges", "small", spec={"limits": [{"type": "Container", **limit}]})
    return world


def test_limits_of_a_namespace_that_change_a_pod_leave_it_undecided() -> None:
    (found,) = _limited(max={"cpu": "2"}).found()
    assert found.startswith("I18: Job mine waits in q although its quota is free")
    for limit in ({"max": {"cpu": "500m"}}, {"defaultRequest": {"memory": "1Gi"}}):
        verdict = judge_rest(_limited(**limit).objects, RULES)
        assert (verdict.found, len(verdict.undecided)) == ([], 1)


def test_the_judge_imports_nothing_of_those_it_judges() -> None:
    folder = Path(at_rest.__file__).parent
    read = [
        folder / "at_rest.py",
        *sorted(set(folder.glob("rest_*.py")) - {folder / "rest_build.py"}),
        folder / "gang_world.py",
        folder / "gang_rules.py",
    ]
    imported = {
        node.module or ""
        for path in read
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    ours = {name for name in imported if name.startswith("shoal")}
    assert ours == {"shoal.api.gang", "shoal.api.quantity", "shoal.api.times", "shoal.errors"}
    assert len(read) > 8
