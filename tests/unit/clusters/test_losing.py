"""Members that are lost, forgotten or drained, and what becomes of the gangs that are there."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.api.objects import key_of
from shoal.controllers.appwrapper.v1beta1.elsewhere import DispatchedRun
from shoal.controllers.multicluster import dispatcher
from shoal.controllers.multicluster.loss import loss_policy
from shoal.controllers.multicluster.members import Members
from shoal.controllers.multicluster.wrappers import AppWrapperPlaces
from shoal.kube.runtime import WorkQueue
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.appwrapper.build import dispatched
from tests.unit.clusters.build import CHOOSING, is_on, is_placed, is_true, sent_job, town
from tests.unit.clusters.test_app_wrapper_faults import impatient
from tests.unit.clusters.test_app_wrappers import backs_off, says
from tests.unit.clusters.test_commands import call, served
from tests.unit.clusters.wrappers import SENDING, gang, sending_town
from tests.unit.queues.build import make, name_of, pods_of

LOSS = "shoal.dev/cluster-loss"


def annotated(obj: Json, **annotations: str) -> Json:
    obj["metadata"]["annotations"] = {LOSS: annotations["loss"]}
    return obj


async def order(hub: Cluster, cluster: str, **annotations: str | None) -> None:
    change = {"metadata": {"annotations": {f"shoal.dev/{name}": value for name, value in annotations.items()}}}
    await hub.client.patch(kinds.MULTIKUEUE_CLUSTER, cluster, None, change)


async def silent(hub: Cluster, name: str) -> None:
    await hub.until(kinds.MULTIKUEUE_CLUSTER, name, lambda one: not is_true("Active")(one))


def test_an_unknown_word_waits() -> None:
    assert loss_policy(("", ""), "move-anyway") == "move-anyway"
    assert loss_policy(("wait", "move-anyway"), "move-anyway") == "wait"
    assert loss_policy(("anything",), "move-anyway") == "wait"


def never_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppWrapperPlaces, "until_lost", lambda self, *asked: None)
    impatient(monkeypatch)


@proven(without=never_gives_up)
async def test_f609_an_app_wrapper_that_says_so_moves_on_from_a_lost_member() -> None:
    """F609: a member is silent beyond the limit with two AppWrappers, one of which says `move-anyway`. Holds: that one
    starts elsewhere, the other waits with the time since when nothing is known; on the member's return the first one's
    old copy goes and the other runs on."""
    async with sending_town("a", "b", "c") as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, annotated(gang("moves", cpu="2"), loss="move-anyway"))
        await t.hub.create(kinds.APP_WRAPPER, gang("stays", cpu="2"))
        for name in ("moves", "stays"):
            await t.members["a"].until(kinds.APP_WRAPPER, name, dispatched)
            await t.hub.until(kinds.APP_WRAPPER, name, dispatched)
        t.wires["a"].cut()
        await silent(t.hub, "a")
        await t.members["b"].until(kinds.APP_WRAPPER, "moves", dispatched)
        waits = await t.hub.until(kinds.APP_WRAPPER, "stays", says("its state is unknown since 20"))
        assert waits["status"]["canrun"]
        assert await t.where(kinds.APP_WRAPPER, "stays") == ["a"]
        t.wires["a"].mend()
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "moves")
        await t.hub.until(kinds.APP_WRAPPER, "stays", lambda one: not says("unknown")(one))
        assert await t.where(kinds.APP_WRAPPER, "stays") == ["a"]


def always_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "loss_policy", lambda texts, otherwise: "move-anyway")
    impatient(monkeypatch)


@proven(without=always_moves)
async def test_f610_a_job_of_a_queue_that_waits_is_not_started_a_second_time() -> None:
    """F610: a member is silent beyond the limit, and the ClusterQueue of its job says `wait`. Holds: the job is started
    nowhere else, and is followed again when the member is back."""
    async with town("a", "b", "c", hub_decides=False) as t:
        (name,) = [one["metadata"]["name"] for one in await t.hub.client.list(kinds.CLUSTER_QUEUE)]
        change = {"metadata": {"annotations": {LOSS: "wait"}}}
        await t.hub.client.patch(kinds.CLUSTER_QUEUE, name, None, change)
        t.start_choosing_hub(msgspec.structs.replace(CHOOSING, lost_seconds=0.3))
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 2))
        home = (await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed))["status"]["clusterName"]
        await pods_of(t.members[home], "train", 2)
        t.wires[home].cut()
        await silent(t.hub, home)
        told = await t.hub.until(kinds.WORKLOAD, name_of(made), lambda one: "unknown since" in str(one["status"]))
        assert is_on(home)(told)
        await t.hub.settled(150)
        assert await t.where(kinds.JOB, "train") == [home]
        t.wires[home].mend()
        await t.hub.until(kinds.WORKLOAD, name_of(made), lambda one: "unknown since" not in str(one["status"]))
        assert await t.where(kinds.JOB, "train") == [home]


def looks_at_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkQueue, "set_aside", lambda self, key: self.add(key))


@proven(without=looks_at_all_at_once)
async def test_f746_a_lost_member_does_not_keep_the_hub_from_everything_else() -> None:
    """F746: a member falls silent while the hub follows many gangs. Holds: they are looked at one after the other, and
    between two looks the hub does everything else; all that the member was to run is started elsewhere."""
    async with town("a", "b", "c", hub_decides=False) as t:
        hub = t.start_choosing_hub(msgspec.structs.replace(CHOOSING, policy="spread", lost_seconds=0.3))
        await t.connected()
        made = await make(t.hub, *(sent_job(f"train-{at}", 1, cpu="50m") for at in range(24)))
        homes = [await t.hub.until(kinds.WORKLOAD, name_of(one), is_placed) for one in made]
        unconcerned = {key_of(one) for one in homes if not is_on("a")(one)}
        assert len(unconcerned) == 16
        await t.settled()
        looks, turn = Counter[int](), 0
        looked_at, news = set[Key](), set[Key]()
        reconcile, enqueue = hub.queue._reconcile, hub.queue.enqueue

        def noted(key: Key, after: float = 0.0, *, rank: int | None = None) -> None:
            news.add(key)
            enqueue(key, after, rank=rank)

        async def counted(key: Key) -> float | None:
            looked_at.add(key)
            looks[turn] += key in unconcerned and key not in news  # news may come in lumps, and is looked at at once
            news.discard(key)
            return await reconcile(key)

        async def turns_of_the_loop() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        hub.queue._reconcile, hub.queue.enqueue = counted, noted  # type: ignore[method-assign]
        counting = t.hub.start(turns_of_the_loop())
        t.wires["a"].cut()
        await silent(t.hub, "a")
        for one in made:
            await t.hub.until(kinds.WORKLOAD, name_of(one), lambda found: is_placed(found) and not is_on("a")(found))
        await hub.queue.until_idle()
        counting.cancel()
        assert looked_at >= unconcerned
        assert max(looks.values()) == 1


def believes_in_a_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Members, "is_forgotten", lambda self, name: False)
    impatient(monkeypatch)


@proven(without=believes_in_a_return)
async def test_f611_what_a_person_forgets_starts_elsewhere_and_is_cleared_up_on_return(tmp_path: Path) -> None:
    """F611: a member burns down, and an administrator says so. Holds: its AppWrappers start elsewhere at once, though
    they wait by their policy; a member that answers cannot be forgotten; one that returns after all loses the old
    copies and the mark."""
    async with sending_town("a", "b", "c") as t:
        where = ("--kubeconfig", await served(t.hub, tmp_path / "hub"))
        t.send(msgspec.structs.replace(SENDING, lost_seconds=600.0))
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        refused = await call("cluster", "forget", "a", *where)
        assert "cluster a answers, so its gangs are not gone" in str(refused.exception)
        t.wires["a"].cut()
        await silent(t.hub, "a")
        assert (await call("cluster", "forget", "a", *where)).exit_code == 0
        await t.members["b"].until(kinds.APP_WRAPPER, "train", dispatched)
        t.wires["a"].mend()
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "train")
        await t.hub.until(
            kinds.MULTIKUEUE_CLUSTER, "a", lambda one: "shoal.dev/forgotten" not in one["metadata"]["annotations"]
        )
        assert await t.where(kinds.APP_WRAPPER, "train") == ["b"]


def goes_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def next_place(self: DispatchedRun, *asked: Any) -> str:
        return "b"

    monkeypatch.setattr(DispatchedRun, "_next_place", next_place)
    impatient(monkeypatch)


@proven(without=goes_anywhere)
async def test_f142_a_drain_that_moves_stops_nothing_before_there_is_room_elsewhere(tmp_path: Path) -> None:
    """F142: a member is drained with `--move`, and no other has room. Holds: nothing is stopped; when there is room, it
    is reserved, and the gangs move there one after the other, each from its old place before it starts in the new."""
    async with sending_town("a", "b") as t:
        where = ("--kubeconfig", await served(t.hub, tmp_path / "hub"))
        t.send()
        await t.connected()
        for name, home in (("one", "a"), ("two", "b")):
            await t.hub.create(kinds.APP_WRAPPER, gang(name))
            await t.hub.until(kinds.APP_WRAPPER, name, dispatched)
            assert await t.where(kinds.APP_WRAPPER, name) == [home]
        pod = await t.members["a"].get(kinds.POD, "one")
        late = await call("cluster", "drain", "a", "--move", "--timeout", "1", *where)
        assert "1 gangs are still in a after 1 s: default/one; it stays cordoned" in str(late.exception)
        assert (await t.members["a"].get(kinds.POD, "one"))["metadata"]["uid"] == pod["metadata"]["uid"]
        await t.hub.create(kinds.APP_WRAPPER, gang("three"))
        await t.hub.until(kinds.APP_WRAPPER, "three", backs_off)
        asked = (await call("cluster", "why", "a", *where)).stdout
        assert "default/three" in asked and "cordoned" in asked
        for name in ("three", "two"):
            await t.hub.client.delete(kinds.APP_WRAPPER, name, "default")
        drained = await call("cluster", "drain", "a", "--move", "--timeout", "20", *where)
        assert drained.exit_code == 0, drained.output
        await t.members["b"].until(kinds.APP_WRAPPER, "one", dispatched)
        assert await t.where(kinds.APP_WRAPPER, "one") == ["b"]


async def test_a_queued_job_moves_when_its_member_is_drained() -> None:
    async with town("a", "b", hub_decides=False) as t:
        t.start_choosing_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 2))
        home = (await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed))["status"]["clusterName"]
        (other,) = {"a", "b"} - {home}
        await pods_of(t.members[home], "train", 2)
        await order(t.hub, home, cordoned="2026-01-01T00:00:00Z", draining="move")
        await t.hub.until(kinds.WORKLOAD, name_of(made), is_on(other))
        await pods_of(t.members[other], "train", 2)
        assert await t.where(kinds.JOB, "train") == [other]
