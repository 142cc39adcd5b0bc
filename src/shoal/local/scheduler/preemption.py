"""Room for a pod of higher priority: which pods of lower priority go, and which pod waits for their place.

As kube-scheduler does it for single pods. Pods of gangs neither take nor give room here: a gang is taken back whole, by
the controller that admitted it. The scheduler calls this for a pod that no node takes.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from shoal.api.kinds import POD
from shoal.api.labels import HOSTNAME
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.engine.model import Amounts, PodSet
from shoal.engine.nodes import Room, place_pod
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import Conflict, KubeError, NotFound
from shoal.kube.events import Recorder
from shoal.local.scheduler.charges import Charges, PodCharge

log = logging.getLogger(__name__)

MOST_NODES = 100
"""How many nodes are looked at for victims: enough to find a good one, few enough to be quick."""


class Nomination(msgspec.Struct, frozen=True):
    """A place that a pod waits for while the pods that hold it end."""

    node: str
    requests: Amounts
    victims: frozenset[str]


class PodPreemption:
    def __init__(self, client: Client, recorder: Recorder, clock: Clock, room: Room, charged: Charges) -> None:
        self._client, self._recorder, self._clock, self._room = client, recorder, clock, room
        self._charged = charged
        self._nominated: dict[str, Nomination] = {}

    # --- places that are waited for

    def waits_for_victims(self, uid: str) -> bool:
        """Whether pods that make room for this one are still ending; when all are gone it may look for others."""
        nomination = self._nominated.get(uid)
        if nomination is None:
            return False
        if nomination.victims & self._charged.keys():
            return True
        self.drop(uid)
        return False

    def drop(self, uid: str) -> bool:
        """The pod got a place, or is gone. True when it had waited for one."""
        nomination = self._nominated.pop(uid, None)
        if nomination is None:
            return False
        self._room.take(nomination.node, nomination.requests, -1, planned=True)
        return True

    def is_nominated(self, uid: str) -> bool:
        return uid in self._nominated

    @contextmanager
    def open_to(self, uid: str) -> Iterator[None]:
        """While this pod is placed, the place that it waits for is free; for all others it is taken."""
        nomination = self._nominated.get(uid)
        if nomination is not None:
            self._room.take(nomination.node, nomination.requests, -1, planned=True)
        try:
            yield
        finally:
            if nomination is not None:
                self._room.take(nomination.node, nomination.requests, 1, planned=True)

    # --- whose place

    def could_help(self, pod: Json) -> bool:
        spec = pod["spec"]
        lowest = self._charged.lowest
        if spec.get("preemptionPolicy") == "Never" or lowest is None:
            return False
        return lowest < int(spec.get("priority") or 0)

    def choose(self, pod: Json, shape: PodSet, requests: Amounts) -> tuple[str, list[str]] | None:
        """The node where the least is lost, and which pods must go there; None when that would not help anywhere."""
        priority, namespace = int(pod["spec"].get("priority") or 0), pod["metadata"].get("namespace", "")
        lower: dict[str, list[str]] = defaultdict(list)
        for uid, charge in self._charged.items():
            if charge.alone and charge.priority < priority:
                lower[charge.node].append(uid)
        best: tuple[tuple[int, int, int, str], list[str]] | None = None
        for node in sorted(lower)[:MOST_NODES]:
            here = msgspec.structs.replace(shape, node_selector={**shape.node_selector, HOSTNAME: node})
            victims = self._victims(here, namespace, lower[node])
            if victims:
                lost = [self._charged[uid].priority for uid in victims]
                cost = (max(lost), sum(lost), len(lost), node)
                best = min(best, (cost, victims)) if best is not None else (cost, victims)
        if best is None:
            return None
        node, victims = best[0][3], best[1]
        self._nominated[pod["metadata"]["uid"]] = Nomination(node, requests, frozenset(victims))
        self._room.take(node, requests, 1, planned=True)
        return node, victims

    def _victims(self, shape: PodSet, namespace: str, candidates: Sequence[str]) -> list[str]:
        """Without all of them it must fit; then each is spared if the pod fits without its end, the most important
        first."""
        gone = list(candidates)
        for uid in gone:
            self._charged.lift(uid)
        try:
            if not isinstance(place_pod(shape, namespace, self._room), str):
                return []
            for uid in sorted(candidates, key=lambda uid: (-self._charged[uid].priority, uid)):
                self._charged.lay(uid)
                if isinstance(place_pod(shape, namespace, self._room), str):
                    gone.remove(uid)
                else:
                    self._charged.lift(uid)
            return list(gone)
        finally:
            for uid in gone:
                self._charged.lay(uid)

    # --- carrying out

    async def carry_out(self, pod: Json, node: str, victims: Mapping[str, PodCharge]) -> bool:
        """False when the server did not take it, and the place is waited for no longer."""
        metadata = pod["metadata"]
        try:
            await self._client.patch(
                POD,
                metadata["name"],
                metadata.get("namespace"),
                {"metadata": {"uid": metadata["uid"]}, "status": {"nominatedNodeName": node}},
                subresource="status",
            )
            for uid, charge in victims.items():
                await self._end(uid, charge, metadata["uid"], node)
        except KubeError as error:
            log.warning("room for pod %s was not made: %s", metadata["name"], error)
            self.drop(metadata["uid"])
            return False
        return True

    async def _end(self, uid: str, charge: PodCharge, taker: str, node: str) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": "default-scheduler: preempting to accommodate a higher priority pod",
            "lastProbeTime": None,
            "lastTransitionTime": seconds_text(self._clock.now()),
        }
        name, namespace = charge.key.name, charge.key.namespace
        about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "uid": uid}}
        try:
            body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
            await self._client.patch(POD, name, namespace, body, subresource="status", patch_type="strategic")
            self._recorder.event(about, "Normal", "Preempted", f"Preempted by pod {taker} on node {node}")
            await self._client.delete(POD, name, namespace, uid=uid)
        except (NotFound, Conflict):
            return  # gone by itself: as good
