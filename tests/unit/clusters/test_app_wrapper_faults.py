"""What can go wrong with an AppWrapper that runs in another cluster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.controllers.appwrapper import destinations
from shoal.controllers.appwrapper.v1beta1 import elsewhere
from shoal.controllers.multicluster import member, wrapper_copies, wrappers
from shoal.controllers.multicluster.rights import CreatorRights
from shoal.controllers.multicluster.wrappers import AppWrapperPlaces
from tests.faults import proven
from tests.unit.appwrapper.build import app_wrapper, dispatched, pod
from tests.unit.appwrapper.test_rights import WRAPPERS, as_user, grant
from tests.unit.clusters.build import is_true
from tests.unit.clusters.test_app_wrappers import backs_off, is_sent, says
from tests.unit.clusters.wrappers import SENDING, gang, sending_town


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cluster.PATIENCE", 3.0)


def takes_from_any(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_way(self: member.Member, name: str, accepting: str) -> None:
        return None

    monkeypatch.setattr(member.Member, "check_way", open_way)
    impatient(monkeypatch)


@proven(without=takes_from_any)
async def test_f227_a_namespace_that_does_not_name_the_hubs_takes_no_app_wrappers() -> None:
    """F227: a user of the hub sends an AppWrapper into a member's namespace whose people know nothing of it. Holds:
    nothing is created there unless the namespace names the hub's namespace; a setting opens trusted sets."""
    async with sending_town("a", accepted=False) as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        refused = await t.hub.until(kinds.APP_WRAPPER, "train", says("does not take gangs"))
        assert not is_sent(refused)
        await t.settled()
        assert t.wires["a"].sent == []
        await t.stop_hub()
        t.send(msgspec.structs.replace(SENDING, app_wrapper_namespaces="any"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)


def asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def allowed(self: CreatorRights, *asked: Any) -> str:
        return ""

    monkeypatch.setattr(CreatorRights, "refusal", allowed)
    impatient(monkeypatch)


@proven(without=asks_no_more)
async def test_f228_an_app_wrapper_with_a_kind_that_the_hub_does_not_serve_goes_nowhere() -> None:
    """F228: an AppWrapper of v1beta1 wraps a kind that only members serve. Holds: without an administrator's listing
    it is sent to none of them."""
    async with sending_town("a") as t:
        await grant(t.hub, "bob", "default", WRAPPERS, ("", "pods"))
        t.send()
        await t.connected()
        widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "loot"}, "spec": {}}
        body = app_wrapper("gang", pod("gang", cpu="1"), widget)
        await as_user(t.hub, "bob").create(kinds.APP_WRAPPER, body, "default")
        await t.hub.until(kinds.APP_WRAPPER, "gang", says("serves no Widget"))
        assert t.wires["a"].sent == []


def takes_any_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapper_copies.WrapperCopies, "is_ours", lambda self, found: True)
    monkeypatch.setattr(wrappers, "round_of", lambda found: (found.metadata.uid, 1))
    impatient(monkeypatch)


@proven(without=takes_any_for_its_own)
async def test_f229_an_app_wrapper_of_that_name_in_the_member_is_left_alone() -> None:
    """F229: the member has an AppWrapper of the same name that is not the hub's. Holds: it is neither adopted, changed
    nor deleted; the hub's goes to another member."""
    async with sending_town("a", "b") as t:
        theirs = await t.members["a"].create(kinds.APP_WRAPPER, gang("train", cpu="1"))
        await t.members["a"].until(kinds.APP_WRAPPER, "train", dispatched)
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train", cpu="1"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        await t.hub.client.delete(kinds.APP_WRAPPER, "train", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "train")
        assert await t.where(kinds.APP_WRAPPER, "train") == ["a"]
        left = await t.members["a"].get(kinds.APP_WRAPPER, "train")
        assert left["metadata"]["uid"] == theirs["metadata"]["uid"]
        assert "shoal.dev/hub" not in left["metadata"].get("labels", {})


def gives_up_the_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(self: AppWrapperPlaces, *copy: Any) -> bool:
        return True

    monkeypatch.setattr(AppWrapperPlaces, "remove", gone)
    impatient(monkeypatch)


@proven(without=gives_up_the_silent)
async def test_f230_what_runs_in_a_silent_member_is_not_started_again_and_is_removed_on_return() -> None:
    """F230: a member falls silent while it runs an AppWrapper, for longer than any limit, and that is deleted at the
    hub meanwhile. Holds: it starts nowhere else, leaves the hub at once, and its copy goes on the member's return."""
    async with sending_town("a", "b", "c") as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        t.wires["a"].cut()
        await t.hub.until(kinds.MULTIKUEUE_CLUSTER, "a", lambda one: not is_true("Active")(one))
        await t.hub.until(kinds.APP_WRAPPER, "train", says("cannot be reached"))
        await t.loop.clock.sleep(1.5 * SENDING.lost_seconds)
        assert await t.where(kinds.APP_WRAPPER, "train") == ["a"]
        await t.hub.client.delete(kinds.APP_WRAPPER, "train", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "train")
        assert await t.where(kinds.APP_WRAPPER, "train") == ["a"]
        t.wires["a"].mend()
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "train")
        await t.hub.until(
            kinds.MULTIKUEUE_CLUSTER, "a", lambda one: "shoal.dev/removals" not in one["metadata"]["annotations"]
        )


def chooses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(self: destinations.Destinations, plan: Any) -> None:
        for admit in plan.admits:
            self._chosen[admit.uid] = "a"

    monkeypatch.setattr(destinations.Destinations, "planned", planned)
    impatient(monkeypatch)


@proven(without=chooses_once)
async def test_f231_room_for_one_goes_to_the_first_in_line_alone() -> None:
    """F231: several AppWrappers wait for the same room, each of which would fit alone. Holds: one plan gives it to the
    first in line; the others stay with the hub and hold no quota."""
    async with sending_town("a") as t:
        for priority, name in enumerate(("low", "middle", "high")):
            await t.hub.create(kinds.APP_WRAPPER, gang(name, priority=priority))
        t.send()
        await t.hub.until(kinds.APP_WRAPPER, "high", dispatched)
        for name in ("low", "middle"):
            await t.hub.until(kinds.APP_WRAPPER, name, backs_off)
        await t.settled()
        created = [one for one in t.wires["a"].sent if one.startswith("POST") and "appwrappers" in one]
        assert len(created) == 1
        assert await t.members["a"].names(kinds.APP_WRAPPER) == ["high"]


def sweeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppWrapperPlaces, "_is_stale", lambda self, *found: False)
    impatient(monkeypatch)


@proven(without=sweeps_nothing)
async def test_f232_a_copy_that_arrives_late_goes() -> None:
    """F232: a create of an earlier round reaches a member after the AppWrapper was given to another one. Holds: the
    late copy is removed, the one that the hub has stored runs on."""
    async with sending_town("a", "b") as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        late = await t.members["a"].get(kinds.APP_WRAPPER, "train")
        late["metadata"] = {name: late["metadata"][name] for name in ("name", "namespace", "labels", "annotations")}
        late["metadata"]["annotations"].pop("shoal.dev/created-by", None)
        late.pop("status", None)
        await t.members["b"].create(kinds.APP_WRAPPER, late)
        await t.members["b"].until_gone(kinds.APP_WRAPPER, "train")
        assert dispatched(await t.hub.get(kinds.APP_WRAPPER, "train"))
        assert await t.where(kinds.APP_WRAPPER, "train") == ["a"]


def runs_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real = elsewhere.DispatchedRun.run

    async def run(self: elsewhere.DispatchedRun, kind: Any, wrapper: Any, record: Any) -> Any:
        await self._elsewhere.send(kind, wrapper, record.cluster, record.epoch)
        return await real(self, kind, wrapper, record)

    monkeypatch.setattr(elsewhere.DispatchedRun, "run", run)
    impatient(monkeypatch)


@proven(without=runs_it_again)
async def test_f233_a_copy_that_vanished_is_not_run_again_by_itself() -> None:
    """F233: the copy is deleted in its member before its end was read: it may have done its work. Holds: the hub says
    so and does not run it a second time."""
    async with sending_town("a", "b") as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        await t.members["a"].client.delete(kinds.APP_WRAPPER, "train", "default")
        ended = await t.hub.until(kinds.APP_WRAPPER, "train", lambda one: one["status"]["state"] == "Failed")
        assert "its copy in cluster a is gone" in ended["status"]["message"]
        await t.settled()
        assert await t.where(kinds.APP_WRAPPER, "train") == []
