"""The configuration file of a KubeRay operator, for users that bring one: defaults and sidecars for every Ray pod.

Named by `SHOAL_RAY_CONFIG` and read once at the entry point. Keys that concern KubeRay's own process are passed over;
any other that we do not know is an error: in silence pods would go without what their operator thinks they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.api.meta import Json
from shoal.controllers.ray import guarded_yaml
from shoal.controllers.ray.template_shape import problems_of_shape
from shoal.errors import BadInput

_SHAPES = {
    "headSidecarContainers": "[]Container",
    "workerSidecarContainers": "[]Container",
    "defaultContainerEnvs": "[]Variable",
    "defaultPodLabels": "texts",
    "defaultPodAnnotations": "texts",
    "batchScheduler": "text",
    "watchNamespace": "text",
    "reconcileConcurrency": "number",
}
_SWITCHES = {"useKubernetesProxy": "kubernetes_proxy", "deleteRayJobAfterJobFinishes": "delete_finished_rayjob"}
_KUBERAYS_OWN = frozenset({
    "apiVersion", "kind", "metricsAddr", "probeAddr", "enableLeaderElection", "leaderElectionNamespace", "logFile",
    "logFileEncoder", "logStdoutEncoder", "enableBatchScheduler", "enableMetrics", "qps", "burst",
})  # fmt: skip


def read(path: str) -> dict[str, Any]:
    """Fields of Settings that the file says something about. Raises BadInput with the file and what is wrong in it."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeError) as error:
        raise BadInput(f"SHOAL_RAY_CONFIG: {path} cannot be read: {error}") from error
    data = guarded_yaml.parse(text, path, may_be_empty=True).data
    problems = [*_problems(data)]
    if problems:
        raise BadInput(f"{path}: {'; '.join(problems)}")
    found: dict[str, Any] = {name: data[key] for key, name in _SWITCHES.items() if key in data}
    for key, name in (
        ("headSidecarContainers", "head_sidecars"),
        ("workerSidecarContainers", "worker_sidecars"),
        ("defaultContainerEnvs", "container_env"),
    ):
        if data.get(key):
            found[name] = tuple(data[key])
    for key, name in (("defaultPodLabels", "pod_labels"), ("defaultPodAnnotations", "pod_annotations")):
        if data.get(key):
            found[name] = dict(data[key])
    if data.get("batchScheduler"):
        found["batch_scheduler"] = data["batchScheduler"]
    if data.get("watchNamespace"):
        found["namespaces"] = tuple(one.strip() for one in data["watchNamespace"].split(",") if one.strip())
    if data.get("reconcileConcurrency"):
        found["workers"] = max(1, data["reconcileConcurrency"])
    return found


def _problems(data: Json) -> Iterator[str]:
    for key, value in data.items():
        if key in _SHAPES:
            yield from problems_of_shape(value, _SHAPES[key], key)
        elif key in _SWITCHES:
            if not isinstance(value, bool):
                yield f"{key} must be true or false, not {value!r:.40}"
        elif key not in _KUBERAYS_OWN:
            yield f"{key!r:.60} is not a setting"
