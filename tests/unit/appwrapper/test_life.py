"""What becomes of a dispatched gang: completion, limits, counts."""

from __future__ import annotations

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, wrapped_items
from shoal.api.codec import typed
from shoal.api.meta import Json
from shoal.controllers.appwrapper import monitor
from shoal.controllers.appwrapper.v1beta1 import follow
from tests.cluster import Cluster
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
)


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
