"""Races of admission and preemption, and what only storage may remember."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapperStatus
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from shoal.controllers.planning.decisions import Decisions
from shoal.engine.nodes.ledger import Ledger
from shoal.kube.runtime import Controller
from shoal.kube.transport import Request, Response
from shoal.kube.writes import Writes
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE
from tests.planning import planned
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    has_state,
    needs,
    of_gang,
    pod,
    quota,
    set_pod,
    trail,
    waits,
)
from tests.unit.appwrapper.meddler import Before, Meddler, refusal
from tests.unit.appwrapper.test_faults_dispatch import (
    cleans_nothing,
    impatient,
    start,
    writes_without_preconditions,
)
from tests.unit.appwrapper.test_faults_leaving import starts_while_pods_end

PREEMPTING = AppWrapperSettings(preemption=True)


def labelled(obj: Json, **labels: str) -> Json:
    obj["metadata"]["labels"] = labels
    return obj


async def plant(cluster: Cluster, root: str = "3") -> None:
    """root { blue 2, green 2 (hard), default 0 }."""
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "", ("root", {"cpu": root}, False)))
    blue, green = ("blue", {"cpu": "2"}, False), ("green", {"cpu": "2"}, True)
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "root", blue, green, ("default", {"cpu": "0"}, False)))


@proven(without=starts_while_pods_end)
async def test_f011_a_gang_whose_pods_are_made_again_and_again_is_in_one_state(quiet: Cluster) -> None:
    """F11: too few pods run, and a child controller makes a new pod while the gang is being taken back. Holds: exactly
    one live state, the room is held until the last of those pods is gone, and only then does it queue again."""
    start(quiet)
    again = {"timeInSeconds": 0, "growthType": "none"}
    scheduling = {"minAvailable": 1, "requeuing": again}
    gang = app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="3")], schedulingSpec=scheduling)
    wrapper = await quiet.create(kinds.APP_WRAPPER, gang)
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    late = await quiet.create(kinds.POD, of_gang(wrapper, pod("made-again", cpu="3")))
    await quiet.until_gone(kinds.CONFIG_MAP, "a")
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("n"), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "next", waits)
    await quiet.settled()
    status = (await quiet.get(kinds.APP_WRAPPER, "gang"))["status"]
    assert (status["state"], status.get("canrun", False)) == ("Running", False)
    assert msgspec.json.decode(status["admission"])["stopping"] == "MinPodsNotRunning"
    await quiet.client.delete(kinds.POD, late["metadata"]["name"], "default", grace_seconds=0)
    await quiet.until(kinds.APP_WRAPPER, "gang", lambda one: one["status"].get("numberOfRequeueings", 0) >= 1)


@proven(without=cleans_nothing)
async def test_f012_another_webhook_refuses_an_object(quiet: Cluster) -> None:
    """F12: the gang is admitted, and somebody's webhook denies one of its objects. Holds: the refusal is quoted,
    nothing of the gang stays, and its room goes to the next at once."""

    async def before(request: Request) -> Response | None:
        if request.method == "POST" and request.path.endswith("/pods") and b'"denied"' in request.body:
            return refusal(403, "Forbidden", 'admission webhook "policy.example" denied the request: not on Sundays')
        return None

    start(quiet, Meddler(quiet.server.transport(), before))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), pod("denied", cpu="4")))
    failed = await quiet.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    assert "not on Sundays" in failed["status"]["message"]
    await quiet.until_gone(kinds.CONFIG_MAP, "a")
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("next", pod("next", cpu="4")))
    await quiet.until(kinds.APP_WRAPPER, "next", dispatched)


async def test_two_that_could_evict_each_other_come_to_rest(quiet: Cluster) -> None:
    """A borrower of high priority and one within its own quota may each evict the other: one eviction, then rest."""
    start(quiet, settings=AppWrapperSettings(preemption=True))
    await plant(quiet)
    borrower = app_wrapper("borrower", config_map("b"), needs=[needs(1, cpu="3")], priority=5)
    await quiet.create(kinds.APP_WRAPPER, labelled(borrower, team="blue"))
    await quiet.until(kinds.APP_WRAPPER, "borrower", dispatched)
    owner = app_wrapper("owner", config_map("o"), needs=[needs(1, cpu="1")])
    await quiet.create(kinds.APP_WRAPPER, labelled(owner, team="green"))
    await quiet.until(kinds.APP_WRAPPER, "owner", dispatched)
    await quiet.until(kinds.APP_WRAPPER, "borrower", lambda one: waits(one) and has_state("Pending")(one))
    async with asyncio.timeout(PATIENCE):
        await quiet.settled()
    owner = await quiet.get(kinds.APP_WRAPPER, "owner")
    assert dispatched(owner) and "PreemptCandidate" not in [one[0] for one in trail(owner)]


def keeps_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "claim", lambda self, *arguments, **more: None)
    impatient(monkeypatch)


@proven(without=keeps_no_room)
async def test_f016_room_that_victims_leave_one_by_one_is_kept_for_the_preemptor(quiet: Cluster) -> None:
    """F16: two victims leave at different times while smaller gangs wait. Holds: no other gang gets what the first
    one left; the preemptor starts when the second is gone."""
    start(quiet, settings=PREEMPTING)
    for name in ("low-1", "low-2"):
        await quiet.create(kinds.APP_WRAPPER, app_wrapper(name, pod(name, cpu="2")))
        await quiet.until(kinds.APP_WRAPPER, name, dispatched)
        await set_pod(quiet, name, "Running")
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("high", pod("high", cpu="4"), priority=5))
    for name in ("low-1", "low-2"):
        await quiet.until(kinds.POD, name, lambda one: "deletionTimestamp" in one["metadata"])
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("small", pod("small", cpu="1")))
    await quiet.client.delete(kinds.POD, "low-1", "default", grace_seconds=0)
    await quiet.until(kinds.APP_WRAPPER, "low-1", has_state("Pending"))
    await quiet.until(kinds.APP_WRAPPER, "small", waits)
    await quiet.settled()
    assert await quiet.names(kinds.POD) == ["low-2"]
    await quiet.client.delete(kinds.POD, "low-2", "default", grace_seconds=0)
    await quiet.until(kinds.APP_WRAPPER, "high", dispatched)


def never_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def once(self: Writes, owner: str, send: Any, look: Any, attempts: int = 1) -> Any:
        return await send()

    monkeypatch.setattr(Writes, "run", once)
    monkeypatch.setattr(Controller, "_failed", lambda self, key, error: 1e6)
    impatient(monkeypatch)


def no_eviction_of(name: str, tried: asyncio.Event, mended: asyncio.Event) -> Before:
    """The server cannot store that this gang is taken back, until it is mended."""

    async def before(request: Request) -> Response | None:
        mine = request.path.endswith(f"/{name}/status") and b"PreemptCandidate" in request.body
        if mine and not mended.is_set():
            tried.set()
            return refusal(500, "InternalError", "broken")
        return None

    return before


@proven(without=never_tries_again)
async def test_f017_an_api_error_during_a_preemption_blocks_no_other_gang(quiet: Cluster) -> None:
    """F17: the server refuses to store the victim's eviction for a while. Holds: the preemptor is not admitted before
    it is stored, others who fit go on meanwhile, and the eviction is tried again until it is done."""
    mended, tried = asyncio.Event(), asyncio.Event()

    await quiet.add_node("elsewhere", cpu="1")
    start(quiet, Meddler(quiet.server.transport(), no_eviction_of("low", tried, mended)), PREEMPTING)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("low", config_map("low"), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "low", dispatched)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("high", pod("high", cpu="3"), priority=5))
    await asyncio.wait_for(tried.wait(), PATIENCE)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("small", pod("small", cpu="1")))
    await quiet.until(kinds.APP_WRAPPER, "small", dispatched)
    assert "high" not in await quiet.names(kinds.POD)
    mended.set()
    await quiet.until(kinds.APP_WRAPPER, "high", dispatched)
    await quiet.until(kinds.APP_WRAPPER, "low", has_state("Pending"))


def admits_before_the_victim_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decisions, "is_clearing", lambda self, key, uid, now, quota: False)


@proven(without=admits_before_the_victim_is_stored)
async def test_f017_an_admission_is_stored_after_the_evictions_it_rests_on(quiet: Cluster) -> None:
    """F17: a borrower without pods makes way, and the write that says so fails. Holds: the gang that gets its quota is
    not admitted before the eviction is stored, so that a restart never finds both."""
    mended, tried = asyncio.Event(), asyncio.Event()

    settings = AppWrapperSettings(preemption=True, supply="aggregate")
    start(quiet, Meddler(quiet.server.transport(), no_eviction_of("borrower", tried, mended)), settings)
    await plant(quiet)
    borrower = app_wrapper("borrower", config_map("b"), needs=[needs(1, cpu="3")])
    await quiet.create(kinds.APP_WRAPPER, labelled(borrower, team="blue"))
    await quiet.until(kinds.APP_WRAPPER, "borrower", dispatched)
    owner = app_wrapper("owner", config_map("o"), needs=[needs(1, cpu="1")])
    await quiet.create(kinds.APP_WRAPPER, labelled(owner, team="green"))
    await asyncio.wait_for(tried.wait(), PATIENCE)
    await quiet.settled()
    assert "canrun" not in (await quiet.get(kinds.APP_WRAPPER, "owner"))["status"]
    mended.set()
    await quiet.until(kinds.APP_WRAPPER, "owner", dispatched)


@proven(without=writes_without_preconditions)
async def test_f025_a_condition_that_someone_else_adds_is_kept(quiet: Cluster) -> None:
    """F25: another controller adds a condition while ours writes the status. Holds: ours is refused, read again and
    written again; both are there."""
    foreign = {"type": "ScaledUp", "status": "True", "reason": "Elsewhere", "message": "by another controller"}
    added = asyncio.Event()

    async def before(request: Request) -> Response | None:
        if request.method == "PATCH" and b'"canrun":true' in request.body and not added.is_set():
            added.set()
            there = await quiet.get(kinds.APP_WRAPPER, "gang")
            conditions = [*(there.get("status") or {}).get("conditions", []), foreign]
            change = {"status": {"conditions": conditions}}
            await quiet.client.patch(kinds.APP_WRAPPER, "gang", "default", change, subresource="status")
        return None

    start(quiet, Meddler(quiet.server.transport(), before))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a")))
    wrapper = await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    assert added.is_set()
    assert "ScaledUp" in [one[0] for one in trail(wrapper)]
    assert [one[0] for one in trail(wrapper) if one[0] != "ScaledUp"] == [
        "Init",
        "Queueing",
        "HeadOfLine",
        "Dispatched",
    ]


def keeps_every_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statuses, "KEPT_CONDITIONS", 10**9)


@proven(without=keeps_every_condition)
def test_f028_a_status_does_not_grow_with_every_round() -> None:
    """F28: a gang is taken back five hundred times, each time with another text. Holds: conditions are bounded, the
    first one stays, and no text holds an older one."""
    moments = iter(range(10**15, 10**16, 1000))
    status = statuses.first_seen(AppWrapperStatus(), 0, lambda: next(moments))
    for number in range(500):
        status = statuses.admitted(status, admissions.StoredAdmission(generation=1), lambda: next(moments))
        status = statuses.preempt_candidate(
            status, lambda: next(moments), reason=f"Cause{number}", message=f"round {number}", sender="x"
        )
        status = statuses.back_in_queue(status, lambda: next(moments))
    assert len(status.conditions or ()) <= 50
    assert (status.conditions or ())[0].type == "Init"
    assert status.message == "round 499"
    assert len(msgspec.json.encode(status)) < 20_000


def remembers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    original = admissions.ended

    def bare(admission: admissions.StoredAdmission) -> admissions.StoredAdmission:
        return msgspec.structs.replace(original(admission), setbacks=0, resume_at=0)

    monkeypatch.setattr(statuses, "ended", bare)


@proven(without=remembers_nothing)
async def test_f046_back_off_and_attempts_survive_a_restart(quiet: Cluster) -> None:
    """F46: a gang whose pods could not be bound backs off, and the controller is restarted. Holds: the count of
    setbacks and the moment before which it is not tried again are stored; the new controller keeps to them."""
    settings = AppWrapperSettings(bind_seconds=0.2, backoff_seconds=60)
    running = quiet.start(planned(quiet.client, settings).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", pod("x", cpu="1")))
    wrapper = await quiet.until(
        kinds.APP_WRAPPER, "gang", lambda one: has_state("Pending")(one) and "PreemptCandidate" in str(one["status"])
    )
    running.cancel()
    await asyncio.wait({running})
    quiet.start(planned(quiet.client, settings).run())
    async with asyncio.timeout(PATIENCE):
        await quiet.settled(turns=60)
    after = await quiet.get(kinds.APP_WRAPPER, "gang")
    stored = msgspec.json.decode(after["status"]["admission"])
    assert (stored["setbacks"], stored["epoch"]) == (1, 1)
    assert stored["resumeAt"] == msgspec.json.decode(wrapper["status"]["admission"])["resumeAt"]
    assert await quiet.names(kinds.POD) == []


async def test_who_must_leave_before_it_has_started_is_never_created(quiet: Cluster) -> None:
    """An admitted gang whose objects cannot be created yet is preempted: it goes without having been there."""
    blocked = asyncio.Event()

    async def before(request: Request) -> Response | None:
        mine = request.method == "POST" and request.path.endswith("/configmaps") and b'"of-low"' in request.body
        if mine and not blocked.is_set():
            return refusal(503, "ServiceUnavailable", "not yet ready to handle request")
        return None

    start(quiet, Meddler(quiet.server.transport(), before), PREEMPTING)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("low", config_map("of-low"), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "low", lambda one: one.get("status", {}).get("canrun", False))
    await quiet.create(
        kinds.APP_WRAPPER, app_wrapper("high", config_map("of-high"), needs=[needs(1, cpu="3")], priority=5)
    )
    await quiet.until(kinds.APP_WRAPPER, "high", dispatched)
    blocked.set()
    await quiet.until(kinds.APP_WRAPPER, "low", lambda one: waits(one) and has_state("Pending")(one))
    assert "of-low" not in await quiet.names(kinds.CONFIG_MAP)
