"""Which GPU a container gets: numbers handed out so that no two live pods share one, also across restarts.

Real devices are numbered over the whole machine; declared ones are numbers without hardware, which Ray accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.api import quantity
from shoal.api.meta import Json
from shoal.errors import BadInput, ShoalError

RESOURCE = "nvidia.com/gpu"
VARIABLE = "CUDA_VISIBLE_DEVICES"

Environment = dict[str, dict[str, str]]
"""Container name to the variables that it alone gets."""


class NoDevice(ShoalError):
    """The node has fewer free devices than the pod asks for."""


class GpuLedger:
    """Devices of this machine's nodes. Each node owns a range of numbers; pods hold numbers of their node's range."""

    def __init__(self) -> None:
        self._owned: dict[str, range] = {}
        self._held: dict[str, dict[str, set[str]]] = {}
        self._next = 0

    def add_node(self, name: str, capacity: Mapping[str, str]) -> None:
        count = _count(capacity)
        if name not in self._owned or len(self._owned[name]) != count:
            self._owned[name] = range(self._next, self._next + count)
            self._next += count

    def take(self, node: str, uid: str, pod: Json) -> Environment:
        """Devices for every container that asks for some. Raises NoDevice rather than sharing one."""
        wanted = {
            container["name"]: _count((container.get("resources") or {}).get("limits") or {})
            for container in pod["spec"].get("containers") or ()
        }
        if not any(wanted.values()):
            return {}
        held = self._held.setdefault(node, {})
        used = set().union(*held.values()) if held else set()
        free = [str(number) for number in self._owned.get(node, range(0)) if str(number) not in used]
        if len(free) < sum(wanted.values()):
            raise NoDevice(f"node {node} has {len(free)} free {RESOURCE} but the pod asks for {sum(wanted.values())}")
        given: Environment = {}
        for container, count in wanted.items():
            if count:
                given[container] = {VARIABLE: ",".join(free[:count])}
                free = free[count:]
        held[uid] = numbers(given)
        return given

    def note(self, node: str, uid: str, environment: Environment) -> None:
        """What a pod of an earlier agent holds already."""
        if held := numbers(environment):
            self._held.setdefault(node, {})[uid] = held

    def give_back(self, node: str, uid: str) -> None:
        self._held.get(node, {}).pop(uid, None)


def numbers(environment: Environment) -> set[str]:
    found: Iterable[str] = (value.get(VARIABLE, "") for value in environment.values())
    return {number for text in found for number in text.split(",") if number}


def _count(resources: Mapping[str, str]) -> int:
    try:
        return quantity.amount(RESOURCE, resources.get(RESOURCE) or "0")
    except BadInput:
        return 0
