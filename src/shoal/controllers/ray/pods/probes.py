"""How the kubelet learns that a Ray node lives: one HTTP check since Ray 2.53, a shell check of two endpoints before.

Called by the pod builder. A probe that the user wrote is never touched.
"""

from __future__ import annotations

import shlex

from shoal.api.meta import Json
from shoal.controllers.ray import view

_HTTP_SINCE = (2, 53, 0)


def add_probes(container: Json, cluster: Json, params: dict[str, str], *, is_head: bool) -> None:
    timeout = 5 if is_head else 2
    check = _check(cluster, params, is_head=is_head, timeout=timeout)
    if not container.get("livenessProbe"):
        container["livenessProbe"] = {**check, **_timing(30, timeout, 120)}
    if container.get("readinessProbe"):
        return
    if view.origin(cluster) == "RayService" and not is_head:
        serve = f"http://localhost:{view.container_port(container, 'serve', 8000)}/-/healthz"
        urls = [*_urls(params, is_head=False), serve]  # Serve traffic goes to ready workers only, so one failure counts
        container["readinessProbe"] = {**_shell_check(urls, timeout), **_timing(10, timeout, 1)}
    else:
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
    version = view.ray_version(cluster)
    if version is not None and version >= _HTTP_SINCE:
        return {"httpGet": {"path": "/api/healthz", "port": _port(params, "dashboard-agent-listen-port", 52365)}}
    return _shell_check(_urls(params, is_head=is_head), timeout)


def _urls(params: dict[str, str], *, is_head: bool) -> list[str]:
    agent = _port(params, "dashboard-agent-listen-port", 52365)
    urls = [f"http://localhost:{agent}/api/local_raylet_healthz"]
    if is_head:
        urls.append(f"http://localhost:{_port(params, 'dashboard-port', 8265)}/api/gcs_healthz")
    return urls


def _shell_check(urls: list[str], timeout: int) -> Json:
    checks = [f"wget --tries 1 -T {timeout} -q -O- {shlex.quote(url)} | grep success" for url in urls]
    return {"exec": {"command": ["bash", "-c", " && ".join(checks)]}}


def _port(params: dict[str, str], name: str, usual: int) -> int:
    """A start parameter that is a number, else what Ray takes by itself."""
    text = params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else usual
