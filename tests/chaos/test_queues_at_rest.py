"""Whatever was decided, stored, lost and edited in between: once nothing moves any more, nothing waits in vain.

The rules are plain sums over what is stored (`tests.checker.rest_quota`), not the engine's. A gang is left out where
the head of another strict queue of its tree waits, because that one may keep others from what is free.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.kueue import ClusterQueue, Cohort, ResourceGroup
from shoal.engine.kueue.facts import order_time, terms_of
from shoal.engine.model import Gang
from tests.chaos.decided_town import Town
from tests.checker.rest_quota import Limit, Node, Usage
from tests.faults import Switch
from tests.unit.queues.test_overtaken import decides_without_taking_back, drops_what_is_not_stored

HOLDING = ("reserved", "admitted", "stopping")
STEPS = 120


def limits_of(groups: tuple[ResourceGroup, ...]) -> dict[tuple[str, str], Limit]:
    return {
        (flavor.name, resource): Limit(limits.nominal, limits.borrowing, limits.lending)
        for group in groups
        for flavor in group.flavors
        for resource, limits in flavor.limits.items()
    }


class Stored:
    """The quota trees as stored objects make them."""

    def __init__(self, town: Town) -> None:
        self.facts = {fact.name: fact for fact in town.facts.values() if isinstance(fact, ClusterQueue)}
        self.gangs = [stored for _, stored in town.stored.values()]
        cohorts = {fact.name: fact for fact in town.facts.values() if isinstance(fact, Cohort)}
        self.cohorts = {name: Node(name, limits_of(fact.groups)) for name, fact in cohorts.items()}
        self.queues = {name: Node(name, limits_of(fact.groups)) for name, fact in self.facts.items()}
        for name, fact in cohorts.items():
            self._hang(self.cohorts[name], fact.parent)
        for name, queue_fact in self.facts.items():
            self._hang(self.queues[name], queue_fact.cohort)
        for one in self.gangs:
            for part in one.assignment if one.state in HOLDING else ():
                own = self.queues[terms_of(one).cluster_queue].own
                for resource, flavor in part.flavors.items():
                    own[flavor, resource] = own.get((flavor, resource), 0) + part.usage[resource]

    def _hang(self, node: Node, parent: str) -> None:
        if parent:
            above = node.parent = self.cohorts.setdefault(parent, Node(parent))
            above.children.append(node)

    def waiting(self, name: str) -> list[Gang]:
        line = [one for one in self.gangs if one.state == "waiting" and one.queue == name]
        return sorted(line, key=lambda one: (-one.priority, order_time(one), one.uid))

    def could_start(self) -> list[str]:
        """Gangs that wait although what is free is enough for them, in their turn."""
        strict = {name for name, fact in self.facts.items() if fact.strategy == "StrictFIFO" and self.waiting(name)}
        found = []
        for name, node in self.queues.items():
            if any(self.queues[other].root() is node.root() for other in strict - {name}):
                continue
            line = self.waiting(name)
            found += [one.name for one in (line[:1] if name in strict else line) if self._fits(one, name)]
        return found

    def _fits(self, one: Gang, name: str) -> bool:
        flavors = [flavor.name for group in self.facts[name].groups for flavor in group.flavors]
        for chosen in product(flavors, repeat=len(one.pod_sets)):
            usage: Usage = {}
            for flavor, pod_set in zip(chosen, one.pod_sets, strict=True):
                wanted = pod_set.count * pod_set.requests["cpu"]
                usage[flavor, "cpu"] = usage.get((flavor, "cpu"), 0) + wanted
            if all(amount <= self.queues[name].available(at) for at, amount in usage.items()):
                return True
        return False


def assert_rest(town: Town) -> None:
    ledger = town.engine._queues.kueue.state
    charged = {uid for record in ledger.records.values() for uid in record.reserved}
    assert charged == {one.uid for _, one in town.stored.values() if one.state in HOLDING}, town.history
    assert not ledger.rooms, "room is kept for a gang for which no other leaves any more"
    assert Stored(town).could_start() == [], town.history


def assert_restart_changes_nothing(town: Town) -> None:
    town.start()
    plan = town.plan()
    assert not plan.reservations and not plan.admits, "only a restart lets it start"


def live(seed: int, steps: int = STEPS) -> Town:
    town = Town(seed)
    for _ in range(steps):
        town.step()
    town.come_to_rest()
    return town


@settings(max_examples=200, deadline=None)
@given(st.integers(min_value=0, max_value=10**9))
def test_at_rest_nothing_waits_in_vain_and_nothing_is_charged_in_vain(seed: int) -> None:
    """Cohorts, borrowing, preemption of every policy, fair sharing; writes late, lost, unanswered, in conflict; gangs
    that end, go, move, grow and gain priority; quota edited; the controller restarted."""
    town = live(seed)
    assert_rest(town)
    assert_restart_changes_nothing(town)


@pytest.mark.parametrize(
    ("without", "worlds"),
    [
        (decides_without_taking_back, 40),
        (drops_what_is_not_stored, 40),
    ],
)
def test_the_rules_find_what_was_once_wrong(monkeypatch: pytest.MonkeyPatch, without: Switch, worlds: int) -> None:
    """With a cure taken out, some small world shows it."""
    without(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(worlds):
            town = live(seed)
            assert_rest(town)
            assert_restart_changes_nothing(town)
