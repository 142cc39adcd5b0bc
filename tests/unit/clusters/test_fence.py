"""The loss policy `move`: a gang stops by itself where its hub is not heard, and only then starts elsewhere."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper
from shoal.api.codec import typed
from shoal.api.labels import GATED
from shoal.api.meta import Json
from shoal.controllers.multicluster import HubLeases
from shoal.controllers.multicluster import lease as leases
from shoal.controllers.multicluster.agent import CHANCE
from shoal.controllers.multicluster.fence import Fences
from shoal.controllers.multicluster.members import Members
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.multicluster.wrapper_copies import is_gated
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from tests.chaos.clusters.test_killed_moving import StartWatch
from tests.cluster import running
from tests.faults import proven
from tests.unit.appwrapper.build import dispatched
from tests.unit.clusters.build import CHOOSING, is_on, is_placed, sent_job, town
from tests.unit.clusters.test_app_wrapper_faults import impatient
from tests.unit.clusters.test_app_wrappers import says
from tests.unit.clusters.test_gated import pods_seen
from tests.unit.clusters.test_losing import LOSS, silent
from tests.unit.clusters.wrappers import MOVING, gang, sending_town, with_agents
from tests.unit.queues.build import make, name_of, pods_of

HUB = "shoal.dev/hub"


def stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop(self: HubLeases, *hub: Any) -> None:
        return None

    monkeypatch.setattr(HubLeases, "_stop", stop)


@proven(without=stops_nothing)
async def test_f720_what_would_move_stops_by_itself_before_it_starts_elsewhere() -> None:
    """F720: a member is cut off with an AppWrapper whose loss policy is `move`. Holds: it stops there when the hub's
    lease ends, without a word from the hub, and starts elsewhere only after that; on the member's return its old copy
    goes."""
    async with sending_town("a", "b", "c") as t:
        with_agents(t)
        watch = StartWatch(t)
        t.send(MOVING)
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.members["a"].until(kinds.APP_WRAPPER, "train", dispatched)
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        t.wires["a"].cut()
        await silent(t.hub, "a")
        await t.members["b"].until(kinds.APP_WRAPPER, "train", dispatched)
        assert watch.broken == []
        stopped = await t.members["a"].get(kinds.APP_WRAPPER, "train")
        assert stopped["metadata"]["annotations"][GATED] == "fenced"
        t.wires["a"].mend()
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "train")
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        assert await t.where(kinds.POD, "train") == ["b"]
        assert watch.broken == []


def waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Members, "until_stopped", lambda self, *asked: 0.0)


@proven(without=waits_for_nothing)
async def test_f721_a_hub_that_starts_again_counts_the_whole_time_of_the_fence_anew() -> None:
    """F721: the member of a gang that would move is cut off, and the hub dies and comes back at once. Holds: the gang
    starts elsewhere only after the time in which what the hub before it granted may still hold."""
    async with sending_town("a", "b", "c") as t:
        with_agents(t)
        watch = StartWatch(t)
        t.send(MOVING)
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        t.wires["a"].cut()
        await t.stop_hub()
        t.send(MOVING)
        await t.members["b"].until(kinds.APP_WRAPPER, "train", dispatched)
        assert watch.broken == []
        t.wires["a"].mend()
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "train")


@proven(without=stops_nothing)
async def test_f722_a_queued_job_whose_queue_says_move_stops_there_and_starts_elsewhere() -> None:
    """F722: the ClusterQueue of a job says `move`, and its member is cut off. Holds: its pods there are gone before the
    first of them is made elsewhere."""
    async with town("a", "b", "c", hub_decides=False) as t:
        with_agents(t)
        watch = JobWatch(t)
        (name,) = [one["metadata"]["name"] for one in await t.hub.client.list(kinds.CLUSTER_QUEUE)]
        await t.hub.client.patch(kinds.CLUSTER_QUEUE, name, None, {"metadata": {"annotations": {LOSS: "move"}}})
        t.start_choosing_hub(msgspec.structs.replace(CHOOSING, lease_seconds=3.0, fence_seconds=1.0))
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 2))
        home = (await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed))["status"]["clusterName"]
        await pods_of(t.members[home], "train", 2)
        t.wires[home].cut()
        moved = await t.hub.until(kinds.WORKLOAD, name_of(made), lambda one: is_placed(one) and not is_on(home)(one))
        other = moved["status"]["clusterName"]
        await pods_of(t.members[other], "train", 2)
        assert watch.broken == []
        t.wires[home].mend()
        await t.members[home].until_gone(kinds.JOB, "train")
        assert await t.where(kinds.JOB, "train") == [other]
        assert watch.broken == []


class JobWatch(StartWatch):
    """Pods of a Job have names of their own."""

    def _look(self, cluster: str, event: object) -> None:
        name, there = event.record.name, self._at.setdefault("job", set())  # type: ignore[attr-defined]
        if event.type == "DELETED":  # type: ignore[attr-defined]
            there.discard(f"{cluster}/{name}")
        else:
            there.add(f"{cluster}/{name}")
            if len(places := {one.partition("/")[0] for one in there}) > 1:
                self.broken.append(f"pods are in {sorted(places)}")


def takes_it_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.controllers.multicluster.wrappers.is_stopped", lambda found: False)
    impatient(monkeypatch)


@proven(without=takes_it_for_gone)
async def test_f723_a_member_that_is_back_just_after_the_lease_ended_starts_it_once_more() -> None:
    """F723: the lease has ended, the gang has stopped in its member, and that is back before the hub started it
    elsewhere. Holds: it goes back to the queue, what is there goes first, and it runs in one place."""
    async with sending_town("a", "b") as t:
        with_agents(t)
        watch = StartWatch(t)
        t.send(msgspec.structs.replace(MOVING, fence_seconds=600.0))
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        first = await t.members["a"].get(kinds.POD, "train")
        t.wires["a"].cut()
        await t.members["a"].until_gone(kinds.POD, "train")
        t.wires["a"].mend()

        def runs_again(one: Json) -> bool:
            return bool(one["metadata"]["uid"] != first["metadata"]["uid"])

        await t.hub.until(kinds.APP_WRAPPER, "train", lambda one: '"epoch":2' in one["status"].get("admission", ""))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        (home,) = await t.where(kinds.APP_WRAPPER, "train")
        await t.members[home].until(kinds.POD, "train", runs_again)
        assert watch.broken == []


def believes_in_any_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fences, "holds", lambda self, name: True)
    impatient(monkeypatch)


@proven(without=believes_in_any_fence)
async def test_f724_a_gang_that_would_move_goes_only_where_something_stops_it() -> None:
    """F724: nothing in one member would stop a gang whose loss policy is `move`. Holds: it does not go there, and the
    reason says what is missing; it goes to the one that asks for the hub's lease."""
    async with sending_town("a", "b") as t:
        t.send(MOVING)
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", says("nothing there stops gangs once this hub is not heard"))
        with_agents(t, "b")
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        assert await t.where(kinds.APP_WRAPPER, "train") == ["b"]


# --- the member's side alone, on a virtual clock


LEASE_SECONDS = 40.0


class Agent:
    """A member with one copy that would move, its agent, and a hub that the test plays."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.clock = cluster, VirtualClock()
        self.task: Any = None

    async def begin(self) -> None:
        await self.cluster.client.create(kinds.NAMESPACE, {"metadata": {"name": "shoal-system"}})
        settings = ClusterSettings(lease_seconds=LEASE_SECONDS)
        body = leases.new_lease("hub", settings)
        await self.cluster.client.create(kinds.LEASE, body, "shoal-system")
        copy = gang("train")
        copy["metadata"] |= {"labels": {HUB: "hub", "IsDispatched": "true"}, "annotations": {LOSS: "move"}}
        await self.cluster.create(kinds.APP_WRAPPER, copy)
        self.start()
        await self.passes(0.1)

    def start(self) -> None:
        agent = HubLeases(Client(self.cluster.server.transport()), clock=self.clock, random=Random(1))
        self.task = self.cluster.start(agent.run())

    async def restart(self) -> None:
        self.task.cancel()
        self.start()
        await self.passes(0.1)

    async def passes(self, seconds: float) -> None:
        for _ in range(8):
            await self.cluster.settled()
            await self.clock.advance(seconds / 8)
        await self.cluster.settled()

    async def lease(self) -> Json:
        return await self.cluster.client.get(kinds.LEASE, leases.lease_name("hub"), "shoal-system")

    async def asked(self) -> str:
        return str((await self.lease())["metadata"]["annotations"]["shoal.dev/asked"])

    async def grant(self, asked: str) -> None:
        change = {"metadata": {"annotations": {"shoal.dev/granted": asked}}}
        await self.cluster.client.patch(kinds.LEASE, leases.lease_name("hub"), "shoal-system", change)
        await self.passes(0.1)

    async def is_stopped(self) -> bool:
        found = await self.cluster.get(kinds.APP_WRAPPER, "train")
        return found["metadata"]["annotations"].get(GATED) == "fenced"


def counts_from_the_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(self: HubLeases, state: Any, granted: str, seconds: float) -> float:
        if granted and granted != getattr(state, "last", ""):
            state.last = granted
            state.until = self._clock.monotonic() + seconds
        state.until = state.until or self._clock.monotonic() + seconds * CHANCE
        return float(state.until)

    monkeypatch.setattr(HubLeases, "_learn", learn)


@pytest.mark.not_at_rest("no controller runs but the one that is tested")
@proven(without=counts_from_the_grant)
async def test_f725_a_grant_that_arrives_late_prolongs_nothing() -> None:
    """F725: the hub's grant is on its way for longer than a part of the lease time, and the hub has given up meanwhile.
    Holds: the lease ends one lease time after the question that it answers, not after the grant's arrival."""
    async with running() as cluster:
        agent = Agent(cluster)
        await agent.begin()
        first = await agent.asked()
        await agent.grant(first)
        await agent.passes(15.0)
        late = await agent.asked()
        assert late != first
        await agent.passes(20.0)
        assert not await agent.is_stopped()
        await agent.grant(late)  # 20 seconds after it was asked
        await agent.passes(30.0)
        assert await agent.is_stopped()


def begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.controllers.multicluster.agent.CHANCE", 1.0)


@pytest.mark.not_at_rest("no controller runs but the one that is tested")
@proven(without=begins_anew)
async def test_f726_a_members_controller_that_starts_again_does_not_prolong_the_lease() -> None:
    """F726: a member's controller is restarted shortly before a silent hub's lease ends, and its machine's clock is an
    hour off. Holds: what would move stops as if it had not been restarted."""
    async with running() as cluster:
        agent = Agent(cluster)
        agent.clock.step_wall(-3600.0)
        await agent.begin()
        await agent.grant(await agent.asked())
        await agent.passes(30.0)
        await agent.restart()
        assert not await agent.is_stopped()
        await agent.passes(15.0)
        assert await agent.is_stopped()


def leaves_the_gated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = HubLeases._of

    def of(self: HubLeases, hub: str) -> Any:
        return [(kind, one) for kind, one in real(self, hub) if not is_gated(typed(one, AppWrapper))]

    monkeypatch.setattr(HubLeases, "_of", of)


@proven(without=leaves_the_gated_alone)
async def test_f727_a_release_that_arrives_after_the_lease_has_ended_starts_nothing() -> None:
    """F727: the hub releases a gang that would move, and the change is on its way until after the lease has ended.
    Holds: the copy has changed by then, so that the release fails, and nothing of it starts there."""
    async with sending_town("a", "b", "c") as t:
        with_agents(t)
        seen = pods_seen(t.members["a"])
        wire, held = t.wires["a"], []
        real = wire.send

        async def send(request: Any, *, timeout: float | None = None) -> Any:
            if request.method == "PATCH" and "/appwrappers/" in request.path:
                held.append(request)
                wire.cut()
            return await real(request, timeout=timeout)

        wire.send = send  # type: ignore[method-assign]
        t.send(MOVING)
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.members["b"].until(kinds.APP_WRAPPER, "train", dispatched)
        late = await t.members["a"].server.transport().send(held[0])
        assert late.status == 409
        await t.members["a"].settled()
        assert seen == []
        wire.send = real  # type: ignore[method-assign]
        wire.mend()
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "train")


async def test_a_long_way_out_is_added_to_the_fence() -> None:
    settings = ClusterSettings(lease_seconds=40.0, fence_seconds=60.0)
    assert leases.fence_seconds(settings, {"template": {"spec": {"containers": []}}}) == 100
    assert leases.fence_seconds(settings, {"a": [{"terminationGracePeriodSeconds": 600}]}) == 670
