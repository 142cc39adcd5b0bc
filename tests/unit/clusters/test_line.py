"""Gangs that no other cluster would start, by shape: a change asks little, and ends as if all had been asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.controllers.planning import cluster_line
from shoal.controllers.planning.cluster_line import ClusterLine, LineAnswer
from shoal.engine.model import Amounts, Gang, PodSet
from tests.faults import proven
from tests.patience import PATIENCE, patiently
from tests.unit.appwrapper.build import dispatched
from tests.unit.clusters.test_app_wrappers import says
from tests.unit.clusters.wrappers import gang as wrapped
from tests.unit.clusters.wrappers import sending_town

NAMES = ("a", "b", "c", "d")
SEEDS = 60


def gang(number: int, cpu: int, gpu: int = 0) -> Gang:
    requests = {"cpu": cpu, "gpu": gpu} if gpu else {"cpu": cpu}
    sets = (PodSet(name="main", count=1, requests=requests),)
    uid = f"{number:04}"
    return Gang(key=f"AppWrapper/x/{uid}", uid=uid, namespace="x", name=uid, queued_at=number, pod_sets=sets)


def needs(one: Gang) -> Amounts:
    return one.pod_sets[0].requests


class Hub:
    """Clusters with room, a quota, and gangs that start first come, first served. `plain`: at every change all that
    wait are told again."""

    def __init__(self, *, plain: bool) -> None:
        self.plain = plain
        self.size: dict[str, Amounts] = {}
        self.closed: set[str] = set()
        self.where: dict[str, str] = {}
        self.gangs: dict[str, Gang] = {}
        self.told: dict[str, Gang] = {}
        self.quota = 10**6
        self.barred: set[str] = set()
        """Those that may not start, for a reason that no cluster has to do with."""
        self.asked: Counter[str] = Counter()
        self.line = ClusterLine(self.ask, self.room)
        self.history: list[tuple[str, str]] = []

    # --- what the line asks

    def room(self, name: str) -> Amounts | None:
        if name not in self.size:
            return None
        free = dict(self.size[name])
        for uid, home in self.where.items():
            if home == name:
                for resource, amount in needs(self.gangs[uid]).items():
                    free[resource] = free.get(resource, 0) - amount
        return free

    def ask(self, one: Gang, among: frozenset[str] | None) -> LineAnswer | None:
        self.asked["questions"] += 1
        starts = bool(self.choice(one, among))
        return LineAnswer(starts, why="" if starts else "no room")

    def choice(self, one: Gang, among: frozenset[str] | None = None) -> str:
        for name in NAMES:
            free = self.room(name) if name not in self.closed and (among is None or name in among) else None
            if free is not None and all(amount <= free.get(resource, 0) for resource, amount in needs(one).items()):
                return name
        return ""

    # --- what happens

    def tell(self, one: Gang) -> None:
        self.told.pop(one.uid, None)
        self.line.discard(one.uid)
        shape = repr(one.pod_sets)
        answer = self.line.answer(shape) if not self.plain else None
        if answer is None:
            if self.choice(one):
                self.told[one.uid] = one
                return
            answer = LineAnswer(False, why="no room")
        self.line.add(shape, one, (one.queued_at,), answer)

    def submit(self, one: Gang) -> None:
        self.gangs[one.uid] = one
        self.tell(one)

    def end(self, uid: str) -> None:
        home = self.where.pop(uid, "")
        self.told.pop(uid, None)
        self.line.discard(uid)
        del self.gangs[uid]
        if home:
            self.line.changed(home)

    def settle(self) -> None:
        """Plans and looks until nothing more starts."""
        for _ in range(1000):
            again = self.line.look()
            every = [uid for uid in self.gangs if uid not in self.where] if self.plain else again
            for uid in every:
                self.tell(self.gangs[uid])
            if not self.plan() and not self.line._changed:
                return
        raise AssertionError("it never came to rest")

    def plan(self) -> bool:
        started = []
        for one in sorted(self.told.values(), key=lambda each: each.queued_at):
            if one.uid in self.barred:
                continue
            if len(self.where) >= self.quota:
                break
            home = self.choice(one)
            if home:
                self.where[one.uid] = home
                self.line.changed(home)
                started.append(one.uid)
                self.history.append((one.uid, home))
            else:
                self.tell(one)
        for uid in started:
            del self.told[uid]
        return self.line.planned(started) or bool(started)


def histories(seed: int) -> tuple[Hub, Hub]:
    """The same history twice, once asked in full."""
    made = []
    for plain in (True, False):
        random, hub, number = Random(seed), Hub(plain=plain), 0
        for _ in range(60):
            what = random.choice(("submit", "submit", "submit", "end", "resize", "close", "open", "quota"))
            name = random.choice(NAMES)
            for _ in range(random.randint(1, 8) if what == "submit" else 0):
                number += 1
                hub.submit(gang(number, random.choice((1, 1, 2, 3, 7)), random.choice((0, 0, 1, 2))))
            draw = random.random()
            if what == "end" and hub.where:
                running = sorted(hub.where)
                hub.end(running[int(draw * len(running))])
            elif what == "resize":
                hub.size[name] = {"cpu": int(draw * 12), "gpu": int(draw * 30) % 4}
                hub.line.changed(name)
            elif what in ("close", "open"):
                (hub.closed.add if what == "close" else hub.closed.discard)(name)
                hub.line.changed(name)
            elif what == "quota":
                hub.quota = 2 + int(draw * 20)
            hub.settle()
        made.append(hub)
    return made[0], made[1]


def looks_at_the_first_shape_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    every = ClusterLine._candidates
    monkeypatch.setattr(ClusterLine, "_candidates", lambda self, room: [*every(self, room)][:1])


@proven(without=looks_at_the_first_shape_alone)
@pytest.mark.parametrize("few", [0, 4])
def test_f744_asking_only_what_a_change_concerns_ends_as_asking_for_every_gang(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F744: hundreds of gangs wait for other clusters, whose room, quota and number change. Holds: the same gangs run
    in the same clusters as if all of them were asked about at every change."""
    monkeypatch.setattr(cluster_line, "FEW", few)
    for seed in range(SEEDS):
        plain, quick = histories(seed)
        assert quick.where == plain.where, f"seed {seed}"
        assert quick.history == plain.history, f"seed {seed}"


def test_what_an_end_asks_does_not_grow_with_those_that_wait() -> None:
    counts = []
    for many in (100, 1000):
        hub = Hub(plain=False)
        hub.size = {name: {"cpu": 8} for name in NAMES}
        for number in range(many):
            hub.submit(gang(number, 8))
        hub.settle()
        hub.asked.clear()
        hub.end("0000")
        hub.settle()
        assert len(hub.where) == len(NAMES)
        counts.append(hub.asked["questions"])
    assert counts[0] == counts[1] <= 4


def test_shapes_that_the_freed_room_cannot_hold_are_not_asked_about() -> None:
    hub = Hub(plain=False)
    hub.size = {"a": {"cpu": 4, "gpu": 8}}
    for number in range(100):
        hub.submit(gang(number, 4 if number == 0 else 5 + number, gpu=1))
    hub.settle()
    hub.asked.clear()
    hub.end("0000")
    hub.settle()
    assert hub.where == {} and hub.asked["questions"] == 0


def test_of_many_shapes_that_each_fit_only_as_many_are_asked_about_as_there_is_room_for() -> None:
    hub = Hub(plain=False)
    hub.size = {name: {"cpu": 8, "gpu": 1000} for name in NAMES}
    for number in range(200):
        hub.submit(gang(number, 8, gpu=1 + number))
    hub.settle()
    assert sorted(hub.where) == ["0000", "0001", "0002", "0003"]
    hub.asked.clear()
    hub.end("0002")
    hub.settle()
    assert hub.where.pop("0004") == "c" and len(hub.where) == 3
    assert hub.asked["questions"] <= 4


def test_one_that_does_not_start_for_a_reason_of_its_own_does_not_hold_up_those_like_it() -> None:
    hub = Hub(plain=False)
    hub.size = {"a": {"cpu": 0}}
    for number in range(50):
        hub.submit(gang(number, 1))
    hub.settle()
    hub.barred = {f"{number:04}" for number in range(5)}
    hub.size["a"] = {"cpu": 1}
    hub.line.changed("a")
    hub.settle()
    assert hub.where == {"0005": "a"}


def answers_as_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterLine, "doubt", lambda self, uid: False)


@proven(without=answers_as_it_was_told)
async def test_f745_a_question_about_one_of_many_that_wait_is_answered_as_of_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F745: so many gangs wait that a change which starts none of them is not told to each, and a user asks why one of
    them waits. Holds: the answer has what is free in the clusters now."""
    monkeypatch.setattr(cluster_line, "FEW", 0)
    async with sending_town("a", cpu="4") as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, wrapped("one"))
        await t.hub.until(kinds.APP_WRAPPER, "one", dispatched)
        await t.hub.create(kinds.APP_WRAPPER, wrapped("two"))
        await t.hub.until(kinds.APP_WRAPPER, "two", says("3 cpu needed, 1 free"))
        larger = asyncio.Event()

        def changed(cluster: str) -> None:
            if (t.places.placing.room("a", queued=False) or {}).get("cpu") == 2000:
                larger.set()

        t.places.placing.subscribe(changed)
        size = {"cpu": "5", "memory": "64Gi", "pods": "110"}
        await t.members["a"].client.patch(
            kinds.NODE, "node-1", None, {"status": {"allocatable": size, "capacity": size}}, subresource="status"
        )
        async with patiently(PATIENCE):
            await larger.wait()
        found = await t.loop.subject("", kinds.APP_WRAPPER.kind, Key("default", "two"))
        assert found is not None and "3 cpu needed, 2 free" in found.message
