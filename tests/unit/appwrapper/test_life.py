"""What becomes of a dispatched gang: completion, limits, requeues, counts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, AppWrapperStatus, Requeuing, wrapped_items
from shoal.api.codec import typed
from shoal.api.meta import Json
from shoal.api.times import micro_text, parse_time
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings, admission, explain, follow, monitor
from shoal.controllers.appwrapper import status as statuses
from shoal.controllers.appwrapper.admission import Admission
from shoal.controllers.appwrapper.pods import GangPod
from shoal.engine.model import PodFact
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    has_state,
    job,
    needs,
    of_gang,
    pod,
    ray_cluster,
    set_pod,
    trail,
    waits,
)

SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND


def completing(name: str, *wraps: tuple[Json, str]) -> Json:
    """An AppWrapper whose items name what ends them."""
    made = app_wrapper(name, *(obj for obj, _ in wraps))
    for item, (_, ends) in zip(made["spec"]["resources"]["GenericItems"], wraps, strict=True):
        item["completionstatus"] = ends
    return made


async def finish_job(cluster: Cluster, name: str, type: str = "Complete") -> None:
    condition = {"type": type, "status": "True"}
    await cluster.client.patch(
        kinds.JOB, name, "default", {"status": {"conditions": [condition]}}, subresource="status"
    )


async def pod_of(cluster: Cluster, name: str) -> str:
    """The pod that the Job's controller made."""
    async for event in cluster.client.watch(
        kinds.POD, "default", label_selector=f"job-name={name}", send_initial_events=True
    ):
        if event.type == "ADDED":
            return str(msgspec.json.decode(event.object)["metadata"]["name"])
    raise AssertionError(f"no pod of Job {name} came")


async def say_done(cluster: Cluster, name: str) -> None:
    moment = "2026-01-01T00:00:00Z"
    condition = {"type": "Done", "status": "True", "reason": "Ended", "message": "", "lastTransitionTime": moment}
    change = {"status": {"conditions": [condition]}}
    await cluster.client.patch(kinds.RAY_CLUSTER, name, "default", change, subresource="status")


async def test_a_job_that_is_complete_completes_its_wrapper(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, completing("gang", (job("train", cpu="3"), "Complete,Failed")))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await set_pod(cluster, await pod_of(cluster, "train"), "Succeeded")
    await finish_job(cluster, "train")
    done = await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Completed"))
    assert trail(done)[-1] == ("Completed", "PodsCompleted", "completed by Complete")
    assert "canrun" not in done["status"]
    assert "train" in await cluster.names(kinds.JOB), "what it wrapped stays until the AppWrapper goes"
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("a"), needs=[needs(1, cpu="4")]))
    await cluster.until(kinds.APP_WRAPPER, "next", dispatched)


async def test_all_watched_items_must_end_and_live_pods_hold_it(cluster: Cluster) -> None:
    both = completing("gang", (ray_cluster("one"), "Done"), (ray_cluster("two"), "Done"), (config_map("c"), ""))
    await cluster.create(kinds.APP_WRAPPER, both)
    wrapper = await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    for name, phase in (("over", "Succeeded"), ("left", "Running")):
        await cluster.create(kinds.POD, of_gang(wrapper, pod(name, cpu="1")))
        await set_pod(cluster, name, phase)
    await say_done(cluster, "one")
    await cluster.settled()
    assert has_state("Running")(await cluster.get(kinds.APP_WRAPPER, "gang"))
    await say_done(cluster, "two")
    held = await cluster.until(kinds.APP_WRAPPER, "gang", has_state("RunningHoldCompletion"))
    assert trail(held)[-1][:2] == ("RunningHoldCompletion", "SomeItemsCompleted")
    await set_pod(cluster, "left", "Succeeded")
    await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Completed"))


async def test_an_item_that_is_done_before_its_pods_exist_is_not_believed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Deployment says `Progressing` before it has made a pod; a gang without any pods is done when it says so."""
    await cluster.create(kinds.APP_WRAPPER, completing("gang", (ray_cluster("one"), "Done")))
    wrapper = await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await say_done(cluster, "one")
    await cluster.settled()
    assert has_state("Running")(await cluster.get(kinds.APP_WRAPPER, "gang"))
    await cluster.create(kinds.POD, of_gang(wrapper, pod("late", cpu="1")))
    await cluster.until(kinds.APP_WRAPPER, "gang", has_state("RunningHoldCompletion"))
    monkeypatch.setattr(follow, "PODS_TO_COME", 0.1)  # none of this one's pods ever comes
    await cluster.create(kinds.APP_WRAPPER, completing("podless", (ray_cluster("two"), "Done")))
    await cluster.until(kinds.APP_WRAPPER, "podless", dispatched)
    await say_done(cluster, "two")
    await cluster.until(kinds.APP_WRAPPER, "podless", has_state("Completed"))


def true(*types: str) -> list[Json]:
    return [{"type": type, "status": "True"} for type in types]


@pytest.mark.parametrize(
    "kind, wanted, status, ends",
    [
        ("Job", "Complete,Failed", {"conditions": true("Failed")}, "Failed"),
        ("Job", " Failed , Complete ", {"conditions": true("Complete")}, "Complete"),
        ("Job", "complete", {"conditions": true("NotComplete", "Complete")}, "Complete"),
        ("Job", "complete", {"conditions": true("NotComplete")}, "NotComplete"),
        ("Job", "Complete", {"conditions": [{"type": "Complete"}]}, "Complete"),
        ("Job", "Complete", {"conditions": [{"type": "Complete", "status": "False"}]}, None),
        ("Job", "Complete", {"conditions": ["odd"]}, None),
        ("Job", "Complete", {}, None),
        ("Job", ",", {"conditions": true("Complete")}, None),
        ("RayJob", "Complete", {"jobStatus": "SUCCEEDED"}, "Complete"),
        ("RayJob", "Complete", {"jobStatus": "FAILED"}, None),
        ("RayJob", "Complete,Failed", {"jobStatus": "STOPPED"}, "Failed"),
        ("RayJob", "Complete", {"jobStatus": "RUNNING"}, None),
        ("RayCluster", "Failed", {"state": "failed"}, "Failed"),
        ("RayCluster", "Failed", {"state": "ready"}, None),
        ("Pod", "Complete", {"phase": "Succeeded"}, "Complete"),
        ("Pod", "Complete,Failed", {"phase": "Failed"}, "Failed"),
        ("Pod", "Complete", {"phase": "Running"}, None),
    ],
)
def test_what_ends_an_item(kind: str, wanted: str, status: Json, ends: str | None) -> None:
    """An exact name before one that only contains it, true conditions alone, and kinds that report otherwise."""
    wrapper = typed(completing("gang", (config_map("x"), wanted)), AppWrapper)
    assert monitor.completion(wrapped_items(wrapper), [{"kind": kind, "status": status}]) == ends


async def test_a_service_never_completes(cluster: Cluster) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    await cluster.create(kinds.APP_WRAPPER, completing("gang", (service, "Progressing")))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await cluster.settled()
    assert dispatched(await cluster.get(kinds.APP_WRAPPER, "gang"))


async def test_past_its_run_time_it_fails_for_good(cluster: Cluster) -> None:
    limited = app_wrapper("gang", config_map("a"), schedulingSpec={"dispatchDuration": {"limit": 1}})
    await cluster.create(kinds.APP_WRAPPER, limited)
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    ended = await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    message = "Dispatch deadline exceeded. allowed to run for 1 seconds"
    assert trail(ended)[-1] == ("PreemptCandidate", "DispatchDeadlineExceeded", message)
    assert ended["status"]["sender"] == "before PreemptQueueJobs - CanRun: false -- DispatchDeadlineExceeded"
    await cluster.until_gone(kinds.CONFIG_MAP, "a")
    await cluster.settled()
    assert has_state("Failed")(await cluster.get(kinds.APP_WRAPPER, "gang"))


async def test_counts_and_totals_are_told_without_touching_the_tutorials_fields(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "COUNTS_PAUSE", 0.05)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", pod("one", cpu="1", memory="3Gi")))
    before = await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await set_pod(cluster, "one", "Running")
    after = await cluster.until(kinds.APP_WRAPPER, "gang", lambda one: one["status"].get("running") == 1)
    assert after["status"]["totalmemory"] == 3 * 2**30, "more than 32 bits hold"
    assert after["status"]["totalcpu"] == 1000
    for field in ("conditions", "sender", "queuejobstate", "state", "canrun"):
        assert after["status"][field] == before["status"][field]


# --- minAvailable


@pytest.mark.parametrize(
    "growth, most, waits_of",
    [
        ("exponential", 0, [200, 400, 800]),
        ("linear", 0, [200, 300, 400]),
        ("none", 0, [100, 100, 100]),
        ("strange", 0, [100, 100, 100]),
        ("exponential", 300, [200, 300, 300]),
    ],
)
def test_the_wait_grows_with_each_requeue(growth: str, most: int, waits_of: list[int]) -> None:
    requeuing = Requeuing(time_in_seconds=100, growth_type=growth, max_time_in_seconds=most)
    assert [monitor.next_wait(requeuing, number) for number in (1, 2, 3)] == waits_of


def running_wrapper(least: int, seconds: int = 100, **status: Any) -> AppWrapper:
    made = app_wrapper(
        "gang", config_map("a"), schedulingSpec={"minAvailable": least, "requeuing": {"timeInSeconds": seconds}}
    )
    moment = micro_text(T0)
    condition = {
        "type": "Dispatched",
        "status": "True",
        "lastTransitionMicroTime": moment,
        "lastUpdateMicroTime": moment,
    }
    made["status"] = {"state": "Running", "canrun": True, "conditions": [condition], **status}
    return typed(made, AppWrapper)


def seen(name: str, phase: str, *, node: str = "node-1", at: int = T0, deleting: bool = False) -> GangPod:
    fact = PodFact(uid=name, name=name, node=node, phase=phase, deleting=deleting)
    return GangPod(fact, unbound_since=0 if node else at, bound_since=at if node else 0)


def test_a_shortfall_is_acted_on_after_its_grace_and_not_before() -> None:
    wrapper = running_wrapper(2)
    counts = monitor.count([seen("a", "Running"), seen("b", "Pending", node="")])
    assert monitor.judge_minimum(wrapper, counts, 0, T0 + 99 * SECOND).again == 1.0
    verdict = monitor.judge_minimum(wrapper, counts, 0, T0 + 100 * SECOND)
    assert verdict.action == "requeue"
    assert verdict.message == ("Insufficient number of Running and Completed pods, minimum=2, running=1, completed=0.")


def test_pods_that_succeeded_are_not_missing_and_those_that_failed_or_end_are() -> None:
    wrapper, late = running_wrapper(2), T0 + 1000 * SECOND
    for second, action in (("Succeeded", "none"), ("Running", "none"), ("Failed", "requeue"), ("Pending", "requeue")):
        counts = monitor.count([seen("a", "Running"), seen("b", second)])
        assert monitor.judge_minimum(wrapper, counts, 0, late).action == action, second
    ended = running_wrapper(2, state="RunningHoldCompletion")
    assert monitor.judge_minimum(ended, monitor.count([]), 0, late).action == "none", "what is done is not short"


def test_the_budget_of_requeues_ends_it() -> None:
    wrapper = running_wrapper(1, numberOfRequeueings=2)
    limited = typed(
        {
            **app_wrapper(
                "gang",
                config_map("a"),
                schedulingSpec={"minAvailable": 1, "requeuing": {"timeInSeconds": 1, "maxNumRequeuings": 2}},
            ),
            "status": {"state": "Running", "numberOfRequeueings": 2},
        },
        AppWrapper,
    )
    assert monitor.judge_minimum(wrapper, monitor.count([]), 0, T0 * 2).action == "requeue"
    assert monitor.judge_minimum(limited, monitor.count([]), 0, T0).action == "give up"


class Hurried:
    """A clock on which thirty seconds pass in one."""

    def __init__(self) -> None:
        self._began, self._at = time.time(), time.monotonic()

    def now(self) -> int:
        return int((self._began + self.monotonic()) * SECOND)

    def monotonic(self) -> float:
        return (time.monotonic() - self._at) * 30

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 30)


def never_comes_up(name: str, **requeuing: Any) -> Json:
    """A pod that asks for most of the node, and must run; nobody binds it."""
    scheduling = {"minAvailable": 1, "requeuing": {"timeInSeconds": 6, **requeuing}}
    return app_wrapper(name, pod(f"{name}-pod", cpu="3"), config_map(f"{name}-map"), schedulingSpec=scheduling)


async def test_each_requeue_waits_longer_until_the_budget_is_used_up_and_nothing_is_left(quiet: Cluster) -> None:
    """After T, 2T, 4T it is taken back, taken back, and given up: `Deleted`, for good, and its objects are gone."""
    settings = AppWrapperSettings(supply="aggregate")
    quiet.start(AppWrapperController(quiet.client, settings, clock=Hurried()).run())
    await quiet.create(kinds.APP_WRAPPER, never_comes_up("gang", growthType="exponential", maxNumRequeuings=2))
    started, told, first_starts = 0, [], set()
    for times in (0, 1, 2):

        def runs_again(one: Json, times: int = times) -> bool:
            return dispatched(one) and one["status"].get("numberOfRequeueings", 0) == times

        found = (await quiet.until(kinds.APP_WRAPPER, "gang", runs_again))["status"]
        at = {one["type"]: parse_time(one["lastTransitionMicroTime"]) for one in found["conditions"]}
        assert at["Dispatched"] > started
        if started:
            assert at["PreemptCandidate"] - started >= told[-1] * SECOND
        started = at["Dispatched"]
        first_starts.add((found["controllerfirsttimestamp"], found["controllerfirstdispatchtimestamp"]))
        told.append(found.get("requeueingTimeInSeconds", 6))
    assert told == [6, 12, 24]
    assert len(first_starts) == 1, "its place in the line and its run time count from the first"
    ended = await quiet.until(kinds.APP_WRAPPER, "gang", has_state("Deleted"))
    assert (ended["status"]["queuejobstate"], ended["status"].get("canrun", False)) == ("Deleted", False)
    await quiet.until_gone(kinds.POD, "gang-pod")
    await quiet.until_gone(kinds.CONFIG_MAP, "gang-map")
    await quiet.settled()
    assert has_state("Deleted")(await quiet.get(kinds.APP_WRAPPER, "gang"))


@pytest.mark.parametrize(
    "ended",
    [
        lambda status: statuses.given_up(status, message="too few"),
        lambda status: statuses.failed(status, lambda: T0, message="refused"),
        lambda status: statuses.deadline_exceeded(status, lambda: T0, limit=5),
    ],
    ids=["given up", "failed", "too long"],
)
def test_who_has_ended_counts_no_live_pods_and_is_planned_nowhere(ended: Any) -> None:
    given = Admission(generation=1, sets={"0.pod": admission.Given(2, {"cpu": 2000}, {"node-1": 2})})
    ran = statuses.dispatched(statuses.admitted(AppWrapperStatus(), given, lambda: T0), lambda: T0)
    running = typed(app_wrapper("gang", pod("a")), AppWrapper)
    running = msgspec.structs.replace(running, status=msgspec.structs.replace(ran, running=1, pending=1, succeeded=3))
    assert explain.described(running, {})["nodes"] == {"node-1": 2}
    over = msgspec.structs.replace(running, status=ended(running.status))
    assert (over.status.running, over.status.pending, over.status.succeeded) == (0, 0, 3)
    assert "nodes" not in explain.described(over, {})


async def test_a_gang_that_cannot_come_up_does_not_keep_the_room_from_those_behind_it(quiet: Cluster) -> None:
    """Sums admit a gang whose pod no node takes; it is requeued for ever, and is older than the next. The room that it
    gives back is the next one's, and it waits."""
    settings = AppWrapperSettings(supply="aggregate")
    quiet.start(AppWrapperController(quiet.client, settings, clock=Hurried()).run())
    await quiet.create(kinds.APP_WRAPPER, never_comes_up("gang", growthType="none"))
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("n"), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "next", dispatched)
    back = await quiet.until(kinds.APP_WRAPPER, "gang", waits)
    assert ("PreemptCandidate", "MinPodsNotRunning") in [one[:2] for one in trail(back)]


@pytest.mark.parametrize(
    "reason, waits_until",
    [
        ("MinPodsNotRunning", T0 + SECOND),
        ("PodsFailedScheduling", T0 + SECOND),
        ("ItemCreationFailure.", T0 + SECOND),
        ("Preempted", 0),
        ("SpecChanged", 0),
    ],
)
def test_only_who_could_not_use_its_room_stands_aside(reason: str, waits_until: int) -> None:
    started = statuses.admitted(AppWrapperStatus(), Admission(generation=1), lambda: T0)
    stopped = statuses.preempt_candidate(started, lambda: T0, reason=reason, message="", sender="")
    back = statuses.back_in_queue(stopped, lambda: T0, aside=SECOND)
    assert admission.read(back.admission).resume_at == waits_until


def reads_slowness_as_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    original = monitor.judge_minimum

    def hasty(wrapper: AppWrapper, counts: monitor.PodCounts, enough_until: int, now: int) -> monitor.Verdict:
        return original(wrapper, msgspec.structs.replace(counts, bound_at=0), 0, now)

    monkeypatch.setattr(monitor, "judge_minimum", hasty)


@proven(without=reads_slowness_as_failure)
def test_f008_slow_images_and_replaced_pods_are_not_failures() -> None:
    """F8: pods were bound late and still pull their image; later one is replaced. Holds: the grace counts from when
    they got their nodes, and from when there were last enough of them."""
    wrapper = running_wrapper(1)
    pulling = monitor.count([seen("a", "Pending", at=T0 + 90 * SECOND)])
    assert monitor.judge_minimum(wrapper, pulling, 0, T0 + 150 * SECOND).action == "none"
    assert monitor.judge_minimum(wrapper, pulling, 0, T0 + 190 * SECOND).action == "requeue"
    ending = monitor.count([seen("a", "Running", deleting=True), seen("b", "Pending", node="", at=T0 + 999 * SECOND)])
    enough_until = T0 + 1000 * SECOND
    assert monitor.judge_minimum(wrapper, ending, enough_until, T0 + 1050 * SECOND).action == "none"
    assert monitor.judge_minimum(wrapper, ending, enough_until, T0 + 1100 * SECOND).action == "requeue"


# --- pods that are not bound


def never_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "judge_binding", lambda *arguments: monitor.Verdict())
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=never_notices)
async def test_f039_a_gang_whose_pods_find_no_node_goes_back_whole(quiet: Cluster) -> None:
    """F39: foreign pods took the node between fit and bind; one pod of the gang is bound, the other is not. Holds: the
    whole gang is taken back with the scheduler's reason, and its room is free."""
    quiet.start(AppWrapperController(quiet.client, AppWrapperSettings(bind_seconds=0.5)).run())
    brief = [pod(name, cpu="1") for name in ("a", "b")]
    for one in brief:
        one["spec"]["terminationGracePeriodSeconds"] = 0
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", *brief))
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    await set_pod(quiet, "a", "Running")
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: too full"}
    await quiet.client.patch(kinds.POD, "b", "default", {"status": {"conditions": [refusal]}}, subresource="status")
    back = await quiet.until(kinds.APP_WRAPPER, "gang", lambda one: waits(one) and has_state("Pending")(one))
    assert "0/1 nodes: too full" in back["status"]["message"]
    assert ("PreemptCandidate", "PodsFailedScheduling") in [one[:2] for one in trail(back)]
    assert await quiet.names(kinds.POD) == []
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("c"), needs=[needs(1, cpu="4")]))
    await quiet.until(kinds.APP_WRAPPER, "next", dispatched)


def test_a_pod_replaced_long_after_the_start_gets_its_own_time() -> None:
    wrapper = running_wrapper(0)
    counts = monitor.count([seen("a", "Running"), seen("b", "Pending", node="", at=T0 + 900 * SECOND)])
    assert monitor.judge_binding(wrapper, counts, 60, T0 + 930 * SECOND).again == 30.0
    assert monitor.judge_binding(wrapper, counts, 60, T0 + 960 * SECOND).action == "requeue"


def test_siblings_that_wait_for_each_other_are_not_listed_as_unschedulable() -> None:
    from shoal.controllers.appwrapper.pods import SeenPod, refusals

    def told(message: str) -> Json:
        refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        return {"metadata": {"name": "a"}, "status": {"phase": "Pending", "conditions": [refusal]}}

    assert refusals(typed(told("0/1 nodes are available"), SeenPod))
    assert not refusals(typed(told("optimistic rejection in PostFilter"), SeenPod))
