"""AppWrappers in members in which nothing of ours runs: the wrapped objects, born stopped and released once."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.labels import GATED
from shoal.api.meta import Json
from shoal.controllers.demand.stopped import Stopped, stopped
from shoal.controllers.multicluster import bare_copies
from shoal.controllers.multicluster.bare_copies import BareCopies
from shoal.kube.errors import Unsent
from tests.faults import proven
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, has_state, job, pod, set_pod
from tests.unit.appwrapper.test_life import completing, finish_job, pod_of
from tests.unit.clusters.build import is_true
from tests.unit.clusters.test_app_wrapper_faults import impatient
from tests.unit.clusters.test_app_wrappers import backs_off, is_sent, says
from tests.unit.clusters.test_gated import pods_seen
from tests.unit.clusters.wrappers import sending_town

RAY_SERVICE = {
    "apiVersion": "ray.io/v1",
    "kind": "RayService",
    "metadata": {"name": "serve"},
    "spec": {"rayClusterConfig": {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "head"}]}}}}},
}


def deployment(name: str, replicas: int | None = None) -> Json:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}]},
    }
    spec: Json = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": spec if replicas is None else {**spec, "replicas": replicas},
    }


async def test_the_wrapped_objects_run_in_a_bare_member_and_their_end_comes_back() -> None:
    async with sending_town("a", bare=("a",)) as t:
        t.send()
        await t.connected()
        made = await t.hub.create(
            kinds.APP_WRAPPER, completing("done", (job("train", cpu="3"), "Complete,Failed"), (config_map("cfg"), ""))
        )
        running = await t.hub.until(kinds.APP_WRAPPER, "done", dispatched)
        assert is_sent(running) and running["status"]["canrun"] and running["status"]["state"] == "Running"
        there = await t.members["a"].until(kinds.JOB, "train", lambda one: one["spec"]["suspend"] is False)
        assert there["metadata"]["annotations"]["shoal.dev/hub-workload"] == made["metadata"]["uid"]
        assert "ownerReferences" not in there["metadata"]
        assert "cfg" in await t.members["a"].names(kinds.CONFIG_MAP)
        assert await t.hub.names(kinds.JOB) == []
        await set_pod(t.members["a"], await pod_of(t.members["a"], "train"), "Succeeded")
        await finish_job(t.members["a"], "train")
        ended = await t.hub.until(kinds.APP_WRAPPER, "done", has_state("Completed"))
        assert not ended["status"].get("canrun")
        await t.hub.client.delete(kinds.APP_WRAPPER, "done", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "done")
        assert await t.members["a"].names(kinds.JOB) == [] and "cfg" not in await t.members["a"].names(kinds.CONFIG_MAP)


async def test_a_deployment_gets_its_replicas_when_it_is_released() -> None:
    async with sending_town("a", bare=("a",)) as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, app_wrapper("web", deployment("web", 2)))
        await t.hub.until(kinds.APP_WRAPPER, "web", dispatched)
        await t.members["a"].until(kinds.DEPLOYMENT, "web", lambda one: one["spec"]["replicas"] == 2)


async def test_a_kind_that_cannot_be_born_stopped_goes_only_where_shoal_runs() -> None:
    async with sending_town("a", bare=("a",)) as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, app_wrapper("serve", RAY_SERVICE))
        reason = "a RayService cannot be created there without starting at once"
        waiting = await t.hub.until(kinds.APP_WRAPPER, "serve", says(reason))
        assert backs_off(waiting)


def starts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare_copies, "stopped", lambda obj: Stopped(obj))


@proven(without=starts_at_once)
async def test_f605_nothing_starts_in_a_bare_member_before_all_of_it_is_there() -> None:
    """F605: the hub dies, or is cut off, after it made the first of several objects in a member without Shoal. Holds:
    none of them makes a pod before all are there and it is stored that they were sent; then each is released once."""
    async with sending_town("a", bare=("a",)) as t:
        seen = pods_seen(t.members["a"])
        wire, send = t.wires["a"], t.wires["a"].send
        blocked = True

        async def blocks_the_second(request: Any, *, timeout: float | None = None) -> Any:
            if blocked and request.method == "POST" and b"second" in request.body:
                raise Unsent("connection refused (injected)")
            return await send(request, timeout=timeout)

        wire.send = blocks_the_second  # type: ignore[method-assign]
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, app_wrapper("pair", job("first", cpu="1"), job("second", cpu="1")))
        await t.members["a"].until(kinds.JOB, "first", lambda one: True)
        await t.members["a"].settled()
        assert seen == []
        await t.stop_hub()
        blocked = False
        t.send()
        await t.hub.until(kinds.APP_WRAPPER, "pair", dispatched)
        for name in ("first", "second"):
            await t.members["a"].until(kinds.JOB, name, lambda one: one["spec"]["suspend"] is False)


def adopts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create(self: BareCopies, *asked: Any) -> bool:
        return True

    monkeypatch.setattr(BareCopies, "_create", create)
    impatient(monkeypatch)


@proven(without=adopts)
async def test_f606_an_object_of_that_name_in_a_bare_member_is_left_alone() -> None:
    """F606: a member without Shoal has an object of the name that an AppWrapper wraps, and it is not the hub's. Holds:
    it is neither adopted, changed nor deleted; the AppWrapper goes to another member."""
    async with sending_town("a", "b", bare=("a", "b")) as t:
        theirs = await t.members["a"].create(kinds.CONFIG_MAP, config_map("cfg"))
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, app_wrapper("train", pod("train", cpu="1"), config_map("cfg")))
        await t.members["b"].until(kinds.CONFIG_MAP, "cfg", lambda one: True)
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        await t.members["a"].until_gone(kinds.POD, "train")
        await t.hub.client.delete(kinds.APP_WRAPPER, "train", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "train")
        left = await t.members["a"].get(kinds.CONFIG_MAP, "cfg")
        assert left["metadata"]["uid"] == theirs["metadata"]["uid"]


def forgets_the_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.controllers.multicluster.members import Members

    async def remember(self: Members, name: str, sent: Any) -> None:
        return None

    monkeypatch.setattr(Members, "remember_kinds", remember)
    impatient(monkeypatch)


@proven(without=forgets_the_kinds)
async def test_f607_objects_in_a_silent_bare_member_are_removed_on_its_return_by_a_hub_that_started_again() -> None:
    """F607: an AppWrapper is deleted while its member without Shoal is silent, and the hub starts again: nothing at the
    hub names its objects any more. Holds: they go when the member is back."""
    async with sending_town("a", bare=("a",)) as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, app_wrapper("train", job("train", cpu="1")))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        t.wires["a"].cut()
        await t.hub.until(kinds.MULTIKUEUE_CLUSTER, "a", lambda one: not is_true("Active")(one))
        await t.hub.until(kinds.APP_WRAPPER, "train", says("cannot be reached"))
        await t.hub.client.delete(kinds.APP_WRAPPER, "train", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "train")
        await t.stop_hub()
        t.wires["a"].mend()
        t.send()
        await t.members["a"].until_gone(kinds.JOB, "train")
        await t.hub.until(
            kinds.MULTIKUEUE_CLUSTER, "a", lambda one: "shoal.dev/removals" not in one["metadata"]["annotations"]
        )


@pytest.mark.parametrize(
    ("obj", "path", "release"),
    [
        (pod("p"), ("spec", "schedulingGates"), {"spec": {"schedulingGates": None}}),
        (job("j"), ("spec", "suspend"), {"spec": {"suspend": False}}),
        (deployment("d"), ("spec", "replicas"), {"spec": {"replicas": 1}}),
        (deployment("d", 3), ("spec", "replicas"), {"spec": {"replicas": 3}}),
        (config_map("c"), (), {}),
    ],
)
def test_how_kinds_are_born_stopped(obj: Json, path: tuple[str, ...], release: Json) -> None:
    made = stopped(obj)
    assert made is not None and made.release == release
    found: Any = made.body
    for step in path:
        found = found[step]
    assert not path or found in (True, 0, [{"name": GATED}])
    if path:
        assert made.body != obj
