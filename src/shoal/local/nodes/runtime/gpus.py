"""Which GPU a container gets: numbers handed out so that no two live pods share one, also across restarts.

Real devices are numbered over the whole machine; declared ones are numbers without hardware, which Ray accepts.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

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
    """Devices of this machine's nodes. Each node owns numbers, as low as they come; its pods hold some.

    Which node owns which numbers is kept in `file`: after a restart nodes may be seen in another order.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._owned: dict[str, list[int]] = {}
        self._held: dict[str, dict[str, set[str]]] = {}
        self._read()

    def add_node(self, name: str, capacity: Mapping[str, str]) -> None:
        """A node, perhaps with more or fewer devices than it had: what its pods hold stays with it."""
        count = _count(capacity)
        if len(self._owned.get(name, ())) == count and name in self._owned:
            return
        used = self._used()
        mine = sorted(self._owned.get(name, ()), key=lambda number: (str(number) not in used, number))[:count]
        others = {number for node, numbers in self._owned.items() if node != name for number in numbers}
        free = (number for number in itertools.count() if number not in others and str(number) not in used)
        while len(mine) < count:
            if (number := next(free)) not in mine:
                mine.append(number)
        self._owned[name] = sorted(mine)
        self._write()

    def keep_nodes(self, names: Collection[str]) -> None:
        """Nodes that are gone own nothing any more: there are only so many devices."""
        if gone := self._owned.keys() - set(names):
            for name in gone:
                del self._owned[name]
            self._write()

    def _used(self) -> set[str]:
        return {number for pods in self._held.values() for numbers in pods.values() for number in numbers}

    def take(self, node: str, uid: str, pod: Json) -> Environment:
        """Devices for every container that asks for some. Raises NoDevice rather than sharing one."""
        wanted = {
            container["name"]: _count((container.get("resources") or {}).get("limits") or {})
            for container in pod["spec"].get("containers") or ()
        }
        if not any(wanted.values()):
            return {}
        held = self._held.setdefault(node, {})
        used = self._used()
        free = [str(number) for number in self._owned.get(node, ()) if str(number) not in used]
        if len(free) < sum(wanted.values()):
            raise NoDevice(f"node {node} has {len(free)} free {RESOURCE} but the pod asks for {sum(wanted.values())}")
        given: Environment = {}
        for container, count in wanted.items():
            if count:
                given[container] = {VARIABLE: ",".join(free[:count])}
                free = free[count:]
        held[uid] = numbers(given)
        return given

    def _read(self) -> None:
        try:
            kept = json.loads(self._file.read_bytes()) if self._file is not None else {}
        except (OSError, ValueError):
            kept = {}
        self._owned = {
            # an older release wrote first and last
            name: list(found["numbers"]) if isinstance(found, dict) else list(range(*found))
            for name, found in kept.items()
        }

    def _write(self) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial = self._file.with_name(".gpus.partial")
            partial.write_text(json.dumps({name: {"numbers": owned} for name, owned in self._owned.items()}))
            partial.replace(self._file)

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
