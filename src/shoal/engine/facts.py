"""From Kubernetes objects to facts: what the scheduler would count.

Called by controllers and the pod scheduler with objects as the API server stored them (plain dictionaries). Reads only;
raises BadInput naming the field at fault where a number cannot be read. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.api import gang as marks
from shoal.api import pods
from shoal.api.codec import typed
from shoal.api.core import PodSpec
from shoal.api.labels import KUEUE_ELASTIC_JOB, KUEUE_TOPOLOGY_ANNOTATIONS
from shoal.api.node_pools import BROUGHT_FOR
from shoal.api.quantity import amounts
from shoal.api.times import parse_time
from shoal.engine.model import Amounts, HostPort, NodeFact, PodFact, PodSet, Taint, Toleration
from shoal.errors import BadInput

_COUNTED = ("containers", "initContainers", "overhead", "resources")
_COUNTED_PER_CONTAINER = ("name", "resources", "restartPolicy")


def node_fact(node: Mapping[str, Any]) -> NodeFact:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    conditions = {entry.get("type"): entry.get("status") for entry in status.get("conditions") or []}
    return NodeFact(
        name=node["metadata"]["name"],
        labels=dict(node["metadata"].get("labels") or {}),
        taints=tuple(
            Taint(taint.get("key") or "", taint.get("value") or "", taint.get("effect") or "")
            for taint in spec.get("taints") or []
        ),
        allocatable=amounts(status.get("allocatable") or status.get("capacity")),
        unschedulable=bool(spec.get("unschedulable")),
        ready=conditions.get("Ready", "True") == "True",
        held_for=(node["metadata"].get("annotations") or {}).get(BROUGHT_FOR) or "",
    )


def pod_fact(pod: Mapping[str, Any], *, gang: str = "", pod_set: str = "") -> PodFact:
    """`gang` is the UID found by following owners; the gang annotation is used where none is given."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    return PodFact(
        uid=metadata["uid"],
        namespace=metadata.get("namespace") or "",
        name=metadata.get("name") or "",
        node=spec.get("nodeName") or "",
        requests=pod_requests(spec),
        gang=gang or (metadata.get("annotations") or {}).get(marks.GANG_UID, ""),
        pod_set=pod_set,
        phase=status.get("phase") or "Pending",
        labels=dict(metadata.get("labels") or {}),
        affinity=dict(spec.get("affinity") or {}),
        host_ports=host_ports(spec),
        deleting=bool(metadata.get("deletionTimestamp")),
        gated=bool(spec.get("schedulingGates")),
        by_topology=not KUEUE_TOPOLOGY_ANNOTATIONS.isdisjoint(metadata.get("annotations") or ()),
        grows_since=_grows_since(metadata, spec),
        bids=KUEUE_ELASTIC_JOB in _gates(spec),
        leaving=marks.LEAVES_FOR in (metadata.get("annotations") or ()),
    )


def _gates(spec: Mapping[str, Any]) -> list[Any]:
    return [one.get("name") for one in spec.get("schedulingGates") or ()]


def _grows_since(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> int:
    """When a pod was made that our gate keeps until quota has room for it; 0 for all others."""
    gates = _gates(spec)
    ours = marks.GROWTH in gates and marks.GROWTH in (metadata.get("annotations") or {})
    if metadata.get("deletionTimestamp") or not (ours or KUEUE_ELASTIC_JOB in gates):
        return 0
    made = metadata.get("creationTimestamp")
    return parse_time(made) if made else 1


def pod_set(name: str, count: int, template: Mapping[str, Any], *, min_count: int | None = None) -> PodSet:
    """A pod set from a pod template (or a pod): `metadata.labels` and `spec` are read."""
    spec = template.get("spec") or {}
    return PodSet(
        name=name,
        count=count,
        min_count=min_count,
        requests=pod_requests(spec),
        labels=dict((template.get("metadata") or {}).get("labels") or {}),
        node_selector=dict(spec.get("nodeSelector") or {}),
        affinity=dict(spec.get("affinity") or {}),
        tolerations=tolerations(spec),
        host_ports=host_ports(spec),
        scheduling_gates=tuple(gate.get("name", "") for gate in spec.get("schedulingGates") or []),
    )


def pod_requests(spec: Mapping[str, Any]) -> Amounts:
    """What the scheduler counts for such a pod, from its spec as a dictionary; zeros are left out."""
    read = {name: spec[name] for name in _COUNTED if spec.get(name)}
    for group in ("containers", "initContainers"):
        if group in read:
            read[group] = [
                {name: one[name] for name in _COUNTED_PER_CONTAINER if one.get(name) is not None} for one in read[group]
            ]
    try:
        counted = pods.requests(typed(read, PodSpec))
    except msgspec.MsgspecError as error:
        raise BadInput(f"the pod's resources do not decode: {error}; correct that field") from None
    return {resource: value for resource, value in counted.items() if value}


def tolerations(spec: Mapping[str, Any]) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            entry.get("key") or "",
            entry.get("operator") or "Equal",
            entry.get("value") or "",
            entry.get("effect") or "",
        )
        for entry in spec.get("tolerations") or []
    )


def host_ports(spec: Mapping[str, Any]) -> tuple[HostPort, ...]:
    found = []
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        for entry in container.get("ports") or []:
            port = entry.get("hostPort") or (entry.get("containerPort") if spec.get("hostNetwork") else 0)
            if port:
                found.append(HostPort(int(port), entry.get("protocol") or "TCP", entry.get("hostIP") or "0.0.0.0"))
    return tuple(found)
