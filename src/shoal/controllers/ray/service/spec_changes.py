"""What a change of a RayService's spec does to a cluster that was made from an earlier one.

One hash, kept on the cluster, stands for what its pods depend on; what a queue or an autoscaler may change at run time
is left out of it. Pure; called by the reconciler for the active and the pending cluster.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Literal

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.service.upgrade_strategy import has_zero_downtime
from shoal.controllers.ray.settings import RaySettings

Action = Literal["none", "updateInPlace", "newCluster"]


def cluster_config(service: Json) -> Json:
    return view.spec(service).get("rayClusterConfig") or {}


def config_hash(config: Json, groups: int | None = None) -> str:
    """32 characters for a cluster's spec; with `groups` only that many worker groups count."""
    spec = view.clone(config)
    for runtime in ("suspend", "upgradeStrategy"):
        spec.pop(runtime, None)
    workers = list(spec.get("workerGroupSpecs") or [])[:groups]
    spec["workerGroupSpecs"] = workers
    for group in (spec.get("headGroupSpec") or {}, *workers):
        pod = (group.get("template") or {}).get("spec") or {}
        for injected in ("tolerations", "schedulingGates"):
            pod.pop(injected, None)
    for group in workers:
        for counted in ("replicas", "minReplicas", "maxReplicas", "scaleStrategy"):
            group.pop(counted, None)
    encoded = msgspec.json.encode(_plain(spec), order="deterministic")
    return base64.b32hexencode(hashlib.sha1(encoded, usedforsecurity=False).digest()).decode()


def matches(service: Json, cluster: Json) -> bool:
    """The cluster is what the spec asks for, but for what is left out of the hash. KubeRay's hash is of another making:
    a cluster that it made is judged by its spec, and keeps that hash for the day it goes back."""
    wanted = config_hash(cluster_config(service))
    return recorded_hash(cluster) == wanted or (_is_of_kuberay(cluster) and config_hash(view.spec(cluster)) == wanted)


def in_place(service: Json, cluster: Json, settings: RaySettings, *, is_active: bool) -> bool:
    """Is this cluster to be updated as it stands: groups were appended, or another operator version made it?"""
    if is_active and view.annotations_of(cluster).get(names.OPERATOR_VERSION) != settings.version:
        return True
    return not matches(service, cluster) and _only_appended(service, cluster)


def action(service: Json, cluster: Json, settings: RaySettings, *, is_active: bool) -> Action:
    """What the spec, as it is now, asks for where this cluster stands."""
    if in_place(service, cluster, settings, is_active=is_active):
        return "updateInPlace"
    if matches(service, cluster) or not has_zero_downtime(service, settings):
        return "none"
    return "newCluster"


def rolls_back(service: Json, pending: Json) -> bool:
    """During an incremental upgrade: anything but the pending cluster's spec leads back to the active cluster first."""
    return not matches(service, pending)


def recorded_hash(cluster: Json) -> str:
    return view.annotations_of(cluster).get(names.CONFIG_HASH, "")


def _is_of_kuberay(cluster: Json) -> bool:
    """Its versions are `v1.2.3`, ours begin with our name."""
    return view.annotations_of(cluster).get(names.OPERATOR_VERSION, "").startswith("v")


def _only_appended(service: Json, cluster: Json) -> bool:
    written = view.annotations_of(cluster).get(names.NUM_WORKER_GROUPS, "")
    if not (written.isascii() and written.isdigit()):
        return False
    config, count = cluster_config(service), int(written)
    return len(config.get("workerGroupSpecs") or []) > count and recorded_hash(cluster) == config_hash(config, count)


def _plain(value: object) -> object:
    """Empty and absent are the same to the API server, so they are the same to the hash."""
    if isinstance(value, dict):
        cleaned = {key: _plain(item) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item not in (None, {}, [], "")}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
