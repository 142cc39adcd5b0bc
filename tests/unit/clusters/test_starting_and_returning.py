"""A hub that starts while gangs run in members, and members that answer again after they did not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.multicluster import members, turns, wrappers
from shoal.controllers.multicluster.members import Members
from shoal.controllers.multicluster.record import Removal
from shoal.controllers.multicluster.wrapper_copies import is_gated
from shoal.kube.bounded import BoundedTransport
from shoal.kube.transport import Request, Response, Stream, Transport
from tests.faults import proven
from tests.unit.appwrapper.build import dispatched
from tests.unit.clusters.test_app_wrapper_faults import impatient
from tests.unit.clusters.test_app_wrappers import says
from tests.unit.clusters.test_losing import annotated, silent
from tests.unit.clusters.wrappers import SENDING, gang, sending_town

MORE_THAN_WORKERS = 80


def only_in(cluster: str, wrapper: Json) -> Json:
    wrapper["spec"]["schedulingSpec"] = {"clusterScheduling": {"clusters": [{"name": cluster}]}}
    return wrapper


def is_held(wrapper: Json) -> bool:
    """It was given to a member, and a copy may be on its way."""
    return "shoal.dev/elsewhere" in (wrapper["metadata"].get("finalizers") or ())


class ReadLate:
    """The way to an API server that answers about MultiKueueClusters only once it is told to."""

    def __init__(self, inner: Transport) -> None:
        self._inner, self.answers = inner, asyncio.Event()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        await self._held(request)
        return await self._inner.send(request, timeout=timeout)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        await self._held(request)
        async with self._inner.stream(request, idle_timeout=idle_timeout) as stream:
            yield stream

    async def close(self) -> None:
        return None

    async def _held(self, request: Request) -> None:
        if "multikueueclusters" in request.path and request.method == "GET":
            await self.answers.wait()


def believes_what_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Members, "exists", lambda self, name: self.cluster(name) is not None)
    impatient(monkeypatch)


@proven(without=believes_what_is_not_read)
async def test_f735_a_hub_that_has_not_read_its_members_takes_none_for_gone() -> None:
    """F735: a hub starts, or another replica begins to lead, and knows its AppWrappers before its MultiKueueClusters.
    Holds: no gang counts as lost for that; what runs in a member runs on, nothing starts a second time, and what is
    deleted meanwhile is removed there."""
    async with sending_town("a", "b") as t:
        t.send()
        await t.connected()
        for name in ("train", "tune"):
            await t.hub.create(kinds.APP_WRAPPER, annotated(gang(name, cpu="2"), loss="move-anyway"))
            await t.members["a"].until(kinds.APP_WRAPPER, name, dispatched)
            await t.hub.until(kinds.APP_WRAPPER, name, dispatched)
        before = await t.members["a"].get(kinds.POD, "train")
        await t.stop_hub()
        way = ReadLate(t.hub.server.transport())
        t.send(transport=way)
        unread = await t.hub.until(kinds.APP_WRAPPER, "train", says("cluster a cannot be reached"))
        assert unread["status"]["canrun"]
        await t.hub.client.delete(kinds.APP_WRAPPER, "tune", "default")
        await t.hub.settled(100)
        way.answers.set()
        await t.hub.until_gone(kinds.APP_WRAPPER, "tune")
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "tune")
        await t.hub.until(kinds.APP_WRAPPER, "train", lambda one: not says("cannot be reached")(one))
        assert await t.where(kinds.APP_WRAPPER, "train") == ["a"]
        assert (await t.members["a"].get(kinds.POD, "train"))["metadata"]["uid"] == before["metadata"]["uid"]


def keeps_old_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedTransport, "end_watches", lambda self: None)
    impatient(monkeypatch)


@proven(without=keeps_old_watches)
async def test_f736_what_happened_while_a_member_was_silent_is_seen_once_it_answers() -> None:
    """F736: the way to a member swallows packets for a while, and watches from before hear nothing more, though nothing
    says that they are dead. Holds: once the member answers, every watch begins again where it was, and what happened
    there is seen."""
    async with sending_town("a", "b") as t:
        t.send(msgspec.structs.replace(SENDING, lost_seconds=600.0, request_seconds=0.2))
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        t.wires["a"].swallow()
        await silent(t.hub, "a")
        await t.members["a"].client.delete(kinds.APP_WRAPPER, "train", "default")
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "train")
        t.wires["a"].mend()
        await t.hub.until(kinds.APP_WRAPPER, "train", says("its copy in cluster a is gone"))


def takes_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONG", 1000.0)
    monkeypatch.setattr(turns, "MOST", 1000)
    monkeypatch.setattr(turns.MemberTurns.__init__, "__defaults__", (1000,))
    impatient(monkeypatch)


@proven(without=takes_every_turn)
async def test_f740_many_gangs_for_a_member_that_swallows_packets_leave_the_others_to_the_hub() -> None:
    """F740: a member swallows packets, which is not noticed yet, and is given more AppWrappers than the hub looks at in
    one moment. Holds: one that goes to another member starts there meanwhile."""
    async with sending_town("a", "b", cpu="200") as t:
        t.send(msgspec.structs.replace(SENDING, silent_seconds=600.0, request_seconds=600.0))
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, only_in("a", gang("first", cpu="1")))
        await t.hub.until(kinds.APP_WRAPPER, "first", dispatched)
        t.wires["a"].swallow()
        for at in range(MORE_THAN_WORKERS):
            await t.hub.create(kinds.APP_WRAPPER, only_in("a", gang(f"lost-{at}", cpu="1")))
        await t.hub.until(kinds.APP_WRAPPER, f"lost-{MORE_THAN_WORKERS - 1}", is_held)
        await t.hub.create(kinds.APP_WRAPPER, only_in("b", gang("well", cpu="1")))
        await t.hub.until(kinds.APP_WRAPPER, "well", dispatched)
        assert await t.where(kinds.POD, "well") == ["b"]
        t.wires["a"].mend()


def last_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_removal(removals: tuple[Removal, ...], one: Removal) -> tuple[Removal, ...]:
        return (*(known for known in removals if known.workload != one.workload), one)

    monkeypatch.setattr(members, "with_removal", with_removal)


@proven(without=last_comes_last)
async def test_f741_removals_that_are_owed_are_stored_once_however_often_their_gangs_are_looked_at() -> None:
    """F741: two gangs are deleted whose member is lost, and the hub looks at each of them again whenever what is stored
    with the member changes. Holds: it changes once for each, so that the looks come to an end."""
    async with sending_town("a", "b") as t:
        t.send()
        await t.connected()
        t.wires["a"].cut()
        await silent(t.hub, "a")
        known = t.places.placing.members
        assert known is not None
        for uid in ("one", "two"):
            assert await known.remember_removal("a", uid, 1)
        before = (await t.hub.get(kinds.MULTIKUEUE_CLUSTER, "a"))["metadata"]
        for uid in ("one", "two"):
            assert await known.remember_removal("a", uid, 1)
        after = (await t.hub.get(kinds.MULTIKUEUE_CLUSTER, "a"))["metadata"]
        assert after["resourceVersion"] == before["resourceVersion"]
        assert await known.remember_removal("a", "one", 2)
        told = (await t.hub.get(kinds.MULTIKUEUE_CLUSTER, "a"))["metadata"]["annotations"]["shoal.dev/removals"]
        assert told == '[["one",2],["two",1]]'


def believes_in_every_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrappers, "has_never_run", is_gated)
    impatient(monkeypatch)


@proven(without=believes_in_every_start)
async def test_f742_a_late_copy_that_was_stopped_before_its_release_goes() -> None:
    """F742: a create reaches a member after its gang is gone, while no replica leads, and the member stops the copy
    because the hub is not heard. Holds: a copy that never ran is not taken for one that the hub forgot: it goes."""
    async with sending_town("a", "b") as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        late = await t.members["a"].get(kinds.APP_WRAPPER, "train")
        await t.hub.client.delete(kinds.APP_WRAPPER, "train", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "train")
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "train")
        late["metadata"] = {name: late["metadata"][name] for name in ("name", "namespace", "labels", "annotations")}
        late["metadata"]["annotations"] |= {"shoal.dev/gated": "fenced"}
        late.pop("status")
        await t.members["b"].create(kinds.APP_WRAPPER, late)
        await t.members["b"].until_gone(kinds.APP_WRAPPER, "train")
