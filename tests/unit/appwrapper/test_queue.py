"""The queue from the outside: order, messages, quiet, restarts, odd input, and what it explains about itself."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.gang import GANG_UID
from shoal.api.meta import Json
from shoal.cli import why
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.appwrapper import dispatch as dispatching
from shoal.controllers.appwrapper.facts import AppWrapperFacts
from shoal.controllers.appwrapper.reconciler import AppWrapperReconciler
from shoal.controllers.appwrapper.status import messages
from shoal.controllers.planning import words
from shoal.controllers.planning.caches import SharedCaches
from shoal.controllers.planning.cluster_facts import ClusterFacts
from shoal.kube.client import Client
from shoal.kube.transport import Request, Response
from shoal.sdk import gangs
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE
from tests.planning import Planned, planned
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    has_state,
    needs,
    of_gang,
    pod,
    set_pod,
    waits,
)
from tests.unit.appwrapper.meddler import Meddler, refusal

TRUSTING = AppWrapperSettings(trust_unstamped=True)


def asks(name: str, cpu: str, **spec: Any) -> Json:
    return app_wrapper(name, config_map(name), needs=[needs(1, cpu=cpu)], **spec)


def start(cluster: Cluster, settings: AppWrapperSettings = TRUSTING, transport: Any = None) -> Planned:
    controller = planned(Client(transport) if transport else cluster.client, settings)
    cluster.start(controller.run())
    return controller


async def hand_over(cluster: Cluster, names: list[str]) -> list[str]:
    """Delete the gangs that run, until every gang has run; returns the order."""
    order = []
    left = set(names)
    while left:
        running = [
            one["metadata"]["name"]
            for one in await cluster.client.list(kinds.APP_WRAPPER, "default")
            if dispatched(one)
        ]
        fresh = [name for name in running if name in left]
        if fresh:
            order += fresh
            left -= set(fresh)
            await cluster.client.delete(kinds.APP_WRAPPER, fresh[0], "default")
        await asyncio.sleep(0.01)
    return order


async def test_first_come_first_served_and_priority_before_age(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, asks("running", "3"))
    await cluster.until(kinds.APP_WRAPPER, "running", dispatched)
    for name, priority in (("a", 0), ("b", 0), ("c", 0), ("urgent", 9)):
        await cluster.create(kinds.APP_WRAPPER, asks(name, "3", priority=priority))
        await cluster.until(kinds.APP_WRAPPER, name, waits)
    await cluster.client.delete(kinds.APP_WRAPPER, "running", "default")
    assert await hand_over(cluster, ["a", "b", "c", "urgent"]) == ["urgent", "a", "b", "c"]


async def test_the_priority_that_the_queue_goes_by_is_told(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="8")], priority=3))
    first = await cluster.until(kinds.APP_WRAPPER, "gang", waits)
    assert first["status"]["systempriority"] == 3
    await cluster.client.patch(kinds.APP_WRAPPER, "gang", "default", {"spec": {"priority": 7}})
    await cluster.until(kinds.APP_WRAPPER, "gang", lambda obj: obj["status"]["systempriority"] == 7)
    await cluster.client.patch(kinds.APP_WRAPPER, "gang", "default", {"spec": {"priority": 0}})
    await cluster.until(kinds.APP_WRAPPER, "gang", lambda obj: "systempriority" not in obj["status"])  # as in MCAD


async def test_a_message_says_what_is_short_and_nothing_that_changes_with_every_arrival(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, asks("holder", "3"))
    await cluster.until(kinds.APP_WRAPPER, "holder", dispatched)
    await cluster.create(kinds.APP_WRAPPER, asks("second", "2"))
    message = (await cluster.until(kinds.APP_WRAPPER, "second", waits))["status"]["message"]
    assert message == "2 cpu needed, 1 free"
    events = await cluster.client.list(kinds.EVENT, "default")
    told = [one for one in events if one["involvedObject"]["name"] == "second"]
    assert [one["reason"] for one in told] in ([], ["Waiting"])


async def test_a_hand_over_does_not_rewrite_everyone(quiet: Cluster) -> None:
    meddler = Meddler(quiet.server.transport())
    start(quiet, transport=meddler)
    await quiet.create(kinds.APP_WRAPPER, asks("first", "3"))
    await quiet.until(kinds.APP_WRAPPER, "first", dispatched)
    for number in range(40):
        await quiet.create(kinds.APP_WRAPPER, asks(f"w{number:02}", "3"))
    await quiet.until(kinds.APP_WRAPPER, "w39", waits)
    await quiet.settled()
    before = meddler.count("PATCH", "/status")
    await quiet.client.delete(kinds.APP_WRAPPER, "first", "default")
    await quiet.until(kinds.APP_WRAPPER, "w00", dispatched)
    await quiet.settled()
    assert meddler.count("PATCH", "/status") - before <= 4


async def test_who_is_next_in_line_is_told_so(cluster: Cluster) -> None:
    """The gang before them goes: a user who asks is told the new position, and nothing is written for it."""
    await cluster.create(kinds.APP_WRAPPER, asks("holder", "3"))
    await cluster.until(kinds.APP_WRAPPER, "holder", dispatched)
    for name in ("a", "b", "c"):
        await cluster.create(kinds.APP_WRAPPER, asks(name, "3"))
        await cluster.until(kinds.APP_WRAPPER, name, waits)
    before = [(await cluster.get(kinds.APP_WRAPPER, name))["status"] for name in ("b", "c")]
    await cluster.client.delete(kinds.APP_WRAPPER, "a", "default")
    for position, name in ((1, "b"), (2, "c")):
        told = await why.explain_to(cluster.client, gangs.KINDS, name, "default", fresh=True)
        assert (told["position"], told["queueLength"]) == (position, 2)
    assert [(await cluster.get(kinds.APP_WRAPPER, name))["status"] for name in ("b", "c")] == before


def writes_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.controllers.planning import loop_guard

    monkeypatch.setattr(messages, "_says", lambda status, quota: False)
    monkeypatch.setattr(loop_guard, "MOST_LOOKS", 10**9)  # the last line of defence would make it look quiet


@pytest.mark.timeout(30)
@proven(without=writes_again_and_again)
async def test_f061_when_nothing_happens_nothing_is_written(quiet: Cluster) -> None:
    """F61: everyone waits or runs, and every AppWrapper is looked at again. Holds: no write at all."""
    meddler = Meddler(quiet.server.transport())
    controller = start(quiet, transport=meddler)
    for name in ("runs", "waits"):
        await quiet.create(kinds.APP_WRAPPER, asks(name, "3"))
    await quiet.until(kinds.APP_WRAPPER, "runs", dispatched)
    await quiet.until(kinds.APP_WRAPPER, "waits", waits)
    async with asyncio.timeout(PATIENCE):
        await quiet.settled()
    before = len(meddler.sent)
    for address in controller.wrappers.context.intake.addresses.values():
        controller.wrappers.queue.enqueue(address)
    controller.loop.plan()
    async with asyncio.timeout(PATIENCE):
        await quiet.settled()
    assert meddler.sent[before:] == []


def believes_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.controllers.planning.pods import mark_of

    original = ClusterFacts.gang_of
    monkeypatch.setattr(ClusterFacts, "gang_of", lambda self, pod: mark_of(pod) or original(self, pod))
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=believes_annotations)
async def test_f037_a_pod_of_another_namespace_does_not_pass_for_one_of_the_gang(quiet: Cluster) -> None:
    """F37: a pod elsewhere carries a gang's mark. Holds: it counts for itself; the gang's room stays reserved."""
    start(quiet)
    await quiet.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    gang = await quiet.create(kinds.APP_WRAPPER, asks("gang", "2"))
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    forged = pod("forged", cpu="2")
    forged["metadata"].update(namespace="other", annotations={GANG_UID: gang["metadata"]["uid"]})
    await quiet.create(kinds.POD, forged)
    await set_pod(quiet, "forged", "Running", namespace="other")
    await quiet.settled()
    await quiet.create(kinds.APP_WRAPPER, asks("next", "1"))
    await quiet.until(kinds.APP_WRAPPER, "next", waits)


async def test_pods_of_a_gang_are_counted_once(cluster: Cluster) -> None:
    gang = await cluster.create(kinds.APP_WRAPPER, asks("gang", "2"))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await cluster.create(kinds.POD, of_gang(gang, pod("own", cpu="2")))
    await set_pod(cluster, "own", "Running")
    await cluster.create(kinds.APP_WRAPPER, asks("next", "2"))
    await cluster.until(kinds.APP_WRAPPER, "next", dispatched)


def decides_before_it_has_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: SharedCaches) -> None:
        await self.nodes.synced.wait()

    monkeypatch.setattr(SharedCaches, "synced", at_once)


@proven(without=decides_before_it_has_looked)
async def test_f041_nothing_is_decided_before_everything_was_read(quiet: Cluster) -> None:
    """F41: after a start the list of pods comes late. Holds: the node does not look empty; nothing is admitted."""
    late = asyncio.Event()

    async def before(request: Request) -> Response | None:
        if request.path.endswith("/pods") and request.method == "GET" and not late.is_set():
            await late.wait()
        return None

    class Late(Meddler):
        def stream(self, request: Request, *, idle_timeout: float | None = None) -> Any:
            return (
                _after(late, super(), request, idle_timeout)
                if request.path.endswith("/pods")
                else super().stream(request)
            )

    await quiet.create(kinds.POD, pod("foreign", cpu="4"))
    await set_pod(quiet, "foreign", "Running")
    start(quiet, transport=Late(quiet.server.transport(), before))
    await quiet.create(kinds.APP_WRAPPER, asks("gang", "3"))
    await quiet.settled()
    assert "status" not in await quiet.get(kinds.APP_WRAPPER, "gang")
    late.set()
    await quiet.until(kinds.APP_WRAPPER, "gang", waits)
    assert "gang" not in await quiet.names(kinds.CONFIG_MAP)


def _after(event: asyncio.Event, transport: Any, request: Request, idle_timeout: float | None) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def opened() -> Any:
        await event.wait()
        async with transport.stream(request, idle_timeout=idle_timeout) as stream:
            yield stream

    return opened()


def trips_over_bad_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    original = AppWrapperFacts._read

    def careless(self: AppWrapperFacts, wrapper: Any) -> Any:
        found = original(self, wrapper)
        if found.problem:
            raise RuntimeError(found.problem)
        return found

    monkeypatch.setattr(AppWrapperFacts, "_read", careless)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=trips_over_bad_amounts)
async def test_f045_one_that_cannot_be_read_holds_up_no_other(quiet: Cluster) -> None:
    """F45: a stored AppWrapper has amounts that no one can read. Holds: it waits with the reason; others start."""
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("odd", pod("odd"), needs=None))
    bad = pod("odd", cpu="1")
    bad["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "lots"
    spec = app_wrapper("odd", bad)["spec"]
    await quiet.client.patch(kinds.APP_WRAPPER, "odd", "default", {"spec": spec})
    start(quiet)
    await quiet.create(kinds.APP_WRAPPER, asks("fine", "1"))
    await quiet.until(kinds.APP_WRAPPER, "fine", dispatched)
    odd = await quiet.until(kinds.APP_WRAPPER, "odd", waits)
    assert "GenericItems[0]" in odd["status"]["message"]


def appends_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatching, "printable", lambda text: text)
    monkeypatch.setattr(words, "LONGEST", 10**9)


@proven(without=appends_messages)
async def test_f126_control_characters_are_shown_and_not_sent(quiet: Cluster) -> None:
    """F126: a webhook refuses an object with terminal escapes and a megabyte of text. Holds: the status has them as
    visible text, and is short."""

    async def before(request: Request) -> Response | None:
        if request.method == "POST" and request.path.endswith("/configmaps"):
            return refusal(422, "Invalid", "no \x1b]0;owned\x07\x1b[2J" + "x" * 100_000)
        return None

    start(quiet, transport=Meddler(quiet.server.transport(), before))
    await quiet.create(kinds.APP_WRAPPER, asks("gang", "1"))
    message = (await quiet.until(kinds.APP_WRAPPER, "gang", has_state("Failed")))["status"]["message"]
    assert "\x1b" not in message and "\\x1b]0;owned" in message
    assert len(message) < 2000


def quotes_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatching, "_told", lambda obj, error: str(error))


@proven(without=quotes_secrets)
async def test_f127_a_refused_secret_is_not_quoted(quiet: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """F127: the server refuses a Secret and quotes its value. Holds: the value is in no status, event or log."""
    planted = "tr0ub4dor"

    async def before(request: Request) -> Response | None:
        if request.method == "POST" and request.path.endswith("/secrets"):
            return refusal(422, "Invalid", f'data[password]: Invalid value: "{planted}": must be base64')
        return None

    controller = start(quiet, transport=Meddler(quiet.server.transport(), before))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"password": "dHI="}}
    with caplog.at_level("DEBUG"):
        await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", secret))
        failed = await quiet.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
        await controller.loop.recorder.flush()
    events = await quiet.client.list(kinds.EVENT, "default")
    assert "Invalid" in failed["status"]["message"]
    assert planted not in msgspec.json.encode([failed, events]).decode() + caplog.text


def never_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: AppWrapperController) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(AppWrapperController, "_check_now_and_then", nothing)
    monkeypatch.setattr("tests.cluster.PATIENCE", 3.0)


@proven(without=never_checks)
async def test_f014_admitted_and_never_started_is_found(quiet: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """F14: an admitted gang was not started and nothing wakes it. Holds: a periodic look finds and starts it."""
    original = AppWrapperReconciler._dispatch
    forgot: list[str] = []

    async def forgets_once(self: AppWrapperReconciler, kind: Any, wrapper: Any) -> float | None:
        if len(forgot) < 2:
            forgot.append(wrapper.metadata.name)
            return None
        return await original(self, kind, wrapper)

    monkeypatch.setattr(AppWrapperReconciler, "_dispatch", forgets_once)
    start(quiet, AppWrapperSettings(trust_unstamped=True, backoff_seconds=0.5))
    await quiet.create(kinds.APP_WRAPPER, asks("gang", "1"))
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    assert forgot == ["gang", "gang"]


# --- the legacy group, and what the controller tells about itself


async def test_the_legacy_group_with_typed_items(cluster: Cluster) -> None:
    legacy = {
        "apiVersion": "mcad.ibm.com/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": "old", "namespace": "default"},
        "spec": {"resources": {"Items": [{"type": "ConfigMap", "replicas": 1, "template": config_map("typed")}]}},
    }
    await cluster.create(kinds.APP_WRAPPER_LEGACY, legacy)
    await cluster.until(kinds.APP_WRAPPER_LEGACY, "old", dispatched)
    owner = (await cluster.get(kinds.CONFIG_MAP, "typed"))["metadata"]["ownerReferences"][0]
    assert (owner["apiVersion"], owner["name"]) == ("mcad.ibm.com/v1beta1", "old")


async def test_it_counts_for_prometheus(quiet: Cluster) -> None:
    from prometheus_client import generate_latest

    controller = start(quiet)
    await quiet.create(kinds.APP_WRAPPER, asks("one", "3"))
    await quiet.create(kinds.APP_WRAPPER, asks("two", "3"))
    await quiet.until(kinds.APP_WRAPPER, "one", dispatched)
    await quiet.until(kinds.APP_WRAPPER, "two", waits)
    text = generate_latest(controller.loop.metrics.registry()).decode()
    assert "shoal_appwrappers_waiting 1.0" in text
    assert 'shoal_reserved{resource="cpu"} 3000.0' in text
    assert "shoal_appwrapper_dispatch_seconds_count 1.0" in text


async def test_a_pod_group_and_pins_where_asked_for(quiet: Cluster) -> None:
    start(quiet, AppWrapperSettings(trust_unstamped=True, pod_groups=True, pin_nodes=True))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", pod("a", cpu="1"), pod("b", cpu="1")))
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    assert (await quiet.get(kinds.POD_GROUP, "gang"))["spec"]["minMember"] == 2
    made = await quiet.get(kinds.POD, "a")
    assert made["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "gang"
    assert made["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "node-1"}
