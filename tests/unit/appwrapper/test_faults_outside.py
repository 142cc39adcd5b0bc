"""What strangers can do to us and read from us: the webhooks' port, the metrics, a start with everything there."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.admission import webhook
from shoal.controllers.demand.pod_defaults import NOTHING
from shoal.controllers.planning.caches import SharedCaches
from shoal.controllers.planning.rights import Rights
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.transport import Request, Response
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, has_state, needs, pod, waits
from tests.unit.appwrapper.meddler import Meddler
from tests.unit.appwrapper.test_rights import request


def asks_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "MOST_KINDS", 10**9)


@proven(without=asks_without_end)
async def test_f132_a_client_that_calls_the_webhook_gets_an_answer_and_nothing_else(quiet: Cluster) -> None:
    """F132: anyone on the pod network calls our webhook, with whatever they like. Holds: nothing is read but which
    kinds there are and who may create them, the number of questions is bounded, and the object stays as it was."""
    asked: list[tuple[str, str]] = []

    async def before(sent: Request) -> Response | None:
        asked.append((sent.method, sent.path))
        return None

    client = Client(Meddler(quiet.server.transport(), before))
    judge = webhook.AppWrapperJudge(Rights(client), Discovery(client))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": "kube-system"}}
    strange: list[Json] = [
        app_wrapper("many", *[config_map(f"c{number}") for number in range(500)], secret),
        app_wrapper("odd", *[{"apiVersion": f"g{n}.example/v1", "kind": "X", "metadata": {}} for n in range(500)]),
        app_wrapper("deep", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": {"not": ["a", "name"]}}}),
        {"metadata": {"name": "bare"}, "spec": {"resources": {"GenericItems": [None, 7, {"generictemplate": "x"}]}}},
        {"metadata": {"name": "other"}, "spec": {"components": [{"template": {"kind": None}}], "resources": None}},
    ]
    for obj in strange:
        kept = copy.deepcopy(obj)
        for handler in (webhook.stamp, judge.validate):
            verdict: Any = handler(request(obj))
            if asyncio.iscoroutine(verdict):
                verdict = await verdict
            assert len(verdict.message) < 100_000
        assert obj == kept
    assert len(asked) < 80, f"{len(asked)} questions"
    for method, path in asked:
        is_review = (method, path.rsplit("/", 1)[-1]) == ("POST", "subjectaccessreviews")
        is_discovery = method == "GET" and path.count("/") <= 3
        assert is_review or is_discovery, (method, path)


async def test_the_numbers_tell_about_the_queue_and_about_no_user(quiet: Cluster) -> None:
    """Queue length, waits, dispatches, reserved and used, requeues and preemptions; no name, no secret, few labels."""
    controller = planned(quiet.client, AppWrapperSettings(preemption=True))
    quiet.start(controller.run())
    again = {"timeInSeconds": 0, "maxNumRequeuings": 1}
    await quiet.create(
        kinds.APP_WRAPPER,
        app_wrapper(
            "hush-1", config_map("hush-2", key="hush-3"), schedulingSpec={"minAvailable": 1, "requeuing": again}
        ),
    )
    await quiet.until(kinds.APP_WRAPPER, "hush-1", has_state("Deleted"))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("hush-4", config_map("hush-4"), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "hush-4", dispatched)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("hush-5", pod("hush-5", cpu="3"), priority=5))
    await quiet.until(kinds.APP_WRAPPER, "hush-5", dispatched)
    await quiet.until(kinds.APP_WRAPPER, "hush-4", waits)
    families = {family.name: family for family in controller.loop.metrics.collect()}
    value = {name: sum(sample.value for sample in family.samples) for name, family in families.items()}
    assert value["shoal_appwrappers_waiting"] == 1
    assert {sample.labels["resource"] for sample in families["shoal_reserved"].samples} >= {"cpu"}
    assert "shoal_used" in families
    counts = {s.name: s.value for family in families.values() for s in family.samples if s.name.endswith("_count")}
    assert counts["shoal_appwrapper_wait_seconds_count"] >= 3
    assert counts["shoal_appwrapper_dispatch_seconds_count"] >= 3
    requeues = {sample.labels["reason"] for sample in families["shoal_appwrapper_requeues"].samples}
    assert "MinPodsNotRunning" in requeues
    assert {sample.labels["cause"] for sample in families["shoal_appwrapper_preemptions"].samples} == {"priority"}
    for family in families.values():
        for sample in family.samples:
            assert set(sample.labels) <= {"resource", "reason", "cause", "le", "result"}
            assert "hush" not in str(sample)


OBJECTS = 6_000
BOUND = 10.0
"""Seconds of CPU to the first decision with so many objects there: on a busy machine others work meanwhile."""


async def fill(cluster: Cluster, objects: int) -> None:
    """Nine in ten are pods that run; the rest are AppWrappers that wait for more than there is, and one that fits."""
    for number in range(10):
        await cluster.add_node(f"n{number}", cpu="4", pods="100000")
    pods = [pod(f"p{number}", cpu="1m") for number in range(objects * 9 // 10)]
    for number, made in enumerate(pods):
        made["spec"]["nodeName"] = f"n{number % 10}"
    await cluster.stock(kinds.POD, pods)
    waiting = (app_wrapper(f"w{number}", pod(f"x{number}", cpu="400")) for number in range(objects // 10))
    await cluster.stock(kinds.APP_WRAPPER, waiting)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("fits", config_map("fits"), priority=1))


async def first_decision(cluster: Cluster) -> float:
    """Seconds of CPU from the start of a controller to the first object that it creates."""
    settings = AppWrapperSettings(trust_unstamped=True, events=False)
    began = time.process_time()
    cluster.start(planned(cluster.client, settings).run())
    await cluster.until(kinds.CONFIG_MAP, "fits", lambda found: True)
    return time.process_time() - began


def reads_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.engine.nodes.ledger import Ledger

    original = Ledger._charge_pod

    def slow(self: Ledger, fact: Any) -> None:
        end = time.process_time() + 0.003
        while time.process_time() < end:
            pass
        original(self, fact)

    monkeypatch.setattr(Ledger, "_charge_pod", slow)


@proven(without=reads_one_at_a_time)
async def test_f047_the_first_decision_comes_soon_with_everything_there() -> None:
    """F47: thousands of pods and AppWrappers are there when the controller starts. Holds: it decides within a stated
    bound; the cost of a start grows with the number of objects and not faster."""
    async with running(with_builtin=False) as cluster:
        await fill(cluster, OBJECTS)
        assert await first_decision(cluster) < BOUND


def estimates_from_templates_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedCaches, "pod_defaults", lambda self, namespace: NOTHING)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=estimates_from_templates_alone)
async def test_f036_what_a_limit_range_adds_to_the_pods_is_part_of_the_estimate(cluster: Cluster) -> None:
    """F36: containers do not say what they need and the namespace's LimitRange fills it in when pods are made. Holds:
    the demand is what the pods will be charged; a change of the LimitRange counts for those that wait, and for none
    that runs."""
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "defaults"}}
    limits["spec"] = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "3"}}]}
    await cluster.create(kinds.LIMIT_RANGE, limits)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("pair", pod("one"), pod("two")))
    waiting = await cluster.until(kinds.APP_WRAPPER, "pair", waits)
    assert "6 cpu needed, 4 free" in waiting["status"]["message"]
    fewer = {"spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]}}
    await cluster.client.patch(kinds.LIMIT_RANGE, "defaults", "default", fewer)
    await cluster.until(kinds.APP_WRAPPER, "pair", dispatched)
    made = await cluster.get(kinds.POD, "one")
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}
    await cluster.client.patch(kinds.LIMIT_RANGE, "defaults", "default", limits)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("n"), needs=[needs(1, cpu="2")]))
    await cluster.until(kinds.APP_WRAPPER, "next", dispatched)


@proven(without=estimates_from_templates_alone)
async def test_f036_what_a_runtime_class_adds_to_the_pods_is_part_of_the_estimate(cluster: Cluster) -> None:
    """F36: pods name a RuntimeClass whose overhead the server adds when they are made. Holds: it counts, and so does a
    change of it for those that wait."""
    kata = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata"}
    await cluster.create(kinds.RUNTIME_CLASS, {**kata, "overhead": {"podFixed": {"cpu": "500m"}}})
    boxed = pod("boxed", cpu="4")
    boxed["spec"]["runtimeClassName"] = "kata"
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", boxed))
    waiting = await cluster.until(kinds.APP_WRAPPER, "gang", waits)
    assert "4500m cpu needed, 4 free" in waiting["status"]["message"]
    await cluster.client.delete(kinds.RUNTIME_CLASS, "kata")
    await cluster.create(kinds.RUNTIME_CLASS, kata)
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)


@pytest.mark.parametrize("by_themselves", [True, False])
async def test_pods_that_tolerate_their_devices_by_themselves_find_the_nodes_that_have_them(
    quiet: Cluster, by_themselves: bool
) -> None:
    """The same rule as for queued gangs, and the same setting."""
    await quiet.add_node("gpus", cpu="8")
    devices = {"nvidia.com/gpu": "2"}
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    await quiet.client.patch(kinds.NODE, "gpus", None, {"spec": {"taints": [taint]}})
    sizes = {"status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "9", **devices}}}
    await quiet.client.patch(kinds.NODE, "gpus", None, sizes, subresource="status")
    quiet.start(planned(quiet.client, AppWrapperSettings(device_tolerations=by_themselves)).run())
    training = pod("training", cpu="1")
    training["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", **devices}, "limits": devices}
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", training))
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched if by_themselves else waits)
