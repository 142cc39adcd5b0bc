"""The lease of a hub in a member: while it holds, gangs that would move from a lost member run on there.

The member's side asks, the hub grants what it was asked, and the lease holds from the moment of that question on the
member's own clock. So a grant that arrives late prolongs nothing, and no two machines' clocks are ever compared: all
that a hub has granted ends at the latest one lease time after it last sent a grant. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any

from shoal.api.kinds import LEASE
from shoal.api.labels import CLUSTER_LOSS
from shoal.api.meta import Json
from shoal.api.objects import annotation
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.settings import ClusterSettings

USUAL_GRACE = 30
"""Seconds that a pod has to end where it says nothing else."""


def lease_name(origin: str) -> str:
    return f"shoal-hub-{hashlib.sha256(origin.encode()).hexdigest()[:10]}"


def new_lease(origin: str, settings: ClusterSettings) -> Json:
    metadata = {"name": lease_name(origin), "namespace": settings.lease_namespace, "labels": {words.HUB: origin}}
    spec = {"holderIdentity": origin, "leaseDurationSeconds": max(1, round(settings.lease_seconds))}
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


def question(nonce: str, now: int) -> str:
    """What a member asks: told apart by `nonce`, and when that was by the member's own clock."""
    return f"{nonce}/{now}"


def moment(text: str) -> int | None:
    """When this was asked, by the clock of the member that asked."""
    _, slash, digits = text.partition("/")
    return int(digits) if slash and digits.isascii() and digits.isdigit() else None


def is_fenced(copy: Json) -> bool:
    """Does it stop where its hub's lease has ended?"""
    return annotation(copy, CLUSTER_LOSS) == "move"


def fence_seconds(settings: ClusterSettings, manifest: Json) -> int:
    """How long after a hub's last grant something of this gang may run in a member: the lease, and its way out."""
    more = max(0, longest_grace(manifest) - USUAL_GRACE)
    return max(1, round(settings.lease_seconds + settings.fence_seconds + more))


def longest_grace(manifest: Any) -> int:
    """The longest `terminationGracePeriodSeconds` in it, wherever a pod's template stands."""
    if isinstance(manifest, dict):
        own = manifest.get("terminationGracePeriodSeconds")
        return max([own if isinstance(own, int) else 0, *(longest_grace(one) for one in manifest.values())])
    if isinstance(manifest, list | tuple):
        return max((longest_grace(one) for one in manifest), default=0)
    return 0
