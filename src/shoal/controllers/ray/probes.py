"""How the kubelet learns that a Ray node lives: one HTTP check since Ray 2.53, a shell check of two endpoints before.

Called by the pod builder. A probe that the user wrote is never touched.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.controllers.ray import view

_HTTP_SINCE = (2, 53, 0)


def add_probes(container: Json, cluster: Json, params: dict[str, str], *, is_head: bool) -> None:
    timeout = 5 if is_head else 2
    check = _check(cluster, params, is_head=is_head, timeout=timeout)
    if not container.get("livenessProbe"):
        container["livenessProbe"] = {**check, **_timing(30, timeout, 120)}
    if not container.get("readinessProbe"):
        container["readinessProbe"] = {**check, **_timing(10, timeout, 10)}


def _timing(delay: int, timeout: int, failures: int) -> Json:
    return {
        "initialDelaySeconds": delay,
        "periodSeconds": 5,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
        "successThreshold": 1,
    }


def _check(cluster: Json, params: dict[str, str], *, is_head: bool, timeout: int) -> Json:
    agent = params.get("dashboard-agent-listen-port") or "52365"
    version = view.ray_version(cluster)
    if version is not None and version >= _HTTP_SINCE:
        return {"httpGet": {"path": "/api/healthz", "port": int(agent) if agent.isdigit() else agent}}
    urls = [f"http://localhost:{agent}/api/local_raylet_healthz"]
    if is_head:
        urls.append(f"http://localhost:{params.get('dashboard-port') or '8265'}/api/gcs_healthz")
    checks = [f"wget --tries 1 -T {timeout} -q -O- {url} | grep success" for url in urls]
    return {"exec": {"command": ["bash", "-c", " && ".join(checks)]}}
