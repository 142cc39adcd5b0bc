"""What a pod asks of its node, computed the way kube-scheduler does, as exact integers.

The ledger, the fit and the pod scheduler all call this, so that what is reserved is what is later placed. Sums are
taken in billionths and rounded up once, as Kubernetes sums quantities before it rounds. It never guesses: an amount
that does not parse or is negative raises BadInput with its container and resource.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.api.codec import typed
from shoal.api.core import Container, Pod, PodSpec, PodTemplateSpec
from shoal.api.quantity import Quantity, counts_in_milli, parse
from shoal.errors import BadInput

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})

_Nano = dict[str, int]
_POD_LEVEL = ("cpu", "memory", "hugepages-")


def requests(spec: PodSpec) -> dict[str, int]:
    """A pod's requests: milli for cpu, units for all else.

    The larger of what runs together (containers and sidecars) and what any init step needs beside the sidecars started
    before it; requests of the pod itself replace that for the resources they name; overhead comes on top. A resource
    with only a limit counts as requested, as the API server would default it.
    """
    total: _Nano = {}
    for container in spec.containers:
        _add(total, container_requests(container))
    sidecars: _Nano = {}
    peak: _Nano = {}
    for container in spec.init_containers or ():
        own = container_requests(container)
        if container.restart_policy == "Always":
            _add(total, own)
            _add(sidecars, own)
            own = dict(sidecars)
        else:
            _add(own, sidecars)
        _raise(peak, own)
    _raise(total, peak)
    if spec.resources is not None:
        stated = _filled(spec.resources.requests, spec.resources.limits, "the pod")
        total.update((name, nano) for name, nano in stated.items() if name.startswith(_POD_LEVEL))
    _add(total, _read(spec.overhead, "overhead", "the pod"))
    return rounded(total)


def template_requests(template: msgspec.Raw | bytes) -> dict[str, int]:
    """Requests of a pod template that is still raw JSON. Raises BadInput where it does not decode."""
    try:
        found = typed(template, PodTemplateSpec)
    except msgspec.MsgspecError as error:
        raise BadInput(f"the pod template does not decode: {error}; correct that field") from None
    return requests(found.spec)


def container_requests(container: Container) -> _Nano:
    """One container's requests in billionths, limits filling in for requests that are missing."""
    return _filled(container.resources.requests, container.resources.limits, f"container {container.name!r}")


def rounded(nano: Mapping[str, int]) -> dict[str, int]:
    """Billionths as the engine's integers: milli for cpu, units for all else, rounded up."""
    return {name: _integer(name, value) for name, value in nano.items()}


def host_ports(spec: PodSpec) -> frozenset[tuple[str, str, int]]:
    """Address, protocol and port of each port the pod takes on its node; the address `0.0.0.0` is any."""
    taken = set()
    for container in (*spec.containers, *(spec.init_containers or ())):
        for port in container.ports or ():
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number:
                taken.add((port.host_ip or "0.0.0.0", port.protocol or "TCP", number))
    return frozenset(taken)


def is_terminal(pod: Pod) -> bool:
    """True once no container of the pod can run again."""
    return pod.status.phase in TERMINAL_PHASES


def is_ready(pod: Pod) -> bool:
    return any(found.type == "Ready" and found.status == "True" for found in pod.status.conditions or ())


def _filled(
    asked: Mapping[str, str | int | float] | None, limited: Mapping[str, str | int | float] | None, where: str
) -> _Nano:
    return {**_read(limited, "limit", where), **_read(asked, "request", where)}


def _read(resources: Mapping[str, str | int | float] | None, what: str, where: str) -> _Nano:
    return {name: _nano(text, f"{what} of {name} on {where}") for name, text in (resources or {}).items()}


def _nano(text: str | int | float, where: str) -> int:
    try:
        nano = parse(text).nano
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    if nano < 0:
        raise BadInput(f"{where}: {text} is negative; amounts must be 0 or more")
    return nano


def _integer(resource: str, nano: int) -> int:
    quantity = Quantity(nano)
    return quantity.milli if counts_in_milli(resource) else quantity.units


def _add(total: _Nano, more: Mapping[str, int]) -> None:
    for name, nano in more.items():
        total[name] = total.get(name, 0) + nano


def _raise(total: _Nano, other: Mapping[str, int]) -> None:
    for name, nano in other.items():
        total[name] = max(total.get(name, 0), nano)
