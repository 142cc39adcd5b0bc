"""Room that ProvisioningRequests of others have booked: for the engine it is taken, as if their pods were there.

A place is told until a pod of that request takes it, never both. Requests made for our own gangs are not told: the
engine keeps that room itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from shoal.api.booking import booking_of, unused, use_key
from shoal.api.meta import Json
from shoal.api.node_pools import obtains
from shoal.controllers.planning.pods import SeenPod, read_fact
from shoal.engine import Engine
from shoal.engine.model import Amounts, PodFact
from shoal.kube.cache import Cache, Change


class Bookings:
    def __init__(
        self,
        engine: Engine,
        requests: Cache[Json],
        pods: Cache[SeenPod],
        kept: Callable[[Json], bool] = lambda request: False,
    ) -> None:
        """`kept(request)`: its gang is about to take this room, and the engine keeps it meanwhile."""
        self._engine = engine
        self._requests, self._pods = requests, pods
        self._kept = kept
        self._taken: dict[str, dict[str, tuple[str, Amounts]]] = defaultdict(dict)
        self._told: dict[str, list[str]] = {}

    def subscribe(self) -> None:
        self._pods.subscribe(self._pod_changed)
        self._requests.subscribe(self._request_changed)

    def _pod_changed(self, change: Change) -> None:
        pod: SeenPod = change.new or change.old
        use = use_key({"namespace": pod.metadata.namespace, "annotations": pod.metadata.annotations})
        if not use or use.startswith("gang/"):
            return
        fact = read_fact(pod, "")
        if change.new is None:
            self._taken[use].pop(fact.uid, None)
        elif fact.node:
            self._taken[use][fact.uid] = (fact.node, fact.requests)
        for request in self._requests.list(pod.metadata.namespace):
            if f"{pod.metadata.namespace}/{request['metadata']['name']}" == use:
                self._update(use, request)

    def refresh(self, request: Json) -> None:
        """What keeps its room may have changed."""
        key = f"{request['metadata'].get('namespace', '')}/{request['metadata']['name']}"
        self._update(key, request)

    def _request_changed(self, change: Change) -> None:
        self._update(str(change.key), change.new)

    def _update(self, key: str, request: Json | None) -> None:
        for name in self._told.pop(key, ()):
            self._engine.remove(name)
        others = request is not None and not obtains(request) and not self._kept(request)
        held = booking_of(request) if request is not None and others else None
        if request is None or held is None:
            return
        facts = [
            PodFact(
                uid=f"booked/{request['metadata']['uid']}/{index}",
                node=place.node,
                requests={resource: amount * place.count for resource, amount in place.requests.items()},
                phase="Running",
            )
            for index, place in enumerate(unused(held, self._taken[key].values()))
        ]
        for fact in facts:
            self._engine.update(fact)
        self._told[key] = [f"Pod/{fact.uid}" for fact in facts]
