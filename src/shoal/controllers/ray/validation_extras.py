"""Checks of the parts that only exist behind a feature gate. Called by `validation` when the gate is on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.api.meta import Json
from shoal.controllers.ray import view

_DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_FORBIDDEN = {"DenyAllEgress": "ingressRules", "DenyAllIngress": "egressRules"}


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
