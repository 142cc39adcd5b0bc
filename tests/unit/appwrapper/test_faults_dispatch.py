"""What dispatch survives: refusals, strangers, edits, deletions and answers that never come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper
from shoal.controllers.appwrapper import AppWrapperSettings, store
from shoal.controllers.appwrapper import dispatch as dispatching
from shoal.controllers.appwrapper.dispatch import Objects
from shoal.controllers.appwrapper.reconciler import AppWrapperReconciler
from shoal.controllers.appwrapper.wrapped import wrapped_objects
from shoal.kube.client import Client
from shoal.kube.errors import Unknown
from shoal.kube.transport import Request, Response
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
    pod,
    trail,
    waits,
)
from tests.unit.appwrapper.meddler import Meddler, refusal

TRUSTING = AppWrapperSettings(trust_unstamped=True)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


def start(cluster: Cluster, meddler: Meddler | None = None, settings: AppWrapperSettings = TRUSTING) -> Planned:
    client = Client(meddler) if meddler is not None else cluster.client
    controller = planned(client, settings)
    cluster.start(controller.run())
    return controller


def bad_pod(name: str) -> dict[str, Any]:
    bad = pod(name, cpu="1")
    bad["spec"]["restartPolicy"] = "Sometimes"
    return bad


def cleans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: AppWrapperReconciler, wrapper: AppWrapper) -> None:
        return None

    monkeypatch.setattr(AppWrapperReconciler, "_clean", nothing)
    impatient(monkeypatch)


@proven(without=cleans_nothing)
async def test_f002_one_refused_object_takes_the_others_with_it(quiet: Cluster) -> None:
    """F2: one of three wrapped objects is refused for good. Holds: the others are removed, Failed is final, the field
    at fault is named, and nothing is tried again."""
    meddler = Meddler(quiet.server.transport())
    start(quiet, meddler)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), bad_pod("b"), config_map("c")))
    wrapper = await quiet.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    await quiet.until_gone(kinds.CONFIG_MAP, "a")
    await quiet.until_gone(kinds.CONFIG_MAP, "c")
    assert trail(wrapper)[-1][:2] == ("Failed", "ItemCreationFailure.")
    assert "spec.restartPolicy" in wrapper["status"]["message"]
    assert wrapper["status"]["message"].startswith("default/b creation failure: ")
    assert "canrun" not in wrapper["status"]
    await quiet.settled()
    assert meddler.count("POST", "/pods") == 1


def adopts_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatching, "is_ours", lambda obj, wrapper: True)
    impatient(monkeypatch)


@proven(without=adopts_strangers)
async def test_f003_a_stranger_of_the_same_name_is_left_alone(cluster: Cluster) -> None:
    """F3: a ConfigMap of that name exists and is someone else's. Holds: never adopted, changed or deleted."""
    theirs = await cluster.create(kinds.CONFIG_MAP, config_map("shared", owner="them"))
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("own"), config_map("shared")))
    wrapper = await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    await cluster.until_gone(kinds.CONFIG_MAP, "own")
    assert "exists and belongs to another owner" in wrapper["status"]["message"]
    assert await cluster.get(kinds.CONFIG_MAP, "shared") == theirs


def gives_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatching, "_is_permanent", lambda error: True)
    impatient(monkeypatch)


@proven(without=gives_up_at_once)
async def test_f006_errors_in_the_middle_of_creating_are_ridden_out(quiet: Cluster) -> None:
    """F6: 429, 500 and a lost answer while a gang's objects are created. Holds: every object is created exactly once
    and the gang is whole."""
    troubles = [
        refusal(429, "TooManyRequests", "slow down"),
        refusal(500, "InternalError", "broken"),
        refusal(503, "ServiceUnavailable", "webhook not ready"),
        refusal(403, "Forbidden", 'pods "b" is forbidden: exceeded quota: small'),
    ]

    async def before(request: Request) -> Response | None:
        return troubles.pop() if request.method == "POST" and request.path.endswith("/pods") and troubles else None

    lost: list[str] = []

    async def after(request: Request, answer: Response) -> None:
        if request.method == "POST" and request.path.endswith("/configmaps") and not lost:
            lost.append(request.path)
            raise Unknown("the connection was cut")

    start(quiet, Meddler(quiet.server.transport(), before, after))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), pod("b", cpu="1"), pod("c", cpu="1")))
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    assert (troubles, lost != []) == ([], True)
    assert await quiet.names(kinds.POD) == ["b", "c"]


def never_takes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def again(self: AppWrapperReconciler, *arguments: object) -> float:
        return 0.5

    monkeypatch.setattr(AppWrapperReconciler, "_refused", again)
    impatient(monkeypatch)


@proven(without=never_takes_back)
async def test_f006_a_refusal_that_does_not_pass_takes_the_gang_back_whole(quiet: Cluster) -> None:
    """F6: a transient refusal goes on past its bound. Holds: what was created is removed, the gang waits again, and the
    room is free for others meanwhile."""

    async def before(request: Request) -> Response | None:
        if request.method == "POST" and request.path.endswith("/pods") and b'"stuck"' in request.body:
            return refusal(403, "Forbidden", "exceeded quota: small")
        return None

    start(
        quiet, Meddler(quiet.server.transport(), before), AppWrapperSettings(trust_unstamped=True, create_seconds=0.2)
    )
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), pod("stuck", cpu="4")))
    wrapper = await quiet.until(kinds.APP_WRAPPER, "gang", lambda one: waits(one) and "canrun" not in one["status"])
    assert "exceeded quota" in wrapper["status"]["message"]
    await quiet.until_gone(kinds.CONFIG_MAP, "a")
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("other", pod("other", cpu="4")))
    await quiet.until(kinds.APP_WRAPPER, "other", dispatched)


def creates_what_is_written_now(monkeypatch: pytest.MonkeyPatch) -> None:
    async def regardless(
        self: AppWrapperReconciler, kind: Any, wrapper: AppWrapper, reason: str, message: str
    ) -> float | None:
        await self.context.objects.create(wrapper, wrapped_objects(wrapper))
        return None

    monkeypatch.setattr(AppWrapperReconciler, "_call_off", regardless)
    impatient(monkeypatch)


@proven(without=creates_what_is_written_now)
async def test_f007_a_spec_edited_between_admission_and_creation_goes_back_to_the_queue(quiet: Cluster) -> None:
    """F7: the demand is raised after the admission was stored and before anything was created. Holds: nothing that was
    not admitted is created; the gang is judged again by what it asks now."""
    edited = asyncio.Event()

    async def after(request: Request, answer: Response) -> None:
        if request.method == "PATCH" and b'"canrun":true' in request.body and not edited.is_set():
            edited.set()
            bigger = app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="40")])["spec"]
            await quiet.client.patch(kinds.APP_WRAPPER, "gang", "default", {"spec": bigger})
            raise Unknown("the connection was cut")  # so that the next look sees the edit

    start(quiet, Meddler(quiet.server.transport(), after=after))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="1")]))
    await quiet.until(kinds.APP_WRAPPER, "gang", lambda one: waits(one) and "cpu" in one["status"].get("message", ""))
    await quiet.settled()
    assert edited.is_set()
    assert "a" not in await quiet.names(kinds.CONFIG_MAP)


async def test_an_edit_while_running_changes_neither_objects_nor_charge(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="3")]))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    smaller = app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="1m")])["spec"]
    await cluster.client.patch(kinds.APP_WRAPPER, "gang", "default", {"spec": smaller})
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("b"), needs=[needs(1, cpu="2")]))
    await cluster.until(kinds.APP_WRAPPER, "next", waits)


def leaves_what_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Objects, wrapper: AppWrapper) -> bool:
        return True

    monkeypatch.setattr(Objects, "remove", nothing)
    monkeypatch.setattr("shoal.local.builtin.collector.GarbageCollector.run", _sleeps_for_ever)


async def _sleeps_for_ever(self: object) -> None:
    await asyncio.Event().wait()


@proven(without=leaves_what_it_made)
async def test_f009_deleted_between_two_creates_nothing_survives(quiet: Cluster) -> None:
    """F9: the AppWrapper is deleted while its second object is being created. Holds: none of its objects stays."""
    deleted = asyncio.Event()

    async def before(request: Request) -> Response | None:
        if request.method == "POST" and request.path.endswith("/pods") and not deleted.is_set():
            await quiet.client.delete(kinds.APP_WRAPPER, "gang", "default", propagation="Background")
            deleted.set()
        return None

    start(quiet, Meddler(quiet.server.transport(), before))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), pod("b", cpu="1"), config_map("c")))
    await asyncio.wait_for(deleted.wait(), PATIENCE)
    await quiet.settled()
    assert await quiet.names(kinds.POD) == []
    assert not {"a", "c"} & set(await quiet.names(kinds.CONFIG_MAP))


def believes_a_lost_answer_means_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    original = AppWrapperReconciler._admit

    async def hasty(self: AppWrapperReconciler, kind: Any, wrapper: AppWrapper, admit: Any) -> float | None:
        try:
            return await original(self, kind, wrapper, admit)
        except Unknown:
            self.context.decisions.withdraw(admit.gang)
            self.context.intake.update(wrapper)
            return 60.0

    monkeypatch.setattr(AppWrapperReconciler, "_admit", hasty)


@proven(without=believes_a_lost_answer_means_not_done)
async def test_f050_an_admission_whose_answer_is_lost_keeps_its_room(quiet: Cluster) -> None:
    """F50: the admission is stored; its answer, its event and every look after it are lost for a while. Holds: the room
    is not given to another, however important; once the server answers, the stored admission is carried out."""
    cut, given_up, healed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    looks: list[str] = []

    async def before(request: Request) -> Response | None:
        mine = request.path.endswith(("/appwrappers/first", "/appwrappers/first/status"))
        if cut.is_set() and not healed.is_set() and mine:
            looks.append(request.path)
            if len(looks) >= 3:
                given_up.set()
            raise Unknown("timeout")
        return None

    async def after(request: Request, answer: Response) -> None:
        if request.method == "PATCH" and b'"canrun":true' in request.body and not cut.is_set():
            cut.set()
            raise Unknown("timeout")

    def drops(chunk: bytes) -> bool:
        return not healed.is_set() and b'"canrun":true' in chunk and b'"first"' in chunk

    start(quiet, Meddler(quiet.server.transport(), before, after, drops))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("first", pod("first", cpu="3")))
    await asyncio.wait_for(cut.wait(), PATIENCE)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("second", pod("second", cpu="3"), priority=5))
    await quiet.until(kinds.APP_WRAPPER, "second", waits)
    await asyncio.wait_for(given_up.wait(), PATIENCE)
    await quiet.settled()
    assert await quiet.names(kinds.POD) == []
    healed.set()
    await quiet.until(kinds.APP_WRAPPER, "first", dispatched)
    await quiet.settled()
    assert await quiet.names(kinds.POD) == ["first"]


def writes_without_preconditions(monkeypatch: pytest.MonkeyPatch) -> None:
    original = store._sent

    async def careless(server: Any, kind: Any, wrapper: Any, body: Any, subresource: Any) -> Any:
        body = {**body, "metadata": {k: v for k, v in body["metadata"].items() if k not in ("uid", "resourceVersion")}}
        return await original(server, kind, wrapper, body, subresource)

    monkeypatch.setattr(store, "_sent", careless)


@proven(without=writes_without_preconditions)
async def test_f020_deleted_while_its_admission_is_on_the_way(quiet: Cluster) -> None:
    """F20: the AppWrapper is deleted and made again just before its admission is stored. Holds: the write fails on its
    precondition; the new one, which is too big, is judged by itself, and nothing is created."""
    replaced = asyncio.Event()

    async def before(request: Request) -> Response | None:
        if request.method == "PATCH" and b'"canrun":true' in request.body and not replaced.is_set():
            replaced.set()
            await quiet.client.delete(kinds.APP_WRAPPER, "gang", "default")
            await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("new"), needs=[needs(1, cpu="40")]))
        return None

    start(quiet, Meddler(quiet.server.transport(), before))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("old"), needs=[needs(1, cpu="1")]))
    await quiet.until(kinds.APP_WRAPPER, "gang", waits)
    await quiet.settled()
    assert replaced.is_set()
    assert not {"old", "new"} & set(await quiet.names(kinds.CONFIG_MAP))


def takes_zero_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.controllers.demand.reading.count", lambda value, default: value or default)
    impatient(monkeypatch)


@proven(without=takes_zero_for_one)
async def test_f013_zero_pods_are_a_legal_size(cluster: Cluster) -> None:
    """F13: pod sets of size zero, declared and by template. Holds: it starts at once and needs nothing."""
    empty = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "idle"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "idle"}},
            "template": {"metadata": {"labels": {"app": "idle"}}, "spec": pod("x", cpu="99")["spec"]},
        },
    }
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("none", config_map("a"), needs=[needs(0, cpu="99")]))
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("idle", empty))
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("bare"))
    for name in ("none", "idle", "bare"):
        await cluster.until(kinds.APP_WRAPPER, name, dispatched)
