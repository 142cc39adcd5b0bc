"""Racks and nodes for examples: `cluster({"a": {"a1": 4}})` is rack a with node a1 that has room for four cpus."""

from __future__ import annotations

from shoal.api.labels import HOSTNAME
from shoal.engine.kueue.topology import PlaceOutcome, Placer, PodsToPlace, TopologySettings, TopologyTree, TopologyWish
from shoal.engine.model import NodeFact

BLOCK, RACK = "example.com/block", "example.com/rack"
RACKS = (RACK, HOSTNAME)
CPU = 1000


def node(name: str, cpus: int, labels: dict[str, str]) -> NodeFact:
    return NodeFact(name=name, labels={HOSTNAME: name, **labels}, allocatable={"cpu": cpus * CPU, "pods": 110})


def cluster(racks: dict[str, dict[str, int]]) -> TopologyTree:
    nodes = [node(name, cpus, {RACK: rack}) for rack, members in racks.items() for name, cpus in members.items()]
    return TopologyTree("racks", RACKS, nodes)


def pods(count: int, wish: TopologyWish, *, name: str = "main", group: str = "", cpus: int = 1) -> PodsToPlace:
    return PodsToPlace(name=name, count=count, requests={"cpu": cpus * CPU}, wish=wish, group=group)


REQUIRED_RACK = TopologyWish(required=RACK)
PREFERRED_RACK = TopologyWish(preferred=RACK)
ANYWHERE = TopologyWish(unconstrained=True)


def places(outcome: PlaceOutcome) -> dict[str, int] | str:
    """Node to pods, or the failure."""
    if outcome.placement is None:
        return outcome.failure
    return {domain.values[-1]: domain.count for domain in outcome.placement.domains}


def placed(tree: TopologyTree, *pod_sets: PodsToPlace, settings: TopologySettings | None = None) -> dict[str, object]:
    found = Placer(tree, settings or TopologySettings()).place(pod_sets)
    return {name: places(outcome) for name, outcome in found.items()}
