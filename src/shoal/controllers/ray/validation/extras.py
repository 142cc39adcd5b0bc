"""Checks of what leads into a Ray cluster: ports, Service, Ingress, and network policies, which need a feature gate.

Called by `validation`. Pure: a cluster in, sentences out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.api.meta import Json
from shoal.controllers.ray import view

_DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_FORBIDDEN = {"DenyAllEgress": "ingressRules", "DenyAllIngress": "egressRules"}

_SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer")
_PATH_TYPES = ("Exact", "Prefix", "ImplementationSpecific")


def needs_gate(gate: str) -> str:
    return f"needs the feature gate {gate}: start the operator with SHOAL_RAY_FEATURE_GATES={gate}=true, or remove it"


def problems_of_addresses(cluster: Json) -> Iterator[str]:
    """What others find the head by. A variable in a port is the shell's to expand."""
    head = view.head(cluster)
    port = view.start_params(head).get("port")
    if port and "$" not in port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        yield f"spec.headGroupSpec.rayStartParams.port {port!r} is not a port; write a number from 1 to 65535"
    kind = head.get("serviceType")
    if kind and kind not in _SERVICE_TYPES:
        yield f"spec.headGroupSpec.serviceType {kind!r}: use {', '.join(_SERVICE_TYPES)}"
    path = (head.get("ingressOptions") or {}).get("pathType")
    if path and path not in _PATH_TYPES:
        yield f"spec.headGroupSpec.ingressOptions.pathType {path!r}: use {', '.join(_PATH_TYPES)}"


def problems_of_network_policy(cluster: Json) -> Iterator[str]:
    policy = view.spec(cluster).get("networkPolicy") or {}
    mode = policy.get("mode") or "DenyAll"
    if mode not in ("DenyAll", "DenyAllIngress", "DenyAllEgress"):
        yield f"spec.networkPolicy.mode {mode!r}: use DenyAll, DenyAllIngress or DenyAllEgress"
    known = {view.group_name(group) for group in view.groups(cluster)}
    sections = [("head", policy.get("head")), ("worker", policy.get("worker"))]
    for group in policy.get("workerGroups") or []:
        name = str(group.get("groupName") or group.get("name") or "")
        sections.append((f"workerGroups[{name}]", group))
        if name not in known:
            yield f"spec.networkPolicy.workerGroups names {name!r}, which is not a worker group of this cluster"
    for name in sorted(known):
        if not _DNS_1123.fullmatch(name):
            yield f"worker group {name!r}: with a network policy the name must be a DNS-1123 label"
    forbidden = _FORBIDDEN.get(mode)
    for where, section in sections:
        if forbidden and (section or {}).get(forbidden):
            yield f"spec.networkPolicy.{where}.{forbidden} has no effect in mode {mode}; remove it"
