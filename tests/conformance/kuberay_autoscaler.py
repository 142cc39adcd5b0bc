"""Ray's own autoscaler, asked what it would read from and write to a RayCluster that our operator stores.

These families pin the contract between the installed Ray and the operator; the code under test is Ray's. Used by the
runner only; without Ray the cases are skipped.
"""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace
from typing import Any

Json = dict[str, Any]


def derived_config(cluster: Json, skip: type[Exception]) -> Json:
    try:
        from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    except ImportError:
        raise skip("Ray is not installed") from None
    for group in [cluster["spec"]["headGroupSpec"], *(cluster["spec"].get("workerGroupSpecs") or [])]:
        group.setdefault("rayStartParams", {})
    try:
        config = _derive_autoscaling_config_from_ray_cr(cluster)
    except Exception as error:
        return {"error": type(error).__name__}
    wanted = (
        "cluster_name",
        "head_node_type",
        "available_node_types",
        "max_workers",
        "idle_timeout_minutes",
        "upscaling_speed",
        "provider",
    )
    return {key: config[key] for key in wanted if key in config}


class _Api:
    """The API server as Ray's provider sees it: one cluster, its pods, and a record of what is asked."""

    def __init__(self, cluster: Json, pods: list[Json]) -> None:
        self.cluster, self.pods = cluster, pods
        self.requests: list[Json] = []

    def get(self, path: str) -> Json:
        if path.startswith("rayclusters/"):
            return self.cluster
        return {"items": self.pods, "metadata": {"resourceVersion": "7"}}

    def patch(self, path: str, payload: Any, content_type: str = "application/json-patch+json") -> Json:
        self.requests.append({"verb": "PATCH", "path": path, "contentType": content_type, "body": payload})
        for step in payload if isinstance(payload, list) else []:
            if step["op"] in ("add", "replace"):
                _put(self.cluster, step["path"].split("/")[1:], step["value"])
        return self.cluster

    def delete(self, path: str) -> Json:
        self.requests.append({"verb": "DELETE", "path": path})
        return {}


def _put(target: Any, path: list[str], value: Any) -> None:
    for part in path[:-1]:
        target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
    target[path[-1]] = value


class _Gcs:
    def __init__(self, *, driver: bool) -> None:
        self._driver = driver

    def get_all_job_info(self, **_: object) -> Json:
        if not self._driver:
            return {}
        return {"01": SimpleNamespace(config=SimpleNamespace(ray_namespace="user"), is_dead=False, end_time=0)}


def provider_requests(given: Json, expect: Json, skip: type[Exception]) -> Json:
    """What the provider does. Cases do not say whether a driver is attached, so the one that fits is taken."""
    without = _play(given, skip, driver=False)
    if without["requests"] != expect["requests"] and given["action"]["do"] == "observe":
        return _play(given, skip, driver=True)
    return without


def _play(given: Json, skip: type[Exception], *, driver: bool) -> Json:
    try:
        from ray.autoscaler.v2.instance_manager.cloud_providers.kuberay.cloud_provider import KubeRayProvider
    except ImportError:
        raise skip("Ray is not installed") from None
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    api = _Api(copy.deepcopy(given["cluster"]), given["pods"])
    provider = KubeRayProvider("demo", {"namespace": "default"}, _Gcs(driver=driver), api)
    action = given["action"]
    seen = provider.get_non_terminated()
    if action["do"] == "launch":
        provider.launch(action["shape"], "request-1")
    elif action["do"] == "terminate":
        provider.terminate(action["ids"], "request-1")
    errors = [type(error).__name__ for error in provider.poll_errors()]
    return {"requests": api.requests, "podsSeen": sorted(seen), "errorKinds": errors}
