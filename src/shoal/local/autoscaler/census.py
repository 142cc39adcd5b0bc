"""The pods as the node autoscaler counts them, kept up to date change by change.

Who is where, who was turned away, and who has taken the room of which request. Decides nothing.
"""

from __future__ import annotations

from collections import defaultdict

from shoal.api.booking import consumed_request
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.engine.facts import host_ports, pod_requests
from shoal.engine.model import Amounts
from shoal.errors import BadInput
from shoal.kube.cache import Change
from shoal.local.autoscaler.fitting import BoundPod
from shoal.local.seen import SeenPod

SYSTEM = "kube-system"


class Census:
    def __init__(self) -> None:
        self.bound: dict[str, BoundPod] = {}
        """Pods that take room, by UID."""
        self.turned_away: dict[str, SeenPod] = {}
        self._where: dict[str, str] = {}
        self._guests: dict[str, set[str]] = defaultdict(set)
        self._consumers: dict[str, dict[str, tuple[str, Amounts]]] = defaultdict(dict)

    def changed(self, change: Change) -> None:
        pod: SeenPod = change.new or change.old
        uid = pod.metadata.uid
        if change.new is None:
            self._leave(uid)
            self.turned_away.pop(uid, None)
            request = request_key(pod)
            if request:
                self._consumers[request].pop(uid, None)
            return
        if pod.is_terminal:
            self._leave(uid)
            self.turned_away.pop(uid, None)
        elif node := pod.node:
            self.turned_away.pop(uid, None)
            self._settle(uid, node, pod)
        elif waits_for_room(pod):
            self.turned_away[uid] = pod
        else:
            self.turned_away.pop(uid, None)

    def is_empty(self, node: str) -> bool:
        """Nobody is there but pods of the system."""
        return not self._guests.get(node)

    def consumers(self, request: Key) -> list[tuple[str, Amounts]]:
        """Node and requests of every pod that was bound in the name of this request, also of those that have ended."""
        return [*self._consumers.get(str(request), {}).values()]

    def has_living_consumers(self, request: Key, node: str) -> bool:
        return any(uid in self._guests.get(node, ()) for uid in self._consumers.get(str(request), ()))

    def names(self) -> set[str]:
        """Nodes that some pod names, whether they exist or not."""
        return {*self._where.values()}

    def _settle(self, uid: str, node: str, pod: SeenPod) -> None:
        if self._where.get(uid) == node:
            return
        spec: Json = pod.whole_spec()
        self._where[uid] = node
        if pod.metadata.namespace != SYSTEM:
            self._guests[node].add(uid)
        try:
            taken = BoundPod(node, pod_requests(spec), host_ports(spec))
        except BadInput:
            return
        self.bound[uid] = taken
        request = request_key(pod)
        if request:
            self._consumers[request][uid] = (node, taken.requests)

    def _leave(self, uid: str) -> None:
        self.bound.pop(uid, None)
        node = self._where.pop(uid, None)
        if node is not None:
            self._guests[node].discard(uid)
            if not self._guests[node]:
                del self._guests[node]


def request_key(pod: SeenPod) -> str:
    name = consumed_request({"metadata": {"annotations": pod.metadata.annotations}})
    return f"{pod.metadata.namespace}/{name}" if name else ""


def waits_for_room(pod: SeenPod) -> bool:
    """Turned away by the scheduler, not for want of gang members, and not waiting for a request's nodes."""
    said = pod.status.turned_away()
    return bool(
        said is not None
        and not said.startswith("waiting for")
        and not pod.metadata.deletion_timestamp
        and not request_key(pod)
    )
