"""Tellings that were wrong once, each as a person met it: who is in the way, what is not told, and when it ended."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from shoal.api import kinds, pod_told
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli import why
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.engine import Engine
from shoal.engine.explain import holding
from shoal.engine.model import Explanation
from shoal.sdk import gangs, rows
from shoal.sdk.rows import rows_of
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, needs, pod, ray_cluster, set_pod, waits
from tests.unit.engine import build

TRUSTING = AppWrapperSettings(trust_unstamped=True)
EVERY = (*gangs.KINDS, *gangs.QUEUED)


def looks_at_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "usable_nodes", lambda state, gang: None)


def explained(engine: Engine, name: str) -> Explanation:
    engine.plan(0)
    found = engine.explain(f"AppWrapper/default/{name}")
    assert found is not None
    return found


@proven(without=looks_at_all_nodes)
def test_f172_held_by_names_only_gangs_on_nodes_that_this_gang_could_use() -> None:
    """F172: a large gang runs on nodes that a selector keeps the waiting one off, a small one on those it could use.
    Holds: only the small one is named as holding what is short, and so are pods of no gang there alone."""
    near, far = {"zone": "near"}, {"zone": "far"}
    engine = build.engine(
        build.node("near", cpu=8, labels=near),
        build.node("far", cpu=64, labels=far),
        build.gang("hog", build.pods(1, cpu=60), state="admitted"),
        build.pod("hog-0", on="far", of="hog", cpu=60),
        build.gang("small", build.pods(1, cpu=2), state="admitted"),
        build.pod("small-0", on="near", of="small", cpu=2),
        build.pod("stray-far", on="far", cpu=1),
        build.pod("stray-near", on="near", cpu=1),
        build.gang("waits", build.pods(1, cpu=7, node_selector=near)),
    )
    found = explained(engine, "waits")
    assert found.holders == ("AppWrapper/default/small",)
    assert engine.strangers("AppWrapper/default/waits", found) == ("Pod/default/stray-near",)


async def ask(cluster: Cluster, name: str) -> Json:
    return await why.explain_to(cluster.client, EVERY, name, "default")


def owned_by(owner: Json, obj: Json) -> Json:
    reference = {name: owner[name] for name in ("apiVersion", "kind")}
    metadata = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": True}
    obj["metadata"]["ownerReferences"] = [{**reference, **metadata}]
    return obj


def wrapper(name: str, cpu: str) -> Json:
    return app_wrapper(name, config_map(name), needs=[needs(1, cpu=cpu)])


async def test_an_unqueued_ray_cluster_that_takes_the_room_is_named(quiet: Cluster) -> None:
    """Its pods belong to no gang; people know the cluster, not its pods."""
    quiet.start(planned(quiet.client, TRUSTING).run())
    made = await quiet.create(kinds.RAY_CLUSTER, ray_cluster("free-standing"))
    await quiet.create(kinds.POD, owned_by(made, pod("free-standing-head", cpu="14")))
    await set_pod(quiet, "free-standing-head", "Running")
    await quiet.create(kinds.APP_WRAPPER, wrapper("waits", "4"))
    await quiet.until(kinds.APP_WRAPPER, "waits", waits)
    told = await ask(quiet, "waits")
    assert told["holders"] == ["RayCluster/default/free-standing"] and told["holdersNotShown"] == 0


async def test_holders_that_are_only_too_many_are_not_called_unreadable(
    quiet: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet.start(planned(quiet.client, TRUSTING).run())
    for number in range(25):
        await quiet.create(kinds.APP_WRAPPER, wrapper(f"holder-{number}", "600m"))
        await quiet.until(kinds.APP_WRAPPER, f"holder-{number}", dispatched)
    await quiet.create(kinds.APP_WRAPPER, wrapper("waits", "12"))
    await quiet.until(kinds.APP_WRAPPER, "waits", waits)
    told = await ask(quiet, "waits")
    assert (len(told["holders"]), told["moreHolders"], told["holdersNotShown"]) == (20, 5, 0)
    why._print(told)
    said = capsys.readouterr().out
    assert "and 5 more" in said and "may not read" not in said


UNSCHEDULABLE = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient cpu.",
        }
    ]
}


async def test_an_unqueued_ray_cluster_says_which_pod_waits_and_why(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet.start(planned(quiet.client, TRUSTING).run())
    made = await quiet.create(kinds.RAY_CLUSTER, ray_cluster("large"))
    for name in ("large-head", "large-worker"):
        await quiet.create(kinds.POD, owned_by(made, pod(name, cpu="12")))
    await set_pod(quiet, "large-head", "Running")
    await quiet.client.patch(kinds.POD, "large-worker", "default", {"status": UNSCHEDULABLE}, subresource="status")
    told = await ask(quiet, "large")
    assert told["reason"] == "PodsPending"
    assert told["pendingPods"] == [{"name": "large-worker", "message": "0/1 nodes are available: 1 Insufficient cpu."}]
    why._print(told)
    assert "pod large-worker: 0/1 nodes are available" in capsys.readouterr().out
    (row,) = await rows_of(quiet.client, "default")
    assert row["reason"] == "1 of 2 pods pending: large-worker: 0/1 nodes are available: 1 Insufficient cpu."


def takes_silence_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_told, "silent_scheduler", lambda spec, conditions: "")


@proven(without=takes_silence_for_nothing)
async def test_f832_pods_for_a_scheduler_that_does_not_answer_say_so(quiet: Cluster) -> None:
    """F832: pods ask for a batch scheduler (volcano, yunikorn, kai) that does not run, and stay Pending without a word.
    Holds: `shoal why` and `shoal get` name the scheduler that has not answered; once it says something, that counts."""
    quiet.start(planned(quiet.client, TRUSTING).run())
    made = await quiet.create(kinds.RAY_CLUSTER, ray_cluster("large"))
    waiting = pod("large-head")
    waiting["spec"]["schedulerName"] = "volcano"
    await quiet.create(kinds.POD, owned_by(made, waiting))
    silence = "no scheduler volcano has answered: does one run in this cluster, as its spec.schedulerName asks?"
    told = await ask(quiet, "large")
    assert (told["reason"], told["pendingPods"]) == ("PodsPending", [{"name": "large-head", "message": silence}])
    (row,) = await rows_of(quiet.client, "default")
    assert row["reason"] == f"1 of 1 pods pending: large-head: {silence}"
    await quiet.client.patch(kinds.POD, "large-head", "default", {"status": UNSCHEDULABLE}, subresource="status")
    (row,) = await rows_of(quiet.client, "default")
    assert row["reason"] == "1 of 1 pods pending: large-head: 0/1 nodes are available: 1 Insufficient cpu."


ENDED = "2026-02-03T04:05:06Z"


def turned(kind: str, field: str = "lastTransitionTime") -> Json:
    return {"conditions": [{"type": kind, "status": "True", field: ENDED}]}


@pytest.mark.parametrize(
    ("kind", "status", "ended"),
    [
        (kinds.RAY_JOB, {"jobDeploymentStatus": "Complete", "endTime": ENDED}, ENDED),
        (kinds.JOB, turned("Complete"), ENDED),
        (
            kinds.APP_WRAPPER,
            {"state": "Completed", **turned("Completed", "lastTransitionMicroTime")},
            ENDED,
        ),
        (kinds.RAY_JOB, {"jobDeploymentStatus": "Running"}, ""),
    ],
)
def test_what_has_ended_says_when(kind: Kind, status: Json, ended: str) -> None:
    metadata = {"name": "x", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u"}
    obj = {"metadata": metadata, "status": status}
    assert gangs.ended_at(kind, obj) == ended
    row = rows.row(kind, obj, None, [])
    assert row.get("ended", "") == ended


def test_the_help_of_why_says_how_it_asks() -> None:
    said = CliRunner().invoke(why.command, ["--help"]).output
    assert "--fresh" in said and "Question" in said


def lost(head: bool = True, **counts: int) -> Json:
    condition = {"type": "HeadPodReady", "status": str(head)}
    return {"state": "ready", "desiredWorkerReplicas": 3, "conditions": [condition], **counts}


@pytest.mark.parametrize(
    ("spec", "status", "told"),
    [
        ({}, lost(readyWorkerReplicas=3), ("ready", "")),
        ({}, lost(readyWorkerReplicas=1), ("Incomplete", "2 of 3 workers are not ready")),
        (
            {},
            lost(readyWorkerReplicas=0, head=False),
            ("Incomplete", "its head is not ready and 3 of 3 workers are not ready"),
        ),
        ({"enableInTreeAutoscaling": True}, lost(readyWorkerReplicas=1), ("ready", "")),
        ({}, lost(), ("ready", "")),  # an operator that does not count them
        ({}, {"state": "", "desiredWorkerReplicas": 3, "readyWorkerReplicas": 0}, ("starting", "")),
    ],
)
def test_a_ray_cluster_that_lost_pods_is_not_called_ready(spec: Json, status: Json, told: tuple[str, str]) -> None:
    metadata = {"name": "x", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u"}
    assert gangs.state_of(kinds.RAY_CLUSTER, {"metadata": metadata, "spec": spec, "status": status}) == told


@pytest.mark.parametrize(
    ("upgrading", "ready", "told"),
    [("True", "True", "the next one waits for room"), ("False", "True", ""), ("False", "False", "it starts")],
)
def test_a_ray_service_says_what_its_upgrade_or_its_start_waits_for(upgrading: str, ready: str, told: str) -> None:
    conditions = [
        {"type": "Ready", "status": ready, "message": "it starts"},
        {"type": "UpgradeInProgress", "status": upgrading, "message": "the next one waits for room"},
    ]
    status = {"serviceStatus": "Running", "conditions": conditions}
    assert gangs.state_of(kinds.RAY_SERVICE, {"status": status}) == ("Running", told)


def test_a_running_appwrapper_says_which_pods_have_no_node() -> None:
    pending = [{"podname": "train-1", **UNSCHEDULABLE}]
    status: Json = {"state": "Running", "pending": 1, "running": 3, "pendingpodconditions": pending}
    told = "1 of 4 pods have no node: train-1: 0/1 nodes are available: 1 Insufficient cpu."
    assert gangs.state_of(kinds.APP_WRAPPER, {"status": status}) == ("Running", told)
    assert gangs.state_of(kinds.APP_WRAPPER, {"status": {**status, "pendingpodconditions": None}}) == ("Running", "")
