"""Whether a bound pod still fits on its node: the last look before it starts, as a kubelet takes it.

The scheduler has looked already; this is for pods that were bound past it (`spec.nodeName`), and for a node that came
back smaller than it was. A pod that does not fit fails with the reason, and its controller makes another.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

import msgspec

from shoal.api import quantity
from shoal.api.meta import Json
from shoal.engine.facts import pod_requests
from shoal.errors import BadInput


class Refusal(msgspec.Struct, frozen=True):
    reason: str
    message: str


class NodeRoom:
    """What the pods of every node hold. A pod holds its part from `admit` to `release`."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._held: dict[str, tuple[str, dict[str, int]]] = {}

    def admit(self, pod: Json, offers: dict[str, str]) -> Refusal | None:
        """Take its part, unless it has it; or why the node is too small."""
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        if uid in self._held:
            return None
        wanted = _wanted(pod)
        used = self._used[node]
        for resource, amount in wanted.items():
            offered = _amount(resource, offers.get(resource, "0"))
            if used[resource] + amount > offered:
                lack = f"requested: {amount}, used: {used[resource]}, capacity: {offered}"
                return Refusal(f"OutOf{resource}", f"Node didn't have enough resource: {resource}, {lack}")
        for resource, amount in wanted.items():
            used[resource] += amount
        self._held[uid] = (node, wanted)
        return None

    def release(self, uid: str) -> None:
        node, amounts = self._held.pop(uid, ("", {}))
        for resource, amount in amounts.items():
            self._used[node][resource] -= amount


def _wanted(pod: Json) -> dict[str, int]:
    try:
        return {**pod_requests(pod["spec"]), "pods": 1}
    except BadInput:
        return {"pods": 1}  # unreadable amounts hold nothing


@lru_cache(4096)
def _amount(resource: str, text: str) -> int:
    try:
        return quantity.amount(resource, text)
    except BadInput:
        return 0


def failed_status(refusal: Refusal, now: str) -> Json:
    return {
        "phase": "Failed",
        "reason": refusal.reason,
        "message": f"Pod was rejected: {refusal.message}",
        "startTime": now,
    }
