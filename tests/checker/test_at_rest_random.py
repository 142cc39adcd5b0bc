"""Random queues, cohorts and gangs: whatever the engine leaves at rest is lawful to the judge, and what it has not seen
yet is found.

The judge reads the same facts as stored objects and asks no controller. Where it cries, the engine decides something as
soon as it is told; where the engine reserves quota, the judge has cried before.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from shoal.api.quantity import show
from shoal.api.times import seconds_text
from shoal.engine.kueue import ClusterQueue, Cohort, Fungibility, ResourceGroup
from shoal.engine.kueue.facts import WHOLE_WEIGHT
from shoal.engine.model import Gang
from tests.checker.at_rest import Rules, Verdict, judge_rest
from tests.unit.engine.kueue.random_world import random_gang, random_world
from tests.unit.engine.kueue.world import World

Json = dict[str, Any]
SEEDS = int(os.environ.get("SHOAL_CHECKER_SEEDS", "4")) * 60
GANGS = 12
RULES = Rules(supply="off", wrappers=False, ray=False, jobs=False)


def stored(world: World) -> dict[str, list[Json]]:
    """The facts of a world as a server would hold them."""
    state = world.kueue.state
    forest = state.forest
    queues = [record.fact for record in state.records.values()]
    preemptors = {victim: preemptor for preemptor, victim in world.evictions}
    return {
        "namespaces": [_object("Namespace", "default", namespaced=False)],
        "resourceflavors": [_object("ResourceFlavor", name, namespaced=False, spec={}) for name in state.flavors],
        "cohorts": [_cohort(fact) for fact in forest._cohort_facts.values()],
        "clusterqueues": [_queue(fact) for fact in queues],
        "localqueues": [_object("LocalQueue", fact.name, spec={"clusterQueue": fact.name}) for fact in queues],
        "workloads": [_workload(one, preemptors.get(one.name, "")) for one in world.gangs.values()],
    }


def _object(kind: str, name: str, *, namespaced: bool = True, uid: str = "", at: int = 0, **parts: Any) -> Json:
    metadata = {"name": name, "uid": uid or f"{kind}-{name}", "creationTimestamp": seconds_text(at * 1_000_000)}
    return {"kind": kind, "metadata": metadata | ({"namespace": "default"} if namespaced else {}), **parts}


def _groups(groups: tuple[ResourceGroup, ...]) -> list[Json]:
    found = []
    for group in groups:
        flavors = []
        for flavor in group.flavors:
            resources = []
            for name, limits in flavor.limits.items():
                one = {"name": name, "nominalQuota": show(name, limits.nominal)}
                one |= {"borrowingLimit": show(name, limits.borrowing)} if limits.borrowing is not None else {}
                one |= {"lendingLimit": show(name, limits.lending)} if limits.lending is not None else {}
                resources.append(one)
            flavors.append({"name": flavor.name, "resources": resources})
        found.append({"coveredResources": list(group.resources), "flavors": flavors})
    return found


def _cohort(fact: Cohort) -> Json:
    spec = {"parentName": fact.parent, "resourceGroups": _groups(fact.groups), "fairSharing": _weight(fact.weight)}
    return _object("Cohort", fact.name, namespaced=False, spec=spec)


def _weight(weight: int) -> Json:
    return {"weight": show("cpu", weight // (WHOLE_WEIGHT // 1000))}


def _fungibility(fact: Fungibility) -> Json:
    return {
        "whenCanBorrow": "TryNextFlavor" if fact.next_when_borrowing else "MayStopSearch",
        "whenCanPreempt": "TryNextFlavor" if fact.next_when_preempting else "MayStopSearch",
        **({"preference": "PreemptionOverBorrowing"} if fact.prefer_preempting else {}),
    }


def _queue(fact: ClusterQueue) -> Json:
    preemption = {
        "reclaimWithinCohort": fact.preemption.reclaim_within_cohort,
        "withinClusterQueue": fact.preemption.within_cluster_queue,
        "borrowWithinCohort": {"policy": fact.preemption.borrow_within_cohort},
    }
    spec = {
        "cohortName": fact.cohort,
        "namespaceSelector": {},
        "queueingStrategy": fact.strategy,
        "resourceGroups": _groups(fact.groups),
        "preemption": preemption,
        "flavorFungibility": _fungibility(fact.fungibility),
        "fairSharing": _weight(fact.weight),
    }
    return _object("ClusterQueue", fact.name, namespaced=False, spec=spec)


def _workload(gang: Gang, preemptor: str) -> Json:
    holds = gang.state in ("admitted", "stopping")
    conditions = [_condition("QuotaReserved", holds, "waits", gang.admitted_at)]
    status: Json = {"conditions": conditions}
    if holds:
        conditions.append(_condition("Admitted", True, ""))
        given = [
            {
                "name": part.name,
                "count": part.count,
                "flavors": dict(part.flavors),
                "resourceUsage": {name: show(name, value) for name, value in part.usage.items()},
            }
            for part in gang.assignment
        ]
        status["admission"] = {"clusterQueue": gang.details["kueue"].cluster_queue, "podSetAssignments": given}
    if preemptor:
        before = "Previously: " if gang.state == "admitted" else ""
        text = f"{before}Preempted to accommodate a workload (UID: uid-{preemptor}, JobUID: UNKNOWN)"
        conditions.append(_condition("Evicted", gang.state != "admitted", text))
    sets = []
    for one in gang.pod_sets:
        asked = {name: show(name, value) for name, value in one.requests.items()}
        template = {"spec": {"containers": [{"name": "main", "resources": {"requests": asked}}]}}
        least = {"minCount": one.min_count} if one.min_count is not None else {}
        sets.append({"name": one.name, "count": one.count, "template": template, **least})
    spec = {"queueName": gang.queue, "priority": gang.priority, "podSets": sets}
    return _object("Workload", gang.name, uid=gang.uid, at=gang.created_at, spec=spec, status=status)


def _condition(kind: str, holds: bool, message: str, at: int = 0) -> Json:
    return {
        "type": kind,
        "status": str(holds),
        "reason": "R",
        "message": message,
        "lastTransitionTime": seconds_text(at),
    }


def judged(world: World) -> Verdict:
    return judge_rest(stored(world), replace(RULES, fair_sharing=world.kueue.settings.fair_sharing))


def circles(world: World, found: list[str]) -> list[str]:
    """What is said of gangs that pushed each other out within one plan: of that nothing is stored."""
    grudges = {one.name for one in world.gangs.values() if world.kueue.state.spared_by(one.uid)}
    return [one for one in found if " may take the place of " in one and one.split()[2].split("/")[1] in grudges]


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    return Counter()


@pytest.mark.parametrize("first", range(0, SEEDS, 60))
def test_what_the_engine_leaves_at_rest_is_lawful(first: int, seen: Counter[str]) -> None:
    for seed in range(first, first + 60):
        chance, world, queues = random_world(seed)
        world.tell(*(random_gang(chance, number, queues) for number in range(GANGS)))
        world.settle()
        verdict = judged(world)
        unseen = circles(world, verdict.found)
        assert verdict.found == unseen, seed
        seen["judged"] += verdict.judged
        seen["undecided"] += len(verdict.undecided) + len(unseen)
    assert seen["undecided"] < seen["judged"] / 100, seen


def test_what_the_engine_has_not_seen_is_found() -> None:
    """Gangs end, and the engine is not told: the gangs that could start by that are found; and no others."""
    counted = Counter[str]()
    for seed in range(SEEDS):
        chance, world, queues = random_world(seed)
        world.tell(*(random_gang(chance, number, queues) for number in range(GANGS)))
        world.settle()
        running = sorted(world.running())
        if not running:
            continue
        gone = world.gangs.pop(chance.choice(running))
        verdict = judged(world)
        found = [one for one in verdict.found if one not in circles(world, verdict.found)]
        world.kueue.update(msgspec.structs.replace(gone, state="finished"))
        decisions = world.kueue.plan(world.now + 1_000_000)
        decided = bool(decisions.reserved or decisions.evicted)
        assert decided or not found, (seed, found)
        counted["reserved"] += bool(decisions.reserved)
        counted["found"] += bool(decisions.reserved and (found or verdict.undecided))
        counted["undecided"] += bool(decisions.reserved and not found)
    assert counted["reserved"] > SEEDS / 10
    assert counted["found"] == counted["reserved"], counted
    assert counted["undecided"] <= 0.05 * counted["reserved"], counted
