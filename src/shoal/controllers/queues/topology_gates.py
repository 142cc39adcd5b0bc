"""Pods that wait for their place in a topology: each is sent to a domain of its gang's placement, and its gate opened.

Called by the reconciler for an admitted Workload. A pod gets the node labels of its domain as node selector and loses
the gate in one patch, so that no scheduler sees it without. Pods with a rank go to domains in order of rank; others
take any slot that is free. A pod that comes back for one that ended takes its slot; none is sent to a node that failed
and is to be replaced, and one that was, and has no node yet, is deleted once it is: its maker makes another. What was
written counts at once: pods come one by one, and the watch tells of a write after the next pod was seen.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from shoal.api import kinds, kueue_names
from shoal.api.codec import opened
from shoal.api.kueue_workload import TopologyRequest, Workload
from shoal.api.labels import BATCH_COMPLETION_INDEX, JOB_SET_JOB_INDEX, KUEUE_TOPOLOGY_GATE
from shoal.api.meta import Json
from shoal.controllers.planning.pods import SeenPod, key_of
from shoal.engine.kueue.read import placements
from shoal.engine.model import TopologyPlacement
from shoal.kube.client import Client
from shoal.kube.errors import Conflict, NotFound
from shoal.kube.writes import Writer

log = logging.getLogger(__name__)

Values = tuple[str, ...]
ENDED = ("Succeeded", "Failed")


class SentPod(msgspec.Struct, frozen=True):
    """A pod that was sent to its place, and of which revision."""

    revision: str
    values: Values


NONE_SENT: Mapping[str, SentPod] = {}


class TopologyGates:
    def __init__(self) -> None:
        self._sent: dict[str, dict[str, SentPod]] = {}
        """By UID of a Workload, and of its pods: what was written and the watch has not told yet."""

    async def open(self, workload: Workload, pods: Iterable[SeenPod], writer: Writer) -> None:
        """Send every gated pod of this Workload to its place. Pods that have a node are left alone."""
        before = self._sent.pop(workload.metadata.uid, {})
        found = placements(workload.status)
        if not found:
            return
        failed = {one.name for one in workload.status.unhealthy_nodes or ()}
        ranks = {one.name or "main": one.topology_request for one in workload.spec.pod_sets}
        by_set: dict[str, list[SeenPod]] = {}
        sent: dict[str, SentPod] = {}
        for pod in pods:
            if pod.status.phase in ENDED or pod.metadata.deletion_timestamp:
                continue
            by_set.setdefault((pod.metadata.labels or {}).get(kueue_names.POD_SET, ""), []).append(pod)
            known = before.get(pod.metadata.uid)
            if known is not None and known.revision == pod.metadata.resource_version:
                sent[pod.metadata.uid] = known
                self._sent[workload.metadata.uid] = sent
        for name, placement in found.items():
            request = ranks.get(name)
            for pod in strays(placement, by_set.get(name, ())):
                log.info("pod %s is deleted: the place that it was sent to was replaced", key_of(pod))
                await writer.delete(kinds.POD, msgspec.to_builtins({"metadata": pod.metadata}))
            for pod, values in slots(placement, by_set.get(name, ()), request, sent, failed):
                if await _send(pod, dict(zip(placement.levels, values, strict=True)), writer):
                    sent[pod.metadata.uid] = SentPod(pod.metadata.resource_version, values)
                    self._sent[workload.metadata.uid] = sent


def slots(
    placement: TopologyPlacement,
    pods: Sequence[SeenPod],
    request: TopologyRequest | None = None,
    sent: Mapping[str, SentPod] = NONE_SENT,
    failed: Collection[str] = (),
) -> list[tuple[SeenPod, Values]]:
    """Which gated pod goes to which domain; `sent`: those that are on their way to theirs, whatever is seen of them;
    `failed`: nodes to which none is sent."""
    free: Counter[Values] = Counter(
        {domain.values: 0 if domain.values[-1] in failed else domain.count for domain in placement.domains}
    )
    gated = []
    for pod in sorted(pods, key=lambda one: one.metadata.name):
        spec = opened(pod.spec)
        if pod.metadata.uid in sent:
            free[sent[pod.metadata.uid].values] -= 1
        elif is_gated(spec):
            gated.append(pod)
        else:
            selector = spec.get("nodeSelector") or {}
            free[tuple(str(selector.get(level) or "") for level in placement.levels)] -= 1
    order = [domain.values for domain in placement.domains for _ in range(domain.count)]
    found = []
    for pod in gated:
        rank = _rank(pod, request if request is not None and request.pod_index_label else _unasked(pod), len(order))
        preferred = [order[rank]] if rank is not None else []
        values = next((one for one in (*preferred, *order) if free[one] > 0), None)
        if values is None:
            log.info("pod %s stays gated: every place of its gang is taken", key_of(pod))
            continue
        free[values] -= 1
        found.append((pod, values))
    return found


def strays(placement: TopologyPlacement, pods: Sequence[SeenPod]) -> list[SeenPod]:
    """Pods without a node that were sent to a place which the gang has no more: they could wait for it for ever."""
    known = {domain.values for domain in placement.domains}
    found = []
    for pod in pods:
        spec = opened(pod.spec)
        selector = spec.get("nodeSelector") or {}
        sent_to = tuple(str(selector.get(level) or "") for level in placement.levels)
        if not spec.get("nodeName") and not is_gated(spec) and all(sent_to) and sent_to not in known:
            found.append(pod)
    return found


def is_gated(spec: Json) -> bool:
    return any(one.get("name") == KUEUE_TOPOLOGY_GATE for one in spec.get("schedulingGates") or ())


def _rank(pod: SeenPod, request: TopologyRequest, count: int) -> int | None:
    """Which of the places is its own, by the labels that tell pods apart: its index and, where a pod set is several
    jobs, which of them it belongs to. None where they do not say it."""
    index = _number(pod, request.pod_index_label)
    if index is None:
        return None
    groups = max(1, request.sub_group_count or 1)
    if request.sub_group_index_label is not None:
        size, group = count // groups, _number(pod, request.sub_group_index_label)
        if group is None or group >= groups or index >= size:
            return None
        index += group * size
    return index if index < count else None


def _unasked(pod: SeenPod) -> TopologyRequest:
    """For pods that have places because all of their queue's have: those of a Job are told apart by their index."""
    of_several = JOB_SET_JOB_INDEX in (pod.metadata.labels or {})
    return TopologyRequest(pod_index_label=None if of_several else BATCH_COMPLETION_INDEX)


def _number(pod: SeenPod, label: str | None) -> int | None:
    text = (pod.metadata.labels or {}).get(label, "") if label else ""
    return int(text) if text.isascii() and text.isdigit() else None


async def _send(pod: SeenPod, selector: dict[str, str], writer: Writer) -> bool:
    """False: the pod is not what it was, and stays as it is."""
    spec, metadata = opened(pod.spec), pod.metadata
    change = {
        "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
        "spec": {
            "nodeSelector": {**(spec.get("nodeSelector") or {}), **selector},
            "schedulingGates": [one for one in spec["schedulingGates"] if one.get("name") != KUEUE_TOPOLOGY_GATE],
        },
    }

    async def write(server: Client) -> SeenPod:
        stored: SeenPod = await server.patch(kinds.POD, metadata.name, metadata.namespace, change, type=SeenPod)
        return stored

    try:
        await writer.send(write)
    except (NotFound, Conflict):
        log.debug("pod %s has changed meanwhile; the watch tells what it is now", key_of(pod))
        return False
    return True
