"""What a decision costs, and how that grows. Run: `python bench/engine.py [--waiting 1000 100000] [--nodes 10000]`.

Prints figures with ratios to a baseline measured in the same run, so that a slow machine does not look like a slow
engine. CPU time, not wall time, unless it says otherwise.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Callable
from functools import partial

from shoal.engine import Engine, Settings
from shoal.engine.fit import Placement, place
from shoal.engine.model import Gang, NodeFact, PodFact, PodSet, PodSetAssignment
from shoal.engine.room import Room

SECOND = 1_000_000


def growth(small: float, large: float, sizes: tuple[int, int]) -> None:
    print(f"\ngrowth of one change from {sizes[0]:,} to {sizes[1]:,} waiting: {large / small:.2f} ×")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=200)
    arguments = parser.parse_args()
    base = baseline()
    print(f"baseline: {base * 1e3:.1f} ms for 100,000 dictionary updates (this machine, this run)\n")
    fit(arguments.nodes, base)
    costs = [waiting(size, arguments.nodes, arguments.changes, base) for size in arguments.waiting]
    if len(costs) > 1:
        growth(costs[0], costs[-1], (arguments.waiting[0], arguments.waiting[-1]))


def baseline() -> float:
    """Plain Python on this machine: the best of three."""

    def work() -> None:
        book: dict[int, int] = {}
        for number in range(100_000):
            book[number % 1_000] = book.get(number % 1_000, 0) + number

    return min(cpu(work) for _ in range(3))


def fit(nodes: int, base: float) -> None:
    room = Room()
    for fact in cluster(nodes):
        room.set_node(fact)
    room.flush()
    gang = Gang(
        key="bench/default/wide",
        uid="wide",
        namespace="default",
        name="wide",
        pod_sets=(
            PodSet(name="head", count=1, requests={"cpu": 2_000, "memory": 4 * 2**30}),
            PodSet(name="worker", count=999, requests={"cpu": 6_000, "memory": 2**34, "nvidia.com/gpu": 1}),
        ),
    )
    first = cpu(lambda: _must_fit(gang, room))
    again = min(cpu(lambda: _must_fit(gang, room)) for _ in range(10))
    report(f"fit: a 1,000-pod gang on {nodes:,} nodes, shapes never seen before", first, base, limit=0.050)
    report(f"fit: a 1,000-pod gang on {nodes:,} nodes, shapes known", again, base, limit=0.050)


def _must_fit(gang: Gang, room: Room) -> None:
    assert isinstance(place(gang, room), Placement)


def waiting(size: int, nodes: int, changes: int, base: float) -> float:
    """A full cluster with `size` gangs behind it; then one gang after another ends. Returns the cost of one change."""
    print()
    engine = Engine(Settings())
    facts: list[NodeFact | PodFact | Gang] = [*cluster(nodes)]
    facts += [gang(f"run{index}", running=index) for index in range(nodes)]
    facts += [gang(f"wait{index}") for index in range(size)]

    def build() -> None:
        for fact in facts:
            engine.update(fact)
        engine.plan(10**9 * SECOND)

    cost = cpu(build)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report(f"{size:,} waiting, {nodes:,} running on {nodes:,} nodes: build and first plan", cost, base, limit=20.0)
    print(f"    resident memory {memory:.2f} GiB (limit 2 GiB, of this whole process)")
    dice = random.Random(1)
    running = [f"bench/default/run{index}" for index in range(nodes)]
    dice.shuffle(running)
    idle = min(cpu(lambda: engine.plan(10**9 * SECOND)) for _ in range(50))
    report(f"{size:,} waiting: a cycle in which nothing changed", idle, base, limit=0.001)
    admitted = 0

    def one_change() -> None:
        nonlocal admitted
        engine.remove(running.pop())
        admitted += len(engine.plan(10**9 * SECOND).admits)

    costs = sorted(cpu(one_change) for _ in range(changes))
    spent = sum(costs) / len(costs)
    each = sum(costs) / max(1, admitted)
    median, rare = costs[len(costs) // 2], costs[(len(costs) - 1) * 99 // 100]
    report(f"{size:,} waiting: a cycle after one gang ended and freed a node, median", median, base, limit=0.001)
    report(f"{size:,} waiting: the same, 99th percentile", rare, base, limit=0.001)
    print(f"    mean {spent * 1e3:.2f} ms, {admitted} started after {changes} changes: {each * 1e3:.2f} ms for each")
    arrivals = [cpu(partial(_arrive, engine, number)) for number in range(changes)]
    report(f"{size:,} waiting: one more gang arrives", sum(arrivals) / len(arrivals), base, limit=0.001)
    return spent


def _arrive(engine: Engine, number: int) -> None:
    engine.update(gang(f"late{number}"))
    engine.plan(10**9 * SECOND)


def cluster(nodes: int) -> list[NodeFact]:
    return [
        NodeFact(
            name=f"node-{index:05d}",
            labels={"kubernetes.io/hostname": f"node-{index:05d}", "zone": f"z{index % 3}"},
            allocatable={
                "cpu": 64_000,
                "memory": 256 * 2**30,
                "pods": 110,
                **({"nvidia.com/gpu": 8} if index % 2 else {}),
            },
        )
        for index in range(nodes)
    ]


def gang(name: str, running: int | None = None) -> Gang:
    """One of 60 shapes; a running one fills its node."""
    number = int("".join(letter for letter in name if letter.isdigit()) or 0)
    if running is not None:
        asked = {"cpu": 60_000, "memory": 250 * 2**30}
        return Gang(
            key=f"bench/default/{name}",
            uid=name,
            namespace="default",
            name=name,
            state="admitted",
            pod_sets=(PodSet(name="main", count=1, requests=asked),),
            assignment=(PodSetAssignment(name="main", count=1, nodes={f"node-{running:05d}": 1}),),
        )
    shape = number % 60
    worker = {"cpu": 5_000 + 1_000 * (shape % 20), "memory": (8 + shape % 3) * 2**30}
    return Gang(
        key=f"bench/default/{name}",
        uid=name,
        namespace=f"team{number % 50}",
        name=name,
        priority=number % 5,
        queued_at=number,
        pod_sets=(
            PodSet(name="head", count=1, requests={"cpu": 4_500, "memory": 8 * 2**30}, labels={"gang": name}),
            PodSet(name="worker", count=1 + shape % 4, requests=worker, labels={"gang": name}),
        ),
    )


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def report(what: str, cost: float, base: float, limit: float) -> None:
    shown = f"{cost:.2f} s" if cost >= 1 else f"{cost * 1e3:.3f} ms"
    verdict = f"{'ok' if cost <= limit else 'OVER'}, {cost / limit:.2f} ×"
    print(
        f"{what}: {shown}, {cost / base:.3f} × baseline (limit {limit * 1e3:g} ms: {verdict})",
        flush=True,
    )


if __name__ == "__main__":
    main()
