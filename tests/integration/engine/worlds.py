"""Small random worlds for the comparison with kube-scheduler: nodes, pods that are there already, and one gang.

Every world has its own nodes, told apart by a label that all its pods select, so that many worlds are judged side by
side on one control plane. Out of scope, and not generated: volumes and their topology, topology spread, preferred
terms, dynamic resource allocation, in-place resize.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from shoal.api.meta import Json

WORLD = "shoal-test/world"
ZONES = ("a", "b")
TEAMS = ("red", "blue")


class PodKind(msgspec.Struct, frozen=True):
    """Identical pods of the gang."""

    name: str
    count: int
    spec: Json
    labels: dict[str, str]


class World(msgspec.Struct, frozen=True):
    number: int
    nodes: tuple[Json, ...]
    there: tuple[Json, ...]
    """Pods that are bound already."""
    gang: tuple[PodKind, ...]

    @property
    def namespace(self) -> str:
        """Its own: pods look for company within their namespace."""
        return f"world-{self.number}"


def world(seed: int) -> World:
    random = Random(seed)
    nodes = tuple(_node(random, seed, index) for index in range(random.randint(2, 5)))
    there = tuple(
        _pod(
            seed,
            f"there-{index}",
            {**_spec(random, seed, small=True), "nodeName": random.choice(nodes)["metadata"]["name"]},
        )
        for index in range(random.randint(0, 3))
    )
    there = tuple(_without_rules(pod) for pod in there)
    gang = tuple(
        PodKind(
            name=f"set-{index}",
            count=random.randint(1, 4),
            spec=_spec(random, seed),
            labels={"team": random.choice(TEAMS), "set": f"set-{index}"},
        )
        for index in range(random.randint(1, 3))
    )
    return World(number=seed, nodes=nodes, there=there, gang=gang)


def _node(random: Random, seed: int, index: int) -> Json:
    name = f"w{seed}-n{index}"
    sizes = {"cpu": str(random.choice((2, 4, 8))), "memory": f"{random.choice((4, 8, 16))}Gi", "pods": "8"}
    if random.random() < 0.3:
        sizes["nvidia.com/gpu"] = str(random.choice((1, 2, 4)))
    taints = []
    if random.random() < 0.25:
        taints.append({"key": "dedicated", "value": random.choice(("x", "y")), "effect": "NoSchedule"})
    if random.random() < 0.1:
        taints.append({"key": "hint", "value": "", "effect": "PreferNoSchedule"})
    spec: Json = {"taints": taints}
    if random.random() < 0.1:
        spec["unschedulable"] = True
    labels = {WORLD: str(seed), "kubernetes.io/hostname": name, "zone": _zone(random, seed)}
    if random.random() < 0.5:
        labels["disk"] = "ssd"
        labels["generation"] = str(random.randint(1, 4))
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": sizes, "capacity": sizes},
    }


def _spec(random: Random, seed: int, *, small: bool = False) -> Json:
    requests = {
        "cpu": random.choice(("250m", "500m", "1", "1500m", "3")),
        "memory": random.choice(("512Mi", "1Gi", "3Gi")),
    }
    if small:
        requests = {"cpu": "500m", "memory": "512Mi"}
    elif random.random() < 0.25:
        requests["nvidia.com/gpu"] = str(random.choice((1, 2)))
    container: Json = {"name": "main", "image": "none", "resources": {"requests": requests}}
    if "nvidia.com/gpu" in requests:
        container["resources"]["limits"] = {"nvidia.com/gpu": requests["nvidia.com/gpu"]}
    if random.random() < 0.1:
        container["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    spec: Json = {"containers": [container], "nodeSelector": {WORLD: str(seed)}}
    if random.random() < 0.2:
        spec["initContainers"] = [{"name": "init", "image": "none", "resources": {"requests": {"cpu": "2"}}}]
    if random.random() < 0.3:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Equal", "value": "x", "effect": "NoSchedule"}]
    elif random.random() < 0.1:
        spec["tolerations"] = [{"operator": "Exists"}]
    if random.random() < 0.2:
        spec["nodeSelector"]["zone"] = _zone(random, seed)
    affinity = _affinity(random, seed)
    if affinity:
        spec["affinity"] = affinity
    return spec


def _affinity(random: Random, seed: int) -> Json:
    found: Json = {}
    if random.random() < 0.25:
        expression: dict[str, Any] = random.choice(
            (
                {"key": "disk", "operator": "In", "values": ["ssd", "nvme"]},
                {"key": "disk", "operator": "DoesNotExist"},
                {"key": "generation", "operator": "Gt", "values": ["2"]},
                {"key": "zone", "operator": "NotIn", "values": [f"{seed}-a"]},
            )
        )
        found["nodeAffinity"] = _required({"nodeSelectorTerms": [{"matchExpressions": [expression]}]})
    if random.random() < 0.2:
        found["podAntiAffinity"] = _required([_term(random.choice(("kubernetes.io/hostname", "zone")), random)])
    if random.random() < 0.15:
        found["podAffinity"] = _required([_term("zone", random)])
    return found


def _zone(random: Random, seed: int) -> str:
    """Zones of a world's own: pods of other worlds are neighbours of no pod here."""
    return f"{seed}-{random.choice(ZONES)}"


def _term(topology: str, random: Random) -> Json:
    return {"topologyKey": topology, "labelSelector": {"matchLabels": {"team": random.choice(TEAMS)}}}


def _required(value: Any) -> Json:
    return {"requiredDuringSchedulingIgnoredDuringExecution": value}


def _pod(seed: int, name: str, spec: Json) -> Json:
    return {"metadata": {"name": f"w{seed}-{name}", "labels": {"team": "red" if seed % 2 else "green"}}, "spec": spec}


def _without_rules(pod: Json) -> Json:
    """Pods that are there were placed by hand: only what they hold matters, and their labels."""
    kept = {name: value for name, value in pod["spec"].items() if name in ("containers", "nodeName")}
    return {**pod, "spec": kept}
