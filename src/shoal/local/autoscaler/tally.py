"""The pods as the node autoscaler counts them, kept up to date change by change.

Which pod is where, which was turned away, and which has taken the room of which request. Decides nothing.
"""

from __future__ import annotations

from collections import defaultdict

from shoal.api.booking import gang_use, owner_of, use_key
from shoal.api.meta import Json
from shoal.engine.facts import host_ports, pod_requests
from shoal.engine.model import Amounts
from shoal.errors import BadInput
from shoal.kube.cache import Change
from shoal.local.autoscaler.fitting import BoundPod
from shoal.local.seen import TrackedPod

SYSTEM = "kube-system"


class PodTally:
    def __init__(self) -> None:
        self.bound: dict[str, BoundPod] = {}
        """Pods that take room, by UID."""
        self.turned_away: dict[str, TrackedPod] = {}
        self._where: dict[str, str] = {}
        self._guests: dict[str, set[str]] = defaultdict(set)
        self._consumers: dict[str, dict[str, tuple[str, Amounts]]] = defaultdict(dict)

    def changed(self, change: Change) -> None:
        pod: TrackedPod = change.new or change.old
        uid = pod.metadata.uid
        if change.new is None:
            self._leave(uid)
            self.turned_away.pop(uid, None)
            use = use_of(pod)
            if use in self._consumers:
                self._consumers[use].pop(uid, None)
                if not self._consumers[use]:
                    del self._consumers[use]
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
        """Only pods of the system and of DaemonSets are there."""
        return not self._guests.get(node)

    def consumers(self, request: Json) -> list[tuple[str, Amounts]]:
        """Node and requests of every pod that was bound in the name of this request, also of those that have ended."""
        return [place for use in uses_of(request) for place in self._consumers.get(use, {}).values()]

    def has_living_consumers(self, request: Json, node: str) -> bool:
        guests = self._guests.get(node, ())
        return any(uid in guests for use in uses_of(request) for uid in self._consumers.get(use, ()))

    def names(self) -> set[str]:
        """Nodes that some pod names, whether they exist or not."""
        return {*self._where.values()}

    def _settle(self, uid: str, node: str, pod: TrackedPod) -> None:
        if self._where.get(uid) == node:
            return
        spec: Json = pod.whole_spec()
        self._where[uid] = node
        if pod.metadata.namespace != SYSTEM and not _comes_with_every_node(pod):
            self._guests[node].add(uid)
        try:
            taken = BoundPod(node, pod_requests(spec), host_ports(spec))
        except BadInput:
            return
        self.bound[uid] = taken
        if use := use_of(pod):
            self._consumers[use][uid] = (node, taken.requests)

    def _leave(self, uid: str) -> None:
        self.bound.pop(uid, None)
        node = self._where.pop(uid, None)
        if node is not None:
            self._guests[node].discard(uid)
            if not self._guests[node]:
                del self._guests[node]


def uses_of(request: Json) -> tuple[str, str]:
    """How pods name this request: by its name, or as the request of their gang."""
    metadata = request["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}", gang_use(
        metadata.get("namespace", ""), owner_of(request)
    )


def use_of(pod: TrackedPod) -> str:
    return use_key(pod.head())


def _comes_with_every_node(pod: TrackedPod) -> bool:
    return any(owner.controller and owner.kind == "DaemonSet" for owner in pod.metadata.owner_references or ())


def waits_for_room(pod: TrackedPod) -> bool:
    """Turned away by the scheduler, not for want of gang members, and not naming a request whose nodes it waits for."""
    said = pod.status.turned_away()
    if said is None or said.startswith("waiting for") or pod.metadata.deletion_timestamp:
        return False
    use = use_of(pod)
    return not use or use.startswith("gang/")
