"""How fast queues decide: admissions per second, and what one change costs among many that wait.

Run: `python bench/kueue.py [--fair]`. Everything is in memory; the stopwatch counts this process's own cpu time.
"""

from __future__ import annotations

import argparse
import random
import time

import msgspec

from shoal.engine.kueue import (
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorQuota,
    Kueue,
    KueueSettings,
    Limits,
    LocalQueue,
    Preemption,
    QueueDecisions,
    ResourceGroup,
    Terms,
)
from shoal.engine.model import Gang, Namespace, PodSet

QUEUES, COHORTS = 30, 5
TARGET = 0.001
"""Seconds of cpu for a cycle after one change, however many wait."""


def forest(kueue: Kueue, queues: int, cohorts: int, cpu: int, *, preempting: bool = True) -> None:
    """`queues` cluster queues in `cohorts` cohorts, two flavors each; all may preempt, or none."""
    policy = (
        Preemption(reclaim_within_cohort="Any", within_cluster_queue="LowerPriority") if preempting else Preemption()
    )
    kueue.update(Namespace(name="default"))
    for name in ("spot", "on-demand"):
        kueue.update(Flavor(name=name))
    for index in range(cohorts):
        kueue.update(Cohort(name=f"cohort-{index}"))
    for index in range(queues):
        limits = {"cpu": Limits(cpu), "memory": Limits(cpu * 2**20)}
        group = ResourceGroup(("cpu", "memory"), (FlavorQuota("spot", limits), FlavorQuota("on-demand", limits)))
        kueue.update(
            ClusterQueue(
                name=f"queue-{index}",
                cohort=f"cohort-{index % cohorts}",
                groups=(group,),
                namespace_selector={},
                preemption=policy,
            )
        )
        kueue.update(LocalQueue(namespace="default", name=f"queue-{index}", cluster_queue=f"queue-{index}"))


def gang(number: int, queues: int, chance: random.Random) -> Gang:
    cpu = chance.choice((500, 1000, 2000, 4000))
    return Gang(
        key=f"Workload/default/gang-{number:06}",
        uid=f"{number:06}",
        namespace="default",
        name=f"gang-{number:06}",
        dialect="kueue",
        queue=f"queue-{number % queues}",
        priority=chance.choice((0, 0, 0, 10)),
        created_at=number,
        pod_sets=(
            PodSet(name="head", count=1, requests={"cpu": 1000, "memory": 2**30}),
            PodSet(name="workers", count=chance.randint(1, 8), requests={"cpu": cpu, "memory": 2**30}),
        ),
    )


def admissions(gangs: int, fair: bool) -> None:
    """Everything fits: how many a second?"""
    kueue = Kueue(KueueSettings(fair_sharing=fair))
    forest(kueue, QUEUES, COHORTS, cpu=20_000 * gangs // QUEUES)
    chance = random.Random(1)
    started = time.process_time()
    for number in range(gangs):
        kueue.update(gang(number, QUEUES, chance))
    told = time.process_time()
    decisions = kueue.plan(0)
    done = time.process_time()
    assert len(decisions.reserved) == gangs, len(decisions.reserved)
    print(
        f"{gangs} gangs, {QUEUES} queues, {COHORTS} cohorts{' (fair)' if fair else ''}: told in {told - started:.2f} s,"
        f" admitted in {done - told:.2f} s: {gangs / (done - told):,.0f} admissions/s"
        f" ({gangs / (done - started):,.0f}/s with telling; target 3,000/s)"
    )


def one_change(waiting: int, queues: int, *, preempting: bool = False, steps: int = 100) -> None:
    """Full queues, `waiting` gangs behind them; one gang ends, one enters."""
    kueue = Kueue(KueueSettings())
    forest(kueue, queues, max(1, queues // 6), cpu=100_000, preempting=preempting)
    chance = random.Random(2)
    started = time.process_time()
    for number in range(waiting):
        kueue.update(gang(number, queues, chance))
    built = time.process_time()
    first = kueue.plan(0)
    filled = time.process_time()
    running = at_rest(kueue, first)
    changes, cycles = [], []
    for step in range(steps):
        ended = running.pop(chance.choice(sorted(running)))
        looks, before = kueue.planner.cycles, time.process_time()
        kueue.update(msgspec.structs.replace(ended, state="finished"))
        decisions = kueue.plan(step)
        spent, looks = time.process_time() - before, kueue.planner.cycles - looks
        changes.append(spent)
        cycles.append(spent / max(1, looks))
        running |= at_rest(kueue, decisions)
        running = {key: gang for key, gang in running.items() if kueue.members[key].holds}
    print(
        f"{waiting:7} waiting, {queues} queues{' that preempt' if preempting else ''}: told in {built - started:.2f} s,"
        f" first plan {filled - built:.2f} s"
    )
    report("one change, told and planned to rest", changes)
    report("the same, for each cycle of that plan", cycles)


def report(what: str, costs: list[float]) -> None:
    """Median and 99th percentile against the target."""
    ranked = sorted(costs)
    median, rare = ranked[len(ranked) // 2], ranked[(len(ranked) - 1) * 99 // 100]
    print(
        f"        {what}: median {1000 * median:.3f} ms, p99 {1000 * rare:.3f} ms"
        f" (target {1000 * TARGET:g} ms: {median / TARGET:.2f} ×, p99 {rare / TARGET:.2f} ×)",
        flush=True,
    )


def at_rest(kueue: Kueue, decisions: QueueDecisions) -> dict[str, Gang]:
    """Carry out decisions, and those that follow, until there are none."""
    started: dict[str, Gang] = {}
    while decisions.reserved or decisions.evicted:
        started |= {gang.key: gang for gang in confirm(kueue, decisions, kueue.now)}
        decisions = kueue.plan(kueue.now + 1)
    return {key: gang for key, gang in started.items() if kueue.members[key].holds}


def confirm(kueue: Kueue, decisions: QueueDecisions, now: int) -> list[Gang]:
    """Tell the facts that follow from decisions, as controllers would."""
    told = []
    for entry in decisions.reserved:
        waiting = kueue.members[entry.gang].gang
        told.append(
            msgspec.structs.replace(
                waiting,
                state="admitted",
                admitted_at=now,
                assignment=entry.assignment,
                details={"kueue": Terms(cluster_queue=entry.cluster_queue)},
            )
        )
        kueue.update(told[-1])
    for victim in decisions.evicted:
        stopped = kueue.members[victim.gang].gang
        kueue.update(msgspec.structs.replace(stopped, state="waiting", assignment=(), details={}))
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fair", action="store_true", help="with fair sharing")
    options = parser.parse_args()
    admissions(15_000, options.fair)
    for size in (1_000, 10_000, 100_000):
        one_change(size, 30)
    one_change(100_000, 1_000)
    one_change(1_000, 30, preempting=True)
