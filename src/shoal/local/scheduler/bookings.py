"""Room that ProvisioningRequests hold for their pods, charged to the nodes until those pods are bound.

Called by the scheduler with every request and every pod that consumes one. It must never charge a place twice: what a
pod of the request takes, the booking gives up in the same step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from shoal.api.booking import Booking, Place, booking_of, consumed_request, unused
from shoal.api.meta import Json
from shoal.engine.room import Room


class Bookings:
    """Requests are known by `namespace/name`, as pods name them."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._booked: dict[str, Booking] = {}
        self._taken: dict[str, dict[str, tuple[str, Mapping[str, int]]]] = defaultdict(dict)
        self._charged: dict[str, list[Place]] = {}

    def update(self, key: str, request: Json | None) -> bool:
        """A request is new, has changed or is gone (None). True when the room changed."""
        booking = None if request is None else booking_of(request)
        if booking == self._booked.get(key):
            return False
        if booking is None:
            del self._booked[key]
        else:
            self._booked[key] = booking
        self._recharge(key)
        return True

    def take(self, pod: Json, node: str, requests: Mapping[str, int]) -> None:
        """A pod was bound; if it consumes a request its place is booked no more."""
        key = request_key(pod)
        if key:
            self._taken[key][pod["metadata"]["uid"]] = (node, requests)
            self._recharge(key)

    def leave(self, pod: Json) -> None:
        """A pod is gone, or was not bound after all."""
        key = request_key(pod)
        if key and self._taken[key].pop(pod["metadata"]["uid"], None) is not None:
            if not self._taken[key]:
                del self._taken[key]
            self._recharge(key)

    @contextmanager
    def open_to(self, pods: Iterable[Json]) -> Iterator[None]:
        """While these pods are placed, what is booked for them is free."""
        opened = {key: self._charged.pop(key) for pod in pods if (key := request_key(pod)) in self._charged}
        for places in opened.values():
            self._charge(places, -1)
        try:
            yield
        finally:
            for key, places in opened.items():
                if key not in self._charged:  # none of them took anything
                    self._charged[key] = places
                    self._charge(places, 1)

    def _recharge(self, key: str) -> None:
        self._charge(self._charged.pop(key, ()), -1)
        booking = self._booked.get(key)
        if booking is not None:
            self._charged[key] = unused(booking, self._taken[key].values() if key in self._taken else ())
            self._charge(self._charged[key], 1)

    def _charge(self, places: Iterable[Place], sign: int) -> None:
        for place in places:
            self._room.take(place.node, place.requests, sign * place.count, planned=True)


def request_key(pod: Json) -> str:
    name = consumed_request(pod)
    return f"{pod['metadata'].get('namespace', '')}/{name}" if name else ""
