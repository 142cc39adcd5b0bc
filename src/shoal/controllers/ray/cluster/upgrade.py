"""When a running cluster no longer is what its spec says.

Strategy Recreate compares one hash kept on the head pod. What a queue or an autoscaler may change at run time is
left out of it: counts, named workers, tolerations, scheduling gates, and the strategy itself. Pure.
"""

from __future__ import annotations

import hashlib

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods import auth


def recreates(cluster: Json) -> bool:
    return (view.spec(cluster).get("upgradeStrategy") or {}).get("type") == "Recreate"


def spec_hash(cluster: Json) -> str:
    """A fixed text for everything in the spec that a running pod depends on."""
    spec = view.clone(view.spec(cluster))
    spec.pop("upgradeStrategy", None)
    if auth.is_default(cluster):
        del spec["authOptions"]  # a cluster from before the default was written down stays as it is
    groups = [spec.get("headGroupSpec") or {}, *(spec.get("workerGroupSpecs") or [])]
    for group in groups:
        for runtime in ("replicas", "minReplicas", "maxReplicas", "scaleStrategy"):
            group.pop(runtime, None)
        pod = (group.get("template") or {}).get("spec") or {}
        pod.pop("tolerations", None)
        pod.pop("schedulingGates", None)
    encoded = msgspec.json.encode(_plain(spec), order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:32]


def drifted(cluster: Json, head_pod: Json) -> bool:
    """True when the head was built from another spec by this same operator version."""
    recorded = view.annotations_of(head_pod).get(names.UPGRADE_HASH)
    return recorded is not None and recorded != spec_hash(cluster)


def _plain(value: object) -> object:
    """Empty and absent are the same to the API server, so they are the same to the hash."""
    if isinstance(value, dict):
        cleaned = {key: _plain(item) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item not in (None, {}, [], "")}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
