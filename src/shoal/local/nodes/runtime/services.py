"""Services as pods see them: which pods stand behind each, under which ports, and the variables that name them.

Pure. A Service whose ports are those of its pods needs no relay in between: its names lead straight to the pods. One
that translates ports is reached at an address of its own, where the sandbox relays.
"""

from __future__ import annotations

import ipaddress
import math
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from shoal.api import weighted_backends
from shoal.api.meta import Json
from shoal.api.weighted_backends import WeightedBackend

Target = tuple[str, int]
MOST_TURNS = 1000
"""Length of the longest order of weighted targets."""


class ServedPort(msgspec.Struct, frozen=True):
    name: str
    number: int
    protocol: str
    targets: tuple[Target, ...]
    """Address and port of every pod behind it."""
    node_port: int = 0


class PublishedPort(msgspec.Struct, frozen=True):
    """A port of the machine that leads to one of a pod's."""

    address: str
    """Where on the machine; empty for wherever a node answers."""
    number: int
    protocol: str
    target: Target


class ServiceView(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    cluster_ip: str
    """Empty for a headless Service."""
    addresses: tuple[str, ...]
    """The pods behind it."""
    ports: tuple[ServedPort, ...] = ()
    weighted: bool = False
    """The targets stand in the proportion in which they take connections; only a relay keeps it."""

    @property
    def direct(self) -> bool:
        """Whether a connection to a pod at the Service's port is what the Service means."""
        if self.weighted:
            return False
        return not self.cluster_ip or all(number == port.number for port in self.ports for _, number in port.targets)

    @property
    def relayed(self) -> tuple[ServedPort, ...]:
        return tuple(port for port in self.ports if port.protocol in ("TCP", "UDP")) if self.cluster_ip else ()


def service_views(services: Iterable[Json], pods: Iterable[Json]) -> list[ServiceView]:
    """Every Service that chooses its pods by labels, or that leads to others by weight."""
    by_namespace: dict[str, list[Json]] = defaultdict(list)
    for pod in pods:
        by_namespace[pod["metadata"].get("namespace", "")].append(pod)
    found = []
    by_weight = []
    for service in services:
        spec, metadata = service.get("spec") or {}, service["metadata"]
        namespace, selector = metadata.get("namespace", ""), spec.get("selector")
        if not selector and (backends := weighted_backends.read(service)) is not None:
            by_weight.append((service, backends))
        if not selector or spec.get("type") == "ExternalName":
            continue
        behind = [
            pod
            for pod in by_namespace[namespace]
            if _selected(pod, selector) and _reachable(pod, bool(spec.get("publishNotReadyAddresses")))
        ]
        cluster_ip = spec.get("clusterIP") or ""
        found.append(
            ServiceView(
                namespace=namespace,
                name=metadata["name"],
                cluster_ip="" if cluster_ip == "None" else cluster_ip,
                addresses=tuple(sorted(pod["status"]["podIP"] for pod in behind)),
                ports=tuple(_port(entry, behind) for entry in spec.get("ports") or ()),
            )
        )
    plain = {(view.namespace, view.name): view for view in found}
    found += [_weighted(service, backends, plain) for service, backends in by_weight]
    return sorted(found, key=lambda view: (view.namespace, view.name))


def _weighted(
    service: Json, backends: tuple[WeightedBackend, ...], plain: dict[tuple[str, str], ServiceView]
) -> ServiceView:
    spec, metadata = service["spec"], service["metadata"]
    namespace = metadata.get("namespace", "")
    behind: list[tuple[int, tuple[Target, ...]]] = []
    for backend in backends:
        view = plain.get((namespace, backend.service))
        ports = view.ports if view is not None else ()
        targets = next((port.targets for port in ports if port.number == backend.port), ())
        if backend.weight > 0 and targets:
            behind.append((backend.weight, targets))
    targets = in_proportion(behind)
    return ServiceView(
        namespace=namespace,
        name=metadata["name"],
        cluster_ip=spec.get("clusterIP") or "",
        addresses=tuple(sorted({ip for ip, _ in targets})),
        ports=tuple(
            ServedPort(entry.get("name") or "", int(entry["port"]), "TCP", targets, int(entry.get("nodePort") or 0))
            for entry in spec.get("ports") or ()
        ),
        weighted=True,
    )


def in_proportion(behind: list[tuple[int, tuple[Target, ...]]]) -> tuple[Target, ...]:
    """Targets in the order in which connections go to them: each set as often as its weight says, spread evenly, and
    within a set every pod in turn. A set without pods must not be given: what is meant for it would be lost."""
    total = sum(weight for weight, _ in behind)
    if not total:
        return ()
    turns, owed = [0] * len(behind), [0] * len(behind)
    rounds = total // math.gcd(*(weight for weight, _ in behind))
    made = []
    for _ in range(min(rounds * max(len(targets) for _, targets in behind), MOST_TURNS)):
        owed = [sum_ + weight for sum_, (weight, _) in zip(owed, behind, strict=True)]
        chosen = max(range(len(behind)), key=owed.__getitem__)
        owed[chosen] -= total
        targets = behind[chosen][1]
        made.append(targets[turns[chosen] % len(targets)])
        turns[chosen] += 1
    return tuple(made)


def host_ports(pod: Json) -> list[PublishedPort]:
    """Ports of the machine that a pod with a network of its own asks for."""
    spec = pod["spec"]
    if spec.get("hostNetwork") or not _reachable(pod, even_unready=True):
        return []
    return [
        PublishedPort(
            _own_address(entry.get("hostIP") or ""),
            int(entry["hostPort"]),
            entry.get("protocol") or "TCP",
            (str(pod["status"]["podIP"]), int(entry["containerPort"])),
        )
        for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        for entry in container.get("ports") or ()
        if entry.get("hostPort") and (entry.get("protocol") or "TCP") in ("TCP", "UDP")
    ]


def _own_address(text: str) -> str:
    """One address of the machine, or empty for wherever a node answers."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return ""
    return "" if found.is_unspecified or found.version != 4 else str(found)


def _port(entry: Json, pods: list[Json]) -> ServedPort:
    targets = []
    for pod in pods:
        number = _target_port(entry, pod)
        if number is not None:
            targets.append((str(pod["status"]["podIP"]), number))
    return ServedPort(
        name=entry.get("name") or "",
        number=int(entry["port"]),
        protocol=entry.get("protocol") or "TCP",
        targets=tuple(sorted(targets)),
        node_port=int(entry.get("nodePort") or 0),
    )


def _target_port(entry: Json, pod: Json) -> int | None:
    """By number, or by the name that one of the pod's containers gives to a port."""
    wanted = entry.get("targetPort") or entry["port"]
    if isinstance(wanted, int) or str(wanted).isdigit():
        return int(wanted)
    spec = pod["spec"]
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        for declared in container.get("ports") or ():
            if declared.get("name") == wanted:
                return int(declared["containerPort"])
    return None


def link_variables(views: Iterable[ServiceView], namespace: str, address: dict[str, str]) -> dict[str, str]:
    """{NAME}_SERVICE_HOST and its kin for the Services of a pod's namespace. `address` by cluster IP."""
    found: dict[str, str] = {}
    for view in views:
        if view.namespace != namespace or not view.cluster_ip or not view.ports:
            continue
        prefix, host = view.name.upper().replace("-", "_"), address.get(view.cluster_ip, view.cluster_ip)
        first = view.ports[0]
        found[f"{prefix}_SERVICE_HOST"] = host
        found[f"{prefix}_SERVICE_PORT"] = str(first.number)
        found[f"{prefix}_PORT"] = f"{first.protocol.lower()}://{host}:{first.number}"
        for port in view.ports:
            if port.name:
                found[f"{prefix}_SERVICE_PORT_{port.name.upper().replace('-', '_')}"] = str(port.number)
            link = f"{prefix}_PORT_{port.number}_{port.protocol}"
            found[link] = f"{port.protocol.lower()}://{host}:{port.number}"
            found |= {f"{link}_PROTO": port.protocol.lower(), f"{link}_PORT": str(port.number), f"{link}_ADDR": host}
    return found


def _selected(pod: Json, selector: dict[str, str]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in selector.items())


def _reachable(pod: Json, even_unready: bool) -> bool:
    status = pod.get("status") or {}
    if (
        not status.get("podIP")
        or status.get("phase") in ("Succeeded", "Failed")
        or pod["metadata"].get("deletionTimestamp")
    ):
        return False
    if even_unready:
        return True
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions") or ()
    )
