"""What every placed pod takes on its node: charged once, when its place is decided or first seen, until it ends.

Called by the scheduler; preemption reads it. A charge, the room and what was booked for the pod change in one step, so
that no place is ever counted twice or given away twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.engine.facts import host_ports, pod_requests
from shoal.engine.model import Amounts, HostPort
from shoal.engine.nodes import Resident, Room, company_of
from shoal.errors import BadInput
from shoal.local.scheduler.bookings import ProvisionedRoom
from shoal.local.scheduler.groups import as_pod_set, is_of_gang

log = logging.getLogger(__name__)


class PodCharge(msgspec.Struct, frozen=True):
    """What one pod takes on its node. `alone`: of no gang that a controller takes back whole."""

    key: Key
    node: str
    requests: Amounts
    ports: tuple[HostPort, ...]
    resident: Resident
    priority: int
    alone: bool


class Charges(Mapping[str, PodCharge]):
    """By the pod's UID."""

    def __init__(self, room: Room, bookings: ProvisionedRoom) -> None:
        self._room, self._bookings = room, bookings
        self._charged: dict[str, PodCharge] = {}
        self._priorities: Counter[int] = Counter()

    def __getitem__(self, uid: str) -> PodCharge:
        return self._charged[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._charged)

    def __len__(self) -> int:
        return len(self._charged)

    @property
    def lowest(self) -> int | None:
        """The lowest priority of a pod that could have to go; None when there is none."""
        return min(self._priorities, default=None)

    def take(self, uid: str, pod: Json, node: str) -> None:
        """A pod that cannot be understood is not counted."""
        spec, metadata = pod["spec"], pod["metadata"]
        try:
            requests, ports = pod_requests(spec), host_ports(spec)
            company = company_of(as_pod_set([pod], ""), metadata.get("namespace", ""))
        except BadInput as error:
            log.warning("pod %s is not counted: %s", metadata["name"], error)
            return
        resident = Resident(node, company.namespace, company.labels, company.keeps_away)
        where = Key(metadata.get("namespace", ""), metadata["name"])
        charge = PodCharge(where, node, requests, ports, resident, int(spec.get("priority") or 0), not is_of_gang(pod))
        self._charged[uid] = charge
        self.lay(uid)
        if charge.alone:
            self._priorities[charge.priority] += 1
        self._bookings.take(pod, node, requests)

    def release(self, uid: str) -> bool:
        """Whether it had taken anything."""
        charge = self._charged.get(uid)
        if charge is None:
            return False
        self.lift(uid)
        del self._charged[uid]
        if charge.alone:
            self._priorities[charge.priority] -= 1
            if not self._priorities[charge.priority]:
                del self._priorities[charge.priority]
        return True

    def lay(self, uid: str) -> None:
        charge = self._charged[uid]
        self._room.take(charge.node, charge.requests, 1, planned=False)
        self._room.take_ports(charge.node, charge.ports, 1)
        self._room.around.settle(uid, charge.resident)

    def lift(self, uid: str) -> None:
        """As if the pod were gone, until it is laid again."""
        charge = self._charged[uid]
        self._room.take(charge.node, charge.requests, -1, planned=False)
        self._room.take_ports(charge.node, charge.ports, -1)
        self._room.around.leave(uid)
