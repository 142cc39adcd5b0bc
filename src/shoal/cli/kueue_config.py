"""Kueue's configuration file, read as settings of ours: what has a meaning here is taken, the rest is named.

For `--kueue-config` of `shoal controller` and `shoal install`. Takes v1beta1 and v1beta2 of `config.kueue.x-k8s.io`;
a value that cannot be understood is refused with its place, never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray.go_duration import go_duration
from shoal.errors import BadInput

VERSIONS = ("config.kueue.x-k8s.io/v1beta1", "config.kueue.x-k8s.io/v1beta2")


class KueueConfig(msgspec.Struct, frozen=True):
    """`settings` as --set takes them; `unused` are the fields that have no meaning here; `qps` and `burst` as the
    options --kube-api-qps and --kube-api-burst, 0 where there is no limit."""

    settings: dict[str, str]
    unused: list[str]
    qps: float = 0.0
    burst: int = 0


def _seconds(value: Any) -> str:
    found = go_duration(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("is no duration such as 5m or 300s")
    return f"{found:g}"


def _boolean(value: Any) -> str:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return str(value).lower()


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


def _weights(value: Any) -> str:
    if not isinstance(value, dict) or not all(type(one) in (int, float) for one in value.values()):
        raise ValueError("must be numbers by resource")
    return ",".join(f"{name}={weight}" for name, weight in value.items())


def _texts(value: Any) -> str:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("must be a list of texts")
    return ",".join(value)


def _selector(value: Any) -> str:
    """A LabelSelector as the text that a setting takes."""
    parts = [f"{key}={text}" for key, text in (value.get("matchLabels") or {}).items()]
    for one in value.get("matchExpressions") or ():
        key, operator = str(one.get("key") or ""), one.get("operator")
        if operator not in _OPERATORS or not key:
            raise ValueError("has an expression without a key, or with an unknown operator")
        parts.append(_OPERATORS[operator].format(key, ",".join(map(str, one.get("values") or ()))))
    return ",".join(parts)


def _transformations(value: Any) -> str:
    """In the words of the setting. Kueue retains the input unless it is told to replace it."""
    if not isinstance(value, list) or not all(isinstance(one, dict) and one.get("input") for one in value):
        raise ValueError("must be a list of rules, each with its input")
    made = []
    for one in value:
        if one.get("strategy", "Retain") not in ("Retain", "Replace"):
            raise ValueError("has a strategy that is neither Retain nor Replace")
        outputs = {str(name): str(amount) for name, amount in (one.get("outputs") or {}).items()}
        rule = {"input": one["input"], "outputs": outputs, "replace": one.get("strategy") == "Replace"}
        made.append({**rule, "multiply_by": one.get("multiplyBy") or ""})
    return msgspec.json.encode(made).decode()


_OPERATORS = {"In": "{0} in ({1})", "NotIn": "{0} notin ({1})", "Exists": "{0}", "DoesNotExist": "!{0}"}

_TAKEN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "waitForPodsReady.timeout": ("queues.pods_ready.timeout", _seconds),
    "waitForPodsReady.recoveryTimeout": ("queues.pods_ready.recovery_timeout", _seconds),
    "waitForPodsReady.blockAdmission": ("queues.pods_ready.block_admission", _boolean),
    "waitForPodsReady.requeuingStrategy.timestamp": ("queues.pods_ready.requeue_by", _text),
    "waitForPodsReady.requeuingStrategy.backoffLimitCount": ("queues.pods_ready.backoff_limit", _number),
    "waitForPodsReady.requeuingStrategy.backoffBaseSeconds": ("queues.pods_ready.backoff_base", _number),
    "waitForPodsReady.requeuingStrategy.backoffMaxSeconds": ("queues.pods_ready.backoff_most", _number),
    "fairSharing.preemptionStrategies": ("queues.preemption_strategies", _texts),
    "admissionFairSharing.usageHalfLifeTime": ("queues.admission_fair_sharing.half_life_seconds", _seconds),
    "admissionFairSharing.usageSamplingInterval": ("queues.admission_fair_sharing.sampling_seconds", _seconds),
    "admissionFairSharing.resourceWeights": ("queues.admission_fair_sharing.resource_weights", _weights),
    "resources.excludeResourcePrefixes": ("queues.excluded_prefixes", _texts),
    "resources.transformations": ("queues.transformations", _transformations),
    "resources.quotaCheckStrategy": ("queues.quota_check_strategy", _text),
    "integrations.labelKeysToCopy": ("queues.copied_labels", _texts),
    "objectRetentionPolicies.workloads.afterFinished": ("queues.keep_finished_seconds", _seconds),
    "objectRetentionPolicies.workloads.afterDeactivatedByKueue": ("queues.keep_deactivated_seconds", _seconds),
    "metrics.localQueueMetrics.enable": ("queues.local_queue_metrics", _boolean),
    "metrics.localQueueMetrics.localQueueSelector": ("queues.local_queue_metrics_selector", _selector),
    "featureGates.PartialAdmission": ("queues.partial_admission", _boolean),
    "manageJobsWithoutQueueName": ("queues.manage_jobs_without_queue_name", _boolean),
    "managedJobsNamespaceSelector": ("queues.managed_namespaces", _selector),
    "featureGates.UnadmittedWorkloadsExplicitStatus": ("queues.explicit_status", _boolean),
    "featureGates.PriorityBoost": ("queues.priority_boost", _boolean),
    "multiKueue.workerLostTimeout": ("clusters.lost_seconds", _seconds),
    "multiKueue.dispatcherName": ("clusters.dispatcher", _text),
    "multiKueue.origin": ("clusters.origin", _text),
}
_SWITCHES = ("waitForPodsReady", "fairSharing")
"""On where they are given; v1beta1 says `enable` as well."""


def read(path: Path) -> KueueConfig:
    try:
        return parsed(path.read_bytes(), f"--kueue-config {path}")
    except OSError as error:
        raise BadInput(f"--kueue-config {path}: {error.strerror}") from None


def parsed(text: bytes, where: str) -> KueueConfig:
    """Raises BadInput, which says `where`."""
    try:
        whole = msgspec.yaml.decode(text)
    except msgspec.DecodeError as error:
        raise BadInput(f"{where}: {error}") from None
    if not isinstance(whole, dict) or whole.get("apiVersion") not in VERSIONS:
        raise BadInput(f"{where}: apiVersion must be {' or '.join(VERSIONS)}")
    given: Json = {name: value for name, value in whole.items() if name not in ("apiVersion", "kind", "metadata")}
    for name in _SWITCHES:
        if isinstance(given.get(name), dict) and given[name].get("enable") is False:
            given.pop(name)
    settings: dict[str, str] = {}
    unused: list[str] = []
    if isinstance(given.get("fairSharing"), dict):
        settings["queues.fair_sharing"] = "true"
    rate = given.pop("clientConnection", None) or {}
    frameworks = _frameworks(given, unused)
    if frameworks:
        settings["queues.frameworks"] = frameworks
    for place, value in _leaves(given):
        taken = _TAKEN.get(place)
        if taken is None:
            if place not in ("waitForPodsReady.enable", "fairSharing.enable"):
                unused.append(place)
            continue
        try:
            settings[taken[0]] = taken[1](value)
        except ValueError as error:
            raise BadInput(f"{where}: {place} {error}") from None
    try:
        qps, burst = float(rate.get("qps") or 0), int(rate.get("burst") or 0)
    except (AttributeError, TypeError, ValueError):
        raise BadInput(f"{where}: clientConnection must have numbers, qps and burst") from None
    return KueueConfig(settings, unused, max(0.0, qps), max(0, burst) if qps > 0 else 0)


def _frameworks(given: Json, unused: list[str]) -> str:
    """Those that queues know here; the others are named."""
    from shoal.controllers.queues import jobs

    integrations = given.get("integrations")
    named = integrations.pop("frameworks", None) if isinstance(integrations, dict) else None
    if not isinstance(named, list):
        return ""
    if not integrations:
        del given["integrations"]
    known = jobs.known_frameworks()
    unused += [f"integrations.frameworks {one}" for one in named if one not in known]
    return ",".join(one for one in named if one in known)


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Fields with what they hold; a list, a selector or weights are one field. One that is null was not given."""
    if isinstance(value, dict) and (value or not place) and not place.endswith(("Selector", ".resourceWeights")):
        for name, inner in value.items():
            yield from _leaves(inner, f"{place}.{name}" if place else str(name))
    elif value is not None:
        yield place, value
