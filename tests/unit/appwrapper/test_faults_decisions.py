"""Faults that decisions must withstand, through the API: what users submit, and what becomes of it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.api import kinds
from shoal.cli import why
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.appwrapper.status.admission import read
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.planning.cluster_facts import ClusterFacts
from shoal.controllers.planning.decisions import Decisions
from shoal.engine import Engine, EngineSettings, policies
from shoal.engine.line import cycle
from shoal.engine.line.cycle import Cycle
from shoal.engine.line.yielding import Yielding
from shoal.engine.model import Gang, Plan
from shoal.engine.nodes.ledger import Ledger
from shoal.kube.cache import Change
from shoal.sdk import gangs
from tests.cluster import Cluster
from tests.faults import Switch, proven
from tests.patience import PATIENCE
from tests.planning import Planned, planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, needs, pod, quota, waits
from tests.unit.engine.build import gang, node, pods, subtree
from tests.unit.engine.build import quota as tree_node
from tests.unit.engine.test_faults import _by_sums, _half_is_enough


def impatiently(switch: Switch) -> Switch:
    """Without its protection a test waits in vain; not for long."""

    def both(monkeypatch: pytest.MonkeyPatch) -> None:
        switch(monkeypatch)
        monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)

    return both


def start(cluster: Cluster, **settings: object) -> Planned:
    made = planned(cluster.client, msgspec.convert(settings, AppWrapperSettings))
    cluster.start(made.run())
    return made


async def submit(cluster: Cluster, name: str, cpu: str, team: str = "", **spec: object) -> None:
    """A gang that declares one pod and makes none."""
    made = app_wrapper(name, config_map(name), needs=[needs(1, cpu=cpu)], **spec)
    made["metadata"]["labels"] = {"team": team} if team else {}
    await cluster.create(kinds.APP_WRAPPER, made)


async def states(cluster: Cluster) -> dict[str, str]:
    found = await cluster.client.list(kinds.APP_WRAPPER, "default")
    return {one["metadata"]["name"]: (one.get("status") or {}).get("queuejobstate", "") for one in found}


@proven(without=impatiently(_half_is_enough))
async def test_f004_of_two_gangs_that_want_the_same_nodes_one_has_all_and_the_other_nothing(quiet: Cluster) -> None:
    """F4: two gangs of three pods each come together, and there is room for four. Holds: one is created whole, of the
    other no object exists."""
    for name in ("one", "two"):
        pods = [pod(f"{name}-{number}", cpu="1") for number in range(3)]
        await quiet.create(kinds.APP_WRAPPER, app_wrapper(name, *pods))
    start(quiet)
    await quiet.until(kinds.APP_WRAPPER, "one", dispatched)
    await quiet.until(kinds.APP_WRAPPER, "two", waits)
    assert await quiet.names(kinds.POD) == ["one-0", "one-1", "one-2"]


@proven(without=impatiently(_by_sums))
async def test_f005_room_in_pieces_is_told_as_what_it_is(quiet: Cluster) -> None:
    """F5: two nodes have four cpu free each, and a pod wants six. Holds: nothing is created; the status names the
    largest free piece."""
    await quiet.add_node("node-2", cpu="4", memory="8Gi")
    start(quiet)
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("wide", pod("wide", cpu="6")))
    waiting = await quiet.until(kinds.APP_WRAPPER, "wide", waits)
    assert "the largest free piece is 4" in waiting["status"]["message"]
    assert await quiet.names(kinds.POD) == []


def no_gang_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Yielding, "outranks", lambda self, other, uid: False)


@proven(without=impatiently(no_gang_remembers))
async def test_f015_borrower_and_owner_do_not_evict_each_other_for_ever(quiet: Cluster) -> None:
    """F15: who borrows has the priority, who owns has the quota; each may evict the other. Holds: they come to rest
    after at most two decisions per gang."""
    await quiet.add_node("node-2", cpu="64")
    amounts = {"memory": "1Ti"}
    await quiet.create(kinds.QUOTA_SUBTREE, quota("team", "", ("root", {"cpu": "10", **amounts}, False)))
    leaves = [(name, {"cpu": cpu, **amounts}, False) for name, cpu in (("a", "4"), ("b", "4"), ("default", "0"))]
    await quiet.create(kinds.QUOTA_SUBTREE, quota("team", "root", *leaves))
    start(quiet, preemption=True)
    await submit(quiet, "rest", "4", "b")
    await submit(quiet, "borrower", "6", "a", priority=5)
    await submit(quiet, "owner", "3", "a")
    async with asyncio.timeout(PATIENCE):
        await quiet.settled(turns=100)
    found = await quiet.client.list(kinds.APP_WRAPPER, "default")
    epochs = [read(one["status"].get("admission", "")).epoch for one in found]
    assert sum(epochs) <= 2 * len(found)
    assert sorted(one["status"]["state"] for one in found) == ["Pending", "Running", "Running"]


def plans_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cycle, "_is_spent", property(lambda self: False))


@proven(without=plans_without_end)
async def test_f018_one_plan_never_takes_more_than_its_budget(quiet: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """F18: forty gangs, no two alike, make deciding dear. Holds: no plan judges more than its budget, the rest follows
    in the next ones, and all are dispatched."""
    monkeypatch.setattr(cycle, "STEPS", 7)
    loop = PlanningLoop(quiet.client)
    AppWrapperController(loop)
    sizes: list[int] = []
    original = loop.plan

    def counted() -> Plan:
        plan = original()
        sizes.append(len(plan.admits))
        return plan

    monkeypatch.setattr(loop, "plan", counted)
    for number in range(40):
        await submit(quiet, f"g{number:02}", f"{number + 1}m")
    quiet.start(loop.run())
    for number in range(40):
        await quiet.until(kinds.APP_WRAPPER, f"g{number:02}", dispatched)
    assert max(sizes) <= 7, sizes


def no_gang_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies.Priority, "strict", True)


@proven(without=impatiently(no_gang_passes))
async def test_f019_one_that_can_never_fit_holds_up_no_other(quiet: Cluster) -> None:
    """F19: at the front waits a gang that no node could ever take. Holds: those behind it are dispatched at once, and
    it is told what is missing."""
    start(quiet)
    await submit(quiet, "giant", "99", priority=9)
    await quiet.until(kinds.APP_WRAPPER, "giant", waits)
    await submit(quiet, "small", "1")
    await quiet.until(kinds.APP_WRAPPER, "small", dispatched)
    giant = await quiet.get(kinds.APP_WRAPPER, "giant")
    assert "99 cpu" in giant["status"]["message"] and "small" not in await waiting_names(quiet)


async def waiting_names(cluster: Cluster) -> list[str]:
    return [name for name, state in (await states(cluster)).items() if state != "Dispatched"]


def hears_of_sizes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ClusterFacts._node_changed

    def deaf(self: ClusterFacts, change: Change) -> None:
        old, new = change.old or {}, change.new or {}
        if (old.get("status") or {}).get("allocatable") != (new.get("status") or {}).get("allocatable"):
            original(self, change)

    monkeypatch.setattr(ClusterFacts, "_node_changed", deaf)


@proven(without=impatiently(hears_of_sizes_only))
async def test_f021_every_change_that_helps_is_noticed(quiet: Cluster) -> None:
    """F21: a node gets a label, loses a taint, is opened again. Holds: who waited for that is dispatched at once."""
    start(quiet)
    for number, (before, after) in enumerate(
        [
            ({"metadata": {"labels": {"zone": None}}}, {"metadata": {"labels": {"zone": "a"}}}),
            ({"spec": {"taints": [{"key": "own", "effect": "NoSchedule"}]}}, {"spec": {"taints": None}}),
            ({"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}),
        ]
    ):
        name = f"g{number}"
        await quiet.client.patch(kinds.NODE, "node-1", None, before)
        made = pod(name, cpu="1")
        made["spec"]["nodeSelector"] = {"zone": "a"}
        await quiet.create(kinds.APP_WRAPPER, app_wrapper(name, made))
        await quiet.until(kinds.APP_WRAPPER, name, waits)
        await quiet.client.patch(kinds.NODE, "node-1", None, after)
        await quiet.until(kinds.APP_WRAPPER, name, dispatched)


def counts_no_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "set_gang", lambda self, one: None)


@proven(without=impatiently(counts_no_gang))
async def test_f023_decisions_of_one_plan_do_not_share_room(quiet: Cluster) -> None:
    """F23: three gangs that each fit alone are there when the controller starts. Holds: the first is dispatched and the
    others wait, told who holds the room."""
    for name in ("a", "b", "c"):
        await submit(quiet, name, "3")
    start(quiet)
    await quiet.until(kinds.APP_WRAPPER, "a", dispatched)
    for name in ("b", "c"):
        await quiet.until(kinds.APP_WRAPPER, name, waits)
        told = await why.explain_to(quiet.client, gangs.KINDS, name, "default")
        assert told["holders"] == ["AppWrapper/default/a"]


def by_age_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies.Priority, "order", policies.Fifo.order)


@proven(without=impatiently(by_age_alone))
async def test_f027_static_priority_counts(quiet: Cluster) -> None:
    """F27: an urgent gang comes after others that wait. Holds: it is the next to be dispatched."""
    start(quiet)
    await submit(quiet, "first", "3")
    await quiet.until(kinds.APP_WRAPPER, "first", dispatched)
    for name, priority in (("old", 0), ("urgent", 5)):
        await submit(quiet, name, "3", priority=priority)
        await quiet.until(kinds.APP_WRAPPER, name, waits)
    await quiet.client.delete(kinds.APP_WRAPPER, "first", "default")
    await quiet.until(kinds.APP_WRAPPER, "urgent", dispatched)
    assert await waiting_names(quiet) == ["old"]


async def test_an_evicted_gang_keeps_its_place(quiet: Cluster) -> None:
    start(quiet, preemption=True)
    await submit(quiet, "first", "3")
    await quiet.until(kinds.APP_WRAPPER, "first", dispatched)
    await submit(quiet, "urgent", "3", priority=5)
    await quiet.until(kinds.APP_WRAPPER, "urgent", dispatched)
    await submit(quiet, "later", "3")
    for name in ("first", "later"):
        await quiet.until(kinds.APP_WRAPPER, name, waits)
    for gone, comes in (("urgent", "first"), ("first", "later")):
        await quiet.client.delete(kinds.APP_WRAPPER, gone, "default")
        there = await quiet.until(kinds.APP_WRAPPER, comes, dispatched)
        assert read(there["status"]["admission"]).epoch == (2 if comes == "first" else 1), "no gang went twice"


class Deciding:
    """An engine, and its decisions that are not stored yet."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.decisions = engine, Decisions()

    def tell(self, found: Gang) -> None:
        self.decisions.settle(found)
        self.engine.update(self.decisions.assumed(found))

    def plan(self, now: int) -> Plan:
        plan = self.engine.plan(now)
        self.decisions.planned(plan, now)
        return plan

    def call_off(self, key: str, uid: str) -> bool:
        overtaken = self.decisions.is_overtaken(key, uid)
        if overtaken:
            self.decisions.call_off(key)
        return overtaken


def test_a_seat_that_moves_before_the_admission_is_stored_is_not_forgotten() -> None:
    """A tree appears while an admission is on its way, and the gang is told once more as it is stored: waiting."""
    planner = Deciding(Engine(EngineSettings(quota=True)))
    planner.engine.update(node("n", cpu=8))
    planner.tell(gang("g", pods(2), labels={"team": "default"}))
    assert [one.seats for one in planner.plan(1).admits] == [{}]
    planner.engine.update(subtree("team", "", tree_node("root", cpu=8)))
    planner.plan(2)
    planner.tell(gang("g", pods(2), labels={"team": "default"}))
    key, uid = "AppWrapper/default/g", "uid-g"
    admit, reseat = planner.decisions.admit(key, uid), planner.decisions.reseat(key, uid)
    assert admit is not None and reseat is not None and admit.seats == reseat.seats
    assert set(admit.seats) == {"team"}
    planner.tell(gang("g", pods(2), labels={"team": "default"}, state="admitted", assignment=admit.assignment))
    assert planner.decisions.reseat(key, uid) == reseat, "stored without it: it is still to be written"
    planner.tell(
        gang("g", pods(2), labels={"team": "default"}, state="admitted", assignment=admit.assignment, seats=admit.seats)
    )
    assert planner.decisions.reseat(key, uid) is None


def test_an_eviction_that_overtakes_an_admission_waits_for_its_write() -> None:
    """The admission may be under way: so long its room is taken, however often the gang is told as it is stored."""
    planner = Deciding(Engine(EngineSettings(preemption=True)))
    planner.engine.update(node("n", cpu=4))
    low, high = gang("low", pods(3)), gang("high", pods(3), priority=5)
    planner.tell(low)
    assert [one.gang for one in planner.plan(1).admits] == [low.key]
    planner.tell(high)
    assert [one.gang for one in planner.plan(2).preempts] == [low.key]
    planner.tell(low)
    assert planner.plan(3).admits == (), "the room is not free before its writer says so"
    assert planner.call_off(low.key, low.uid)
    planner.tell(low)
    assert [one.gang for one in planner.plan(4).admits] == [high.key]
    assert planner.decisions.preempt(low.key, low.uid) is None and planner.decisions.admit(low.key, low.uid) is None


def test_an_admission_that_was_stored_unseen_is_evicted_and_not_called_off() -> None:
    planner = Deciding(Engine(EngineSettings(preemption=True)))
    planner.engine.update(node("n", cpu=4))
    low, high = gang("low", pods(3)), gang("high", pods(3), priority=5)
    planner.tell(low)
    (admit,) = planner.plan(1).admits
    planner.decisions.doubt(low.key)
    planner.tell(high)
    planner.plan(2)
    assert not planner.call_off(low.key, low.uid)
    planner.tell(gang("low", pods(3), state="admitted", assignment=admit.assignment))
    assert planner.decisions.preempt(low.key, low.uid) is not None
    assert planner.plan(3).admits == ()
