"""Copies of AppWrappers are made gated and released once: what arrives late, altered or from an unknown past starts
nothing."""

from __future__ import annotations

import asyncio
import copy as copying
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.labels import GATED
from shoal.api.meta import Json
from shoal.controllers.multicluster import wrapper_copies, wrappers
from shoal.controllers.multicluster.wrapper_copies import WrapperCopies
from shoal.controllers.multicluster.wrappers import AppWrapperPlaces
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.kube.errors import Unknown
from shoal.kube.transport import Request, Response
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.appwrapper.build import dispatched
from tests.unit.clusters.build import Wire, is_true
from tests.unit.clusters.test_app_wrapper_faults import impatient
from tests.unit.clusters.test_app_wrappers import is_sent, says
from tests.unit.clusters.wrappers import gang, sending_town


def pods_seen(cluster: Cluster) -> list[str]:
    """Names of pods that are made here from now on."""
    resource = cluster.server.registry.find("", "pods")
    assert resource is not None
    seen: list[str] = []
    resource.collection.listeners.append(lambda event: seen.append(event.record.name))
    return seen


class Post:
    """Takes the first create of an AppWrapper off the wire, to be delivered later."""

    def __init__(self, wire: Wire) -> None:
        self.taken = asyncio.Event()
        self._wire, self._send = wire, wire.send
        self._request: Request | None = None
        wire.send = self.send  # type: ignore[method-assign]

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        is_create = request.method == "POST" and request.path.endswith("/appwrappers")
        if is_create and self._request is None:
            self._request = request
            self.taken.set()
        if is_create:
            raise Unknown("no answer (injected)")
        return await self._send(request, timeout=timeout)

    async def deliver(self) -> None:
        assert self._request is not None
        await self._wire.server.transport().send(self._request)


def is_born_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapper_copies, "GATED", "example.com/no-gate")


@proven(without=is_born_running)
async def test_f600_a_create_that_arrives_after_the_gang_went_elsewhere_starts_nothing() -> None:
    """F600: the create of an AppWrapper's copy gets no answer, the gang goes to another member, and then the create
    arrives while the hub cannot reach that member. Holds: nothing of it starts there, and it is removed."""
    async with sending_town("a", "b") as t:
        post = Post(t.wires["a"])
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await post.taken.wait()
        cordoned = {"metadata": {"annotations": {"shoal.dev/cordoned": "2026-01-01T00:00:00Z"}}}
        await t.hub.client.patch(kinds.MULTIKUEUE_CLUSTER, "a", None, cordoned)
        await t.hub.client.patch(kinds.APP_WRAPPER, "train", "default", {"spec": {"priority": 3}})  # calls it off
        await t.members["b"].until(kinds.APP_WRAPPER, "train", dispatched)
        seen = pods_seen(t.members["a"])
        t.wires["a"].cut()
        await post.deliver()
        assert await t.where(kinds.APP_WRAPPER, "train") == ["a", "b"]
        await t.members["a"].settled()
        assert seen == []
        t.wires["a"].mend()
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "train")
        assert seen == []


def leaves_its_pods_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    real = WrapperCopies.delete

    async def delete(self: WrapperCopies, kind: Any, found: Any, *, whole: bool = False) -> None:
        await real(self, kind, found)

    monkeypatch.setattr(WrapperCopies, "delete", delete)


@proven(without=leaves_its_pods_behind)
async def test_f601_a_gang_that_leaves_a_member_starts_elsewhere_only_when_its_last_pod_is_gone() -> None:
    """F601: an AppWrapper is taken out of a member whose pods take their time to end. Holds: it starts nowhere else
    before the last of them is gone."""
    async with sending_town("a", "b") as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        slow = {"metadata": {"finalizers": ["example.com/takes-its-time"]}}
        await t.members["a"].client.patch(kinds.POD, "train", "default", slow)
        await t.hub.client.delete(kinds.MULTIKUEUE_CLUSTER, "a")
        await t.members["a"].until(kinds.POD, "train", lambda one: bool(one["metadata"].get("deletionTimestamp")))
        await t.settled()
        assert await t.where(kinds.APP_WRAPPER, "train") == ["a"]
        await t.members["a"].client.patch(kinds.POD, "train", "default", {"metadata": {"finalizers": None}})
        await t.members["b"].until(kinds.APP_WRAPPER, "train", dispatched)
        assert await t.where(kinds.APP_WRAPPER, "train") == ["b"]


def believes_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppWrapperPlaces, "_is_unknown", lambda self, *found: False)
    impatient(monkeypatch)


@proven(without=believes_its_record)
async def test_f602_a_hub_restored_from_a_backup_starts_no_app_wrapper_a_second_time() -> None:
    """F602: a hub is restored from a backup in which an AppWrapper still waits that runs in a member. Holds: the copy
    is listed and left alone, and the AppWrapper starts nowhere else."""
    async with sending_town("a", "b") as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        await t.stop_hub()
        await t.hub.client.patch(kinds.APP_WRAPPER, "train", "default", {"metadata": {"finalizers": None}})
        older = {
            "canrun": None,
            "isdispatched": None,
            "state": "Pending",
            "admission": None,
            "queuejobstate": "Queueing",
        }
        await t.hub.client.patch(kinds.APP_WRAPPER, "train", "default", {"status": older}, subresource="status")
        cordoned = {"metadata": {"annotations": {"shoal.dev/cordoned": "2026-01-01T00:00:00Z"}}}
        await t.hub.client.patch(kinds.MULTIKUEUE_CLUSTER, "a", None, cordoned)
        t.send()
        await t.hub.until(kinds.APP_WRAPPER, "train", says("does not remember making"))
        listed = await t.hub.until(kinds.MULTIKUEUE_CLUSTER, "a", is_true("UnknownCopies"))
        assert "AppWrapper default/train" in str(listed["status"]["conditions"])
        await t.settled()
        assert await t.where(kinds.APP_WRAPPER, "train") == ["a"]
        assert await t.members["a"].names(kinds.POD) == ["train"]


def compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrappers, "altered", lambda sent, found: "")
    impatient(monkeypatch)


@proven(without=compares_nothing)
async def test_f603_an_app_wrapper_that_a_member_stores_differently_starts_nothing_there() -> None:
    """F603: a member's webhook, or its older CRD, changes the spec of an AppWrapper. Holds: seen before anything
    starts; it goes to another member, and the field is named."""
    async with sending_town("a", "b") as t:

        def drops(request: AdmissionRequest) -> AdmissionVerdict:
            changed = copying.deepcopy(request.object or {})
            changed["spec"].pop("priority", None)
            return AdmissionVerdict(changed=changed)

        t.members["a"].server.admission.preparers[("workload.codeflare.dev", "appwrappers")] = drops
        seen = pods_seen(t.members["a"])
        told: list[Json] = []
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train", priority=7))
        await t.hub.until(kinds.APP_WRAPPER, "train", lambda one: bool(told.append(one)) or is_sent(one))
        await t.members["b"].until(kinds.APP_WRAPPER, "train", dispatched)
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "train")
        assert seen == []
        assert any("spec.priority" in str(one.get("status")) for one in told)


def never_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(*copy: object) -> None:
        return None

    monkeypatch.setattr(AppWrapperPlaces, "_look_again", staticmethod(look))
    impatient(monkeypatch)


@pytest.mark.not_at_rest("the hub does not hear what becomes of the copy")
@proven(without=never_looks_again)
async def test_f733_a_copy_that_changed_behind_a_broken_watch_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """F733: a member changes a copy that was not released yet, and the hub's watch of it is broken without a word.
    Holds: the hub, whose release fails, looks again, and the gang is released."""
    release, changed = WrapperCopies.release, asyncio.Event()
    async with sending_town("a") as t:

        async def release_behind_a_broken_watch(self: WrapperCopies, kind: Any, found: Any) -> None:
            if not changed.is_set():
                changed.set()
                t.wires["a"].swallow()
                t.wires["a"].hangs = False  # requests are answered, and watches from before hear nothing more
                mark = {"metadata": {"labels": {"seen-by": "the-member"}}}
                await t.members["a"].client.patch(kinds.APP_WRAPPER, "one", "default", mark)
            await release(self, kind, found)

        monkeypatch.setattr(WrapperCopies, "release", release_behind_a_broken_watch)
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("one"))
        await t.members["a"].until(
            kinds.APP_WRAPPER, "one", lambda one: GATED not in (one["metadata"].get("annotations") or {})
        )
        assert changed.is_set()
