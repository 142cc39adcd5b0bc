"""Gangs whose pods do not come up, or are lost: the wait before each requeue, its budget, and who stands aside."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, AppWrapperStatus, Requeuing
from shoal.api.codec import typed
from shoal.api.meta import Json
from shoal.api.times import micro_text, parse_time
from shoal.controllers.appwrapper import AppWrapperSettings, monitor
from shoal.controllers.appwrapper.status import admission, explain
from shoal.controllers.appwrapper.status.admission import StoredAdmission
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from shoal.controllers.planning.pods import GangPod
from shoal.engine.model import PodFact
from shoal.kube.clock import SystemClock
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    has_state,
    needs,
    pod,
    set_pod,
    trail,
    waits,
)

SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND


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
    """A pod that asks for most of the node, and must run; no scheduler binds it."""
    scheduling = {"minAvailable": 1, "requeuing": {"timeInSeconds": 6, **requeuing}}
    return app_wrapper(name, pod(f"{name}-pod", cpu="3"), config_map(f"{name}-map"), schedulingSpec=scheduling)


async def test_each_requeue_waits_longer_until_the_budget_is_used_up_and_nothing_is_left(quiet: Cluster) -> None:
    """After T, 2T, 4T it is taken back, taken back, and given up: `Deleted`, for good, and its objects are gone."""
    settings = AppWrapperSettings(supply="aggregate")
    quiet.start(planned(quiet.client, settings, clock=Hurried()).run())
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
    given = StoredAdmission(generation=1, sets={"0.pod": admission.Given(2, {"cpu": 2000}, {"node-1": 2})})
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
    quiet.start(planned(quiet.client, settings, clock=Hurried()).run())
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
    started = statuses.admitted(AppWrapperStatus(), StoredAdmission(generation=1), lambda: T0)
    stopped = statuses.preempt_candidate(started, lambda: T0, reason=reason, message="", sender="")
    back = statuses.back_in_queue(stopped, lambda: T0, aside=SECOND)
    assert admission.read(back.admission).resume_at == waits_until


def reads_slowness_as_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    original = monitor.judge_minimum

    def hasty(
        wrapper: AppWrapper, counts: monitor.WrappedPodCounts, enough_until: int, now: int
    ) -> monitor.PodsVerdict:
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
    monkeypatch.setattr(monitor, "judge_binding", lambda *arguments: monitor.PodsVerdict())
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


class Later(SystemClock):
    """Ten minutes from now."""

    def now(self) -> int:
        return super().now() + 600 * SECOND


def counts_from_its_own_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.controllers.planning.cluster_facts.created_at", lambda pod: 0)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=counts_from_its_own_start)
async def test_f160_how_long_pods_have_no_node_outlives_the_controller(quiet: Cluster) -> None:
    """F160: the controller is started again while a pod of a gang finds no node. Holds: the time that it had until then
    counts, and the gang goes back."""
    settings = AppWrapperSettings(bind_seconds=300)
    first = quiet.start(planned(quiet.client, settings).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", *(pod(name, cpu="1") for name in ("a", "b"))))
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    await set_pod(quiet, "a", "Running")
    await quiet.settled()
    assert has_state("Running")(await quiet.get(kinds.APP_WRAPPER, "gang"))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    quiet.start(planned(quiet.client, settings, clock=Later()).run())
    await quiet.until(kinds.POD, "a", lambda one: "deletionTimestamp" in one["metadata"])
    back = await quiet.get(kinds.APP_WRAPPER, "gang")
    assert ("PreemptCandidate", "PodsFailedScheduling") in [one[:2] for one in trail(back)]


@proven(without=never_notices)
async def test_f039_a_gang_whose_pods_find_no_node_goes_back_whole(quiet: Cluster) -> None:
    """F39: foreign pods took the node between fit and bind; one pod of the gang is bound, the other is not. Holds: the
    whole gang is taken back with the scheduler's reason, and its room is free."""
    quiet.start(planned(quiet.client, AppWrapperSettings(bind_seconds=0.5)).run())
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
    from shoal.controllers.planning.pods import SeenPod, refusals

    def told(message: str) -> Json:
        refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        return {"metadata": {"name": "a"}, "status": {"phase": "Pending", "conditions": [refusal]}}

    assert refusals(typed(told("0/1 nodes are available"), SeenPod))
    assert not refusals(typed(told("optimistic rejection in PostFilter"), SeenPod))
