"""Worlds for `bench/engine.py`: full nodes, and many gangs that wait behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from shoal.api.kueue_names import POD_SET as KUEUE_POD_SET
from shoal.api.labels import HOSTNAME
from shoal.engine import Engine, EngineSettings
from shoal.engine.engine import QueueFact
from shoal.engine.kueue import (
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorQuota,
    KueueSettings,
    Limits,
    LocalQueue,
    Preemption,
    ResourceGroup,
    Terms,
    UsageSharing,
)
from shoal.engine.kueue.facts import TopologyFact
from shoal.engine.model import (
    DomainShare,
    Fact,
    Gang,
    Namespace,
    NodeFact,
    Plan,
    PodFact,
    PodSet,
    PodSetAssignment,
    QuotaNode,
    QuotaSubtree,
    Seat,
    TopologyPlacement,
)

NOW = 10**15
QUEUES = 1_000
POOLS = ("spot", "on-demand")
RACK = "example.com/rack"
FULL = {"cpu": 40_000, "memory": 120 * 2**30}
"""What a running gang takes: a node, about as much as one that waits asks for on average."""


class World:
    """An engine, the facts it is built from, and how to go on with it."""

    def __init__(self, engine: Engine, facts: Iterable[Fact | QueueFact], running: list[str],
                 waiting: Callable[[int], Gang]) -> None:  # fmt: skip
        self.engine = engine
        self.running = running
        self.waiting = waiting
        self._facts = list(facts)
        self.nodes = [fact for fact in self._facts if isinstance(fact, NodeFact)]
        self._pods: dict[str, list[str]] = {}
        for fact in self._facts:
            if isinstance(fact, PodFact):
                self._pods.setdefault(fact.gang, []).append(f"Pod/{fact.uid}")

    def build(self) -> None:
        for fact in self._facts:
            self.engine.update(fact)
        self.engine.plan(NOW)

    def end(self, key: str) -> None:
        """A gang ends, and its pods with it."""
        for pod in self._pods.get(key.rpartition("/")[2], ()):
            self.engine.remove(pod)
        self.engine.remove(key)

    def carry_on(self, plan: Plan) -> None:
        """Carry out what was decided: victims are gone at once, and those they made room for start."""
        while plan.preempts:
            for one in plan.preempts:
                self.engine.remove(one.gang)
            plan = self.engine.plan(NOW)


def cluster(nodes: int) -> list[NodeFact]:
    return [
        NodeFact(
            name=f"node-{index:05d}",
            labels={"kubernetes.io/hostname": f"node-{index:05d}", "zone": f"z{index % 3}"},
            allocatable={
                "cpu": 44_000,
                "memory": 128 * 2**30,
                "pods": 110,
                **({"nvidia.com/gpu": 8} if index % 2 else {}),
            },
        )
        for index in range(nodes)
    ]


def pod_sets(number: int) -> tuple[PodSet, ...]:
    """One of 60 shapes."""
    shape = number % 60
    worker = {"cpu": 5_000 + 1_000 * (shape % 20), "memory": (8 + shape % 3) * 2**30}
    labels = {"gang": str(number)}
    return (
        PodSet(name="head", count=1, requests={"cpu": 4_500, "memory": 8 * 2**30}, labels=labels),
        PodSet(name="worker", count=1 + shape % 4, requests=worker, labels=labels),
    )


def one_line(size: int, nodes: int) -> World:
    """AppWrappers, no quota."""

    def waiting(number: int) -> Gang:
        return Gang(
            key=f"AppWrapper/team{number % 50}/wait{number}",
            uid=f"wait{number}",
            namespace=f"team{number % 50}",
            name=f"wait{number}",
            priority=number % 5,
            queued_at=number,
            pod_sets=pod_sets(number),
        )

    running = [_running("AppWrapper", index) for index in range(nodes)]
    facts = [*cluster(nodes), *running, *(waiting(number) for number in range(size))]
    return World(Engine(EngineSettings()), facts, [gang.key for gang in running], waiting)


def quota_tree(size: int, nodes: int) -> World:
    """AppWrappers below one quota tree of 1,000 leaves, all of it taken by gangs that run."""
    leaves = [f"leaf{index:04d}" for index in range(QUEUES)]
    share = {name: amount * nodes // QUEUES for name, amount in FULL.items()}
    everything = {name: amount * nodes for name, amount in FULL.items()}
    tree = [
        QuotaSubtree(key="root", tree="team", nodes=(QuotaNode(name="root", quota=everything),)),
        QuotaSubtree(key="leaves", tree="team", parent="root",
                     nodes=tuple(QuotaNode(name=leaf, quota=share) for leaf in leaves)),
    ]  # fmt: skip

    def waiting(number: int) -> Gang:
        return Gang(
            key=f"AppWrapper/default/wait{number}",
            uid=f"wait{number}",
            namespace="default",
            name=f"wait{number}",
            queued_at=number,
            labels={"team": leaves[number % QUEUES]},
            pod_sets=pod_sets(number),
        )

    running = [
        _running("AppWrapper", index, labels={"team": leaves[index % QUEUES]},
                 seats={"team": Seat(leaves[index % QUEUES], index + 1)})
        for index in range(nodes)
    ]  # fmt: skip
    facts = [*tree, *cluster(nodes), *running, *(waiting(number) for number in range(size))]
    return World(Engine(EngineSettings(quota=True)), facts, [gang.key for gang in running], waiting)


def queues(
    size: int, nodes: int, *, preempting: bool, local_queues: int = 1, racks: bool = False, bids: int = 0,
    spare: int = 1,
) -> World:  # fmt: skip
    """Workloads in 1,000 cluster queues, six to a cohort, two flavors each, all of it taken by gangs that run. Where a
    cluster queue has several local queues they share it by usage. `racks`: gangs ask for one rack of 16 nodes, in a
    topology of racks and hosts. `bids`: so many of those that run are elastic and would like two pods more. `spare`: so
    many times as much quota as there are nodes, so that what is short is room."""
    sharing = UsageSharing(half_life=3600 * 10**6) if local_queues > 1 else None
    policy = Preemption(reclaim_within_cohort="Any", within_cluster_queue="LowerPriority")
    share = {name: Limits(amount * spare * nodes // QUEUES // 2) for name, amount in FULL.items()}
    group = ResourceGroup(("cpu", "memory"), (FlavorQuota("spot", share), FlavorQuota("on-demand", share)))
    facts: list[Fact | QueueFact] = [Namespace(name="default")]
    facts += [
        Flavor(name=name, labels={"pool": name} if racks else {}, topology="racks" if racks else "") for name in POOLS
    ]
    if racks:
        facts.append(TopologyFact(name="racks", levels=(RACK, HOSTNAME)))
    facts += [Cohort(name=f"cohort-{index}") for index in range(QUEUES // 6 + 1)]
    for index in range(QUEUES):
        name = f"queue-{index}"
        facts.append(
            ClusterQueue(
                name=name,
                cohort=f"cohort-{index // 6}",
                groups=(group,),
                namespace_selector={},
                preemption=policy if preempting else Preemption(),
                by_usage=sharing is not None,
            )
        )
        for part in range(local_queues):
            facts.append(LocalQueue(namespace="default", name=_local(index, part), cluster_queue=name))

    def waiting(number: int) -> Gang:
        return Gang(
            key=f"Workload/default/wait{number}",
            uid=f"wait{number}",
            namespace="default",
            name=f"wait{number}",
            dialect="kueue",
            queue=_local(number % QUEUES, number // QUEUES % local_queues),
            priority=10 if number % 4 == 0 else 0,
            created_at=number,
            pod_sets=tuple(
                msgspec.structs.replace(one, topology_request={"required": RACK} if racks else {})
                for one in pod_sets(number // QUEUES * 7 + number)
            ),
        )

    running = []
    for index in range(nodes):
        queue, flavor = f"queue-{index % QUEUES}", _pool(index)
        running.append(
            _running(
                "Workload",
                index,
                flavor,
                dialect="kueue",
                queue=_local(index % QUEUES, index // QUEUES % local_queues),
                priority=10,
                details={"kueue": Terms(cluster_queue=queue)},
                elastic=index < bids,
                racks=racks,
            )
        )
    facts += [
        *_labelled(cluster(nodes), racks),
        *running,
        *(_pods(nodes) if racks else ()),
        *_bids(bids),
        *(waiting(number) for number in range(size)),
    ]
    engine = Engine(EngineSettings(), KueueSettings(usage_sharing=sharing))
    return World(engine, facts, [gang.key for gang in running], waiting)


def _local(queue: int, part: int) -> str:
    """A local queue of a cluster queue; the first is named like it."""
    return f"queue-{queue}-{part}" if part else f"queue-{queue}"


def _pool(index: int) -> str:
    return POOLS[index // QUEUES % 2]


def _labelled(nodes: list[NodeFact], racks: bool) -> list[NodeFact]:
    if not racks:
        return nodes
    return [
        msgspec.structs.replace(node, labels={**node.labels, RACK: f"rack-{index // 16}", "pool": _pool(index)})
        for index, node in enumerate(nodes)
    ]


def _pods(gangs: int) -> Iterable[PodFact]:
    """What runs where a topology sent it."""
    for index in range(gangs):
        yield PodFact(
            uid=f"pod{index}", name=f"pod{index}", namespace="default", gang=f"run{index}", pod_set="main",
            node=f"node-{index:05d}", requests=FULL, phase="Running", by_topology=True, labels={KUEUE_POD_SET: "main"},
        )  # fmt: skip


def _bids(gangs: int) -> Iterable[PodFact]:
    """Of each elastic gang the pod that it was admitted with, and two that wait behind its gate."""
    for index in range(gangs):
        common = {"namespace": "default", "gang": f"run{index}", "requests": FULL, "labels": {KUEUE_POD_SET: "main"}}
        yield PodFact(uid=f"floor{index}", name=f"floor{index}", node=f"node-{index:05d}", **common)  # type: ignore[arg-type]
        for number in range(2):
            name = f"bid{index}-{number}"
            yield PodFact(uid=name, name=name, gated=True, grows_since=1 + index, bids=True, **common)  # type: ignore[arg-type]


def _running(kind: str, index: int, flavor: str = "", racks: bool = False, **more: object) -> Gang:
    flavors = dict.fromkeys(FULL, flavor) if flavor else {}
    name = f"node-{index:05d}"
    share = DomainShare((name,), 1)
    given = PodSetAssignment(
        name="main", count=1, nodes={} if racks else {name: 1}, usage=FULL, flavors=flavors,
        topology=TopologyPlacement((HOSTNAME,), (share,)) if racks else None,
    )  # fmt: skip
    return Gang(
        key=f"{kind}/default/run{index}",
        uid=f"run{index}",
        namespace="default",
        name=f"run{index}",
        state="admitted",
        admitted_at=1,
        pod_sets=(PodSet(name="main", count=1, requests=FULL),),
        assignment=(given,),
        **more,  # type: ignore[arg-type]
    )
