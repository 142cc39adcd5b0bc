"""Node pools as the node autoscaler publishes them, so that controllers that admit gangs know what could still come.

One ConfigMap, one entry per pool. Where no autoscaler publishes it nothing can be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.api.gang import PREFIX

NAMESPACE, NAME = "kube-system", "shoal-node-pools"

OBTAINS = PREFIX + "obtains"
"""Annotation of a ProvisioningRequest that was made for a waiting gang: node pool to number of nodes, as JSON."""

BROUGHT_FOR = PREFIX + "brought-for"
"""Annotation of a node that came for one request: UID of the request's owner, while the room is booked for it."""


class PublishedPool(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node of this pool is like, and how many more than exist may come."""

    allocatable: dict[str, str]
    labels: dict[str, str] = {}
    taints: tuple[dict[str, str], ...] = ()
    obtainable: int = 0


def published(config_map: Mapping[str, Any]) -> dict[str, PublishedPool]:
    """The pools that can be read; others are left out."""
    found = {}
    for name, text in (config_map.get("data") or {}).items():
        try:
            found[name] = msgspec.json.decode(text, type=PublishedPool)
        except (msgspec.MsgspecError, TypeError):
            continue
    return found


def obtains(request: Mapping[str, Any]) -> dict[str, int]:
    """Which nodes a request was made for; empty for a request that is not ours."""
    text = (request["metadata"].get("annotations") or {}).get(OBTAINS)
    try:
        return msgspec.json.decode(text, type=dict[str, int]) if text else {}
    except msgspec.MsgspecError:
        return {}
