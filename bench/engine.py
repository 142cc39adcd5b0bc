"""What a decision costs, and how that grows. Run: `python bench/engine.py [--waiting 1000 100000] [--nodes 10000]`.

Seven worlds, each with `--waiting` gangs behind full nodes: AppWrappers in one line, AppWrappers below a quota tree of
1,000 leaves, and workloads in 1,000 cluster queues (cohorts of 6): without preemption, with it, shared by usage (eight
local queues to a cluster queue), with racks (gangs that ask for one rack each), with elastic bids (500 gangs that run
and bid for 1,000 pods). `--worlds "queues short of racks"`: quota for all, and room for few; most queues contend for
each rack. One change is: a running gang ends with its pods, told and planned, whatever starts in its place included; a
plan takes one or more cycles, and the limit is a millisecond for each. With racks, nodes change as well: each time one
gang ends, so that places are looked for. Prints figures with ratios to a baseline
measured in the same run, so that a slow machine does not look like a slow engine. CPU time, not wall time.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import time
from collections.abc import Callable
from functools import partial

from kueue import admissions
from msgspec.structs import replace
from worlds import NOW, World, cluster, one_line, queues, quota_tree

from shoal.api.labels import HOSTNAME
from shoal.engine.model import Gang, NodeFact, PodSet
from shoal.engine.nodes.fit import Placement, place
from shoal.engine.nodes.room import Room
from shoal.kube.collector import spare_collector


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS)[:-1], choices=list(WORLDS))
    arguments = parser.parse_args()
    base = baseline()
    print(f"baseline: {base * 1e3:.1f} ms for 100,000 dictionary updates (this machine, this run)\n")
    fit(arguments.nodes, base)
    print()
    for fair in (False, True):
        admissions(15_000, fair)
    for world in arguments.worlds:
        costs = [change(world, size, arguments.nodes, arguments.changes) for size in arguments.waiting]
        if len(costs) > 1:
            first, last = arguments.waiting[0], arguments.waiting[-1]
            print(f"{world}: growth of one change from {first:,} to {last:,} waiting: {costs[-1] / costs[0]:.2f} ×")


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


WORLDS: dict[str, Callable[[int, int], World]] = {
    "one line": one_line,
    "quota tree": quota_tree,
    "queues": partial(queues, preempting=False),
    "queues that preempt": partial(queues, preempting=True),
    "queues shared by usage": partial(queues, preempting=False, local_queues=8),
    "queues with racks": partial(queues, preempting=False, racks=True),
    "queues with elastic bids": partial(queues, preempting=False, bids=500),
    "queues short of racks": partial(queues, preempting=False, racks=True, spare=2),
}


def change(world: str, size: int, nodes: int, changes: int) -> float:
    """A full cluster with `size` gangs behind it; then one gang after another ends. Returns the median cost of one."""
    base = baseline()
    name = f"{world}, {size:,} waiting, {nodes:,} nodes"
    print()
    made = WORLDS[world](size, nodes)
    engine, running = made.engine, made.running
    cost = cpu(made.build)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report(f"{name}: build and first plan", cost, base, limit=20.0)
    print(f"    resident memory {memory:.2f} GiB (limit 2 GiB, of this whole process)")
    spare_collector()  # as the controllers do once they have seen everything
    report(f"{name}: nothing changed", min(cpu(lambda: engine.plan(NOW)) for _ in range(50)), base, limit=0.001)
    random.Random(1).shuffle(running)
    started = cycles = 0

    of_cycles: list[float] = []

    def one_change() -> float:
        nonlocal started, cycles
        before, asked = time.process_time(), engine.cycles
        made.end(running.pop())
        plan = engine.plan(NOW)
        spent = time.process_time() - before
        started += len(plan.admits)
        cycles += engine.cycles - asked
        of_cycles.append(spent / (engine.cycles - asked))
        made.carry_on(plan)
        return spent

    costs = sorted(one_change() for _ in range(changes))
    median, mean, rare = costs[len(costs) // 2], sum(costs) / len(costs), costs[(len(costs) - 1) * 99 // 100]
    report(f"{name}: one gang ended, median", median, base, limit=0.001)
    report(f"{name}: the same, mean", mean, base, limit=0.001)
    report(f"{name}: the same, 99th percentile", rare, base, limit=0.001)
    print(
        f"    {started / changes:.2f} started for each that ended: {sum(costs) / max(1, started) * 1e3:.3f} ms for each"
    )
    print(f"    {cycles / changes:.2f} cycles to a plan")
    of_cycles.sort()
    report(f"{name}: one cycle, median", of_cycles[len(of_cycles) // 2], base, limit=0.001)
    report(f"{name}: one cycle, mean", sum(costs) / max(1, cycles), base, limit=0.001)
    report(f"{name}: one cycle, 99th percentile", of_cycles[(len(of_cycles) - 1) * 99 // 100], base, limit=0.001)
    arrivals = sorted(cpu(partial(_arrive, made, number)) for number in range(changes))
    report(f"{name}: one more arrives, median", arrivals[len(arrivals) // 2], base, limit=0.001)
    if "racks" in world:
        nodes_change(name, made, base, min(changes // 10, len(running) // 10))
    gc.unfreeze()
    return median


def nodes_change(name: str, made: World, base: float, times: int) -> None:
    """A node is another one, and a gang ends."""
    dice = random.Random(2)
    for what, change in NODE_CHANGES.items():
        news = [one for _ in range(times) for one in change(dice.choice(made.nodes))]
        costs = sorted(cpu(partial(_renew, made, one)) for one in news)
        report(f"{name}: {what}, and one gang ended, median", costs[len(costs) // 2], base, limit=0.010)


def _renew(made: World, news: NodeFact | str) -> None:
    """`news`: a node, or the key of one that is gone."""
    if isinstance(news, str):
        made.engine.remove(news)
    else:
        made.engine.update(news)
    made.end(made.running.pop())
    made.carry_on(made.engine.plan(NOW))


def _new(node: NodeFact) -> NodeFact:
    name = f"{node.name}-new"
    return replace(node, name=name, labels={**node.labels, HOSTNAME: name})


NODE_CHANGES: dict[str, Callable[[NodeFact], list[NodeFact | str]]] = {
    "a node has another size": lambda node: [replace(node, allocatable={**node.allocatable, "cpu": 43_000}), node],
    "a node has another label": lambda node: [replace(node, labels={**node.labels, "disk": "ssd"}), node],
    "a node is closed, or open again": lambda node: [replace(node, unschedulable=True), node],
    "a node is gone, or back": lambda node: [f"Node/{node.name}", node],
    "a node is new": lambda node: [_new(node)],
}


def _arrive(made: World, number: int) -> None:
    made.engine.update(made.waiting(10_000_000 + number))
    made.engine.plan(NOW)


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
