"""The Deployments of MCAD, Kueue and KubeRay: which they are, and what their flags and variables are called here.

Pure. `shoal import` prints the settings, and stops and starts these Deployments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.controllers import ray
from shoal.sdk.moving_in import Source

_IMAGES: dict[str, Source] = {"kuberay/operator": "KubeRay", "kueue/kueue": "Kueue", "mcad-controller": "MCAD"}
_NAMES: dict[str, Source] = {
    "kuberay-operator": "KubeRay",
    "kueue-controller-manager": "Kueue",
    "mcad-controller": "MCAD",
    "codeflare-operator-manager": "MCAD",
}
_OF_KUBERAY = {
    "watch-namespace": "ray.namespaces",
    "reconcile-concurrency": "ray.workers",
    "batch-scheduler": "ray.batch_scheduler",
    "feature-gates": "ray.feature_gates",
    "use-kubernetes-proxy": "ray.kubernetes_proxy",
}
_OF_MCAD = {
    "dynamicpriority": "dynamic_priority",
    "preemption": "preemption",
    "backofftime": "backoff_seconds",
    "headoflineholdingtime": "head_of_line_seconds",
    "quotaenabled": "quota",
}
_MCAD_VARIABLES = {
    "DYNAMICPRIORITY": "dynamicpriority",
    "PREEMPTION": "preemption",
    "BACKOFFTIME": "backofftime",
    "HEADOFLINEHOLDINGTIME": "headoflineholdingtime",
    "QUOTA_ENABLED": "quotaenabled",
    "DISPATCHER_MODE": "dispatcher",
    "DISPATCHER_AGENT_CONFIGS": "agentconfigs",
    "QUOTA_REST_URL": "quotaURL",
    "DISPATCH_RESOURCE_RESERVATION_TIMEOUT": "dispatchResourceReservationTimeout",
}
_UNSAID = frozenset(
    {"metrics-addr", "health-probe-bind-address", "enable-leader-election", "leader-election-namespace", "kubeconfig",
     "master", "v", "logtostderr", "secure-port", "healthprobelistenaddr", "zap-log-level", "config"}
)  # fmt: skip
"""Where a program listens and what it logs is not taken over."""


class FoundController(msgspec.Struct, frozen=True, kw_only=True):
    source: Source
    namespace: str
    name: str
    replicas: int
    settings: dict[str, str]
    """As `--set` takes them."""
    unused: list[str]
    """Flags and variables that have no meaning here."""
    options: list[str] = []
    """Flags that `shoal controller` has under the same name."""


def sources_of(deployment: Json) -> set[str]:
    """Names of the ConfigMaps that its containers take variables and files from."""
    containers = _containers(deployment)
    given = [one.get("configMapRef") or {} for each in containers for one in each.get("envFrom") or ()]
    given += [
        (one.get("valueFrom") or {}).get("configMapKeyRef") or {}
        for each in containers
        for one in each.get("env") or ()
    ]
    template = (deployment.get("spec") or {}).get("template") or {}
    given += [one.get("configMap") or {} for one in (template.get("spec") or {}).get("volumes") or ()]
    return {str(one["name"]) for one in given if one.get("name")}


def controller_of(deployment: Json, config_maps: Mapping[str, Json] | None = None) -> FoundController | None:
    """None for a Deployment of anything else. `config_maps`: those of `sources_of`, by name."""
    metadata, spec = deployment["metadata"], deployment.get("spec") or {}
    containers = _containers(deployment)
    images = [str(one.get("image") or "") for one in containers]
    source = _NAMES.get(metadata["name"]) or next(
        (who for part, who in _IMAGES.items() if any(part in image for image in images)), None
    )
    if source is None:
        return None
    flags = dict(
        _flags([*(word for one in containers for word in (*(one.get("command") or ()), *(one.get("args") or ())))])
    )
    variables = dict(_variables(containers, config_maps or {}))
    settings, unused, options = _read(source, flags, variables)
    return FoundController(
        source=source,
        namespace=metadata["namespace"],
        name=metadata["name"],
        replicas=int(spec.get("replicas", 1)),
        settings=settings,
        unused=unused,
        options=options,
    )


def _containers(deployment: Json) -> list[Json]:
    template = (deployment.get("spec") or {}).get("template") or {}
    return list((template.get("spec") or {}).get("containers") or ())


def _variables(containers: list[Json], config_maps: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """What a container is given: whole ConfigMaps first, then single variables."""
    for each in containers:
        for one in each.get("envFrom") or ():
            data = (config_maps.get((one.get("configMapRef") or {}).get("name", "")) or {}).get("data") or {}
            yield from ((f"{one.get('prefix') or ''}{name}", str(value)) for name, value in data.items())
        for one in each.get("env") or ():
            reference = (one.get("valueFrom") or {}).get("configMapKeyRef") or {}
            data = (config_maps.get(reference.get("name", "")) or {}).get("data") or {}
            yield str(one["name"]), str(one.get("value") or data.get(reference.get("key", ""), ""))


def _read(
    source: Source, flags: dict[str, str], variables: dict[str, str]
) -> tuple[dict[str, str], list[str], list[str]]:
    if source == "MCAD":
        flags = {
            **{_MCAD_VARIABLES[name]: value for name, value in variables.items() if name in _MCAD_VARIABLES},
            **flags,
        }
    known = {"KubeRay": _OF_KUBERAY, "MCAD": _OF_MCAD, "Kueue": {}}[source]
    settings = dict(_of_environment(variables)) if source == "KubeRay" else {}
    unused, options = [], []
    if source == "MCAD" and flags.pop("dispatcher", "").lower() == "true":
        options = ["--dispatcher", f"--agentconfigs={flags.pop('agentconfigs', '')}"]
    for name, value in flags.items():
        setting = known.get(name) or known.get(name.lower())
        if setting == "quota":
            value = "always" if value.lower() == "true" else "never"
        if setting is not None and value:
            settings[setting] = value
        elif setting is None and name.lower() not in _UNSAID:
            unused.append(f"--{name}")
    return settings, unused, options


def _of_environment(variables: dict[str, str]) -> Iterator[tuple[str, str]]:
    """KubeRay's switches, where they say something else than its defaults."""
    plain, chosen = ray.from_environment({}), ray.from_environment(variables)
    for name in ray.RaySettings.__struct_fields__:
        value: Any = getattr(chosen, name)
        if value != getattr(plain, name) and isinstance(value, bool | str | int | float):
            yield f"ray.{name}", str(value).lower() if isinstance(value, bool) else str(value)


def _flags(words: list[str]) -> Iterator[tuple[str, str]]:
    """`--name=value`, `--name value` and `--name`."""
    for number, word in enumerate(words):
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        following = words[number + 1] if number + 1 < len(words) else ""
        yield name, value if equals else following if following and not following.startswith("-") else "true"
