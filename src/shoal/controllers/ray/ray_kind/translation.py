"""From a `Ray` object to the RayCluster that realises it. Pure: one object in, one translation out.

Both styles end in the same place: the text is read first, typed fields override it. What cannot be kept is said, never
dropped in silence. Called by the reconciler of `Ray`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray import view
from shoal.controllers.ray.guarded_yaml import Document
from shoal.controllers.ray.ray_kind import config_shape, config_text
from shoal.controllers.ray.ray_kind.launch_timeout import problems_of_timeout
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.template_shape import POD_TEMPLATE, problems_of_shape
from shoal.controllers.ray.validation import cluster_rules
from shoal.errors import BadInput

SUSPEND = "ray.k8s.io/suspend"
STRICT = "ray.k8s.io/strict"
WORKER_GROUP = "worker"
LABEL = "ray"
_GROUP = re.compile(r"spec\.workerGroupSpecs\[(\d+)\]|worker group '([^']*)'")
_RAY_CONTAINERS = ("ray-node", "ray-head", "ray-worker", "ray")


class Translation(msgspec.Struct, frozen=True):
    """`problems` make it unusable; the other lists only tell. `spec` is a RayClusterSpec without suspend."""

    problems: list[str] = []
    unsupported: list[str] = []
    overridden: list[str] = []
    target_ignored: bool = False
    spec: Json = {}
    minimum: int = 0
    initial: int = 0
    counts: str = ""
    configuration: Json = {}
    service_account: str = ""

    @property
    def hash(self) -> str:
        """A number for everything but the counts, as the launcher's name carries it."""
        shape = view.clone(self.spec)
        for group in shape.get("workerGroupSpecs") or []:
            for count in ("replicas", "minReplicas", "maxReplicas"):
                group.pop(count, None)
        digest = hashlib.sha256(msgspec.json.encode(shape, order="deterministic")).digest()
        return str(int.from_bytes(digest[:4], "big"))


def translate(ray: Json, settings: RaySettings) -> Translation:
    spec = view.spec(ray)
    problems = [*_typed_problems(spec), *problems_of_timeout(ray)]
    document = Document({}, {})
    if spec.get("configuration"):
        try:
            document = config_text.parse(str(spec["configuration"]))
            problems += config_text.problems_of(document, view.namespace(ray))
        except BadInput as error:
            problems.append(str(error))
    if problems:
        return Translation(problems=problems)
    unsupported = config_text.unsupported_in(document)
    if unsupported and view.annotations_of(ray).get(STRICT, "").lower() == "true":
        return Translation(problems=[f"{entry} is not supported" for entry in unsupported], unsupported=unsupported)
    try:
        found = _translated(spec, document, unsupported, settings)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return Translation(problems=[f"a part of the configuration has the wrong shape: {error!r}"])
    refused = _problems_of_child(ray, found, document, settings)
    return Translation(problems=refused, unsupported=unsupported) if refused else found


def _problems_of_child(ray: Json, found: Translation, document: Document, settings: RaySettings) -> list[str]:
    """What the RayCluster would be refused for, told where the user wrote it."""
    child = {"metadata": view.metadata(ray), "spec": found.spec}
    told = cluster_rules.problems_of_metadata(child)
    for problem in cluster_rules.problems_of_spec(child, settings):
        where = _origin(problem, found, view.spec(ray), document)
        told.append(f"{where}: {problem}" if where else problem)
    return told


def _origin(problem: str, found: Translation, typed: Json, document: Document) -> str:
    """The typed field, or the line of the text, that a problem of the child comes from."""
    data = document.data
    kinds = [name for name in data.get("available_node_types") or {} if name != data.get("head_node_type")]
    if problem.startswith("spec.headGroupSpec"):
        if typed.get("head"):
            return "spec.head"
        nearest = next((key for key in ("head_node", "head_node_type") if data.get(key)), "head_start_ray_commands")
        return document.at(nearest) if data else ""
    groups = [view.group_name(group) for group in found.spec["workerGroupSpecs"]]
    match = _GROUP.match(problem)
    if match is None:
        return ""
    if typed.get("worker"):
        return "spec.worker"
    if kinds:
        index = groups.index(match.group(2)) if match.group(2) else int(match.group(1))
        return document.at("available_node_types", kinds[index])
    nearest = "worker_nodes" if data.get("worker_nodes") else "worker_start_ray_commands"
    return document.at(nearest) if data else ""


class _Counts(msgspec.Struct, frozen=True):
    minimum: int
    initial: int
    maximum: int


def _translated(spec: Json, document: Document, unsupported: list[str], settings: RaySettings) -> Translation:
    data = document.data
    pairs = {
        "minWorkers": "min_workers",
        "maxWorkers": "max_workers",
        "initialWorkers": "initial_workers",
        "autoScalingMode": "autoscaling_mode",
        "idleTimeoutMinutes": "idle_timeout_minutes",
        "targetUtilization": "target_utilization_fraction",
        "head": "head_node",
        "worker": "worker_nodes",
    }
    overridden = [text for typed, text in pairs.items() if spec.get(typed) is not None and data.get(text) is not None]
    counts = _counts(spec, data)
    mode = str(spec.get("autoScalingMode") or data.get("autoscaling_mode") or "default")
    speed = data.get("upscaling_speed")
    idle = spec.get("idleTimeoutMinutes", data.get("idle_timeout_minutes"))
    head = _head(spec, data, settings)
    groups = _groups(spec, data, counts, settings)
    autoscaling = any(group["minReplicas"] < group["maxReplicas"] for group in groups)
    image = str(head["template"]["spec"]["containers"][0].get("image") or "")
    cluster: Json = {
        "rayVersion": _version_of(image, settings),
        "headGroupSpec": head,
        "workerGroupSpecs": groups,
        "upgradeStrategy": {"type": "Recreate"},
    }
    if autoscaling:
        upscaling = "Aggressive" if mode == "aggressive" else "Default"
        if speed is not None and speed <= 1:
            upscaling = "Conservative"
        cluster["enableInTreeAutoscaling"] = True
        cluster["autoscalerOptions"] = {
            "upscalingMode": upscaling,
            "idleTimeoutSeconds": int(float(5 if idle is None else idle) * 60),
        }
    target = spec.get("targetUtilization") is not None or data.get("target_utilization_fraction") is not None
    return Translation(
        unsupported=unsupported,
        overridden=overridden,
        target_ignored=target,
        spec=cluster,
        minimum=sum(group["minReplicas"] for group in groups),
        initial=sum(group["replicas"] for group in groups),
        counts=";".join(f"{one['minReplicas']}/{one['replicas']}/{one['maxReplicas']}" for one in groups),
        configuration=_effective(spec, data, counts, mode, idle),
        service_account=str(view.pod_spec(head).get("serviceAccountName") or ""),
    )


def _typed_problems(spec: Json) -> list[str]:
    problems = []
    for field in ("minWorkers", "maxWorkers", "initialWorkers", "idleTimeoutMinutes"):
        value = spec.get(field)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            problems.append(f"spec.{field} must be a whole number of at least 0")
    target = spec.get("targetUtilization")
    if target is not None and (not isinstance(target, int) or not 1 <= target <= 100):
        problems.append("spec.targetUtilization must be a percentage from 1 to 100")
    if spec.get("autoScalingMode") not in (None, "", "default", "aggressive"):
        problems.append("spec.autoScalingMode must be default or aggressive")
    for field in ("head", "worker"):
        template = spec.get(field)
        misshapen = [*problems_of_shape(template, POD_TEMPLATE, f"spec.{field}")]
        problems += misshapen
        if template is not None and not misshapen and not (template.get("spec") or {}).get("containers"):
            problems.append(f"spec.{field} needs at least one container")
    return problems


def _counts(spec: Json, data: Json) -> _Counts:
    """The upper bound wins over the lower one; the start lies between them."""
    minimum = int(_first(spec.get("minWorkers"), data.get("min_workers"), 0))
    initial = int(_first(spec.get("initialWorkers"), data.get("initial_workers"), minimum))
    maximum = int(_first(spec.get("maxWorkers"), data.get("max_workers"), max(minimum, initial)))
    minimum = min(minimum, maximum)
    return _Counts(minimum, max(minimum, min(initial, maximum)), maximum)


def _head(spec: Json, data: Json, settings: RaySettings) -> Json:
    types = data.get("available_node_types") or {}
    kind = types.get(data.get("head_node_type")) or {}
    template = spec.get("head") or _template(data.get("head_node") or kind.get("node_config"))
    template = _prepared(template or _default_template("ray-head", "2Gi", settings), "ray-head", settings)
    start = list(data.get("head_start_ray_commands") or [])
    _run_before(template, data, "head_setup_commands", start)
    account = ((data.get("provider") or {}).get("autoscaler_service_account") or {}).get("metadata", {}).get("name")
    if account:
        template["spec"].setdefault("serviceAccountName", account)
    head: Json = {"rayStartParams": config_text.start_params(start), "template": template}
    if kind.get("resources"):
        head["resources"] = {key: str(value) for key, value in kind["resources"].items()}
        _drop_resource_params(head["rayStartParams"])
    return head


def _groups(spec: Json, data: Json, counts: _Counts, settings: RaySettings) -> list[Json]:
    start = list(data.get("worker_start_ray_commands") or [])
    types = dict(data.get("available_node_types") or {})
    types.pop(data.get("head_node_type"), None)
    if types and not spec.get("worker"):
        return [_typed_group(str(name), kind, data, start, settings) for name, kind in types.items()]
    template = spec.get("worker") or _template(data.get("worker_nodes"))
    template = _prepared(template or _default_template("ray-worker", "1Gi", settings), "ray-worker", settings)
    _run_before(template, data, "worker_setup_commands", start)
    return [
        {
            "groupName": WORKER_GROUP,
            "replicas": counts.initial,
            "minReplicas": counts.minimum,
            "maxReplicas": counts.maximum,
            "rayStartParams": config_text.start_params(start),
            "template": template,
        }
    ]


def _typed_group(name: str, kind: Json, data: Json, start: list[str], settings: RaySettings) -> Json:
    template = _template(kind.get("node_config")) or _default_template("ray-worker", "1Gi", settings)
    template = _prepared(template, "ray-worker", settings)
    _run_before(template, data, "worker_setup_commands", start)
    minimum = int(kind.get("min_workers") or 0)
    maximum = int(_first(kind.get("max_workers"), data.get("max_workers"), minimum))
    if data.get("max_workers") is not None:
        maximum = min(maximum, int(data["max_workers"]))
    group: Json = {
        "groupName": config_shape.group_name(name),
        "replicas": min(minimum, maximum),
        "minReplicas": min(minimum, maximum),
        "maxReplicas": maximum,
        "rayStartParams": config_text.start_params(start),
        "template": template,
    }
    if kind.get("resources"):
        group["resources"] = {key: str(value) for key, value in kind["resources"].items()}
        _drop_resource_params(group["rayStartParams"])
    return group


def _template(pod: Any) -> Json | None:
    """A whole Pod of the historic schema as a template."""
    if not isinstance(pod, dict) or not (pod.get("spec") or {}).get("containers"):
        return None
    metadata = pod.get("metadata") or {}
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {"metadata": kept, "spec": view.clone(pod["spec"])}


def _prepared(template: Json, name: str, settings: RaySettings) -> Json:
    """Ray's container first, its keep-alive command gone, an image where there is none."""
    prepared = view.clone(template)
    containers = prepared["spec"]["containers"]
    ray = next((container for container in containers if container.get("name") in _RAY_CONTAINERS), containers[0])
    prepared["spec"]["containers"] = [ray, *(container for container in containers if container is not ray)]
    if config_text.is_keep_alive(ray):
        ray.pop("command", None)
        ray.pop("args", None)
    ray.setdefault("name", name)
    ray.setdefault("image", settings.default_image)
    if prepared["spec"].get("restartPolicy") == "Never":
        prepared["spec"].pop("restartPolicy")  # the launcher of that era restarted nodes itself
    return prepared


def _run_before(template: Json, data: Json, own: str, start: list[str]) -> None:
    """Set-up commands run before `ray start`, in the order the launcher had."""
    commands = [
        *(data.get("initialization_commands") or []),
        *(data.get("setup_commands") or []),
        *(data.get(own) or []),
        *config_text.commands_before_start(start),
    ]
    if commands:
        container = template["spec"]["containers"][0]
        container.pop("args", None)
        container["command"] = [" && ".join(commands)]


def _default_template(name: str, memory: str, settings: RaySettings) -> Json:
    amounts = {"cpu": "1", "memory": memory}
    container = {
        "name": name,
        "image": settings.default_image,
        "resources": {"limits": dict(amounts), "requests": dict(amounts)},
    }
    return {"metadata": {}, "spec": {"containers": [container]}}


def _drop_resource_params(params: dict[str, str]) -> None:
    for key in ("num-cpus", "num-gpus", "memory", "resources"):
        params.pop(key, None)


def _version_of(image: str, settings: RaySettings) -> str:
    tag = image.rpartition(":")[2]
    version = view.parse_version(tag)
    if version is not None:
        return ".".join(map(str, version))
    return settings.default_ray_version if image == settings.default_image else ""


def _effective(spec: Json, data: Json, counts: _Counts, mode: str, idle: Any) -> Json:
    """The configuration that counts, in the words of the text form."""
    fraction = data.get("target_utilization_fraction", 0.8)
    if spec.get("targetUtilization") is not None:
        fraction = spec["targetUtilization"] / 100
    return {
        **data,
        "min_workers": counts.minimum,
        "initial_workers": counts.initial,
        "max_workers": counts.maximum,
        "autoscaling_mode": mode,
        "target_utilization_fraction": fraction,
        "idle_timeout_minutes": 5 if idle is None else idle,
        "provider": {**(data.get("provider") or {}), "type": "kubernetes"},
    }


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
