"""Pods that have places in a topology, as the line for room sees them: bound to the nodes of their domains."""

from __future__ import annotations

from typing import Any

from shoal.api.labels import HOSTNAME
from shoal.engine.model import TopologyPlacement

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
Expressions = list[dict[str, Any]]


def pinned(affinity: dict[str, Any], placement: TopologyPlacement) -> dict[str, Any]:
    """The affinity of a pod with the domains of its placement required as well."""
    node = affinity.get("nodeAffinity") or {}
    terms = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    both = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *expressions]}
        for term in terms
        for expressions in _domains(placement)
    ]
    return {**affinity, "nodeAffinity": {**node, _REQUIRED: {"nodeSelectorTerms": both}}}


def _domains(placement: TopologyPlacement) -> list[Expressions]:
    """One list of requirements per domain; nodes are all named in one."""
    if placement.levels == (HOSTNAME,):
        names = [domain.values[0] for domain in placement.domains]
        return [[{"key": HOSTNAME, "operator": "In", "values": names}]]
    return [
        [
            {"key": level, "operator": "In", "values": [value]}
            for level, value in zip(placement.levels, domain.values, strict=True)
        ]
        for domain in placement.domains
    ]
