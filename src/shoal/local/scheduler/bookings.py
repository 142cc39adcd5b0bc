"""Room that ProvisioningRequests hold for their pods, charged to the nodes until those pods are bound.

Called by the scheduler with every request and every pod that consumes one. It must never charge a place twice: what a
pod of the request takes, the booking gives up in the same step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from shoal.api.booking import Booking, Place, booking_of, gang_use, owner_of, unused, use_key
from shoal.api.meta import Json
from shoal.engine.nodes import Room


class ProvisionedRoom:
    """Requests are known by `namespace/name`, as pods name them, and by the gang that they were made for."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._booked: dict[str, Booking] = {}
        self._gang: dict[str, str] = {}
        """Request to the use of its gang, and back: see `use_key`."""
        self._taken: dict[str, dict[str, tuple[str, Mapping[str, int]]]] = defaultdict(dict)
        self._charged: dict[str, list[Place]] = {}

    def update(self, key: str, request: Json | None) -> bool:
        """A request is new, has changed or is gone (None). True when the room changed."""
        booking = None if request is None else booking_of(request)
        if booking == self._booked.get(key):
            return False
        if booking is None or request is None:
            del self._booked[key]
            self._gang.pop(self._gang.pop(key, ""), None)
        else:
            self._booked[key] = booking
            if gang := gang_use(request["metadata"].get("namespace", ""), owner_of(request)):
                self._gang[key], self._gang[gang] = gang, key
        self._recharge(key)
        return True

    def take(self, pod: Json, node: str, requests: Mapping[str, int]) -> None:
        """A pod was bound; if room was booked for it, its place is booked no more."""
        use = use_key(pod["metadata"])
        if use:
            self._taken[use][pod["metadata"]["uid"]] = (node, requests)
            self._recharge(self._request(use))

    def leave(self, pod: Json) -> None:
        """A pod is gone, or was not bound after all."""
        use = use_key(pod["metadata"])
        if use in self._taken and self._taken[use].pop(pod["metadata"]["uid"], None) is not None:
            if not self._taken[use]:
                del self._taken[use]
            self._recharge(self._request(use))

    @contextmanager
    def open_to(self, pods: Iterable[Json]) -> Iterator[None]:
        """While these pods are placed, what is booked for them is free."""
        keys = {self._request(use_key(pod["metadata"])) for pod in pods}
        opened = {key: self._charged.pop(key) for key in keys if key in self._charged}
        for places in opened.values():
            self._charge(places, -1)
        try:
            yield
        finally:
            for key, places in opened.items():
                if key not in self._charged:  # none of them took anything
                    self._charged[key] = places
                    self._charge(places, 1)

    def _request(self, use: str) -> str:
        return self._gang.get(use, use) if use.startswith("gang/") else use

    def _recharge(self, key: str) -> None:
        self._charge(self._charged.pop(key, ()), -1)
        booking = self._booked.get(key)
        if booking is not None:
            uses = (key, self._gang.get(key, ""))
            taken = [place for use in uses if use in self._taken for place in self._taken[use].values()]
            self._charged[key] = unused(booking, taken)
            self._charge(self._charged[key], 1)

    def _charge(self, places: Iterable[Place], sign: int) -> None:
        for place in places:
            self._room.take(place.node, place.requests, sign * place.count, planned=True)
